//! Random requests of two connected queue pairs: memory outside regions is unchanged, and every request completes
//! once.

use super::*;
use proptest::prelude::*;

const GUARD: u8 = 0xa5;
/// Registered part of an end's memory. The rest guards it.
const REGION: std::ops::Range<usize> = 1024..3072;

#[derive(Debug, Clone)]
enum Act {
    Send { end: usize, kind: u8, at: usize, len: usize, remote: usize, is_bad: bool, flags: u8 },
    Receive { end: usize, at: usize, len: usize },
    Poll(usize),
    Steps(u8),
}

fn act() -> impl Strategy<Value = Act> {
    // Mostly within the region, sometimes across its edges.
    let at = || prop_oneof![9 => 1024usize..2900, 1 => 900usize..3100];
    prop_oneof![
        4 => (0..2usize, 0..6u8, at(), 0..200usize, at(), prop::bool::weighted(0.02), 0..8u8)
            .prop_map(|(end, kind, at, len, remote, is_bad, flags)| {
                Act::Send { end, kind, at, len, remote, is_bad, flags }
            }),
        4 => (0..2usize, at(), 100..300usize).prop_map(|(end, at, len)| Act::Receive { end, at, len }),
        3 => (0..2usize).prop_map(Act::Poll),
        3 => (0..6u8).prop_map(Act::Steps),
    ]
}

/// An end with its outstanding requests, in order, and buffers.
struct Actor {
    end: End,
    keys: Keys,
    sends: Vec<(u64, bool)>,
    receives: Vec<u64>,
}

impl Actor {
    fn new(end: End) -> Self {
        call!(end.sim.dereg_mr(end.mr)).unwrap();
        end.memory.put(0, &[GUARD; 8192]);
        end.memory.put(REGION.start, &[1; REGION.end - REGION.start]);
        let start = end.memory.start().wrapping_add(REGION.start);
        let (_, keys) = call!(end.sim.reg_mr(end.pd, start, REGION.len(), ALL)).unwrap();
        Actor { end, keys, sends: Vec::new(), receives: Vec::new() }
    }

    fn sge(&self, at: usize, len: usize) -> Sge {
        Sge { lkey: self.keys.local, ..self.end.sge(at, len) }
    }

    /// Polls: send requests complete in order, each signalled one exactly once.
    fn poll(&mut self) {
        for completion in self.end.poll() {
            if completion.id & 1 == 1 {
                assert_eq!(completion.id, self.receives.remove(0));
                continue;
            }
            let at = self.sends.iter().position(|&(id, _)| id == completion.id).expect("a posted request");
            assert!(self.sends[..at].iter().all(|&(_, signalled)| !signalled), "a completion is missing");
            assert!(self.sends[at].1 || completion.status != WcStatus::Success, "unsignalled");
            self.sends.drain(..=at);
        }
    }

    /// Asserts that no byte outside the region was written or read: read bytes would now be in a region.
    fn guards_hold(&self) {
        let memory = self.end.memory.get(0, 8192);
        assert!(memory[..REGION.start].iter().chain(&memory[REGION.end..]).all(|&byte| byte == GUARD));
        assert!(memory[REGION].iter().all(|&byte| byte == 1));
    }
}

fn operation(kind: u8, address: u64, rkey: u32) -> Operation {
    match kind {
        0..=2 => Operation::Send,
        3 => Operation::Write { address, rkey },
        4 => Operation::WriteImmediate { address, rkey, immediate: 8 },
        _ => Operation::Read { address, rkey },
    }
}

fn play(acts: &[Act], seed: u64) {
    let mut setup = Setup { rnr_retries: 7, ..Setup::default() };
    setup.fabric.seed = seed;
    let (fabric, a, b) = super::connected(&setup);
    let mut actors = [Actor::new(a), Actor::new(b)];
    let mut next = 0;
    for act in acts {
        match *act {
            Act::Send { end, kind, at, len, remote, is_bad, flags } => {
                next += 2;
                let rkey = actors[1 - end].keys.remote ^ u32::from(is_bad);
                let operation = operation(kind, actors[1 - end].end.address(remote), rkey);
                let actor = &mut actors[end];
                let sges = [actor.sge(at, len)];
                // Inline data may be anywhere.
                let is_inside = at >= REGION.start && at + len <= REGION.end;
                let is_inline = flags & 2 != 0 && kind != 5 && len <= 64 && is_inside;
                let copied = if is_inline { SendFlags::INLINE } else { SendFlags::UNSIGNALLED };
                let flags = copied.with_signal(flags & 1 != 0);
                if actor.end.post(&[SendWr { id: next, sges: &sges, operation, flags }]).is_ok() {
                    actor.sends.push((next, flags.is_signalled()));
                }
            }
            Act::Receive { end, at, len } => {
                next += 2;
                let actor = &mut actors[end];
                let sges = [actor.sge(at, len)];
                let request = RecvWr { id: next | 1, sges: &sges };
                if call!(actor.end.sim.post_recv(actor.end.qp, &[request])).is_ok() {
                    actor.receives.push(next | 1);
                }
            }
            Act::Poll(end) => actors[end].poll(),
            Act::Steps(count) => (0..count).for_each(|_| _ = fabric.step()),
        }
    }
    // Flushes messages that wait for a buffer.
    for actor in &actors {
        fabric.run();
        actor.end.modify_qp(Transition::Error).unwrap();
    }
    fabric.run();
    for actor in &mut actors {
        actor.poll();
        assert_eq!(actor.receives, []);
        assert!(actor.sends.iter().all(|&(_, signalled)| !signalled), "{:?}", actor.sends);
        actor.guards_hold();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn memory_is_safe_and_every_request_completes_once(acts in prop::collection::vec(act(), 1..150), seed: u64) {
        play(&acts, seed);
    }
}
