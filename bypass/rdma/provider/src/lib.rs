//! Calls of libibverbs and librdmacm that the RDMA adapter makes, with their parameter and result types.
//!
//! [`Provider`] separates the adapter from its implementations: rdma-core (`linerate_rdma::rdma_core`), and RoCEv2 in
//! software (`linerate-roce`), with which the adapter is also tested without hardware. States and errors are those of
//! the InfiniBand Architecture Specification, volume 1, chapters 10 and 11, and of the manual pages `ibv_*(3)` and
//! `rdma_*(3)`.
#![warn(missing_docs)]

mod cm;
mod device;
mod objects;
mod streams;
mod work;

pub use cm::{CmConnParam, CmEvent, CmEventKind, PrivateData};
pub use device::{
    AsyncEvent, AtomicCap, DeviceLimits, Gid, GidKind, LinkLayer, Mtu, PacketCounts, Port, PortState, TransportKind,
};
pub use objects::{
    Access, AhAttr, Handle, Keys, PathOptions, QpAttr, QpCap, QpInitAttr, QpOptions, QpState, Retry, SrqInitAttr,
    Transition,
};
pub use streams::{Keepalive, StreamEvent, Streams};
pub use work::{GRH_LEN, Operation, PostError, RecvWr, SendFlags, SendWr, Sge, WcOpcode, WcStatus, WorkCompletion};

use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::Arc;

