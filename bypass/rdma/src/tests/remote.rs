//! One-sided operations of services: executed exactly once; a denied one ends the connection of its initiator only.

use super::rig::{Peer, Rig, Setup};
use crate::provider::{Access, AtomicCap, Provider};
use crate::verbs::{Counters, ExposedMr};
use crate::{Adapter, Config, OpenError, Started, Unsupported};
use linerate_bypass::{self as bypass, Published};
use linerate_roce::testing::{DeviceConfig, Fabric, FabricConfig, Live, SimDevice};
use linerate_service::{CloseReason, OneSidedError, OneSidedOp, OneSidedResult, RemoteAddr};
use std::sync::Arc;

/// Concurrent connections.
const CONNECTIONS: usize = 4;

fn setup(seed: u64) -> Setup {
    Setup { seed, ..Setup::default() }
}

/// Creates a client, and a server with `count` counters.
fn counting(setup: &Setup, count: usize) -> (Rig, Counters<SimDevice>) {
    let rig = Rig::new(setup, [Peer::ops([]), Peer::echoes()]);
    let memory = Arc::new(bypass::RemoteCounters::new(count).unwrap());
    let counters = Counters::open(rig.ends[1].pd(), memory).unwrap();
    (rig, counters)
}

fn add_to(counters: &Counters<SimDevice>, at: usize, add: u64) -> OneSidedOp {
    OneSidedOp::FetchAdd { address: counters.address() + at as u64 * 8, key: counters.rkey(), add }
}

fn begin(rig: &mut Rig, setup: &Setup, ops: impl IntoIterator<Item = OneSidedOp>) {
    rig.ends[0].worker.service_mut().ops.extend(ops);
    (0..CONNECTIONS).for_each(|_| rig.connect(setup));
}

/// Returns the old values, in the order of completion.
fn answers(rig: &Rig) -> Vec<u64> {
    let was = |done: &(u64, OneSidedResult)| match done.1 {
        OneSidedResult::Previous(was) => was,
        OneSidedResult::Read(_) => panic!("unexpected READ"),
    };
    rig.ends[0].worker.service().done.iter().map(was).collect()
}

#[test]
fn concurrent_additions_are_exact() {
    for seed in 0..20 {
        let setup = setup(seed);
        let (mut rig, counters) = counting(&setup, 3);
        begin(&mut rig, &setup, (0..300).map(|_| add_to(&counters, 1, 7)));
        rig.run_until(|ends| ends.iter().all(|end| end.worker.service().ended.len() == CONNECTIONS));
        for end in &rig.ends {
            assert_eq!(end.worker.service().ended, [CloseReason::Finished; CONNECTIONS]);
        }
        assert_eq!([0, 1, 2].map(|at| counters.load(at)), [0, 2100, 0]);
        // Each old value was returned once.
        let mut seen = answers(&rig);
        seen.sort_unstable();
        assert_eq!(seen, (0..300).map(|at| at * 7).collect::<Vec<_>>());
    }
}

#[test]
fn compare_swap_succeeds_once() {
    for seed in 0..20 {
        let setup = setup(seed);
        let (mut rig, counters) = counting(&setup, 1);
        let (address, key) = (counters.address(), counters.rkey());
        let swaps = (1..=40).map(|swap| OneSidedOp::CompareSwap { address, key, expect: 0, swap });
        begin(&mut rig, &setup, swaps);
        rig.run_until(|ends| ends[0].worker.service().ended.len() == CONNECTIONS);
        let seen = answers(&rig);
        assert_eq!(seen.len(), 40);
        assert_eq!(seen.iter().filter(|was| **was == 0).count(), 1);
        assert!(seen.iter().all(|was| [0, counters.load(0)].contains(was)), "{seen:?}");
    }
}

/// Executes the operation that `wrong` returns, which the server denies, while other connections execute additions.
#[track_caller]
fn denied<T>(seed: u64, wrong: impl FnOnce(&Rig, &Counters<SimDevice>) -> (OneSidedOp, T)) {
    let setup = setup(seed);
    let (mut rig, counters) = counting(&setup, 2);
    let (wrong, _kept) = wrong(&rig, &counters);
    let adds = (0..60).map(|_| add_to(&counters, 0, 1));
    begin(&mut rig, &setup, adds.clone().chain([wrong]).chain(adds));
    rig.run_until(|ends| ends.iter().all(|end| end.worker.service().ended.len() == CONNECTIONS));
    for end in &rig.ends {
        let mut ended = end.worker.service().ended.clone();
        ended.sort_by_key(|reason| *reason == CloseReason::Finished);
        let expected = [CloseReason::Reset, CloseReason::Finished, CloseReason::Finished, CloseReason::Finished];
        assert_eq!(ended, expected, "{wrong:?}");
    }
    assert_eq!((counters.load(0), counters.load(1), answers(&rig).len()), (120, 0, 120), "{wrong:?}");
}

