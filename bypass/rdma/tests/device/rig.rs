//! Device with a protection domain, a region, a completion queue, and queue pairs.

use linerate_rdma::provider::{
    Access, AhAttr, Gid, Handle, Keys, Operation, PostError, Provider, QpCap, QpInitAttr, RecvWr, SendFlags, SendWr,
    Sge, SrqInitAttr, Transition, WorkCompletion,
};
use linerate_rdma::rdma_core::RdmaCore;
use std::cell::RefCell;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Time limit of every wait.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Size of the region in bytes.
const BYTES: usize = 1 << 16;

pub const SIGNALLED: SendFlags = SendFlags::SIGNALLED;

pub const ALL: Access = Access {
    local_write: true,
    remote_read: true,
    remote_write: true,
    remote_atomic: false,
    bind: true,
    relaxed: false,
};

#[derive(Debug, Clone, Copy)]
pub struct Pair {
    pub handle: Handle,
    pub number: u32,
    pub cap: QpCap,
}

pub struct Rig {
    pub native: RdmaCore,
    pub pd: Handle,
    pub keys: Keys,
    pub gid: Gid,
    pub channel: (Handle, i32),
    pub cq: Handle,
    mr: Handle,
    memory: *mut u8,
    /// In the order of destruction.
    qps: RefCell<Vec<Handle>>,
    srq: RefCell<Vec<Handle>>,
}

impl Rig {
    /// Opens the tested device, if one is named.
    pub fn open() -> Option<Rig> {
        let Ok(name) = std::env::var("LINERATE_RDMA_DEVICE") else {
            eprintln!("skipped: LINERATE_RDMA_DEVICE names no device");
            return None;
        };
        let native = RdmaCore::open(&name).unwrap();
        let gids = native.gids(1).unwrap();
        let gid = *gids.iter().find(|gid| gid.ip().is_ipv4()).or(gids.first()).expect("the port has no address");
        let pd = native.alloc_pd().unwrap();
        let memory = Box::into_raw(vec![0_u8; BYTES].into_boxed_slice()).cast::<u8>();
        let channel = native.create_comp_channel().unwrap();
        // SAFETY: the domain and the channel are live; the memory outlives the region.
        let ((mr, keys), cq) = unsafe {
            (native.reg_mr(pd, memory, BYTES, ALL).unwrap(), native.create_cq(256, Some(channel.0), 0).unwrap())
        };
        let (qps, srq) = Default::default();
        Some(Rig { native, pd, keys, gid, channel, cq, mr, memory, qps, srq })
    }

    /// Creates a queue pair for 100 requests and 100 buffers, or with the buffers of `srq`.
    pub fn qp(&self, srq: Option<Handle>) -> Pair {
        let cap = QpCap { sends: 100, receives: 100, send_sges: 2, recv_sges: 2, inline: 32 };
        let config = QpInitAttr { send_cq: self.cq, recv_cq: self.cq, srq, cap };
        // SAFETY: all of these are live.
        let (handle, number, cap) = unsafe { self.native.create_qp(self.pd, &config) }.unwrap();
        self.qps.borrow_mut().push(handle);
        Pair { handle, number, cap }
    }

    /// Returns two connected queue pairs.
    pub fn qps(&self) -> [Pair; 2] {
        let qps = [self.qp(None), self.qp(None)];
        self.connect(qps);
        qps
    }

    pub fn connect(&self, [one, other]: [Pair; 2]) {
        let port = self.native.port(1).unwrap();
        for (qp, peer) in [(one, other), (other, one)] {
            let path = AhAttr::to(self.gid.raw, port.lid, &self.gid);
            let access = Access { remote_atomic: self.native.limits().unwrap().atomics.any(), ..ALL };
            self.modify_qp(qp, &Transition::Init { port: 1, partition: 0, access });
            self.modify_qp(
                qp,
                &Transition::Rtr {
                    mtu: port.mtu,
                    qp: peer.number,
                    psn: qp.number & 0xff,
                    responder_resources: 1,
                    min_rnr_timer: 12,
                    path,
                },
            );
            self.modify_qp(
                qp,
                &Transition::Rts {
                    psn: peer.number & 0xff,
                    timeout: 14,
                    retries: 7,
                    rnr_retries: 7,
                    initiator_depth: 1,
                },
            );
        }
    }

