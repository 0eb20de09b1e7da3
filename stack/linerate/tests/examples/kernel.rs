//! Examples over kernel sockets, in this process.

use crate::echo::Echo;
use crate::lines::Sum;
use crate::pool::{Pool, Request};
use linerate::{Network, NetworkBuilder, Service, Stop, ThreadingMode, WorkerCtx};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::mpsc::channel;

/// Runs a service on a free port while `client` runs with its address.
fn serve<S: Service + Send + 'static>(
    builder: NetworkBuilder,
    make: impl Fn(WorkerCtx<S::Message>) -> S + Send + Sync + 'static,
    client: impl FnOnce(SocketAddr),
) {
    let stop = Stop::default();
    let network = builder.listen("127.0.0.1:0".parse().unwrap()).build().unwrap();
    let address = network.listening()[0];
    let running = network.start(make, stop.clone()).unwrap();
    assert!(running.await_ready());
    client(address);
    stop.stop();
    running.join().unwrap();
}

fn exchange(address: SocketAddr, request: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).unwrap();
    reply
}

#[test]
fn service_runs_inline_and_on_its_own_thread() {
    for threading in [ThreadingMode::Inline, ThreadingMode::Split] {
        serve(
            Network::builder().threading(threading),
            |_| Echo,
            |address| {
                assert_eq!(exchange(address, b"hello"), b"hello");
            },
        );
    }
}

#[test]
fn pool_is_a_client_of_the_line_protocol() {
    serve(
        Network::builder(),
        |_| Sum,
        |server| {
            let (senders, sender) = channel();
            let make = move |ctx: WorkerCtx<Request>| {
                senders.send(ctx.app_sender).unwrap();
                Pool::new(server)
            };
            let stop = Stop::default();
            let running = Network::builder().build().unwrap().start(make, stop.clone()).unwrap();
            let (reply, replies) = channel();
            let sender = sender.recv().unwrap();
            assert!(sender.send_to_worker(0, Request { line: "5\n".to_owned(), reply }).is_ok());
            assert_eq!(replies.recv().unwrap(), Ok("5\n".to_owned()));
            stop.stop();
            running.join().unwrap();
        },
    );
}

#[test]
fn run_ends_on_request_and_returns_the_counters() {
    let stop = Stop::default();
    let builder = Network::builder().listen("127.0.0.1:0".parse().unwrap()).stop(stop.clone());
    let network = builder.build().unwrap();
    let address = network.listening()[0];
    let client = std::thread::spawn(move || {
        let reply = exchange(address, b"1\n2\n");
        stop.stop();
        reply
    });
    let summary = network.run(|_| Sum).unwrap();
    assert_eq!(client.join().unwrap(), b"1\n3\n");
    assert_eq!((summary.accepted, summary.rx_bytes), (1, 4));
}
