//! The API between applications and workers: [`Service`], [`Transport`], and the values that both use.
//!
//! An application implements [`Service`]: a set of event handlers for its connections. A worker implements
//! [`Transport`]: the operations that a handler calls to receive and send. The worker is the TCP stack, kernel sockets
//! or RDMA; the application is the same for all of them.
//!
//! Each worker is one thread with one `Service` value of its own. Handlers run on that thread, one at a time, to
//! completion, so a service needs neither locks nor `Send`. Both traits are generic parameters, resolved at compile
//! time: an event and an operation are direct calls.
//!
//! ```
//! use linerate_service::{ConnId, Origin, Service, Transport};
//!
//! /// Sends back the bytes of each connection, and closes a connection that its peer has closed.
//! struct Echo;
//!
//! impl Echo {
//!     fn echo(&self, net: &mut impl Transport, conn: ConnId) {
//!         // Bytes for which there is no space stay in the receive queue, until `writable`.
//!         net.forward(conn, conn);
//!     }
//! }
//!
//! impl Service for Echo {
//!     type Conn = ();
//!     type Message = ();
//!
//!     fn opened(&mut self, _net: &mut impl Transport, _conn: ConnId, _origin: Origin) {}
//!
//!     fn readable(&mut self, net: &mut impl Transport, conn: ConnId, _state: &mut ()) {
//!         self.echo(net, conn);
//!     }
//!
//!     fn writable(&mut self, net: &mut impl Transport, conn: ConnId, _state: &mut ()) {
//!         self.echo(net, conn);
//!     }
//!
//!     fn peer_closed(&mut self, net: &mut impl Transport, conn: ConnId, _state: &mut ()) {
//!         net.close(conn);
//!     }
//! }
//! ```
//!
//! | start here | for |
//! |---|---|
//! | [`Service`], [`Transport`] | applications, and the operations that workers offer them |
//! | [`Bytes`] | slices of memory that devices, workers and applications share |
//! | [`mailbox`], [`AppSender`] | messages between threads |
//! | [`ServiceHost`] | event delivery of all workers |
//! | [`ConnTable`] | connection states and events of workers over kernel sockets and RDMA |
//! | [`inspect`] | queries to a running worker |
#![warn(missing_docs)]
#![deny(unsafe_code)]

// Memory of any owner behind a table of functions, without the cost of a trait object.
#[expect(unsafe_code, reason = "the slice of a foreign owner is dereferenced")]
mod bytes;
mod conn_id;
mod event;
mod host;
pub mod inspect;
mod message;
mod one_sided;
mod service;
mod stop;
mod sync;
pub mod time;
mod transport;

pub use bytes::{Bytes, BytesQueue, Memory, OwnerVtable, VECTOR};
pub use conn_id::{ConnId, ConnIdSpace};
pub use event::{CloseReason, ConnectError, Datagram, Origin, Unsent, WriteError};
pub use host::{
    ConnSlab, ConnTable, Event, EventBatch, HostedNet, LINGER_BYTES, LINGER_LIMIT, LINGER_TIME, Lifecycle, Receiving,
    Sending, ServiceHost, Silenced, Stage, Timer, Timers, Tracked, lingering_close,
};
pub use inspect::{Summary, Verbs};
pub use message::{AppMsg, AppSender, WorkerCtx};
pub use one_sided::{OneSidedError, OneSidedOp, OneSidedResult, RemoteAddr, RemoteAddrCell};
pub use service::Service;
pub use stop::{Drain, Sleepers, Stop};
pub use sync::mailbox;
pub use transport::{Keepalive, Transport, forward_in_steps, respond_in_steps, send_written};
