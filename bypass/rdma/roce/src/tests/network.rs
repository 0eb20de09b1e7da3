//! Two ends over a network that loses, duplicates and reorders packets, compared with a model.

use super::*;
use crate::Counters;
use crate::testing::Faults;
use linerate_rdma_provider::WcOpcode;
use proptest::prelude::*;
use proptest::sample::select;
use std::collections::VecDeque;

/// Start of each end's memory: bytes that requests read, and numbers for atomic operations.
const SOURCE: usize = 1 << 16;
const CELLS: usize = 4;
/// Parts that operations write follow.
const FREE: usize = SOURCE + CELLS * 8;

#[derive(Debug, Clone, Copy)]
enum Kind {
    Send,
    SendImmediate,
    Write,
    WriteImmediate,
    /// READ of constant bytes, or of an earlier WRITE.
    Read(bool),
    FetchAdd(usize, u64),
    /// Expects the number that is there, or another one.
    CompareSwap(usize, bool),
}

#[derive(Debug, Clone)]
struct Act {
    end: usize,
    kind: Kind,
    len: usize,
    /// Number of elements.
    sges: usize,
    is_inline: bool,
    is_signalled: bool,
    /// Steps of the network before the next request is posted.
    steps: u8,
}

#[derive(Debug, Clone)]
struct Case {
    faults: (u8, u8, u8),
    seed: u64,
    mtu: Mtu,
    is_shared: bool,
    psns: [u32; 2],
    reads: u8,
    buffers: usize,
    acts: Vec<Act>,
}

fn case() -> impl Strategy<Value = Case> {
    let faults = prop_oneof![Just((0, 0, 0)), (0..10u8, 0..10u8, 0..10u8)];
    let psn = || prop_oneof![0xff_ffd0..0x100_0000u32, 0..0x100_0000u32];
    let mtus_and_acts = select(vec![Mtu::Mtu256, Mtu::Mtu1024])
        .prop_flat_map(|mtu| (Just(mtu), prop::collection::vec(act(mtu.bytes() as usize), 1..30)));
    let shape = (faults, any::<u64>(), mtus_and_acts, any::<bool>(), [psn(), psn()], 1..5u8, 1..8usize);
    shape.prop_map(|(faults, seed, (mtu, acts), is_shared, psns, reads, buffers)| Case {
        faults,
        seed,
        mtu,
        is_shared,
        psns,
        reads,
        buffers,
        acts,
    })
}

fn act(mtu: usize) -> impl Strategy<Value = Act> {
    let kind = prop_oneof![
        3 => Just(Kind::Send),
        1 => Just(Kind::SendImmediate),
        2 => Just(Kind::Write),
        2 => Just(Kind::WriteImmediate),
        3 => any::<bool>().prop_map(Kind::Read),
        1 => (0..CELLS, any::<u64>()).prop_map(|(cell, add)| Kind::FetchAdd(cell, add)),
        1 => (0..CELLS, any::<bool>()).prop_map(|(cell, equal)| Kind::CompareSwap(cell, equal)),
    ];
    let len = prop_oneof![8 => select(vec![0, 1, mtu - 1, mtu, mtu + 1, 4 * mtu]), 1 => Just(1 << 16)];
    let shape = (0..2usize, kind, len, 1..4usize, any::<bool>(), any::<bool>(), 0..40u8);
    shape.prop_map(|(end, kind, len, sges, is_inline, is_signalled, steps)| Act {
        end,
        kind,
        len,
        sges,
        is_inline,
        is_signalled,
        steps,
    })
}

/// End with a model of its memory.
struct Site {
    end: End,
    memory: Memory,
    keys: Keys,
    model: Vec<u8>,
    /// First byte that no operation uses.
    free: usize,
    /// Parts that the peer has written.
    written: Vec<(usize, usize)>,
    posted: u64,
    receives: u64,
    /// Completions to come: of signalled requests, and of buffers with length and immediate data.
    expected: VecDeque<(u64, WcOpcode)>,
    messages: VecDeque<(WcOpcode, u32, Option<u32>)>,
}

impl Site {
    fn new(end: End, seed: u8, len: usize) -> Self {
        let memory = Memory::new(len);
        let model: Vec<u8> = (0..len).map(|at| if at < FREE { (at / 3) as u8 ^ seed } else { 0 }).collect();
        memory.put(0, &model);
        let (_, keys) = call!(end.sim.reg_mr(end.pd, memory.start(), len, ALL)).unwrap();
        let (expected, messages) = (VecDeque::new(), VecDeque::new());
        let (posted, receives, written) = (0, 0, vec![(0, SOURCE)]);
        Site { end, memory, keys, model, free: FREE, written, posted, receives, expected, messages }
    }

    fn take(&mut self, len: usize) -> usize {
        let at = self.free;
        self.free += len.next_multiple_of(8);
        at
    }

