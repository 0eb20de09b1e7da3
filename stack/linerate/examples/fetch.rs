//! HTTP/1.1 client of hyper.
//!
//! `linerate http serve --dir .`, and from another shell
//! `cargo run -p linerate --example fetch -- 127.0.0.1:8080 /README.md`.

use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Request, StatusCode, header};
use linerate::tasks::{AsyncService, TcpStream, spawn};
use linerate::{Network, NetworkBuilder, Stop};
use std::error::Error;
use std::net::SocketAddr;
use std::sync::mpsc::channel;

/// Status and body of a response.
pub type Reply = (StatusCode, Bytes);

/// Gets `paths` from `server` in sequence, on one connection.
async fn fetch(server: SocketAddr, paths: &[String]) -> Result<Vec<Reply>, Box<dyn Error>> {
    let stream = TcpStream::connect(server).await?;
    let (mut sender, connection) = http1::handshake(stream).await?;
    let connection = spawn(connection);
    let mut replies = Vec::new();
    for path in paths {
        let request = Request::get(path).header(header::HOST, server.to_string()).body(Empty::<Bytes>::new())?;
        let response = sender.send_request(request).await?;
        replies.push((response.status(), response.into_body().collect().await?.to_bytes()));
    }
    drop(sender);
    connection.await??;
    Ok(replies)
}

/// Gets `paths` from `server` over a network of one worker.
pub fn run(network: NetworkBuilder, server: SocketAddr, paths: Vec<String>) -> Result<Vec<Reply>, Box<dyn Error>> {
    let stop = Stop::default();
    let (sender, receiver) = channel();
    let make = move |ctx| {
        let (paths, sender) = (paths.clone(), sender.clone());
        AsyncService::new(ctx, move || async move {
            // An error of hyper or of a connection cannot be sent to another thread.
            let _ = sender.send(fetch(server, &paths).await.map_err(|error| error.to_string()));
        })
    };
    let running = network.build()?.start_local(make, |_| (), stop.clone())?;
    let replies = receiver.recv()?;
    stop.stop();
    running.join()?;
    Ok(replies?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let server = args.next().ok_or("the address of a server is missing, such as 127.0.0.1:8080")?.parse()?;
    for (status, body) in run(Network::builder(), server, args.collect())? {
        println!("{status}, {} bytes", body.len());
    }
    Ok(())
}
