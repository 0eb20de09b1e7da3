//! Echo server on tokio, which has nothing of this project: `linerate run` carries its sockets over the stack.
//!
//! ```console
//! # linerate run --via af_xdp:eth0,share -- target/debug/examples/tokio_echo 0.0.0.0:7
//! ```

use tokio::io::copy;
use tokio::net::TcpListener;

fn main() -> std::io::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7".to_owned());
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_io().build()?.block_on(async {
        let listener = TcpListener::bind(address).await?;
        loop {
            let (mut connection, _) = listener.accept().await?;
            tokio::spawn(async move {
                let (mut received, mut sent) = connection.split();
                copy(&mut received, &mut sent).await
            });
        }
    })
}
