//! Kernel bypass: network ports, device memory, and the API between applications and workers. Knows no protocols.
//!
//! | start here | for |
//! |---|---|
//! | [`Service`], [`Transport`] | applications, and the operations that workers offer them |
//! | [`Nic`], [`Packet`] | queue pairs of ports, and frames; [`memory_nic`] is a port without a device, for tests |
//! | [`Arena`], [`Bytes`] | memory shared by devices and applications, and slices of it |
//! | [`mailbox`] | queue between threads |
//! | [`Published`], [`RemoteCounters`] | one-sided access: memory that peers read, counters that peers change |
//! | [`inspect`] | queries to a running worker |

pub mod arena;
mod bytes;
#[cfg(feature = "dpdk")]
pub mod dpdk;
pub mod inspect;
pub mod memory_nic;
mod nic;
mod one_sided;
mod prefetch;
mod process;
#[cfg(feature = "dpdk")]
pub mod rtnetlink;
mod service;
mod sync;
pub mod time;
#[cfg(feature = "dpdk")]
mod xdp;

pub use arena::Arena;
pub use bytes::{Buffer, BufferPool, Bytes, BytesQueue, Memory, OwnerVtable, VECTOR};
pub use inspect::{Summary, Verbs, tcp_info};
pub use nic::{BURST, Capabilities, ChecksumOffload, InvalidMac, MacAddr, Nic, QueueStats, capture};
pub use nic::{InvalidVia, L4, Packet, RxChecksum, RxInfo, TxOffload, VLAN_TAG, Via};
pub use one_sided::{OneSidedError, OneSidedOp, OneSidedResult, Published, RemoteAddr, RemoteAddrCell, RemoteCounters};
pub use prefetch::{prefetch, prefetch_slice, prefetch_whole};
pub use process::{CpuTime, raise_open_files, trim_heap};
pub use service::{
    AppMsg, AppSender, CloseReason, ConnId, ConnIdSpace, ConnSlab, ConnTable, ConnectError, Datagram, Drain, HostedNet,
    LINGER_BYTES, LINGER_LIMIT, LINGER_TIME, Lifecycle, Linger, Origin, Receiving, Sending, Service, ServiceHost,
    Stage, Stop, Timer, Timers, Tracked, Transport, WorkerCtx, respond_in_steps, send_written,
};
pub use sync::mailbox;
pub use sync::shared_cache::{CacheEntry, CacheUsage, CacheWriter, SharedCache};
pub use sync::waker::Waker;
