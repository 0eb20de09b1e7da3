//! A device with a domain, a region and a completion queue, and queue pairs that are destroyed with it.

use linerate_rdma::calls::{
    Access, Calls, Capacities, Gid, Handle, Keys, Operation, Path, PostError, QueuePairConfig, ReceiveRequest, Segment,
    SendFlags, SendRequest, SharedConfig, Transition, WorkCompletion,
};
use linerate_rdma::native::Native;
use std::cell::RefCell;
use std::ops::Range;
use std::time::{Duration, Instant};

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Bytes of the region.
const BYTES: usize = 1 << 16;

pub const SIGNALLED: SendFlags = SendFlags { signalled: true, inline: false, fenced: false, solicited: false };

pub const ALL: Access =
    Access { local_write: true, remote_read: true, remote_write: true, remote_atomic: false, bind: true };

/// A queue pair.
#[derive(Debug, Clone, Copy)]
pub struct Pair {
    pub handle: Handle,
    pub number: u32,
    pub capacities: Capacities,
}

pub struct Rig {
    pub native: Native,
    pub domain: Handle,
    pub keys: Keys,
    pub gid: Gid,
    pub channel: (Handle, i32),
    pub queue: Handle,
    region: Handle,
    memory: *mut u8,
    /// In the order in which they are destroyed.
    pairs: RefCell<Vec<Handle>>,
    shared: RefCell<Vec<Handle>>,
}

impl Rig {
    /// On the device that is to be tested, if one is.
    pub fn open() -> Option<Rig> {
        let Ok(name) = std::env::var("LINERATE_RDMA_DEVICE") else {
            eprintln!("skipped: LINERATE_RDMA_DEVICE names no device");
            return None;
        };
        let native = Native::open(&name).unwrap();
        let gids = native.gids(1).unwrap();
        let gid = *gids.iter().find(|gid| gid.ip().is_ipv4()).or(gids.first()).expect("the port has no address");
        let domain = native.alloc_domain().unwrap();
        let memory = Box::into_raw(vec![0_u8; BYTES].into_boxed_slice()).cast::<u8>();
        let channel = native.create_channel().unwrap();
        // SAFETY: the domain and the channel are live, and the memory is until the region is gone.
        let ((region, keys), queue) = unsafe {
            (native.register(domain, memory, BYTES, ALL).unwrap(), native.create_queue(256, Some(channel.0)).unwrap())
        };
        let (pairs, shared) = Default::default();
        Some(Rig { native, domain, keys, gid, channel, queue, region, memory, pairs, shared })
    }

    /// A new queue pair that holds 100 requests and buffers, or its buffers in `shared`.
    pub fn pair(&self, shared: Option<Handle>) -> Pair {
        let capacities = Capacities { sends: 100, receives: 100, send_segments: 2, receive_segments: 2, inline: 32 };
        let config = QueuePairConfig { send_queue: self.queue, receive_queue: self.queue, shared, capacities };
        // SAFETY: all of these are live.
        let (handle, number, capacities) = unsafe { self.native.create_pair(self.domain, &config) }.unwrap();
        self.pairs.borrow_mut().push(handle);
        Pair { handle, number, capacities }
    }

    /// Two queue pairs that are connected with each other.
    pub fn pairs(&self) -> [Pair; 2] {
        let pairs = [self.pair(None), self.pair(None)];
        self.connect(pairs);
        pairs
    }

    pub fn connect(&self, [one, other]: [Pair; 2]) {
        let port = self.native.port(1).unwrap();
        for (pair, peer) in [(one, other), (other, one)] {
            let path = Path::to(self.gid.raw, port.lid, &self.gid);
            let access = Access { remote_atomic: self.native.limits().unwrap().atomics.any(), ..ALL };
            self.modify(pair, &Transition::Init { port: 1, partition: 0, access });
            self.modify(
                pair,
                &Transition::ReadyToReceive {
                    mtu: port.mtu,
                    pair: peer.number,
                    first_packet: pair.number & 0xff,
                    reads_answered: 1,
                    not_ready_timer: 12,
                    path,
                },
            );
            self.modify(
                pair,
                &Transition::ReadyToSend {
                    first_packet: peer.number & 0xff,
                    timeout: 14,
                    retries: 7,
                    not_ready_retries: 7,
                    reads_asked: 1,
                },
            );
        }
    }

