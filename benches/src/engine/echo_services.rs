//! Services that send requests back.

use crate::client::MAX_SEGMENT;
use linerate_async::{AsyncService, TcpListener, TcpStream, Woken, spawn};
use linerate_load::services;
use linerate_service::{ConnId, Origin, Service, Transport, WorkerCtx};
use std::convert::Infallible;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Way to send requests back.
pub trait EchoService {
    /// Service of a worker.
    type Service: Service;

    /// Creates the service of a worker that listens at `address`.
    fn create(ctx: WorkerCtx<<Self::Service as Service>::Message>, address: SocketAddr) -> Self::Service;
}

/// Forwards the received packets, by callbacks.
#[derive(Debug)]
pub struct Forward;

/// Reads a request and writes the same bytes, by callbacks, like services with their own answers.
#[derive(Debug)]
pub struct Write;

/// Forwards the received packets, by a task for each connection.
#[derive(Debug)]
pub struct AsyncForward;

/// Copies a request through a buffer, by a task for each connection and the traits of tokio.
#[derive(Debug)]
pub struct AsyncCopy;

impl EchoService for Forward {
    type Service = services::Echo;

    fn create(_: WorkerCtx<Infallible>, _: SocketAddr) -> services::Echo {
        services::Echo
    }
}

impl EchoService for Write {
    type Service = Writer;

    fn create(_: WorkerCtx<Infallible>, _: SocketAddr) -> Writer {
        Writer { buffer: [0; MAX_SEGMENT] }
    }
}

impl EchoService for AsyncForward {
    type Service = AsyncService;

    fn create(ctx: WorkerCtx<Woken>, address: SocketAddr) -> AsyncService {
        AsyncService::new(ctx, move || serve(address, forward))
    }
}

impl EchoService for AsyncCopy {
    type Service = AsyncService;

    fn create(ctx: WorkerCtx<Woken>, address: SocketAddr) -> AsyncService {
        AsyncService::new(ctx, move || serve(address, copy))
    }
}

/// Service of [`Write`].
pub struct Writer {
    buffer: [u8; MAX_SEGMENT],
}

impl Service for Writer {
    type Conn = ();
    type Message = Infallible;

    fn opened(&mut self, _: &mut impl Transport, _: ConnId, _: Origin) {}

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, _: &mut ()) {
        loop {
            let chunk = net.peek(conn);
            if chunk.is_empty() {
                break;
            }
            let n = chunk.len().min(self.buffer.len());
            let answer = &mut self.buffer[..n];
            answer.copy_from_slice(&chunk[..n]);
            if !net.respond(conn, n, n, |out| out.copy_from_slice(answer)) {
                net.write(conn, answer);
            }
        }
    }
}

async fn serve<F: Future<Output = ()> + 'static>(address: SocketAddr, echo: fn(TcpStream) -> F) {
    let mut listener = TcpListener::bind(address).expect("the only listener of the address");
    while let Ok((stream, _)) = listener.accept().await {
        spawn(echo(stream));
    }
}

async fn forward(mut stream: TcpStream) {
    while let Ok(bytes) = stream.read_bytes().await
        && !bytes.is_empty()
        && stream.write_bytes(bytes).await.is_ok()
    {}
}

async fn copy(mut stream: TcpStream) {
    let mut buffer = [0; MAX_SEGMENT];
    while let Ok(n) = AsyncReadExt::read(&mut stream, &mut buffer).await
        && n > 0
        && AsyncWriteExt::write_all(&mut stream, &buffer[..n]).await.is_ok()
    {}
}
