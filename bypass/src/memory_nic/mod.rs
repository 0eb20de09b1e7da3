//! In-memory NIC: a link between two ends in one process, without DPDK and root, with impairments for tests.
//!
//! A frame that one end sends is received by the other: unchanged and at once, or lost, delayed, duplicated, reordered
//! or damaged, according to [`Impairments`]. The module reads neither a clock nor the system's random generator. A test
//! advances a [`VirtualClock`], so every run is reproducible.
//!
//! ```
//! use linerate_bypass::memory_nic::{End, Impairments, Link, LinkConfig};
//! use linerate_service::time::Duration;
//! use linerate_bypass::{Nic, Packet};
//!
//! let (mut a, mut b) = Link::pair(LinkConfig::default());
//! let link = a.link().clone();
//! link.impair(End::A, Impairments { delay: Duration::from_millis(5), ..Impairments::default() });
//!
//! let mut frame = a.allocate().expect("a fresh pool is full");
//! frame.append(60).expect("a fresh packet has room").fill(0);
//! assert_eq!(a.tx_burst(&mut vec![frame]), 1);
//!
//! let mut received = Vec::with_capacity(32);
//! assert_eq!(b.rx_burst(&mut received), 0);
//! link.clock().advance_to(b.next_arrival().expect("a frame is in flight"));
//! assert_eq!(b.rx_burst(&mut received), 1);
//! ```

mod clock;
mod impair;
mod link;
mod nic;
mod packet;
mod ring;
mod wire;

pub use clock::VirtualClock;
pub use impair::{DropIf, ImpairmentStats, Impairments, Rate, Reordering};
pub use link::{End, Frame, Link, LinkConfig, Steering};
pub use nic::MemoryNic;
pub use packet::MemoryPacket;
