//! Past the kernel: frames, shared memory and services, without any knowledge of protocols.
//!
//! - [`Nic`] and [`Packet`]: one queue pair of a port and the frames it moves. [`memory_nic`] has a port without a
//!   device, for tests.
//! - [`Arena`], [`Bytes`] and [`mailbox`]: the memory that devices and applications share, and the queue between
//!   threads. [`Published`]: memory that peers of a device read while it is written; [`RemoteCounters`]: numbers that
//!   they count with.
//! - [`Service`] and [`Transport`]: an application, and the worker that carries its bytes. [`inspect`]: a look into a
//!   worker.

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
mod service;
mod sync;
pub mod time;

pub use arena::Arena;
pub use bytes::{Buffer, BufferPool, Bytes, BytesQueue, Memory, OwnerVtable, VECTOR};
pub use inspect::{Summary, Verbs, tcp_info};
pub use nic::{BURST, Capabilities, ChecksumOffload, InvalidMac, MacAddr, Nic, QueueStats, capture};
pub use nic::{InvalidVia, L4, Packet, RxChecksum, RxInfo, TxOffload, VLAN_TAG, Via};
pub use one_sided::{OneSidedError, OneSidedOp, OneSidedResult, Published, RemoteAddr, RemoteAddrCell, RemoteCounters};
pub use prefetch::{prefetch, prefetch_slice, prefetch_whole};
pub use process::{CpuTime, raise_open_files};
pub use service::{
    AppMsg, AppSender, CloseReason, ConnId, ConnIdSpace, ConnSlab, ConnectError, Datagram, Drain, LINGER_BYTES,
    LINGER_LIMIT, LINGER_TIME, Linger, Origin, Service, Stop, Timer, Timers, Transport, WorkerCtx, respond_in_steps,
};
pub use sync::mailbox;
