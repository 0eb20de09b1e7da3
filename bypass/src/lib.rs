//! Past the kernel: frames, shared memory and services, without any knowledge of protocols.
//!
//! - [`Nic`] and [`Packet`]: one queue pair of a port and the frames it moves. [`memory`] has a port without a
//!   device, for tests.
//! - [`Arena`], [`Bytes`] and [`mailbox`]: the memory that devices and applications share, and the queue between threads.
//!   [`Published`]: memory that peers of a device read while it is written; [`Counters`]: numbers that they count with.
//! - [`Service`] and [`Transport`]: an application, and the worker that carries its bytes. [`inspect`]: a look into a worker.

pub mod arena;
mod blocks;
mod bytes;
mod bytes_queue;
pub mod capture;
mod counters;
mod cpu;
#[cfg(feature = "dpdk")]
pub mod dpdk;
mod free_list;
pub mod inspect;
mod linger;
pub mod mailbox;
pub mod memory;
mod nic;
mod open_files;
mod packet;
mod prefetch;
mod published;
mod refcount;
mod remote;
mod service;
mod sleep_flag;
mod slots;
mod stop;
mod summary;
mod sync;
mod tcp_info;
pub mod time;
mod timers;
mod via;

pub use arena::Arena;
pub use blocks::{Block, BlockPool};
pub use bytes::{Bytes, Memory, Owner};
pub use bytes_queue::{BytesQueue, VECTOR};
pub use counters::Counters;
pub use cpu::CpuTime;
pub use linger::{LINGER_BYTES, LINGER_LIMIT, LINGER_TIME, Linger};
pub use nic::{BURST, Capabilities, ChecksumOffload, InvalidMac, MacAddr, Nic, QueueStats};
pub use open_files::raise_open_files;
pub use packet::{L4, Packet, RxChecksum, RxInfo, TxOffload, VLAN_TAG};
pub use prefetch::{prefetch, prefetch_slice, prefetch_whole};
pub use published::Published;
pub use remote::{LaterPlace, NoRemote, Remote, RemoteDone, RemotePlace};
pub use service::{
    CloseReason, ConnId, ConnectError, Datagram, Letter, Names, Origin, Postbox, Seat, Service, Transport,
    answer_in_steps,
};
pub use slots::Slots;
pub use stop::{Drain, Stop};
pub use summary::{Summary, Verbs};
pub use tcp_info::tcp_info;
pub use timers::{Timer, Timers};
pub use via::{InvalidVia, Via};
