//! HTTP/1.1 server of hyper. It ends when its standard input ends, after its last connection.
//!
//! `GET /` returns a greeting, and `POST /echo` the body of the request.

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::rt::{Read, Write};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use linerate::tasks::{AsyncService, HyperTimer, TcpListener, draining, spawn};
use linerate::{Error, Network, NetworkBuilder, Running, Stop};
use std::cell::Cell;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

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

/// Serves one connection.
pub async fn converse(stream: impl Read + Write + Unpin + 'static, requests: Rc<Cell<u64>>) -> hyper::Result<()> {
    let service = service_fn(move |request| reply(request, requests.clone()));
    let mut connection = pin!(http1::Builder::new().timer(HyperTimer).serve_connection(stream, service));
    // While the worker drains, the current request is the last one of its connection.
    let (mut draining, mut is_draining) = (pin!(draining()), false);
    std::future::poll_fn(|cx| {
        if !is_draining && draining.as_mut().poll(cx).is_ready() {
            is_draining = true;
            connection.as_mut().graceful_shutdown();
        }
        connection.as_mut().poll(cx)
    })
    .await
}

/// Serves the connections of a worker to `address`.
pub async fn serve(address: SocketAddr) {
    let mut listener = TcpListener::bind(address).expect("the first listener of the address");
    let requests = Rc::new(Cell::new(0));
    while let Ok((stream, peer)) = listener.accept().await {
        let requests = requests.clone();
        spawn(async move {
            if let Err(error) = converse(stream, requests).await {
                eprintln!("{peer}: {error}");
            }
        });
    }
}

/// Starts the workers of `network`, each with a task of `serve`. Returns the address at which they listen.
pub fn start<F: Future<Output = ()> + 'static>(
    network: NetworkBuilder,
    stop: &Stop,
    serve: impl Fn(SocketAddr) -> F + Clone + Send + Sync + 'static,
) -> Result<(SocketAddr, Running<()>), Error> {
    let network = network.build()?;
    let address = network.listening()[0];
    let draining = stop.clone();
    let make = move |ctx| {
        let serve = serve.clone();
        AsyncService::new(ctx, move || serve(address)).with_stop(draining.clone())
    };
    // `AsyncService` is not `Send`: the second closure makes a result of each on its thread, here nothing.
    Ok((address, network.start_local(make, |_| (), stop.clone())?))
}

/// Refuses new connections, gives the others `limit` to end, and ends the workers.
pub fn finish(running: Running<()>, stop: &Stop, limit: Duration) -> Result<(), Error> {
    stop.drain();
    let started = Instant::now();
    // `None` until all workers have stopped listening.
    while stop.remaining() != Some(0) && started.elapsed() < limit {
        std::thread::sleep(Duration::from_millis(10));
    }
    stop.stop();
    running.join().map(|_| ())
}

#[allow(dead_code, reason = "the example `https` uses the rest")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let listen = std::env::args().nth(1).unwrap_or("127.0.0.1:8080".into()).parse()?;
    let stop = Stop::default();
    let (address, running) = start(Network::builder().listen(listen), &stop, serve)?;
    println!("http://{address}/");
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    finish(running, &stop, Duration::from_secs(10))?;
    Ok(())
}
