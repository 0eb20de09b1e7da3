//! Each rule of the model by a test that is named after it.

mod atomics;
mod completions;
mod connecting;
mod datagrams;
mod failing;
mod iwarp;
mod memory;
mod messages;
mod objects;
mod random;
mod requests;
mod sharing;
mod states;

use super::{DeviceConfig, Fabric, FabricConfig, Model};
use crate::calls::{
    Access, AsyncEvent, Calls, Capacities, GidKind, Handle, Keys, Mtu, Operation, Path, PostError, QueuePairConfig,
    QueuePairState, ReceiveRequest, Segment, SendFlags, SendRequest, SharedConfig, Status, Transition, WorkCompletion,
};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::RawFd;
use std::sync::Arc;

/// A call of a device.
macro_rules! call {
    ($call:expr) => {{
        // SAFETY: the memory that tests give to a device lives as long as the end that it belongs to, and is read and written
        // through raw pointers alone; and a model looks at the handles it is given.
        unsafe { $call }
    }};
}
use call;

/// Some memory at a fixed place.
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
        // SAFETY: it is within the memory, which only raw pointers reach.
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
        // SAFETY: it came from a box, once.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

pub const ALL: Access =
    Access { local_write: true, remote_read: true, remote_write: true, remote_atomic: true, bind: true };
pub const LOCAL: Access =
    Access { local_write: true, remote_read: false, remote_write: false, remote_atomic: false, bind: false };
pub const SIGNALLED: SendFlags = SendFlags { signalled: true, inline: false, fenced: false, solicited: false };
pub const SILENT: SendFlags = SendFlags { signalled: false, ..SIGNALLED };

/// What two ends are made with.
#[derive(Clone)]
pub struct Setup {
    pub fabric: FabricConfig,
    pub devices: [DeviceConfig; 2],
    pub capacities: Capacities,
    pub completions: u32,
    pub not_ready_retries: u8,
    pub reads: u8,
    pub shared: Option<SharedConfig>,
}

impl Default for Setup {
    fn default() -> Self {
        let address = |last| IpAddr::V4(Ipv4Addr::new(10, 0, 0, last));
        Setup {
            fabric: FabricConfig::default(),
            devices: [DeviceConfig::roce(address(1)), DeviceConfig::roce(address(2))],
            capacities: Capacities { sends: 8, receives: 8, send_segments: 3, receive_segments: 3, inline: 64 },
            completions: 64,
            not_ready_retries: 2,
            reads: 4,
            shared: None,
        }
    }
}

/// One end of a connection.
pub struct End {
    pub fabric: Fabric,
    pub model: Arc<Model>,
    pub memory: Memory,
    pub domain: Handle,
    pub region: Handle,
    pub keys: Keys,
    pub channel: Handle,
    pub channel_fd: RawFd,
    pub queue: Handle,
    pub shared: Option<Handle>,
    pub pair: Handle,
    pub number: u32,
}

impl End {
    /// With a queue pair in the state `Reset`.
    pub fn new(fabric: &Fabric, name: &str, device: DeviceConfig, setup: &Setup) -> Self {
        let model = fabric.device(name, device);
        let domain = model.alloc_domain().unwrap();
        let memory = Memory::new(8192);
        let (region, keys) = call!(model.register(domain, memory.start(), 8192, ALL)).unwrap();
        let (channel, channel_fd) = model.create_channel().unwrap();
        let queue = call!(model.create_queue(setup.completions, Some(channel))).unwrap();
        let shared = setup.shared.map(|config| call!(model.create_shared(domain, &config)).unwrap());
        let config = QueuePairConfig { send_queue: queue, receive_queue: queue, shared, capacities: setup.capacities };
        let (pair, number, _) = call!(model.create_pair(domain, &config)).unwrap();
        let fabric = fabric.clone();
        End { fabric, model, memory, domain, region, keys, channel, channel_fd, queue, shared, pair, number }
    }

    pub fn modify(&self, transition: Transition) -> io::Result<()> {
        call!(self.model.modify(self.pair, &transition))
    }

    pub fn init() -> Transition {
        Transition::Init { port: 1, partition: 0, access: ALL }
    }

