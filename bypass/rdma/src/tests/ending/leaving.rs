//! Connections with shared buffers return all buffers, however they end.

use crate::Config;
use crate::tests::rig::{Peer, Rig, Setup};
use crate::tests::setup::connecting::rig;
use linerate_roce::testing::DeviceConfig;
use linerate_service::CloseReason;
use linerate_service::time::{Duration, Instant};

const SHARED: u32 = 12;
const PARTS: [(usize, bool); 3] = [(300, false), (3000, true), (2000, false)];

fn setup(seed: u64, device: fn(&mut DeviceConfig)) -> Setup {
    let defaults = Setup::default();
    let config = Config { srq: Some(SHARED), max_connections: 4, ..defaults.config };
    Setup { seed, config, device, ..defaults }
}

/// Configures the behaviour of hardware.
fn hardware(device: &mut DeviceConfig) {
    device.holds_shared = true;
}

/// Configures the behaviour of Soft-RoCE of Linux 6.1.
fn soft(device: &mut DeviceConfig) {
    (device.keeps_completions, device.reports_last_wqe) = (true, false);
}

/// Opens one connection after another. Causes `killed` queue pair errors at random times, then waits until `through`
/// connections have finished and all their objects are destroyed. Returns the total time.
fn connects(rig: &mut Rig, killed: usize, through: usize) -> Duration {
    let before = [0, 1].map(|end| rig.ends[end].holds(&rig.fabric));
    let peer = rig.ends[0].worker.service_mut();
    (peer.again, peer.rounds) = (usize::MAX, usize::MAX);
    for _ in 0..killed {
        let ended = rig.ends[0].worker.service().ended.len();
        for _ in 0..rig.random.usize(..800) {
            rig.step();
        }
        // The queue pairs in use are the newest ones.
        let qp = rig.fabric.numbers().into_iter().rev().nth(rig.random.usize(..2));
        qp.into_iter().for_each(|qp| rig.fabric.pair_fatal(qp));
        rig.run_until(|ends| ends[0].worker.service().ended.len() > ended);
    }
    let finished = |rig: &Rig| {
        rig.ends[0].worker.service().ended.iter().filter(|reason| **reason == CloseReason::Finished).count()
    };
    while finished(rig) < through {
        let ended = rig.ends[0].worker.service().ended.len();
        rig.run_until(|ends| ends[0].worker.service().ended.len() > ended);
    }
    let peer = rig.ends[0].worker.service_mut();
    (peer.again, peer.rounds) = (0, 0);
    let outcomes = |peer: &Peer| peer.ended.len() + peer.failed.len();
    let so_far = outcomes(peer);
    rig.run_until(|ends| outcomes(ends[0].worker.service()) > so_far);
    let took = rig.now;
    (0..2).for_each(|end| rig.run_until_holds(end, before[end]));
    let fabric = rig.fabric.clone();
    rig.run_until(|ends| ends.iter().all(|end| fabric.srq_wrs(&end.device) == SHARED as usize));
    Duration::from_nanos(took)
}

#[test]
fn ended_connections_return_shared_buffers() {
    for seed in 0..12 {
        let setup = setup(seed, hardware);
        let mut rig = rig(&setup, &PARTS, true);
        connects(&mut rig, 30, 10);
    }
}

#[test]
fn missing_last_wqe_event_delays_nothing() {
    for seed in 0..4 {
        let mut setup = setup(seed, soft);
        // Queue pairs that wait for the event occupy room in the completion queue.
        setup.config.max_connections = 64;
        let mut rig = rig(&setup, &PARTS, true);
        rig.tick = 10_000;
        let took = connects(&mut rig, 10, 10);
        let peer = rig.ends[0].worker.service();
        // A connection whose queue pair fails during setup is not established.
        assert!(peer.failed.len() <= 10, "{peer:?}");
        assert!(took < Duration::from_millis(50) * peer.ended.len() as u32, "{took:?} for {}", peer.ended.len());
    }
}

#[test]
fn qp_of_ended_worker_is_destroyed() {
    let setup = setup(1, hardware);
    let mut rig = rig(&setup, &PARTS, true);
    rig.run_until(|ends| ends[0].worker.service().ended.len() == 1);
    let mut now = rig.now;
    for _ in 0..100 {
        // The worker no longer runs.
        now += 200_000_000;
        rig.fabric.run();
        rig.ends[0].connector.as_mut().unwrap().turn(Instant::from_nanos(now)).unwrap();
    }
    assert_eq!(rig.fabric.live_of(&rig.ends[0].device).qps, 0);
}
