//! Tests of services on a network in memory, in virtual time: without devices, threads, sockets and root.
//!
//! A [`Simulation`] joins two hosts by a link. One runs the service under test, the other a [`Peer`] that the test
//! controls, or a second service. Both are complete TCP/IP stacks. The link loses, delays, reorders and damages frames
//! as the test demands ([`Impairments`]), by a seeded generator, and time passes only while the simulation runs: every
//! run is the same. The clock advances from event to event, so a test of a timeout of hours takes milliseconds.
//!
//! ```
//! use linerate::testing::{Impairments, Simulation};
//! use linerate::time::Duration;
//! use linerate::{CloseReason, ConnId, Origin, Service, Transport};
//!
//! /// Sends back the bytes of each connection.
//! struct Echo;
//!
//! impl Service for Echo {
//!     type Conn = ();
//!     type Message = ();
//!
//!     fn opened(&mut self, _: &mut impl Transport, _: ConnId, _: Origin) {}
//!
//!     fn readable(&mut self, net: &mut impl Transport, conn: ConnId, (): &mut ()) {
//!         net.forward(conn, conn);
//!     }
//!
//!     fn peer_closed(&mut self, net: &mut impl Transport, conn: ConnId, (): &mut ()) {
//!         net.close(conn);
//!     }
//! }
//!
//! let mut sim = Simulation::new(&[7], |_ctx| Echo);
//! let delay = Duration::from_millis(20);
//! sim.impair(&Impairments { loss: 0.1, delay, ..Impairments::default() });
//! let conn = sim.connect(7);
//! sim.send(conn, b"hello");
//! assert_eq!(sim.receive(conn, 5), b"hello");
//! assert!(sim.now().as_micros() >= 80_000, "two round trips");
//! sim.close(conn);
//! sim.run_until(|sim| sim.close_reason(conn) == Some(CloseReason::Finished));
//! ```

mod peer;
mod simulation;

pub use linerate_bypass::memory_nic::{DropIf, ImpairmentStats, Impairments, Rate, Reordering};
pub use peer::{Peer, PeerConn};
pub use simulation::{PEER_IP, SERVICE_IP, Simulation, TIME_LIMIT};
