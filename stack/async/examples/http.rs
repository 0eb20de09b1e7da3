//! HTTP/1.1 server of hyper on a worker over kernel sockets.
//!
//! `GET /` returns a greeting, and `POST /echo` the body of the request.

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use linerate_async::{AsyncService, HyperTimer, TcpListener, draining, spawn};
use linerate_bypass::{Stop, WorkerCtx};
use linerate_kernel::{Config, Worker, bind};
use std::cell::Cell;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;

/// Returns the response to a request. State of the worker is in an `Rc`: a handler need not be `Send`.
async fn reply(request: Request<Incoming>, requests: Rc<Cell<u64>>) -> hyper::Result<Response<Full<Bytes>>> {
    requests.set(requests.get() + 1);
    let (status, body) = match (request.method(), request.uri().path()) {
        (&Method::GET, "/") => (StatusCode::OK, Bytes::from(format!("hello {}\n", requests.get()))),
        (&Method::POST, "/echo") => (StatusCode::OK, request.into_body().collect().await?.to_bytes()),
        _ => (StatusCode::NOT_FOUND, Bytes::new()),
    };
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    Ok(response)
}

/// Serves the connections of a worker to `address`.
pub async fn serve(address: SocketAddr) {
    let mut listener = TcpListener::bind(address).expect("the first listener of the address");
    let requests = Rc::new(Cell::new(0));
    loop {
        let (stream, peer) = listener.accept().await;
        let requests = requests.clone();
        let service = service_fn(move |request| reply(request, requests.clone()));
        spawn(async move {
            let mut connection = pin!(http1::Builder::new().timer(HyperTimer).serve_connection(stream, service));
            // While the worker drains, the current request is the last one of its connection.
            let mut draining = pin!(draining());
            let mut is_draining = false;
            let served = std::future::poll_fn(|cx| {
                if !is_draining && draining.as_mut().poll(cx).is_ready() {
                    is_draining = true;
                    connection.as_mut().graceful_shutdown();
                }
                connection.as_mut().poll(cx)
            });
            if let Err(error) = served.await {
                eprintln!("{peer}: {error}");
            }
        });
    }
}

/// Runs one worker on `sockets` until `stop`.
pub fn run(config: &Config, stop: Stop, ready: impl FnOnce(SocketAddr)) -> Result<(), linerate_kernel::Error> {
    let (app_sender, mut sockets) = bind(config, 1)?;
    let sockets = sockets.remove(0);
    let address = sockets.tcp_addrs()[0];
    let ctx = WorkerCtx { worker: 0, workers: 1, app_sender };
    let service = AsyncService::new(ctx, move || serve(address)).with_stop(stop.clone());
    ready(address);
    Worker::new(sockets, service).run(&stop);
    Ok(())
}

#[allow(dead_code, reason = "the test of this example calls `run`")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let listen = std::env::args().nth(1).unwrap_or("127.0.0.1:8080".into()).parse()?;
    let config = Config { listen: vec![listen], ..Config::default() };
    run(&config, Stop::default(), |address| println!("http://{address}/"))?;
    Ok(())
}
