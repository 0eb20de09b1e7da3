//! Failures end the affected connections with a reason, leave no objects behind, and do not prevent new connections.

use crate::provider::WcStatus;
use crate::tests::rig::{End, Peer, Rig, Setup};
use crate::tests::setup::connecting::{ADDRESS, rig};
use crate::{Config, Connect};
use linerate_roce::testing::{Call, DeviceConfig};
use linerate_service::CloseReason;
use std::time::Duration;

/// Data to send, a part of it by rendezvous.
const PARTS: [(usize, bool); 5] = [(300, false), (20_000, true), (3000, false), (60_000, true), (5000, true)];
/// Upper bound of the steps that the exchange takes.
const STEPS: usize = 3000;

fn setup(seed: u64) -> Setup {
    let defaults = Setup::default();
    // A step takes a thousand nanoseconds.
    let config = Config {
        offer_from: 1000,
        srq: seed.is_multiple_of(3).then_some(12),
        pool: seed as usize % 4,
        probe_after: Duration::from_micros(500),
        timeout: Duration::from_micros(600),
        connect_timeout: Duration::from_micros(5_000),
        ..defaults.config
    };
    let device = if seed % 4 < 2 { defaults.device } else { unkind };
    Setup { seed, config, narrow: seed.is_multiple_of(2), device, ..defaults }
}

/// Configures a device that reuses queue pair numbers at once, and flushes nothing when it fails.
fn unkind(device: &mut DeviceConfig) {
    (device.holds_shared, device.recycles_numbers, device.flushes_on_fatal) = (true, true, false);
}

/// Creates a client that retries until its data was echoed, and a server.
fn persistent(setup: &Setup) -> Rig {
    let mut rig = rig(setup, &PARTS, true);
    rig.ends[0].worker.service_mut().again = usize::MAX;
    rig
}

fn is_through(peer: &Peer) -> bool {
    peer.ended.last() == Some(&CloseReason::Finished) && peer.received == peer.total
}

/// Runs a client with `fault` at a random time. Returns the close reasons of its connections.
fn with_fault(seed: u64, fault: impl FnOnce(&mut Rig)) -> Vec<CloseReason> {
    let setup = setup(seed);
    let mut rig = persistent(&setup);
    let before = [0, 1].map(|end| rig.ends[end].holds(&rig.fabric));
    for _ in 0..rig.random.usize(..STEPS) {
        rig.step();
    }
    fault(&mut rig);
    rig.run_until(|ends| is_through(ends[0].worker.service()));
    (0..2).for_each(|end| rig.run_until_holds(end, before[end]));
    rig.ends[0].worker.service().ended.clone()
}

#[test]
fn killed_peer_leaves_no_objects_and_is_replaced() {
    for seed in 0..60 {
        let setup = setup(seed);
        let (killed, survivor) = if seed % 4 < 2 { (0, 1) } else { (1, 0) };
        let is_announced = seed % 2 == 0;
        let mut rig = persistent(&setup);
        let before = rig.ends[survivor].holds(&rig.fabric);
        for _ in 0..rig.random.usize(..STEPS) {
            rig.step();
        }
        let device = rig.ends[killed].device.clone();
        rig.fabric.vanish(&device, is_announced);
        let peer = match killed {
            0 => Peer { remote: Some(ADDRESS), again: usize::MAX, ..Peer::sends(&PARTS) },
            _ => Peer::echoes(),
        };
        if !is_announced && killed == 0 {
            // Silent connections are detected as lost.
            rig.run_until_holds(1, before);
        }
        rig.replace(killed, &setup, peer);
        rig.ends[killed].connects(if killed == 1 { std::slice::from_ref(&ADDRESS) } else { &[] });
        rig.run_until(|ends| is_through(ends[0].worker.service()));
        rig.run_until_holds(survivor, before);
    }
}

