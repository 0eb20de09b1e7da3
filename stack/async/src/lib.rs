//! Services written with async/await, on any transport.
//!
//! [`AsyncService`] is a [`Service`](linerate_service::Service) that runs tasks on its worker, within the events that
//! wake them. Tasks stay on their worker, so they need not be `Send`, and share values through `Rc` and `Cell`. A task
//! must not block: all connections of the worker wait for it.
//!
//! ```
//! use linerate_async::{AsyncService, TcpListener, spawn};
//! use linerate_service::WorkerCtx;
//! use linerate_kernel::{Config, Worker, bind};
//!
//! async fn serve(address: std::net::SocketAddr) -> std::io::Result<()> {
//!     let mut listener = TcpListener::bind(address)?;
//!     loop {
//!         let (mut stream, _peer) = listener.accept().await?;
//!         spawn(async move {
//!             loop {
//!                 let bytes = stream.read_bytes().await?;
//!                 if bytes.is_empty() {
//!                     return std::io::Result::Ok(());
//!                 }
//!                 stream.write_bytes(bytes).await?;
//!             }
//!         });
//!     }
//! }
//!
//! let config = Config { listen: vec!["127.0.0.1:0".parse()?], ..Config::default() };
//! let (app_sender, mut sockets) = bind(&config, 1)?;
//! let sockets = sockets.remove(0);
//! let address = sockets.tcp_addrs()[0];
//! let ctx = WorkerCtx { worker: 0, workers: 1, app_sender };
//! let service = AsyncService::new(ctx, move || async move { serve(address).await.expect("free address") });
//! // On its own thread: `Worker::new(sockets, service).run(&stop)`.
//! let mut worker = Worker::new(sockets, service);
//! worker.turn(std::time::Duration::ZERO);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Order and fairness
//!
//! Tasks run in the order in which they were woken. After one event, at most 64 polls take place; a task completes at
//! most 128 operations in one poll and then yields; a task that wakes itself runs in the next turn. So a task that
//! always has something to do delays the others by a bounded number of operations.
//!
//! # Panics
//!
//! A task that panics ends. The connections whose streams it holds are reset; all others go on. A program built with
//! `panic = "abort"` ends.
//!
//! # Features
//!
//! | feature | contents |
//! |---|---|
//! | `tokio` | `AsyncRead`, `AsyncBufRead` and `AsyncWrite` of tokio. Its runtime does not run here. |
//! | `futures` | `AsyncRead`, `AsyncBufRead` and `AsyncWrite` of futures-io |
//! | `hyper` | `Read`, `Write`, `Timer` and `Executor` of hyper 1 |
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod conn;
mod context;
mod executor;
mod io;
mod registry;
mod service;
mod short_reads;
mod task;
mod tcp;
mod time;
mod timers;
mod udp;
mod waiter;
mod wake;

pub use conn::{ConnError, ConnErrorReason};
#[cfg(feature = "hyper")]
pub use io::hyper::{HyperExecutor, HyperTimer};
pub use service::{AsyncConn, AsyncService};
pub use task::{Draining, JoinError, JoinHandle, draining, spawn, yield_now};
pub use tcp::{OwnedReadHalf, OwnedWriteHalf, TcpListener, TcpStream};
pub use time::{Elapsed, Sleep, now, sleep, sleep_until, timeout};
pub use udp::UdpSocket;
pub use wake::Woken;
