//! Posting and polling do not allocate.

use linerate_bypass::Arena;
use linerate_bypass::arena::ArenaConfig;
use linerate_rdma::provider::{AhAttr, Provider, Transition};
use linerate_rdma::rdma_core::RdmaCore;
use linerate_rdma::verbs::{Cq, Message, Mr, Pd, Qp, QpConfig, Rts};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

/// System allocator that counts the allocations of each thread.
struct Counting;

thread_local! {
    pub static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: forwards to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = COUNT.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller upholds the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the same contract.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Messages in flight.
const DEPTH: usize = 8;

struct End {
    qp: Qp<RdmaCore, Rts>,
    arena: Arena,
    cq: Cq<RdmaCore>,
}

fn connected(native: &Arc<RdmaCore>) -> [End; 2] {
    let gids = native.gids(1).unwrap();
    let gid = *gids.iter().find(|gid| gid.ip().is_ipv4()).or(gids.first()).expect("the port has no address");
    let mtu = native.port(1).unwrap().mtu;
    let made = [(), ()].map(|()| {
        let arena = Arena::new(ArenaConfig { bytes: 1 << 20, hugepages: false }).unwrap();
        let mr = Mr::new(&Pd::new(native).unwrap(), std::slice::from_ref(&arena), None).unwrap();
        let cq = Cq::new(native, 64, None).unwrap();
        let config = QpConfig { sends: 16, receives: 16, inline: 32, signal_every: 4, list: 4 };
        let qp = Qp::new(&mr, cq.handle(), None, &config).unwrap().init(1).unwrap();
        (qp, arena, cq)
    });
    let numbers = [made[1].0.number(), made[0].0.number()];
    let mut peers = numbers.into_iter();
    made.map(|(mut qp, arena, cq)| {
        qp.post((0..16).map(|_| arena.alloc(256).unwrap())).unwrap();
        let receive = Transition::Rtr {
            mtu,
            qp: peers.next().unwrap(),
            psn: 1,
            responder_resources: 1,
            min_rnr_timer: 12,
            path: AhAttr::to(gid.raw, 0, &gid),
        };
        let send = Transition::Rts { psn: 1, timeout: 14, retries: 7, rnr_retries: 7, initiator_depth: 1 };
        let qp = qp.to_rtr(&receive).unwrap().to_rts(&send).unwrap();
        End { qp, arena, cq }
    })
}

/// Sends messages in one direction, short ones inline and longer ones not, and replaces the buffers.
fn exchange([from, to]: &mut [End; 2]) {
    for n in 0..DEPTH {
        let mut message = Message::new();
        message.push(from.arena.alloc(if n % 2 == 0 { 16 } else { 200 }).unwrap().freeze()).unwrap();
        from.qp.send(&mut message, n + 1 == DEPTH).unwrap();
    }
    from.qp.flush().unwrap();
    let (mut received, mut is_sent) = (0, false);
    while received < DEPTH || !is_sent {
        for completion in to.cq.poll(16).unwrap() {
            to.qp.received(completion).unwrap();
            received += 1;
        }
        for completion in from.cq.poll(16).unwrap() {
            from.qp.sent(completion).unwrap();
            is_sent = from.qp.outstanding() == 0;
        }
    }
    to.qp.post((0..DEPTH).map(|_| to.arena.alloc(256).unwrap())).unwrap();
}

#[test]
fn posting_and_polling_allocate_nothing() {
    let Ok(name) = std::env::var("LINERATE_RDMA_DEVICE") else {
        eprintln!("skipped: LINERATE_RDMA_DEVICE names no device");
        return;
    };
    let mut ends = connected(&Arc::new(RdmaCore::open(&name).unwrap()));
    // Reused memory is allocated in the first rounds.
    (0..10).for_each(|_| exchange(&mut ends));
    let before = COUNT.get();
    (0..100).for_each(|_| exchange(&mut ends));
    assert_eq!(COUNT.get() - before, 0);
}