#[test]
fn idle_connection_of_dead_peer_ends() {
    let setup = setup(1);
    // Neither end closes.
    let mut rig = rig(&setup, &[], true);
    let before = rig.ends[1].holds(&rig.fabric);
    rig.run_until(|ends| ends.iter().all(|end| end.worker.summary().accepted + end.worker.summary().connected == 1));
    // An idle connection of a live peer stays open.
    (0..10_000).for_each(|_| rig.step());
    assert!(rig.ends.iter().all(|end| end.worker.service().ended.is_empty()));
    let device = rig.ends[0].device.clone();
    rig.fabric.vanish(&device, false);
    rig.replace(0, &setup, Peer::echoes());
    rig.run_until(|ends| ends[1].worker.service().ended == [CloseReason::TimedOut]);
    rig.run_until_holds(1, before);
}

#[test]
fn failed_qp_ends_its_connection_only() {
    for seed in 0..40 {
        let ended = with_fault(seed, |rig| {
            let qps: Vec<u32> = rig.fabric.numbers();
            if let Some(qp) = rig.random.choice(qps) {
                rig.fabric.pair_fatal(qp);
            }
        });
        assert!(ended.len() <= 2, "{ended:?}");
    }
}

#[test]
fn buffer_that_the_device_sees_late_ends_no_connection() {
    for (seed, connect) in (0..10).flat_map(|seed| [(seed, Connect::Manager), (seed, Connect::Exchange)]) {
        let defaults = Setup::default();
        let setup = Setup {
            network: [127, 0, 0],
            config: Config { connect, ..setup(seed).config },
            device: |device| device.post_delay = Duration::from_millis(2),
            seed,
            ..defaults
        };
        let mut rig = Rig::new(&setup, [Peer::sends(&PARTS), Peer::echoes()]);
        let port = if connect == Connect::Exchange { 0 } else { 7 };
        let address = rig.listens(([127, 0, 0, 2], port).into());
        rig.connect_to(address);
        rig.run_until(|ends| is_through(ends[0].worker.service()));
        assert_eq!(rig.ends[0].worker.service().ended, [CloseReason::Finished]);
        // Shared buffers suffice until the device sees the next ones.
        assert!(rig.fabric.not_ready() > 0 || setup.config.srq.is_some(), "the delay had no effect");
    }
}

#[test]
fn failed_completion_queue_is_replaced() {
    for seed in 0..24 {
        let setup = setup(seed);
        let mut rig = persistent(&setup);
        let before = [0, 1].map(|end| rig.ends[end].holds(&rig.fabric));
        rig.ends.iter_mut().for_each(End::forgets_queues);
        rig.run_until(|ends| ends[1].worker.service().received > 1000);
        let device = rig.ends[(seed % 2) as usize].device.clone();
        rig.fabric.overrun(&device);
        rig.run_until(|ends| is_through(ends[0].worker.service()));
        (0..2).for_each(|end| rig.run_until_holds(end, before[end]));
        assert_eq!(rig.ends[0].worker.service().ended.len(), 2, "a single connection was lost");
    }
}

#[test]
fn worker_without_queues_gets_no_connections() {
    let setup = setup(1);
    let mut rig = persistent(&setup);
    rig.ends[0].worker.service_mut().again = 3;
    rig.run_until(|ends| ends[1].worker.service().received > 1000);
    let device = rig.ends[1].device.clone();
    rig.fabric.fail_call(&device, Call::CreateQueue, 0, libc::ENOMEM);
    rig.fabric.overrun(&device);
    rig.run_until(|ends| ends[0].worker.service().failed.len() == 3);
    assert_eq!(rig.ends[1].worker.service().ended.len(), 1);
    assert!(rig.ends[1].connector.as_ref().unwrap().failure().is_some());
}

