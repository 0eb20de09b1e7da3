//! The server of the example `http` over TLS by tokio-rustls: `https CERTIFICATE KEY`, files in the PEM format.

#[allow(dead_code, reason = "its main function and its listener are not called")]
pub mod http;

use hyper_util::rt::TokioIo;
use linerate::tasks::{TcpListener, TcpStream, spawn, timeout};
use linerate::{Network, Stop};
use std::cell::Cell;
use std::error::Error;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ServerConfig};

/// Time limit of a handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Returns the configuration of a server with this certificate chain and its key.
pub fn acceptor(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<TlsAcceptor, rustls::Error> {
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()));
    let config = config.with_safe_default_protocol_versions()?.with_no_client_auth();
    Ok(Arc::new(config.with_single_cert(chain, key)?).into())
}

async fn converse(acceptor: TlsAcceptor, stream: TcpStream, requests: Rc<Cell<u64>>) -> Result<(), Box<dyn Error>> {
    let stream = timeout(HANDSHAKE, acceptor.accept(stream)).await??;
    // `TokioIo` of hyper-util passes the traits of tokio, which the TLS stream has, to those of hyper.
    Ok(http::converse(TokioIo::new(stream), requests).await?)
}

/// Serves the connections of a worker to `address`.
pub async fn serve(acceptor: TlsAcceptor, address: SocketAddr) {
    let mut listener = TcpListener::bind(address).expect("the first listener of the address");
    let requests = Rc::new(Cell::new(0));
    while let Ok((stream, peer)) = listener.accept().await {
        let (acceptor, requests) = (acceptor.clone(), requests.clone());
        spawn(async move {
            if let Err(error) = converse(acceptor, stream, requests).await {
                eprintln!("{peer}: {error}");
            }
        });
    }
}

#[allow(dead_code, reason = "the test of this example calls `serve`")]
fn main() -> Result<(), Box<dyn Error>> {
    let files: Vec<String> = std::env::args().skip(1).collect();
    let [chain, key] = &files[..] else { return Err("give the files of a certificate and a key".into()) };
    let chain = CertificateDer::pem_file_iter(chain)?.collect::<Result<_, _>>()?;
    let acceptor = acceptor(chain, PrivateKeyDer::from_pem_file(key)?)?;
    let stop = Stop::default();
    let network = Network::builder().listen("127.0.0.1:8443".parse()?);
    let (address, running) = http::start(network, &stop, move |address| serve(acceptor.clone(), address))?;
    println!("https://{address}/");
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    http::finish(running, &stop, Duration::from_secs(10))?;
    Ok(())
}
