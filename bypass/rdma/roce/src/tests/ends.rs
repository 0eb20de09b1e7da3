//! Two ends with queue pairs, for tests of rules.

pub use crate::testing::{DeviceConfig, Fabric, FabricConfig, SimDevice};
pub use linerate_rdma_provider::{
    Access, AhAttr, AsyncEvent, GidKind, Handle, Keys, Mtu, Operation, PathOptions, PostError, Provider, QpCap,
    QpInitAttr, QpOptions, QpState, RecvWr, Retry, SendFlags, SendWr, Sge, SrqInitAttr, Transition, WcStatus,
    WorkCompletion,
};
pub use std::io;
pub use std::net::{IpAddr, Ipv4Addr};
pub use std::os::fd::RawFd;
pub use std::sync::Arc;

macro_rules! call {
    ($call:expr) => {{
        // SAFETY: memory given to a device lives as long as its end and is accessed through raw pointers only; the
        // engine checks handles.
        unsafe { $call }
    }};
}
pub(crate) use call;

/// Memory at a fixed address.
pub struct Memory(*mut [u8]);

impl Memory {
    pub fn new(len: usize) -> Self {
        Memory(Box::into_raw(vec![0; len].into_boxed_slice()))
    }

    pub fn start(&self) -> *mut u8 {
        self.0.cast()
    }

    pub fn put(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.0.len());
        // SAFETY: within the memory, which only raw pointers access.
        unsafe { self.start().add(at).copy_from(bytes.as_ptr(), bytes.len()) };
    }

    pub fn get(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= self.0.len());
        let mut bytes = vec![0; len];
        // SAFETY: as above.
        unsafe { self.start().add(at).copy_to(bytes.as_mut_ptr(), len) };
        bytes
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: created from a box, dropped once.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

pub const ALL: Access = Access {
    local_write: true,
    remote_read: true,
    remote_write: true,
    remote_atomic: true,
    bind: true,
    relaxed: false,
};
pub const LOCAL: Access = Access {
    local_write: true,
    remote_read: false,
    remote_write: false,
    remote_atomic: false,
    bind: false,
    relaxed: false,
};
pub const SIGNALLED: SendFlags = SendFlags::SIGNALLED;
pub const SILENT: SendFlags = SendFlags::UNSIGNALLED;

/// Configuration of two ends.
#[derive(Clone)]
pub struct Setup {
    pub fabric: FabricConfig,
    pub devices: [DeviceConfig; 2],
    pub cap: QpCap,
    pub completions: u32,
    pub rnr_retries: u8,
    pub reads: u8,
    pub srq: Option<SrqInitAttr>,
}

impl Default for Setup {
    fn default() -> Self {
        let address = |last| IpAddr::V4(Ipv4Addr::new(10, 0, 0, last));
        Setup {
            fabric: FabricConfig::default(),
            devices: [DeviceConfig::roce(address(1)), DeviceConfig::roce(address(2))],
            cap: QpCap { sends: 8, receives: 8, send_sges: 3, recv_sges: 3, inline: 64 },
            completions: 64,
            rnr_retries: 2,
            reads: 4,
            srq: None,
        }
    }
}

pub struct End {
    pub sim: Arc<SimDevice>,
    pub memory: Memory,
    pub pd: Handle,
    pub mr: Handle,
    pub keys: Keys,
    pub channel: Handle,
    pub channel_fd: RawFd,
    pub cq: Handle,
    pub srq: Option<Handle>,
    pub qp: Handle,
    pub number: u32,
}

impl End {
    /// Creates an end with a queue pair in `Reset`.
    pub fn new(fabric: &Fabric, name: &str, device: DeviceConfig, setup: &Setup) -> Self {
        let sim = fabric.device(name, device);
        let pd = sim.alloc_pd().unwrap();
        let memory = Memory::new(8192);
        let (mr, keys) = call!(sim.reg_mr(pd, memory.start(), 8192, ALL)).unwrap();
        let (channel, channel_fd) = sim.create_comp_channel().unwrap();
        let cq = call!(sim.create_cq(setup.completions, Some(channel), 0)).unwrap();
        let srq = setup.srq.map(|config| call!(sim.create_srq(pd, &config)).unwrap());
        let config = QpInitAttr { send_cq: cq, recv_cq: cq, srq, cap: setup.cap };
        let (qp, number, _) = call!(sim.create_qp(pd, &config)).unwrap();
        End { sim, memory, pd, mr, keys, channel, channel_fd, cq, srq, qp, number }
    }

    pub fn modify_qp(&self, transition: Transition) -> io::Result<()> {
        call!(self.sim.modify_qp(self.qp, &transition))
    }