#[test]
fn lost_connection_ends_although_the_queue_is_never_empty() {
    let setup = Setup::default();
    let mut rig = Rig::new(&setup, [Peer::echoes(), Peer::echoes()]);
    rig.connect(&setup);
    rig.run_until(|ends| ends[1].worker.summary().accepted == 1);
    let (device, entries) = (rig.ends[1].device.clone(), setup.config.cq_entries(setup.config.max_connections));
    let number = u64::from(*rig.fabric.numbers().last().unwrap());
    rig.fabric.flood(&device, 100);
    rig.ends[1].loses(number, CloseReason::TimedOut);
    let turns = (0..entries).take_while(|_| {
        rig.fabric.flood(&device, 32);
        rig.now += rig.tick;
        rig.ends[1].worker.turn(linerate_service::time::Instant::from_nanos(rig.now));
        rig.ends[1].worker.service().ended.is_empty()
    });
    let turns = turns.count() as u32;
    assert_eq!(rig.ends[1].worker.service().ended, [CloseReason::TimedOut]);
    assert!((1..=entries / 32 + 1).contains(&turns), "{turns}");
}

#[test]
fn every_request_error_ends_its_connection() {
    let errors = [
        (WcStatus::LocalLength, CloseReason::Reset),
        (WcStatus::LocalProtection, CloseReason::Reset),
        (WcStatus::LocalQp, CloseReason::Reset),
        (WcStatus::Bind, CloseReason::Reset),
        (WcStatus::RemoteAccess, CloseReason::Reset),
        (WcStatus::RemoteInvalidRequest, CloseReason::Reset),
        (WcStatus::RemoteOperation, CloseReason::Reset),
        (WcStatus::RetryExceeded, CloseReason::TimedOut),
        (WcStatus::RnrRetryExceeded, CloseReason::Reset),
    ];
    for (seed, (status, reason)) in errors.into_iter().enumerate() {
        for after in [0, 2, 4] {
            let mut setup = setup(seed as u64);
            // Only queue pairs of the connection have requests that fail.
            setup.config.pool = 0;
            let mut rig = persistent(&setup);
            let before = [0, 1].map(|end| rig.ends[end].holds(&rig.fabric));
            rig.run_until(|ends| ends[0].worker.summary().connected == 1);
            rig.fabric.numbers().into_iter().for_each(|qp| rig.fabric.fail_request(qp, after, status));
            rig.run_until(|ends| is_through(ends[0].worker.service()));
            (0..2).for_each(|end| rig.run_until_holds(end, before[end]));
            let ended = [0, 1].map(|end| rig.ends[end].worker.service().ended.clone());
            assert!(ended.iter().all(|ended| ended.len() == 2), "{status} after {after}: {ended:?}");
            assert!(ended.iter().any(|ended| ended[0] == reason), "{status}: {ended:?}");
            // Counted where the request failed.
            let errors = [0, 1].map(|end| rig.ends[end].worker.summary().verbs_errors.get(status.name()).copied());
            assert!(errors.into_iter().flatten().sum::<u64>() > 0, "{status}: {errors:?}");
        }
    }
}

#[test]
fn failed_call_ends_at_most_one_connection() {
    let provider = [
        Call::CreatePair,
        Call::Modify,
        Call::PostSend,
        Call::PostReceive,
        Call::PostShared,
        Call::Register,
        Call::AllocWindow,
        Call::CmCreate,
        Call::CmResolveAddress,
        Call::CmResolveRoute,
        Call::CmConnect,
        Call::CmEstablish,
        Call::CmAccept,
        Call::CmDisconnect,
    ];
    for (seed, call) in provider.into_iter().cycle().take(3 * provider.len()).enumerate() {
        let setup = setup(seed as u64);
        let mut rig = persistent(&setup);
        let before = [0, 1].map(|end| rig.ends[end].holds(&rig.fabric));
        let which = seed % 2;
        let device = rig.ends[which].device.clone();
        rig.fabric.fail_call(&device, call, rig.random.u64(..6), libc::ENOMEM);
        rig.run_until(|ends| is_through(ends[0].worker.service()));
        let service = rig.ends[0].worker.service();
        assert!(service.ended.len() + service.failed.len() <= 2, "{call:?}: {service:?}");
        if call != Call::AllocWindow {
            (0..2).for_each(|end| rig.run_until_holds(end, before[end]));
        }
    }
}

