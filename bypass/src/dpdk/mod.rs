//! DPDK: EAL, ports, packets and their memory.
//!
//! [`Eal`] is started once per process. A [`Port`] is the network that a [`Via`](crate::Via) names: one or more
//! ethdevs, configured from their capabilities. Its [`QueuePair`]s are the [`Nic`](crate::Nic)s that workers poll. Its
//! packets are [`Mbuf`]s of a [`Mempool`].
//!
//! ```no_run
//! use linerate_bypass::dpdk::{Eal, EalConfig, Port, PortConfig};
//! use linerate_bypass::{Nic, Via};
//! let via: Via = "tap:lr0".parse()?;
//! let eal = Eal::start(&EalConfig::for_via(&via, Vec::new()))?;
//! let port = Port::open(&eal, &via, PortConfig::default())?;
//! let mut queue = port.take_queues().remove(0);
//! let _thread = eal.register_thread()?;
//! let mut frames = Vec::with_capacity(32);
//! loop {
//!     queue.rx_burst(&mut frames);
//!     // Frames that do not fit are sent with the next burst.
//!     queue.tx_burst(&mut frames);
//!     # break;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[cfg(doctest)]
mod compile_fail;
mod eal;
mod log;
mod mbuf;
mod mbuf_fields;
mod port;

pub use crate::xdp::{Endpoints, SharedInterface};
pub use eal::region::ReserveError;
pub use eal::{Backing, Eal, EalConfig, EalError, Hugepages, Pci, ThreadGuard, TooManyThreads};
pub use mbuf::Mbuf;
pub use mbuf::mempool::{Mempool, MempoolConfig, MempoolError};
pub use port::error::OpenError;
pub use port::interface::has_lro;
pub use port::port_lock::PortLock;
pub use port::queue_pair::QueuePair;
pub use port::state::{PortFailed, PortState};
pub use port::xdp_interface::XdpInterface;
pub use port::{Drops, Port, PortConfig};
