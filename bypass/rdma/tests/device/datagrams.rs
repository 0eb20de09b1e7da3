//! UD queue pairs of one device.

use crate::allocations::COUNT;
use crate::rig::await_that;
use linerate_bypass::Arena;
use linerate_bypass::arena::ArenaConfig;
use linerate_rdma::provider::{AhAttr, GidKind, Provider, QpState, Transition, WcStatus};
use linerate_rdma::rdma_core::RdmaCore;
use linerate_rdma::verbs::{Ah, Cq, Message, Mr, Pd, QpConfig, UdMessage, UdQp};
use std::sync::Arc;

/// Datagrams in flight.
const DEPTH: usize = 8;

struct End {
    datagrams: UdQp<RdmaCore>,
    cq: Cq<RdmaCore>,
    mr: Mr<RdmaCore>,
    arena: Arena,
}

impl End {
    fn post(&mut self, count: usize) {
        let len = self.datagrams.buffer_len();
        self.datagrams.post((0..count).map(|_| self.arena.alloc(len).unwrap())).unwrap();
    }

    fn message(&self, len: usize, byte: u8) -> Message {
        let mut block = self.arena.alloc(len).unwrap();
        block.fill(byte);
        let mut message = Message::new();
        message.push(block.freeze()).unwrap();
        message
    }

    /// Queues a message of `len` bytes.
    fn send(&mut self, ah: &Ah<RdmaCore>, (qp, key): (u32, u32), len: usize, byte: u8, signalled: bool) {
        let mut message = self.message(len, byte);
        self.datagrams.send(ah, qp, key, &mut message, signalled).unwrap();
    }

    fn names(&self) -> (u32, u32) {
        (self.datagrams.number(), self.datagrams.key())
    }

    /// Flushes, and waits for all requests.
    fn leave(&mut self) -> Result<(), WcStatus> {
        self.datagrams.flush().unwrap();
        await_that("requests to leave", || {
            for completion in self.cq.poll(16).unwrap() {
                if let Err(status) = self.datagrams.sent(completion) {
                    return Some(Err(status));
                }
            }
            (self.datagrams.outstanding() == 0).then_some(Ok(()))
        })
    }

    fn receive(&mut self) -> UdMessage {
        await_that("a datagram", || {
            let completion = self.cq.poll(1).unwrap().next()?;
            Some(self.datagrams.received(completion).unwrap())
        })
    }
}

type Found = (Arc<RdmaCore>, [End; 2], Ah<RdmaCore>, AhAttr);

/// Returns two ends on the tested device and the address handle from the first to the second; `None` without a device
/// or datagrams.
fn ends() -> Option<Found> {
    let Ok(name) = std::env::var("LINERATE_RDMA_DEVICE") else {
        eprintln!("skipped: LINERATE_RDMA_DEVICE names no device");
        return None;
    };
    let native = Arc::new(RdmaCore::open(&name).unwrap());
    if native.limits().unwrap().transport == linerate_rdma::provider::TransportKind::Iwarp {
        eprintln!("skipped: iWARP has no datagrams");
        return None;
    }
    let gids = native.gids(1).unwrap();
    let found = gids.iter().find(|gid| gid.ip().is_ipv4() && gid.kind == GidKind::RoceV2);
    let gid = *found.or(gids.first()).expect("the port has no address");
    let ends = [(), ()].map(|()| {
        let arena = Arena::new(ArenaConfig { bytes: 1 << 20, hugepages: false }).unwrap();
        let mr = Mr::new(&Pd::new(&native).unwrap(), std::slice::from_ref(&arena), None).unwrap();
        let cq = Cq::new(&native, 64, None).unwrap();
        let config = QpConfig { sends: 16, receives: 16, inline: 32, signal_every: 4, list: 4 };
        let datagrams = UdQp::new(&mr, cq.handle(), &config, 1, None).unwrap();
        End { datagrams, cq, mr, arena }
    });
    let path = AhAttr::to(gid.raw, native.port(1).unwrap().lid, &gid);
    let ah = Ah::new(ends[0].mr.pd(), &path).unwrap();
    Some((native, ends, ah, path))
}

