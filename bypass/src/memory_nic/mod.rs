//! The memory NIC: two ends of a link in one process, without DPDK, without root, and as bad as a test needs it.
//!
//! A frame that one end sends is received by the other, as it is and at once, or lost, late, twice, out of order or
//! damaged, as [`Impairments`] say. Nothing here reads a clock or the system's randomness: a test moves a
//! [`VirtualClock`], and what happened once happens again.
//!
//! ```
//! use linerate_bypass::memory_nic::{End, Impairments, Link, LinkConfig};
//! use linerate_bypass::time::Duration;
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
//! link.clock().advance_to(b.next_arrival().expect("a frame is under way"));
//! assert_eq!(b.rx_burst(&mut received), 1);
//! ```

mod capture;
mod clock;
mod impair;
mod link;
mod nic;
mod packet;
mod pool;
mod ring;
mod wire;

pub use capture::{Frame, write_pcap};
pub use clock::VirtualClock;
pub use impair::{DropIf, ImpairmentStats, Impairments, Rate, Reordering};
pub use link::{End, Link, LinkConfig, Steering};
pub use nic::MemoryNic;
pub use packet::MemoryPacket;
