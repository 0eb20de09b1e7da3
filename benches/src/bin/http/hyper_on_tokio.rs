//! The server of `linerate http serve` on tokio: the same hyper, with the same responses, over kernel sockets.

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use linerate_http::Site;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use tokio::net::TcpListener;
use tokio::task::{LocalSet, spawn_local};

/// Serves connections to `listen` on this thread until the process is stopped.
pub fn run(listen: SocketAddr) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    LocalSet::new().block_on(&runtime, serve(listen))
}

async fn serve(listen: SocketAddr) -> io::Result<()> {
    let listener = TcpListener::bind(listen).await?;
    println!("ready http on {}, hyper on tokio", listener.local_addr()?);
    let site = Rc::new(Site::greeting());
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let site = site.clone();
        spawn_local(async move {
            let service = service_fn(move |request| std::future::ready(Ok::<_, Infallible>(site.respond(&request))));
            // A connection that fails is one that the client has ended.
            let _ =
                http1::Builder::new().header_read_timeout(None).serve_connection(TokioIo::new(stream), service).await;
        });
    }
}