    pub fn to_receive(&self, peer: &End, reads: u8) -> Transition {
        let gid = |end: &End| *end.model.gids(1).unwrap().iter().rfind(|gid| gid.kind == GidKind::RoceV2).unwrap();
        Transition::ReadyToReceive {
            mtu: Mtu::Mtu1024,
            pair: peer.number,
            first_packet: peer.number * 7,
            reads_answered: reads,
            not_ready_timer: 1,
            path: Path::to(gid(peer).raw, 0, &gid(self)),
        }
    }

    pub fn to_send(&self, reads: u8, not_ready_retries: u8) -> Transition {
        let first_packet = self.number * 7;
        Transition::ReadyToSend { first_packet, timeout: 14, retries: 3, not_ready_retries, reads_asked: reads }
    }

    pub fn state(&self) -> QueuePairState {
        call!(self.model.query_pair(self.pair)).unwrap().state
    }

    pub fn segment(&self, at: usize, len: usize) -> Segment {
        Segment { address: self.address(at), len: len as u32, local_key: self.keys.local }
    }

    pub fn address(&self, at: usize) -> u64 {
        self.memory.start() as u64 + at as u64
    }

    pub fn post(&self, requests: &[SendRequest<'_>]) -> Result<(), PostError> {
        call!(self.model.post_send(self.pair, requests))
    }

    /// Posts a request with one segment.
    pub fn request(&self, id: u64, operation: Operation, segments: &[Segment], flags: SendFlags) {
        self.post(&[SendRequest { id, segments, operation, flags }]).unwrap();
    }

    pub fn send(&self, id: u64, bytes: &[u8]) {
        self.memory.put(0, bytes);
        self.request(id, Operation::Send, &[self.segment(0, bytes.len())], SIGNALLED);
    }

    pub fn receive(&self, id: u64, at: usize, len: usize) {
        let segments = [self.segment(at, len)];
        let request = ReceiveRequest { id, segments: &segments };
        match self.shared {
            Some(shared) => call!(self.model.post_shared(shared, &[request])).unwrap(),
            None => call!(self.model.post_receive(self.pair, &[request])).unwrap(),
        }
    }

    pub fn poll(&self) -> Vec<WorkCompletion> {
        let mut into = Vec::with_capacity(128);
        call!(self.model.poll(self.queue, &mut into)).unwrap();
        into
    }

    /// What was completed: the identity of each, and how it ended.
    pub fn ends(&self) -> Vec<(u64, Status)> {
        self.poll().into_iter().map(|completion| (completion.id, completion.status)).collect()
    }

    pub fn event(&self) -> Option<AsyncEvent> {
        self.model.async_event().unwrap()
    }

    pub fn events(&self) -> Vec<AsyncEvent> {
        std::iter::from_fn(|| self.event()).collect()
    }

    /// Another queue pair with the same queue.
    pub fn another(&mut self, setup: &Setup) {
        let config = QueuePairConfig {
            send_queue: self.queue,
            receive_queue: self.queue,
            shared: self.shared,
            capacities: setup.capacities,
        };
        (self.pair, self.number, _) = call!(self.model.create_pair(self.domain, &config)).unwrap();
    }
}

/// Two ends, not connected.
pub fn apart(setup: &Setup) -> (Fabric, End, End) {
    let fabric = Fabric::new(setup.fabric.clone());
    let [ours, theirs] = setup.devices.clone();
    let a = End::new(&fabric, "model0", ours, setup);
    let b = End::new(&fabric, "model1", theirs, setup);
    (fabric, a, b)
}

pub fn join(a: &End, b: &End, setup: &Setup) {
    for (end, peer) in [(a, b), (b, a)] {
        end.modify(End::init()).unwrap();
        end.modify(end.to_receive(peer, setup.reads)).unwrap();
        end.modify(end.to_send(setup.reads, setup.not_ready_retries)).unwrap();
    }
}

/// Two ends whose queue pairs are connected and ready.
pub fn connected(setup: &Setup) -> (Fabric, End, End) {
    let (fabric, a, b) = apart(setup);
    join(&a, &b, setup);
    (fabric, a, b)
}

pub fn number<T: std::fmt::Debug>(result: io::Result<T>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap()
}

/// Where a post failed, and why.
pub fn refused(result: Result<(), PostError>) -> (usize, i32) {
    let error = result.unwrap_err();
    (error.at, error.error.raw_os_error().unwrap())
}

pub fn readable(fd: RawFd) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one structure is passed.
    unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
}
