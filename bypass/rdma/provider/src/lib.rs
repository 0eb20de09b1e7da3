//! The calls of libibverbs and librdmacm that the adapter makes, and the values that cross.
//!
//! This is the seam between the adapter and whoever answers it: rdma-core (`native`), or a device that is a model in this
//! process (`model`), on which the adapter is tested without one. Names, states and errors are those of the InfiniBand
//! Architecture Specification, volume 1, chapters 10 and 11, and of the manual pages `ibv_*(3)` and `rdma_*(3)`.

mod connect;
mod device;
mod objects;
mod work;

pub use connect::{CmEvent, CmEventKind, CmParameters, Private};
pub use device::{AsyncEvent, Atomics, DeviceLimits, Gid, GidKind, LinkLayer, Mtu, Port, PortState, TransportKind};
pub use objects::{
    ACK_TIMEOUT, Access, Capacities, Handle, Keys, Path, QueuePairAttributes, QueuePairConfig, QueuePairState,
    SharedConfig, Transition,
};
pub use work::{
    Completed, Operation, PostError, ROUTE_LEN, ReceiveRequest, Segment, SendFlags, SendRequest, Status, WorkCompletion,
};

use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;

/// A device that is open: its verbs, and the connection manager over it.
///
/// Handles are values. Whoever holds one keeps the rules that the safe layer is there for: what was made by one device is not
/// given to another, nothing is used after it was destroyed, and nothing is destroyed while something made from it exists
/// (which a device answers with `EBUSY` where it notices).
///
/// # Safety
/// An implementation reads and writes no memory but what requests name, for as long as they are under way, and never what a
/// region does not cover.
pub unsafe trait Calls: Send + Sync + 'static {
    /// The device's name, such as `rxe0`.
    fn name(&self) -> &str;

    /// Whether it is emulated in software, as far as is known: its driver, such as `rxe`, if so.
    fn emulated_by(&self) -> Option<&str>;

    /// What it can do (`ibv_query_device`).
    fn limits(&self) -> io::Result<DeviceLimits>;

    /// A port, counted from 1 (`ibv_query_port`).
    fn port(&self, port: u8) -> io::Result<Port>;

    /// The addresses of a port (`ibv_query_gid_table`).
    fn gids(&self, port: u8) -> io::Result<Vec<Gid>>;

    /// The file descriptor that is readable when there is an [`async_event`](Self::async_event). It does not block.
    fn async_fd(&self) -> RawFd;

    /// The next asynchronous event, which is acknowledged, or `None` (`ibv_get_async_event`).
    fn async_event(&self) -> io::Result<Option<AsyncEvent>>;

    /// `ibv_alloc_pd`.
    fn alloc_domain(&self) -> io::Result<Handle>;

    /// `ibv_dealloc_pd`.
    ///
    /// # Safety
    /// The domain is live and is not used again.
    unsafe fn dealloc_domain(&self, domain: Handle) -> io::Result<()>;

    /// Makes `len` bytes at `start` known to the device (`ibv_reg_mr`).
    ///
    /// # Safety
    /// The domain is live. The memory stays mapped until the region is deregistered, and whoever may access it remotely by
    /// `access` may do so at any time.
    unsafe fn register(&self, domain: Handle, start: *mut u8, len: usize, access: Access)
    -> io::Result<(Handle, Keys)>;

    /// `ibv_dereg_mr`.
    ///
    /// # Safety
    /// The region is live and is not used again; no request that names it is under way.
    unsafe fn deregister(&self, region: Handle) -> io::Result<()>;

    /// A memory window of type 2, bound to nothing, and its first key (`ibv_alloc_mw`).
    ///
    /// # Safety
    /// The domain is live.
    unsafe fn alloc_window(&self, domain: Handle) -> io::Result<(Handle, u32)>;

    /// `ibv_dealloc_mw`.
    ///
    /// # Safety
    /// The window is live and is not used again.
    unsafe fn dealloc_window(&self, window: Handle) -> io::Result<()>;

    /// The way to a port, for datagrams (`ibv_create_ah`).
    ///
    /// # Safety
    /// The domain is live.
    unsafe fn create_address(&self, domain: Handle, path: &Path) -> io::Result<Handle>;

    /// `ibv_destroy_ah`.
    ///
    /// # Safety
    /// The address is live and is not used again.
    unsafe fn destroy_address(&self, address: Handle) -> io::Result<()>;

    /// A completion channel, and the file descriptor that is readable when it has an event, which does not block
    /// (`ibv_create_comp_channel`).
    fn create_channel(&self) -> io::Result<(Handle, RawFd)>;

    /// `ibv_destroy_comp_channel`.
    ///
    /// # Safety
    /// The channel is live and is not used again.
    unsafe fn destroy_channel(&self, channel: Handle) -> io::Result<()>;

    /// Takes an event of the channel and acknowledges it. Returns whether there was one (`ibv_get_cq_event`).
    ///
    /// # Safety
    /// The channel is live, and so is every queue that has it.
    unsafe fn channel_event(&self, channel: Handle) -> io::Result<bool>;

    /// A queue with room for at least `entries` completions (`ibv_create_cq`).
    ///
    /// # Safety
    /// The channel is live.
    unsafe fn create_queue(&self, entries: u32, channel: Option<Handle>) -> io::Result<Handle>;

    /// `ibv_destroy_cq`.
    ///
    /// # Safety
    /// The queue is live and is not used again.
    unsafe fn destroy_queue(&self, queue: Handle) -> io::Result<()>;

    /// Asks for an event of the queue's channel at the next completion (`ibv_req_notify_cq`).
    ///
    /// # Safety
    /// The queue is live.
    unsafe fn notify(&self, queue: Handle) -> io::Result<()>;

    /// Appends up to as many completions to `into` as it has room for, without allocating, and returns how many
    /// (`ibv_poll_cq`).
    ///
    /// # Safety
    /// The queue is live, and polled by one thread at a time.
    unsafe fn poll(&self, queue: Handle, into: &mut Vec<WorkCompletion>) -> io::Result<usize>;

    /// `ibv_create_srq`.
    ///
    /// # Safety
    /// The domain is live.
    unsafe fn create_shared(&self, domain: Handle, config: &SharedConfig) -> io::Result<Handle>;

    /// Asks for an asynchronous event when fewer than `limit` buffers are left, once (`ibv_modify_srq`).
    ///
    /// # Safety
    /// The shared queue is live.
    unsafe fn limit_shared(&self, shared: Handle, limit: u32) -> io::Result<()>;

    /// `ibv_destroy_srq`.
    ///
    /// # Safety
    /// The shared queue is live and is not used again.
    unsafe fn destroy_shared(&self, shared: Handle) -> io::Result<()>;

    /// `ibv_post_srq_recv`. An empty list does nothing.
    ///
    /// # Safety
    /// The shared queue is live. The segments lie in regions of its domain that are live, and nobody else uses them until they
    /// come back with a completion or the shared queue is destroyed.
    unsafe fn post_shared(&self, shared: Handle, requests: &[ReceiveRequest<'_>]) -> Result<(), PostError>;

    /// A queue pair in the state `Reset`, its number, and the capacities that it was given, which may be more than were asked
    /// for (`ibv_create_qp`).
    ///
    /// # Safety
    /// The domain, and what `config` names, are live.
    unsafe fn create_pair(&self, domain: Handle, config: &QueuePairConfig) -> io::Result<(Handle, u32, Capacities)>;

    /// As [`create_pair`](Self::create_pair), of unreliable datagrams (`ibv_create_qp` with `IBV_QPT_UD`). Each buffer begins with
    /// the place of a global route, of [`ROUTE_LEN`] bytes. Over iWARP there are none.
    ///
    /// # Safety
    /// The domain, and what `config` names, are live.
    unsafe fn create_datagrams(
        &self,
        domain: Handle,
        config: &QueuePairConfig,
    ) -> io::Result<(Handle, u32, Capacities)>;

    /// `ibv_destroy_qp`.
    ///
    /// # Safety
    /// The queue pair is live and is not used again.
    unsafe fn destroy_pair(&self, pair: Handle) -> io::Result<()>;

    /// Brings a queue pair into another state (`ibv_modify_qp`).
    ///
    /// # Safety
    /// The queue pair is live.
    unsafe fn modify(&self, pair: Handle, transition: &Transition) -> io::Result<()>;

    /// Brings a queue pair into `state` with what the connection of `id` says (`rdma_init_qp_attr`, then `ibv_modify_qp`).
    ///
    /// # Safety
    /// Both are live.
    unsafe fn modify_by(&self, pair: Handle, id: Handle, state: QueuePairState) -> io::Result<()>;

    /// `ibv_query_qp`.
    ///
    /// # Safety
    /// The queue pair is live.
    unsafe fn query_pair(&self, pair: Handle) -> io::Result<QueuePairAttributes>;

    /// Posts requests in their order (`ibv_post_send`). An empty list does nothing. Of those before the one that a
    /// [`PostError`] names, all are under way, of the others none.
    ///
    /// # Safety
    /// The queue pair is live. The segments lie in regions of its domain that are live (unless they are sent inline), and nobody
    /// writes them (or, for a READ, uses them) until the request is completed, or one after it is, or the queue pair is
    /// destroyed. The address that a datagram names is of this device, and live as long.
    unsafe fn post_send(&self, pair: Handle, requests: &[SendRequest<'_>]) -> Result<(), PostError>;

    /// `ibv_post_recv`. An empty list does nothing.
    ///
    /// # Safety
    /// As for [`post_shared`](Self::post_shared).
    unsafe fn post_receive(&self, pair: Handle, requests: &[ReceiveRequest<'_>]) -> Result<(), PostError>;

    /// A channel for events of connections, and the file descriptor that is readable when it has one, which does not block
    /// (`rdma_create_event_channel`).
    fn cm_create_channel(&self) -> io::Result<(Handle, RawFd)>;

    /// `rdma_destroy_event_channel`.
    ///
    /// # Safety
    /// The channel is live, is not used again, and has no identifiers any more.
    unsafe fn cm_destroy_channel(&self, channel: Handle) -> io::Result<()>;

    /// The next event, which is acknowledged, or `None` (`rdma_get_cm_event`).
    ///
    /// # Safety
    /// The channel is live.
    unsafe fn cm_event(&self, channel: Handle) -> io::Result<Option<CmEvent>>;

    /// An identifier for reliable connections (`rdma_create_id` with `RDMA_PS_TCP`).
    ///
    /// # Safety
    /// The channel is live.
    unsafe fn cm_create(&self, channel: Handle) -> io::Result<Handle>;

    /// `rdma_destroy_id`. Events of the identifier that were not taken are gone.
    ///
    /// # Safety
    /// The identifier is live and is not used again.
    unsafe fn cm_destroy(&self, id: Handle) -> io::Result<()>;

    /// Listens at `address` (`rdma_bind_addr`, `rdma_listen`). Returns the address with the port that was found for port 0.
    ///
    /// # Safety
    /// The identifier is live and new.
    unsafe fn cm_listen(&self, id: Handle, address: SocketAddr, backlog: u32) -> io::Result<SocketAddr>;

    /// Looks for the way to `remote`: [`AddressResolved`](CmEventKind::AddressResolved) follows (`rdma_resolve_addr`).
    ///
    /// # Safety
    /// The identifier is live and new.
    unsafe fn cm_resolve_address(&self, id: Handle, remote: SocketAddr, timeout_ms: u32) -> io::Result<()>;

    /// [`RouteResolved`](CmEventKind::RouteResolved) follows (`rdma_resolve_route`).
    ///
    /// # Safety
    /// The identifier is live, and its address is resolved.
    unsafe fn cm_resolve_route(&self, id: Handle, timeout_ms: u32) -> io::Result<()>;

    /// Whether the identifier's connection goes by this device. Before an address is resolved it does not.
    ///
    /// # Safety
    /// The identifier is live.
    unsafe fn cm_is_here(&self, id: Handle) -> bool;

    /// The local and the remote address.
    ///
    /// # Safety
    /// The identifier is live.
    unsafe fn cm_addresses(&self, id: Handle) -> Option<(SocketAddr, SocketAddr)>;

    /// Asks for a connection of the queue pair numbered `parameters.pair`, which stays with the caller: at
    /// [`Response`](CmEventKind::Response) it is brought to `ReadyToSend` by [`modify_by`](Self::modify_by), and
    /// [`cm_establish`](Self::cm_establish) is called (`rdma_connect`). With iWARP it is to be in the state `Init`, and
    /// [`Established`](CmEventKind::Established) comes at once.
    ///
    /// # Safety
    /// The identifier is live, and its route is resolved.
    unsafe fn cm_connect(&self, id: Handle, parameters: &CmParameters) -> io::Result<()>;

    /// Tells the other end that the queue pair is ready (`rdma_establish`).
    ///
    /// # Safety
    /// The identifier is live, and its response has come.
    unsafe fn cm_establish(&self, id: Handle) -> io::Result<()>;

    /// Accepts the connection that a [`Request`](CmEventKind::Request) asked for (`rdma_accept`).
    ///
    /// # Safety
    /// The identifier is that of the request, and live.
    unsafe fn cm_accept(&self, id: Handle, parameters: &CmParameters) -> io::Result<()>;

    /// Refuses it (`rdma_reject`).
    ///
    /// # Safety
    /// The identifier is that of the request, and live.
    unsafe fn cm_reject(&self, id: Handle, private: &[u8]) -> io::Result<()>;

    /// Ends the connection; [`Disconnected`](CmEventKind::Disconnected) follows at the peer, and here once the peer has
    /// called this too, or destroyed its identifier, or not answered for long (`rdma_disconnect`).
    ///
    /// # Safety
    /// The identifier is live.
    unsafe fn cm_disconnect(&self, id: Handle) -> io::Result<()>;
}