    pub fn modify_qp(&self, qp: Pair, transition: &Transition) {
        // SAFETY: the queue pair is live.
        unsafe { self.native.modify_qp(qp.handle, transition) }
            .unwrap_or_else(|error| panic!("{transition:?}: {error}"));
    }

    pub fn srq(&self, buffers: u32) -> Handle {
        // SAFETY: the domain is live.
        let srq = unsafe { self.native.create_srq(self.pd, &SrqInitAttr { buffers, sges: 1 }) }.unwrap();
        self.srq.borrow_mut().push(srq);
        srq
    }

    /// Returns a part of the region.
    pub fn sge(&self, part: Range<usize>) -> Sge {
        assert!(part.end <= BYTES);
        Sge { address: self.address(part.start), len: part.len() as u32, lkey: self.keys.local }
    }

    pub fn address(&self, offset: usize) -> u64 {
        self.memory.expose_provenance() as u64 + offset as u64
    }

    pub fn fill(&self, part: Range<usize>, byte: u8) {
        assert!(part.end <= BYTES);
        // SAFETY: within the region, whose memory only the device uses, for requests that the tests wait for.
        unsafe { self.memory.add(part.start).write_bytes(byte, part.len()) };
    }

    pub fn bytes(&self, part: Range<usize>) -> Vec<u8> {
        assert!(part.end <= BYTES);
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(self.memory.add(part.start), part.len()) }.to_vec()
    }

    pub fn post(&self, qp: Pair, requests: &[SendWr<'_>]) -> Result<(), PostError> {
        // SAFETY: the queue pair is live; the region outlives it.
        unsafe { self.native.post_send(qp.handle, requests) }
    }

    /// Posts one signalled request.
    pub fn send(&self, qp: Pair, id: u64, sges: &[Sge], operation: Operation) {
        self.post(qp, &[SendWr { id, sges, operation, flags: SIGNALLED }]).unwrap();
    }

    /// Posts one buffer.
    pub fn receive(&self, qp: Pair, id: u64, part: Range<usize>) {
        let sges = [self.sge(part)];
        // SAFETY: as for `post`.
        unsafe { self.native.post_recv(qp.handle, &[RecvWr { id, sges: &sges }]) }.unwrap();
    }

    /// Waits for the next `count` completions and sorts them by identifier.
    pub fn completions(&self, count: usize) -> Vec<WorkCompletion> {
        let mut found = Vec::with_capacity(count);
        await_that("completions", || {
            // SAFETY: the queue is live, and this is the only thread.
            unsafe { self.native.poll_cq(self.cq, &mut found) }.unwrap();
            (found.len() == count).then_some(())
        });
        found.sort_by_key(|completion| completion.id);
        found
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // After a panic, dependents may still exist.
            return;
        }
        // SAFETY: each object is live and destroyed once, after its dependents.
        unsafe {
            self.qps.get_mut().drain(..).for_each(|qp| self.native.destroy_qp(qp).unwrap());
            self.srq.get_mut().drain(..).for_each(|srq| self.native.destroy_srq(srq).unwrap());
            self.native.destroy_cq(self.cq).unwrap();
            self.native.destroy_comp_channel(self.channel.0).unwrap();
            self.native.dereg_mr(self.mr).unwrap();
            self.native.dealloc_pd(self.pd).unwrap();
            drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(self.memory, BYTES)));
        }
    }
}

impl Rig {
    /// Returns the region, for binding windows.
    pub fn mr(&self) -> Handle {
        self.mr
    }
}

/// Calls `poll` until it returns a value.
pub fn await_that<T>(opcode: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(value) = poll() {
            return value;
        }
        assert!(Instant::now() < deadline, "timed out waiting for {opcode}");
        std::thread::yield_now();
    }
}

pub fn is_readable(descriptor: i32) -> bool {
    let mut poll = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
    // SAFETY: one structure that outlives the call.
    unsafe { libc::poll(&mut poll, 1, 0) == 1 }
}