#[test]
fn device_failure_ends_all_connections_but_not_worker() {
    for seed in 0..20 {
        let setup = setup(seed);
        let mut rig = persistent(&setup);
        rig.ends[0].worker.service_mut().again = 3;
        rig.run_until(|ends| ends[1].worker.service().received > 1000);
        let device = rig.ends[(seed % 2) as usize].device.clone();
        rig.fabric.fatal(&device);
        let is_over = |peer: &Peer| peer.ended.len() == 1 && peer.ended[0] != CloseReason::Finished;
        rig.run_until(|ends| ends.iter().all(|end| is_over(end.worker.service())));
        // Each retry has failed.
        rig.run_until(|ends| ends[0].worker.service().failed.len() == 3);
        rig.end();
    }
}

#[test]
fn device_removal_ends_connections_but_not_worker() {
    let mut rig = persistent(&setup(1));
    rig.ends[0].worker.service_mut().again = 0;
    rig.run_until(|ends| ends[1].worker.service().received > 1000);
    let device = rig.ends[0].device.clone();
    rig.fabric.vanish(&device, true);
    rig.ends[0].connector = None;
    rig.run_until(|ends| ends.iter().all(|end| end.worker.service().ended.len() == 1));
    assert_eq!(rig.ends[0].worker.service().ended, [CloseReason::Reset]);
    (0..1000).for_each(|_| rig.step());
}

#[test]
fn short_link_loss_is_tolerated_and_long_one_ends_connections() {
    for seed in 0..20 {
        let device = |rig: &Rig| rig.ends[(seed % 2) as usize].device.clone();
        let ended = with_fault(seed, |rig| {
            rig.fabric.take_down(&device(rig), 1);
            rig.step();
            rig.fabric.take_up(&device(rig), 1);
        });
        assert_eq!(ended, [CloseReason::Finished]);
        let mut rig = persistent(&setup(seed));
        rig.run_until(|ends| ends[1].worker.service().received > 1000);
        rig.fabric.take_down(&device(&rig), 1);
        let first = |end: &End| end.worker.service().ended.first().copied();
        rig.run_until(|ends| ends.iter().all(|end| first(end).is_some()));
        assert!(rig.ends.iter().any(|end| first(end) == Some(CloseReason::TimedOut)));
        rig.fabric.take_up(&device(&rig), 1);
        rig.run_until(|ends| is_through(ends[0].worker.service()));
    }
}

#[test]
fn removed_address_ends_its_connections() {
    for seed in 0..10 {
        let mut rig = persistent(&setup(seed));
        rig.ends[0].worker.service_mut().again = 0;
        rig.run_until(|ends| ends[1].worker.service().received > 1000);
        let device = rig.ends[1].device.clone();
        rig.fabric.change_address(&device, 1, [10, 0, 0, 77].into());
        rig.run_until(|ends| ends.iter().all(|end| end.worker.service().ended.len() == 1));
        let ended = rig.ends.each_ref().map(|end| end.worker.service().ended[0]);
        assert!(!ended.contains(&CloseReason::Finished), "{ended:?}");
    }
}

#[test]
fn thousand_connections_leave_no_objects() {
    let setup = setup(1);
    let mut rig = rig(&setup, &[(100, false), (2000, true)], true);
    let before = [0, 1].map(|end| rig.ends[end].holds(&rig.fabric));
    rig.ends[0].worker.service_mut().rounds = 999;
    for count in 1..=1000 {
        rig.run_until(|ends| ends[0].worker.service().ended.len() == count);
    }
    (0..2).for_each(|end| rig.run_until_holds(end, before[end]));
    assert!(rig.ends[0].worker.service().ended.iter().all(|reason| *reason == CloseReason::Finished));
}