/// Open device: its verbs, and the connection manager over it.
///
/// Handles are plain values. The caller upholds the rules that the safe layer (`linerate_rdma::verbs`) enforces: a
/// handle is used only with the device that created it and not after its object is destroyed, and no object is
/// destroyed while another depends on it (a device returns `EBUSY` where it detects that).
///
/// # Safety
/// An implementation accesses only the memory that outstanding work requests name, and only within registered regions.
pub unsafe trait Provider: Send + Sync + 'static {
    /// Returns the device name, such as `rxe0`.
    fn name(&self) -> &str;

    /// Returns the driver, such as `rxe`, if the device is known to be emulated in software.
    fn emulated_by(&self) -> Option<&str>;

    /// Returns the device attributes (`ibv_query_device`).
    fn limits(&self) -> io::Result<DeviceLimits>;

    /// Returns the attributes of a port, counted from 1 (`ibv_query_port`).
    fn port(&self, port: u8) -> io::Result<Port>;

    /// Returns the GID table of a port (`ibv_query_gid_table`).
    fn gids(&self, port: u8) -> io::Result<Vec<Gid>>;

    /// Returns the non-blocking file descriptor that is readable while an [`async_event`](Self::async_event) is
    /// pending.
    fn async_fd(&self) -> RawFd;

    /// Returns whether the device receives and sends only within [`progress`](Self::progress), as one in software
    /// without a thread of its own.
    fn needs_progress(&self) -> bool {
        false
    }

    /// Receives and sends the packets of such a device. Each worker calls it once per turn.
    fn progress(&self) {}

    /// Returns the counts of packets, if the device reports them.
    fn packet_counts(&self) -> Option<PacketCounts> {
        None
    }

    /// Opens the TCP of the device's addresses. Returns `None` if it is the kernel's.
    fn streams(self: &Arc<Self>) -> io::Result<Option<Box<dyn Streams>>> {
        Ok(None)
    }

    /// Takes and acknowledges the next asynchronous event, if any (`ibv_get_async_event`).
    fn async_event(&self) -> io::Result<Option<AsyncEvent>>;

    /// Allocates a protection domain (`ibv_alloc_pd`).
    fn alloc_pd(&self) -> io::Result<Handle>;

    /// Deallocates a protection domain or parent domain (`ibv_dealloc_pd`).
    ///
    /// # Safety
    /// The protection domain is live and is not used again.
    unsafe fn dealloc_pd(&self, pd: Handle) -> io::Result<()>;

    /// Allocates a thread domain, if the driver has them (`ibv_alloc_td`).
    fn alloc_td(&self) -> io::Result<Handle>;

    /// Deallocates a thread domain (`ibv_dealloc_td`).
    ///
    /// # Safety
    /// The thread domain is live and is not used again.
    unsafe fn dealloc_td(&self, td: Handle) -> io::Result<()>;

    /// Allocates a parent domain of a protection domain and a thread domain (`ibv_alloc_parent_domain`). It takes the
    /// place of the protection domain in other calls, and is deallocated by [`dealloc_pd`](Self::dealloc_pd).
    ///
    /// Drivers omit locks for queue pairs that are created there: the caller uses each such queue pair from one thread
    /// at a time, and sends on all queue pairs of one thread domain from one thread at a time.
    ///
    /// # Safety
    /// Both domains are live, and `pd` is not a parent domain.
    unsafe fn alloc_parent_domain(&self, pd: Handle, td: Handle) -> io::Result<Handle>;

    /// Registers `len` bytes at `start` (`ibv_reg_mr`).
    ///
    /// # Safety
    /// The protection domain is live. The memory stays mapped until the region is deregistered. With remote `access`,
    /// the peer may access the memory at any time.
    unsafe fn reg_mr(&self, pd: Handle, start: *mut u8, len: usize, access: Access) -> io::Result<(Handle, Keys)>;

    /// Deregisters a memory region (`ibv_dereg_mr`).
    ///
    /// # Safety
    /// The region is live and is not used again; no outstanding request names it.
    unsafe fn dereg_mr(&self, mr: Handle) -> io::Result<()>;

    /// Allocates an unbound type 2 memory window and returns its first R_Key (`ibv_alloc_mw`).
    ///
    /// # Safety
    /// The protection domain is live.
    unsafe fn alloc_mw(&self, pd: Handle) -> io::Result<(Handle, u32)>;

    /// Deallocates a memory window (`ibv_dealloc_mw`).
    ///
    /// # Safety
    /// The window is live and is not used again.
    unsafe fn dealloc_mw(&self, mw: Handle) -> io::Result<()>;

    /// Creates an address handle (`ibv_create_ah`).
    ///
    /// # Safety
    /// The protection domain is live.
    unsafe fn create_ah(&self, pd: Handle, path: &AhAttr) -> io::Result<Handle>;

    /// Destroys an address handle (`ibv_destroy_ah`).
    ///
    /// # Safety
    /// The address handle is live and is not used again.
    unsafe fn destroy_ah(&self, ah: Handle) -> io::Result<()>;

    /// Creates a completion channel and returns its non-blocking file descriptor, which is readable while an event is
    /// pending (`ibv_create_comp_channel`).
    fn create_comp_channel(&self) -> io::Result<(Handle, RawFd)>;

    /// Destroys a completion channel (`ibv_destroy_comp_channel`).
    ///
    /// # Safety
    /// The channel is live and is not used again.
    unsafe fn destroy_comp_channel(&self, channel: Handle) -> io::Result<()>;

    /// Takes and acknowledges one event of the channel. Returns false if there was none (`ibv_get_cq_event`).
    ///
    /// # Safety
    /// The channel and its completion queues are live.
    unsafe fn get_cq_event(&self, channel: Handle) -> io::Result<bool>;

    /// Creates a completion queue with at least `entries` entries, whose events are delivered by the completion vector
    /// `vector` (`ibv_create_cq`).
    ///
    /// # Safety
    /// The channel is live.
    unsafe fn create_cq(&self, entries: u32, channel: Option<Handle>, vector: u32) -> io::Result<Handle>;

    /// Returns the number of completion vectors: interrupts that completion queues can be spread over.
    fn comp_vectors(&self) -> u32;

    /// Destroys a completion queue (`ibv_destroy_cq`).
    ///
    /// # Safety
    /// The completion queue is live and is not used again.
    unsafe fn destroy_cq(&self, cq: Handle) -> io::Result<()>;

    /// Requests an event of the queue's channel at the next completion (`ibv_req_notify_cq`).
    ///
    /// # Safety
    /// The completion queue is live.
    unsafe fn req_notify_cq(&self, cq: Handle) -> io::Result<()>;

    /// Appends completions to `into`, up to its spare capacity and without allocating. Returns their number
    /// (`ibv_poll_cq`).
    ///
    /// # Safety
    /// The completion queue is live and is polled by one thread at a time.
    unsafe fn poll_cq(&self, cq: Handle, into: &mut Vec<WorkCompletion>) -> io::Result<usize>;

    /// Creates a shared receive queue (`ibv_create_srq`).
    ///
    /// # Safety
    /// The protection domain is live.
    unsafe fn create_srq(&self, pd: Handle, attr: &SrqInitAttr) -> io::Result<Handle>;

    /// Destroys a shared receive queue (`ibv_destroy_srq`).
    ///
    /// # Safety
    /// The shared receive queue is live and is not used again.
    unsafe fn destroy_srq(&self, srq: Handle) -> io::Result<()>;

    /// Posts buffers to a shared receive queue (`ibv_post_srq_recv`). An empty list has no effect.
    ///
    /// # Safety
    /// The shared receive queue is live. The buffers lie in live regions of its protection domain and are used by
    /// nothing else until they complete or the shared receive queue is destroyed.
    unsafe fn post_srq_recv(&self, srq: Handle, requests: &[RecvWr<'_>]) -> Result<(), PostError>;

    /// Creates an RC queue pair in the RESET state. Returns its number and its capacities, which may exceed the request
    /// (`ibv_create_qp`).
    ///
    /// # Safety
    /// The protection domain and the objects that `attr` names are live.
    unsafe fn create_qp(&self, pd: Handle, attr: &QpInitAttr) -> io::Result<(Handle, u32, QpCap)>;

    /// Creates a UD queue pair (`ibv_create_qp` with `IBV_QPT_UD`). The first [`GRH_LEN`] bytes of each receive buffer
    /// are reserved for the GRH. iWARP has no UD queue pairs.
    ///
    /// # Safety
    /// As for [`create_qp`](Self::create_qp).
    unsafe fn create_ud_qp(&self, pd: Handle, attr: &QpInitAttr) -> io::Result<(Handle, u32, QpCap)>;

    /// Destroys a queue pair (`ibv_destroy_qp`).
    ///
    /// # Safety
    /// The queue pair is live and is not used again.
    unsafe fn destroy_qp(&self, qp: Handle) -> io::Result<()>;

    /// Changes the state of a queue pair (`ibv_modify_qp`).
    ///
    /// # Safety
    /// The queue pair is live.
    unsafe fn modify_qp(&self, qp: Handle, transition: &Transition) -> io::Result<()>;

    /// Changes the state of a queue pair with the attributes of the connection `id` (`rdma_init_qp_attr`, then
    /// `ibv_modify_qp`), except for `options`. The kernel's connection manager has no setting for some options, and
    /// uses an RNR timer of 655 ms and time-outs of seconds.
    ///
    /// # Safety
    /// The queue pair and the identifier are live.
    unsafe fn modify_qp_by_cm(&self, qp: Handle, id: Handle, state: QpState, options: &QpOptions) -> io::Result<()>;

    /// Returns the attributes of a queue pair (`ibv_query_qp`).
    ///
    /// # Safety
    /// The queue pair is live.
    unsafe fn query_qp(&self, qp: Handle) -> io::Result<QpAttr>;

    /// Posts requests in order (`ibv_post_send`). An empty list has no effect. On a [`PostError`], all requests before
    /// the one it names are posted and the others are not.
    ///
    /// # Safety
    /// The queue pair is live. The scatter/gather elements lie in live regions of its protection domain (except inline
    /// data). Their memory is not written (for a READ, not used) until this request or a later one completes, or the
    /// queue pair is destroyed. The address handle of a datagram is of this device and stays live until then.
    unsafe fn post_send(&self, qp: Handle, requests: &[SendWr<'_>]) -> Result<(), PostError>;

    /// Posts buffers to a receive queue (`ibv_post_recv`). An empty list has no effect.
    ///
    /// # Safety
    /// As for [`post_srq_recv`](Self::post_srq_recv).
    unsafe fn post_recv(&self, qp: Handle, requests: &[RecvWr<'_>]) -> Result<(), PostError>;

    /// Creates an event channel for connections and returns its non-blocking file descriptor, which is readable while
    /// an event is pending (`rdma_create_event_channel`).
    fn cm_create_event_channel(&self) -> io::Result<(Handle, RawFd)>;

    /// Destroys an event channel (`rdma_destroy_event_channel`).
    ///
    /// # Safety
    /// The channel is live, has no identifiers, and is not used again.
    unsafe fn cm_destroy_event_channel(&self, channel: Handle) -> io::Result<()>;

    /// Takes and acknowledges the next event, if any (`rdma_get_cm_event`).
    ///
    /// # Safety
    /// The channel is live.
    unsafe fn cm_get_event(&self, channel: Handle) -> io::Result<Option<CmEvent>>;

    /// Creates an identifier for reliable connections (`rdma_create_id` with `RDMA_PS_TCP`).
    ///
    /// # Safety
    /// The channel is live.
    unsafe fn cm_create_id(&self, channel: Handle) -> io::Result<Handle>;

    /// Destroys an identifier (`rdma_destroy_id`). Pending events of the identifier are discarded.
    ///
    /// # Safety
    /// The identifier is live and is not used again.
    unsafe fn cm_destroy_id(&self, id: Handle) -> io::Result<()>;

    /// Listens on `address` (`rdma_bind_addr`, `rdma_listen`). Returns the address with the port chosen for port 0.
    ///
    /// # Safety
    /// The identifier is live and new.
    unsafe fn cm_listen(&self, id: Handle, address: SocketAddr, backlog: u32) -> io::Result<SocketAddr>;

    /// Resolves the address of `remote`; [`AddressResolved`](CmEventKind::AddressResolved) follows
    /// (`rdma_resolve_addr`).
    ///
    /// # Safety
    /// The identifier is live and new.
    unsafe fn cm_resolve_addr(&self, id: Handle, remote: SocketAddr, timeout_ms: u32) -> io::Result<()>;

    /// Resolves the route; [`RouteResolved`](CmEventKind::RouteResolved) follows (`rdma_resolve_route`).
    ///
    /// # Safety
    /// The identifier is live and its address is resolved.
    unsafe fn cm_resolve_route(&self, id: Handle, timeout_ms: u32) -> io::Result<()>;

    /// Returns true if the identifier is bound to this device. Before its address is resolved it is not.
    ///
    /// # Safety
    /// The identifier is live.
    unsafe fn cm_is_on_device(&self, id: Handle) -> bool;

    /// Returns the local and the remote address.
    ///
    /// # Safety
    /// The identifier is live.
    unsafe fn cm_addresses(&self, id: Handle) -> Option<(SocketAddr, SocketAddr)>;

    /// Requests a connection for the queue pair numbered `parameters.qp` (`rdma_connect`). The queue pair stays with
    /// the caller: at [`Response`](CmEventKind::Response) the caller brings it to RTS by
    /// [`modify_qp_by_cm`](Self::modify_qp_by_cm) and calls [`cm_establish`](Self::cm_establish). Over iWARP the queue
    /// pair must be in INIT, and [`Established`](CmEventKind::Established) follows directly.
    ///
    /// # Safety
    /// The identifier is live and its route is resolved.
    unsafe fn cm_connect(&self, id: Handle, parameters: &CmConnParam) -> io::Result<()>;

    /// Notifies the peer that the queue pair is ready (`rdma_establish`).
    ///
    /// # Safety
    /// The identifier is live and has received its response.
    unsafe fn cm_establish(&self, id: Handle) -> io::Result<()>;

    /// Accepts the connection of a [`Request`](CmEventKind::Request) (`rdma_accept`).
    ///
    /// # Safety
    /// The identifier is that of the request, and live.
    unsafe fn cm_accept(&self, id: Handle, parameters: &CmConnParam) -> io::Result<()>;

    /// Rejects the connection of a [`Request`](CmEventKind::Request) (`rdma_reject`).
    ///
    /// # Safety
    /// The identifier is that of the request, and live.
    unsafe fn cm_reject(&self, id: Handle, private_data: &[u8]) -> io::Result<()>;

    /// Ends the connection (`rdma_disconnect`). [`Disconnected`](CmEventKind::Disconnected) follows at the peer;
    /// locally it follows once the peer has disconnected or destroyed its identifier, or has not answered for a long
    /// time.
    ///
    /// # Safety
    /// The identifier is live.
    unsafe fn cm_disconnect(&self, id: Handle) -> io::Result<()>;

    /// Returns local port and GID of an identifier that is bound to this device (`rdma_cm_id`, `ibaddr.sgid`).
    ///
    /// # Safety
    /// The identifier is live.
    unsafe fn cm_source(&self, id: Handle) -> io::Result<(u8, [u8; 16])>;
}