    fn sge(&self, at: usize, len: usize) -> Sge {
        Sge { address: self.memory.start() as u64 + at as u64, len: len as u32, lkey: self.keys.local }
    }

    /// Posts buffers up to `count`. Messages take them in order, so their places are those of the model.
    fn post_buffers(&mut self, count: usize, places: &mut VecDeque<(usize, usize)>) {
        while self.receives < count as u64
            && let Some((at, len)) = places.pop_front()
        {
            let sges = [self.sge(at, len / 3), self.sge(at + len / 3, len - len / 3)];
            let request = RecvWr { id: 1, sges: &sges };
            match self.end.srq {
                Some(srq) => call!(self.end.sim.post_srq_recv(srq, &[request])).unwrap(),
                None => call!(self.end.sim.post_recv(self.end.qp, &[request])).unwrap(),
            }
            self.receives += 1;
        }
    }

    fn poll(&mut self) {
        for done in self.end.poll() {
            assert_eq!((done.status, done.qp), (WcStatus::Success, self.end.number));
            if done.id == 1 {
                self.receives -= 1;
                let message = (done.opcode, done.len, done.immediate);
                assert_eq!(self.messages.pop_front(), Some(message), "a message arrives once and in order");
            } else {
                assert_eq!(self.expected.pop_front(), Some((done.id, done.opcode)));
            }
        }
    }

    fn counters(&self) -> Counters {
        self.end.sim.counters()
    }
}

/// Posts a request and applies it to the models. `places` are those of the peer's buffers.
fn post(act: &Act, this: &mut Site, peer: &mut Site, places: &mut VecDeque<(usize, usize)>) {
    this.posted += 1;
    let id = this.posted * 2;
    let is_atomic = matches!(act.kind, Kind::FetchAdd(..) | Kind::CompareSwap(..));
    let len = if is_atomic { 8 } else { act.len };
    let from = (id as usize * 37) % (SOURCE - len + 1);
    let data = this.model[from..from + len].to_vec();
    let rkey = peer.keys.remote;
    let remote = |peer: &Site, at| peer.memory.start() as u64 + at as u64;
    let immediate = id as u32 ^ 0x8000_0001;
    let mut local = from;
    let (operation, opcode) = match act.kind {
        Kind::Send | Kind::SendImmediate => {
            let at = peer.take(len);
            places.push_back((at, len));
            peer.model[at..at + len].copy_from_slice(&data);
            let has_immediate = matches!(act.kind, Kind::SendImmediate);
            peer.messages.push_back((WcOpcode::Receive, len as u32, has_immediate.then_some(immediate)));
            let operation = if has_immediate { Operation::SendImmediate(immediate) } else { Operation::Send };
            (operation, WcOpcode::Send)
        }
        Kind::Write | Kind::WriteImmediate => {
            let at = peer.take(len);
            peer.model[at..at + len].copy_from_slice(&data);
            peer.written.push((at, len));
            let address = remote(peer, at);
            if matches!(act.kind, Kind::Write) {
                (Operation::Write { address, rkey }, WcOpcode::Write)
            } else {
                places.push_back((at, 0));
                peer.messages.push_back((WcOpcode::ReceiveWrite, len as u32, Some(immediate)));
                (Operation::WriteImmediate { address, rkey, immediate }, WcOpcode::Write)
            }
        }
        Kind::Read(is_written) => {
            let fits = |&&(_, room): &&(usize, usize)| room >= len;
            let place = if is_written { peer.written.iter().rev().find(fits) } else { None };
            let at = place.map_or(from, |&(at, _)| at);
            local = this.take(len);
            this.model[local..local + len].copy_from_slice(&peer.model[at..at + len]);
            (Operation::Read { address: remote(peer, at), rkey }, WcOpcode::Read)
        }
        Kind::FetchAdd(cell, _) | Kind::CompareSwap(cell, _) => {
            let at = SOURCE + cell * 8;
            let number = &mut peer.model[at..at + 8];
            let was = u64::from_ne_bytes(number.try_into().unwrap());
            let address = peer.memory.start() as u64 + at as u64;
            let (operation, opcode, new) = match act.kind {
                Kind::FetchAdd(_, add) => {
                    (Operation::FetchAdd { address, rkey, add }, WcOpcode::FetchAdd, was.wrapping_add(add))
                }
                Kind::CompareSwap(_, is_equal) => {
                    let (expect, swap) = (was ^ u64::from(!is_equal), was.rotate_left(9) ^ id);
                    let new = if is_equal { swap } else { was };
                    (Operation::CompareSwap { address, rkey, expect, swap }, WcOpcode::CompareSwap, new)
                }
                _ => unreachable!(),
            };
            number.copy_from_slice(&new.to_ne_bytes());
            local = this.take(8);
            this.model[local..local + 8].copy_from_slice(&was.to_ne_bytes());
            (operation, opcode)
        }
    };
    let part = len.div_ceil(act.sges);
    let sges: Vec<_> = (0..act.sges)
        .map(|nth| this.sge(local + (nth * part).min(len), part.min(len - (nth * part).min(len))))
        .collect();
    let is_inline = act.is_inline && len <= 64 && !is_atomic && !matches!(act.kind, Kind::Read(_));
    let flags = if is_inline { SendFlags::INLINE } else { SendFlags::UNSIGNALLED }.with_signal(act.is_signalled);
    this.end.post(&[SendWr { id, sges: &sges, operation, flags }]).unwrap();
    if act.is_signalled {
        this.expected.push_back((id, opcode));
    }
}