    pub fn init() -> Transition {
        Transition::Init { port: 1, partition: 0, access: ALL }
    }

    pub fn to_receive(&self, peer: &End, reads: u8) -> Transition {
        let gid = |end: &End| *end.sim.gids(1).unwrap().iter().rfind(|gid| gid.kind == GidKind::RoceV2).unwrap();
        Transition::Rtr {
            mtu: Mtu::Mtu1024,
            qp: peer.number,
            psn: peer.number * 7 % (1 << 24),
            responder_resources: reads,
            min_rnr_timer: 14,
            path: AhAttr::to(gid(peer).raw, 0, &gid(self)),
        }
    }

    pub fn to_send(&self, reads: u8, rnr_retries: u8) -> Transition {
        let psn = self.number * 7 % (1 << 24);
        Transition::Rts { psn, timeout: 14, retries: 3, rnr_retries, initiator_depth: reads }
    }

    pub fn state(&self) -> QpState {
        call!(self.sim.query_qp(self.qp)).unwrap().state
    }

    pub fn sge(&self, at: usize, len: usize) -> Sge {
        Sge { address: self.address(at), len: len as u32, lkey: self.keys.local }
    }

    pub fn address(&self, at: usize) -> u64 {
        self.memory.start() as u64 + at as u64
    }

    pub fn post(&self, requests: &[SendWr<'_>]) -> Result<(), PostError> {
        call!(self.sim.post_send(self.qp, requests))
    }

    /// Posts a request.
    pub fn request(&self, id: u64, operation: Operation, sges: &[Sge], flags: SendFlags) {
        self.post(&[SendWr { id, sges, operation, flags }]).unwrap();
    }

    pub fn send(&self, id: u64, bytes: &[u8]) {
        self.memory.put(0, bytes);
        self.request(id, Operation::Send, &[self.sge(0, bytes.len())], SIGNALLED);
    }

    pub fn receive(&self, id: u64, at: usize, len: usize) {
        let sges = [self.sge(at, len)];
        let request = RecvWr { id, sges: &sges };
        match self.srq {
            Some(srq) => call!(self.sim.post_srq_recv(srq, &[request])).unwrap(),
            None => call!(self.sim.post_recv(self.qp, &[request])).unwrap(),
        }
    }

    pub fn poll(&self) -> Vec<WorkCompletion> {
        let mut into = Vec::with_capacity(128);
        call!(self.sim.poll_cq(self.cq, &mut into)).unwrap();
        into
    }

    /// Polls and returns the identifier and status of each completion.
    pub fn ends(&self) -> Vec<(u64, WcStatus)> {
        self.poll().into_iter().map(|completion| (completion.id, completion.status)).collect()
    }

    pub fn event(&self) -> Option<AsyncEvent> {
        self.sim.async_event().unwrap()
    }

    pub fn events(&self) -> Vec<AsyncEvent> {
        std::iter::from_fn(|| self.event()).collect()
    }

    /// Replaces the queue pair by a new one on the same completion queue.
    pub fn another(&mut self, setup: &Setup) {
        let config = QpInitAttr { send_cq: self.cq, recv_cq: self.cq, srq: self.srq, cap: setup.cap };
        (self.qp, self.number, _) = call!(self.sim.create_qp(self.pd, &config)).unwrap();
    }
}

/// Returns two unconnected ends.
pub fn apart(setup: &Setup) -> (Fabric, End, End) {
    let fabric = Fabric::new(setup.fabric.clone());
    let [first, second] = setup.devices.clone();
    let a = End::new(&fabric, "model0", first, setup);
    let b = End::new(&fabric, "model1", second, setup);
    (fabric, a, b)
}

pub fn join(a: &End, b: &End, setup: &Setup) {
    for (end, peer) in [(a, b), (b, a)] {
        end.modify_qp(End::init()).unwrap();
        end.modify_qp(end.to_receive(peer, setup.reads)).unwrap();
        end.modify_qp(end.to_send(setup.reads, setup.rnr_retries)).unwrap();
    }
}

/// Returns two connected ends in RTS.
pub fn connected(setup: &Setup) -> (Fabric, End, End) {
    let (fabric, a, b) = apart(setup);
    join(&a, &b, setup);
    (fabric, a, b)
}

pub fn number<T: std::fmt::Debug>(result: io::Result<T>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap()
}

/// Returns index and error number of a failed post.
pub fn refused(result: Result<(), PostError>) -> (usize, i32) {
    let error = result.unwrap_err();
    (error.at, error.error.raw_os_error().unwrap())
}

pub fn readable(fd: RawFd) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one structure is passed.
    unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
}
