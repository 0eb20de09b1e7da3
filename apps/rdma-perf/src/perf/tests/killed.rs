//! Loss of the peer, link or device, failed calls, and interruption.

use super::*;
use linerate_bypass::time::Clock;
use linerate_rdma::provider::WcStatus;
use linerate_rdma_sim::Call;

/// Returns long tests of all kinds.
fn lasting() -> impl Iterator<Item = Parameters> {
    let long = |test| Parameters { messages: 1 << 30, ..parameters(test) };
    let both = tests().filter(|test| test.kind == Kind::Bandwidth);
    tests().map(long).chain(both.map(move |test| Parameters { bidirectional: true, ..long(test) }))
}

/// Runs until an end has ended, while time passes.
#[track_caller]
fn run_until_ended(rig: &mut Rig, which: usize) {
    for _ in 0..100 {
        for _ in 0..5000 {
            if rig.has_ended(which) {
                return;
            }
            rig.turn(which);
            rig.fabric.step();
        }
        rig.let_time_pass(Duration::from_secs(1));
    }
    panic!("still running: {}", rig.ends[which].describe());
}

#[test]
fn end_detects_loss_of_peer() {
    for (seed, parameters) in (0..).zip(lasting()) {
        for (killed, is_announced) in [(0, true), (1, true), (0, false), (1, false)] {
            let mut rig = Rig::new(seed, parameters);
            // From before the connection to far into the test.
            for _ in 0..[10, 40, 400, 2000][seed as usize % 4] {
                rig.step();
            }
            rig.fabric.vanish(&rig.devices[killed], is_announced);
            let left = 1 - killed;
            let is_waiting = left == 0 && rig.fabric.live_of(&rig.devices[0]).qps == 0;
            if is_waiting {
                // A server without a client keeps waiting.
                continue;
            }
            run_until_ended(&mut rig, left);
            let error = rig.result(left).as_ref().unwrap_err();
            assert!(
                matches!(
                    error,
                    PerfError::Lost(_)
                        | PerfError::Unreachable
                        | PerfError::TimedOut
                        | PerfError::NobodyListens
                        | PerfError::Request { .. }
                ),
                "{parameters:?}: {error:?}"
            );
            assert_eq!(rig.fabric.live_of(&rig.devices[left]), Live::default());
        }
    }
}

#[test]
fn device_failure_ends_both_ends() {
    for (seed, parameters) in (0..).zip(lasting()) {
        let mut rig = Rig::new(seed, parameters);
        rig.run_until(|rig| rig.fabric.counters().values().map(|qp| qp.requests).sum::<u64>() > 30);
        rig.fabric.fatal(&rig.devices[seed as usize % 2]);
        for which in [0, 1] {
            run_until_ended(&mut rig, which);
            assert!(rig.result(which).is_err());
        }
        assert_nothing_is_left(rig);
    }
}

#[test]
fn permanent_link_loss_is_detected() {
    for (seed, parameters) in (0..).zip(lasting()) {
        let mut rig = Rig::new(seed, parameters);
        rig.run_until(|rig| rig.fabric.counters().values().map(|qp| qp.requests).sum::<u64>() > 30);
        rig.fabric.port_down(&rig.devices[0]);
        for which in [1, 0] {
            run_until_ended(&mut rig, which);
            assert!(
                matches!(rig.result(which), Err(PerfError::Request { status: WcStatus::RetryExceeded, .. })),
                "{parameters:?}: {:?}",
                rig.result(which)
            );
        }
    }
}

#[test]
fn failed_call_leaves_no_objects() {
    use Call::*;
    for call in [
        AllocDomain,
        Register,
        CreateQueue,
        CreatePair,
        Modify,
        PostSend,
        PostReceive,
        CmCreate,
        CmResolveRoute,
        CmConnect,
        CmEstablish,
        CmAccept,
    ] {
        for (which, after) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
            let parameters = parameters(Test { verb: Verb::Send, kind: Kind::Latency });
            let mut rig = Rig::new(1, parameters);
            rig.fabric.fail_call(&rig.devices[which], call, after, libc::ENOMEM);
            for _ in 0..20_000 {
                rig.step();
            }
            assert_nothing_is_left(rig);
        }
    }
}

#[test]
fn server_reports_preparation_failure_and_serves_next_client() {
    let parameters = parameters(Test { verb: Verb::Write, kind: Kind::Latency });
    let mut rig = Rig::new(1, parameters);
    rig.fabric.fail_call(&rig.devices[0], Call::Register, 0, libc::ENOMEM);
    rig.run_until(|rig| rig.has_ended(1));
    assert!(matches!(rig.result(1), Err(PerfError::Refused(super::super::Refusal::Failed))), "{:?}", rig.result(1));
    rig.ends[1] = State::Running(End::client(&rig.devices[1], parameters, SERVER).unwrap());
    rig.run_until(|rig| rig.has_ended(0) && rig.has_ended(1));
    assert!(rig.result(0).is_ok() && rig.result(1).is_ok());
}

#[test]
fn interruption_ends_both_ends() {
    let parameters = Parameters { messages: 1 << 30, ..parameters(Test { verb: Verb::Send, kind: Kind::Latency }) };
    for which in [0, 1] {
        let mut rig = Rig::new(1, parameters);
        rig.run_until(|rig| rig.trips[1].len() > 10);
        let State::Running(end) = std::mem::replace(&mut rig.ends[which], State::Ended(Err(PerfError::TimedOut)))
        else {
            panic!("already ended")
        };
        let error = end.run(&Clock::start(), || true, |_| {}).unwrap_err();
        assert!(matches!(error, PerfError::Interrupted(done) if done > 5), "{error:?}");
        run_until_ended(&mut rig, 1 - which);
        assert!(rig.result(1 - which).is_err());
        assert_nothing_is_left(rig);
    }
}