fn sites(case: &Case) -> (Fabric, [Site; 2]) {
    let (lost, twice, late) = case.faults;
    let setup = Setup {
        fabric: FabricConfig { seed: case.seed, faults: Faults { lost, twice, late }, ..FabricConfig::default() },
        cap: QpCap { sends: 32, receives: 32, send_sges: 3, recv_sges: 2, inline: 64 },
        srq: case.is_shared.then_some(SrqInitAttr { buffers: 32, sges: 2 }),
        ..Setup::default()
    };
    let (fabric, a, b) = apart(&setup);
    for (index, (end, peer)) in [(&a, &b), (&b, &a)].into_iter().enumerate() {
        let Transition::Rtr { qp, path, .. } = end.to_receive(peer, 1) else { panic!() };
        let (mtu, psn, responder_resources, min_rnr_timer) = (case.mtu, case.psns[1 - index], case.reads, 1);
        end.modify_qp(End::init()).unwrap();
        end.modify_qp(Transition::Rtr { mtu, qp, psn, responder_resources, min_rnr_timer, path }).unwrap();
        let (psn, initiator_depth) = (case.psns[index], case.reads);
        end.modify_qp(Transition::Rts { psn, timeout: 8, retries: 7, rnr_retries: 7, initiator_depth }).unwrap();
    }
    let len = FREE + case.acts.iter().map(|act| act.len + 16).sum::<usize>();
    (fabric, [Site::new(a, 1, len), Site::new(b, 2, len)])
}

/// Runs a case. Returns the counters of both ends.
fn play(case: &Case) -> [Counters; 2] {
    let (fabric, [mut a, mut b]) = sites(case);
    let mut places = [VecDeque::new(), VecDeque::new()];
    let mut acts: VecDeque<_> = case.acts.iter().cloned().collect();
    // The last request of each end completes the others.
    let silent = |end| Act { end, kind: Kind::Write, len: 0, sges: 1, is_inline: false, is_signalled: true, steps: 0 };
    acts.extend([silent(0), silent(1)]);
    let mut wait = 0;
    for step in 0.. {
        while wait == 0
            && let Some(act) = acts.pop_front()
        {
            match act.end {
                0 => post(&act, &mut a, &mut b, &mut places[1]),
                _ => post(&act, &mut b, &mut a, &mut places[0]),
            }
            wait = act.steps;
        }
        wait = wait.saturating_sub(1);
        for (site, places) in [&mut a, &mut b].into_iter().zip(&mut places) {
            site.poll();
            if step % 8 == 0 {
                site.post_buffers(case.buffers, places);
            }
        }
        if acts.is_empty() && [&a, &b].iter().all(|site| site.expected.is_empty() && site.messages.is_empty()) {
            break;
        }
        assert!(fabric.step() || !acts.is_empty(), "nothing happens, but requests are not complete");
        assert!(step < 1_000_000, "requests do not complete");
    }
    fabric.run();
    for site in [&mut a, &mut b] {
        site.poll();
        assert_eq!((site.end.state(), site.end.events(), &site.written[0]), (QpState::Rts, vec![], &(0, SOURCE)));
        let memory = site.memory.get(0, site.model.len());
        let differs = memory.iter().zip(&site.model).position(|(found, expected)| found != expected);
        assert_eq!(differs, None, "memory differs from the model");
    }
    [&a, &b].map(Site::counters)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        failure_persistence: None,
        max_shrink_iters: 200,
        ..ProptestConfig::default()
    })]

    #[test]
    fn requests_complete_once_and_in_order_over_a_bad_network(case in case()) {
        let counters = play(&case);
        if case.faults == (0, 0, 0) {
            // Without loss, packets are repeated only to request acknowledgements.
            let probes: u64 = counters.iter().map(|counters| counters.probes).sum();
            for Counters { timeouts, repeated, duplicates, out_of_sequence, not_ready, .. } in counters {
                assert_eq!(timeouts, 0);
                let is_ready = counters.iter().all(|counters| counters.not_ready == 0);
                let is_clean = (repeated, out_of_sequence, not_ready) == (0, 0, 0) && duplicates <= probes;
                assert!(!is_ready || is_clean, "{counters:?}");
            }
        }
    }
}