#[test]
fn datagrams_of_every_length_arrive_with_sender() {
    let Some((_native, [mut one, mut other], ah, _)) = ends() else { return };
    let longest = one.datagrams.max_message();
    for (byte, len) in [1, 20, 32, 33, 1000, longest].into_iter().enumerate() {
        other.post(1);
        one.send(&ah, other.names(), len, byte as u8, true);
        one.leave().unwrap();
        let datagram = other.receive();
        assert_eq!((datagram.qp, datagram.payload.len()), (one.datagrams.number(), len));
        assert!(datagram.payload.iter().all(|&got| got == byte as u8), "{len} bytes");
    }
    let mut message = one.message(longest + 1, 1);
    let (qp, key) = other.names();
    assert!(one.datagrams.send(&ah, qp, key, &mut message, true).is_err());
}

/// Loopback traffic stays in order, so later datagrams show that earlier ones were dropped.
#[test]
fn misaddressed_or_unbuffered_datagrams_are_dropped() {
    let Some((_native, [mut one, mut other], ah, _)) = ends() else { return };
    let (qp, key) = other.names();
    one.send(&ah, (qp, key), 100, 1, true);
    one.leave().unwrap();
    other.post(4);
    one.send(&ah, (qp, key ^ 1), 100, 2, true);
    one.send(&ah, (qp ^ 0x80_0000, key), 100, 3, true);
    one.send(&ah, (qp, key), 100, 4, true);
    one.leave().unwrap();
    let datagram = other.receive();
    // The first one may have been late.
    let datagram = if datagram.payload[0] == 1 { other.receive() } else { datagram };
    assert_eq!(datagram.payload[..], [4; 100]);
    assert!(!one.datagrams.is_errored() && !other.datagrams.is_errored());
}

#[test]
fn ah_may_be_dropped_after_send() {
    let Some((_native, [mut one, mut other], ah, path)) = ends() else { return };
    drop(ah);
    for round in 0..20 {
        other.post(2);
        let ah = Ah::new(one.mr.pd(), &path).unwrap();
        one.send(&ah, other.names(), 16, round, false);
        one.send(&ah, other.names(), 600, round, true);
        drop(ah);
        one.leave().unwrap();
        assert_eq!((other.receive().payload[..] == [round; 16], other.receive().payload[0]), (true, round));
    }
}

#[test]
fn errored_qp_is_rebuilt() {
    let Some((native, [mut one, mut other], ah, _)) = ends() else { return };
    let names = one.names();
    one.post(4);
    // SAFETY: the queue pair is live.
    unsafe { native.modify_qp(one.datagrams.handle(), &Transition::Error) }.unwrap();
    one.send(&ah, other.names(), 100, 1, true);
    one.datagrams.flush().unwrap();
    let mut flushed = 0;
    await_that("all to be flushed", || {
        for completion in one.cq.poll(16).unwrap() {
            let status = match completion.is_buffer() {
                true => one.datagrams.received(completion).map(drop),
                false => one.datagrams.sent(completion),
            };
            assert_eq!(status, Err(WcStatus::Flushed));
            flushed += 1;
        }
        (flushed == 5).then_some(())
    });
    assert!(one.datagrams.is_errored());
    one.datagrams.rebuild().unwrap();
    // SAFETY: the queue pair is live.
    let state = unsafe { native.query_qp(one.datagrams.handle()) }.unwrap().state;
    assert_eq!((state, one.names()), (QpState::Rts, names));
    other.post(1);
    one.send(&ah, other.names(), 100, 2, true);
    one.leave().unwrap();
    assert_eq!(other.receive().payload[..], [2; 100]);
}

/// Sends datagrams in one direction, short ones inline and longer ones not, and replaces the buffers.
fn exchange([from, to]: &mut [End; 2], ah: &Ah<RdmaCore>) {
    for n in 0..DEPTH {
        from.send(ah, to.names(), if n % 2 == 0 { 16 } else { 200 }, 1, n + 1 == DEPTH);
    }
    from.leave().unwrap();
    (0..DEPTH).for_each(|_| drop(to.receive()));
    to.post(DEPTH);
}

#[test]
fn datagrams_allocate_nothing() {
    let Some((_native, mut ends, ah, _)) = ends() else { return };
    ends[1].post(16);
    // Reused memory is allocated in the first rounds.
    (0..10).for_each(|_| exchange(&mut ends, &ah));
    let before = COUNT.get();
    (0..100).for_each(|_| exchange(&mut ends, &ah));
    assert_eq!(COUNT.get() - before, 0);
}