#[test]
fn guessed_or_stale_key_is_denied() {
    for seed in 0..4 {
        for wrong in [1, 0x100, 0xffff_ff00] {
            denied(seed, |_, counters| {
                let (address, key) = (counters.address(), counters.rkey() ^ wrong);
                (OneSidedOp::FetchAdd { address, key, add: 1 }, ())
            });
        }
        denied(seed, |rig, _| {
            let memory = Arc::new(bypass::RemoteCounters::new(1).unwrap());
            let gone = Counters::open(rig.ends[1].pd(), memory.clone()).unwrap();
            (add_to(&gone, 0, 1), memory)
        });
    }
}

#[test]
fn memory_next_to_counters_is_denied() {
    for seed in 0..4 {
        for at in [-8, 1, 4, 9, 15, 16, 4088] {
            denied(seed, |_, counters| {
                let (address, key) = (counters.address().wrapping_add_signed(at), counters.rkey());
                (OneSidedOp::CompareSwap { address, key, expect: 0, swap: 1 }, ())
            });
        }
    }
}

#[test]
fn counters_cannot_be_read() {
    for seed in 0..4 {
        for len in [1, 8, 16] {
            denied(seed, |_, counters| {
                (OneSidedOp::Read { address: counters.address(), key: counters.rkey(), len }, ())
            });
        }
    }
}

#[test]
fn published_memory_denies_atomic_operations() {
    for seed in 0..4 {
        denied(seed, |rig, _| {
            let memory = Arc::new(Published::new(4096, false).unwrap());
            let access = Access { remote_read: true, ..Access::default() };
            let export = ExposedMr::open(rig.ends[1].pd(), memory, access).unwrap();
            let (address, key) = (export.address(), export.rkey());
            (OneSidedOp::FetchAdd { address, key, add: 1 }, export)
        });
    }
}

#[test]
fn counters_cannot_be_written() {
    let setup = setup(1);
    let (mut rig, counters) = counting(&setup, 1);
    let cq = crate::verbs::Cq::new(&rig.ends[0].device, 64, None).unwrap();
    let usual = rig.ends[0].cq();
    rig.ends[0].completes_to(&cq);
    let mut other = rig.half(&setup);
    rig.ends[0].completes_by(usual);
    let mut message = super::rig::message(&rig.ends[0].arena, &[1; 8]);
    other.write(&mut message, counters.address(), counters.rkey(), Some(8)).unwrap();
    other.flush().unwrap();
    begin(&mut rig, &setup, (0..60).map(|_| add_to(&counters, 0, 1)));
    rig.run_until(|ends| {
        ends[0].worker.service().ended == [CloseReason::Finished; CONNECTIONS]
            && ends[1].worker.service().ended.len() == CONNECTIONS + 1
    });
    let resets = |reason: &&CloseReason| **reason == CloseReason::Reset;
    assert_eq!(rig.ends[1].worker.service().ended.iter().filter(resets).count(), 1);
    assert_eq!((counters.load(0), answers(&rig).len()), (60, 60));
}

#[test]
fn atomic_operations_are_refused_without_device_support() {
    let fabric = Fabric::new(FabricConfig::default());
    let mut config = DeviceConfig::roce([127, 0, 0, 1].into());
    let device = fabric.device("able", config.clone());
    config.limits.atomics = AtomicCap::None;
    let unable = fabric.device("unable", DeviceConfig { address: [127, 0, 0, 2].into(), ..config });
    let small = Config { max_connections: 1, ..Config::default() };
    let memory = Arc::new(bypass::RemoteCounters::new(5).unwrap());
    let refused = Adapter::open(&unable, &small, &[], 1).unwrap().count(memory.clone());
    match refused {
        Err(OpenError::Unsupported { error: Unsupported::NoAtomics, .. }) => {}
        other => panic!("{other:?}"),
    }
    let adapter = Adapter::open(&device, &small, &[], 1).unwrap();
    let cell = adapter.count(memory.clone()).unwrap();
    assert_eq!(cell.get(), None);
    let Started { connector, workers, .. } = adapter.start::<()>().unwrap();
    let RemoteAddr { address, key } = *cell.get().unwrap();
    assert_eq!(address, memory.range().start as u64);
    assert!(key > 0 && workers[0].parts.atomics && device.limits().unwrap().atomics.any());
    drop((workers, connector));
    assert_eq!(fabric.live(), Live::default());
}

#[test]
fn counters_are_refused_without_device_support() {
    let setup = Setup { atomics: false, ..setup(0) };
    let mut rig = Rig::new(&setup, [Peer::ops([OneSidedOp::FetchAdd { address: 8, key: 1, add: 1 }]), Peer::echoes()]);
    rig.connect(&setup);
    rig.run_until(|ends| ends[0].worker.service().ended == [CloseReason::Finished]);
    assert_eq!(rig.ends[0].worker.service().refused, [OneSidedError::Unsupported]);
    assert!(rig.ends[0].worker.service().done.is_empty());
}
