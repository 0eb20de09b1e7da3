//! Kernel bypass: network ports and device memory, without protocol knowledge.
//!
//! | start here | for |
//! |---|---|
//! | [`Nic`], [`Packet`] | queue pairs of ports, and frames; [`memory_nic`] is a port without a device, for tests |
//! | [`Arena`] | memory shared by devices and applications |
//! | [`Published`], [`RemoteCounters`] | one-sided access: memory that peers read, counters that peers change |
#![warn(missing_docs)]

pub mod arena;
mod buffer_pool;
#[cfg(feature = "dpdk")]
pub mod dpdk;
pub mod memory_nic;
mod nic;
mod one_sided;
mod prefetch;
mod process;
#[cfg(feature = "dpdk")]
pub mod rtnetlink;
mod sync;
mod tcp_info;
#[cfg(feature = "dpdk")]
mod xdp;

pub use arena::Arena;
pub use buffer_pool::{Buffer, BufferPool};
pub use nic::{BURST, Capabilities, ChecksumOffload, InvalidMac, MacAddr, Nic, QueueStats, capture, pcapng};
pub use nic::{InvalidVia, L4, Packet, RxChecksum, RxInfo, TxOffload, VLAN_TAG, Via};
pub use one_sided::{Published, RemoteCounters};
pub use prefetch::{prefetch, prefetch_slice, prefetch_whole};
pub use process::{CpuTime, raise_open_files, trim_heap};
pub use sync::sleeper::Sleeper;
pub use sync::waker::Waker;
pub use tcp_info::tcp_info;