    pub fn modify(&self, pair: Pair, transition: &Transition) {
        // SAFETY: the queue pair is live.
        unsafe { self.native.modify(pair.handle, transition) }
            .unwrap_or_else(|error| panic!("{transition:?}: {error}"));
    }

    pub fn shared(&self, buffers: u32) -> Handle {
        // SAFETY: the domain is live.
        let shared = unsafe { self.native.create_shared(self.domain, &SharedConfig { buffers, segments: 1 }) }.unwrap();
        self.shared.borrow_mut().push(shared);
        shared
    }

    /// A part of the region.
    pub fn segment(&self, part: Range<usize>) -> Segment {
        assert!(part.end <= BYTES);
        Segment { address: self.address(part.start), len: part.len() as u32, local_key: self.keys.local }
    }

    pub fn address(&self, offset: usize) -> u64 {
        self.memory.expose_provenance() as u64 + offset as u64
    }

    pub fn fill(&self, part: Range<usize>, byte: u8) {
        assert!(part.end <= BYTES);
        // SAFETY: it lies in the region, whose memory nobody uses but the device, for requests that tests await.
        unsafe { self.memory.add(part.start).write_bytes(byte, part.len()) };
    }

    pub fn bytes(&self, part: Range<usize>) -> Vec<u8> {
        assert!(part.end <= BYTES);
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(self.memory.add(part.start), part.len()) }.to_vec()
    }

    pub fn post(&self, pair: Pair, requests: &[SendRequest<'_>]) -> Result<(), PostError> {
        // SAFETY: the queue pair is live, and so is the region until it is destroyed.
        unsafe { self.native.post_send(pair.handle, requests) }
    }

    /// One request, signalled.
    pub fn send(&self, pair: Pair, id: u64, segments: &[Segment], operation: Operation) {
        self.post(pair, &[SendRequest { id, segments, operation, flags: SIGNALLED }]).unwrap();
    }

    /// One buffer.
    pub fn receive(&self, pair: Pair, id: u64, part: Range<usize>) {
        let segments = [self.segment(part)];
        // SAFETY: as for `post`.
        unsafe { self.native.post_receive(pair.handle, &[ReceiveRequest { id, segments: &segments }]) }.unwrap();
    }

    /// The next `count` completions, by their numbers.
    pub fn completions(&self, count: usize) -> Vec<WorkCompletion> {
        let mut found = Vec::with_capacity(count);
        await_that("completions", || {
            // SAFETY: the queue is live, and this is the only thread.
            unsafe { self.native.poll(self.queue, &mut found) }.unwrap();
            (found.len() == count).then_some(())
        });
        found.sort_by_key(|completion| completion.id);
        found
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The order may be wrong then.
            return;
        }
        // SAFETY: each is live and destroyed once, what is made of others before them.
        unsafe {
            self.pairs.get_mut().drain(..).for_each(|pair| self.native.destroy_pair(pair).unwrap());
            self.shared.get_mut().drain(..).for_each(|shared| self.native.destroy_shared(shared).unwrap());
            self.native.destroy_queue(self.queue).unwrap();
            self.native.destroy_channel(self.channel.0).unwrap();
            self.native.deregister(self.region).unwrap();
            self.native.dealloc_domain(self.domain).unwrap();
            drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(self.memory, BYTES)));
        }
    }
}

impl Rig {
    /// What windows are bound to.
    pub fn region(&self) -> Handle {
        self.region
    }
}

/// Asks until there is an answer.
pub fn await_that<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::yield_now();
    }
}

/// Whether a descriptor can be read.
pub fn is_readable(descriptor: i32) -> bool {
    let mut poll = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
    // SAFETY: one structure that lives through the call.
    unsafe { libc::poll(&mut poll, 1, 0) == 1 }
}
