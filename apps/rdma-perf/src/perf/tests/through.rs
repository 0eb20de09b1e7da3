//! Complete tests, and their use of the device compared with perftest.

use super::*;
use linerate_rdma_sim::Counters;

/// Counts of perftest for an end that sends or receives `messages`.
struct Expected {
    requests: u64,
    requests_completed: u64,
    buffers: u64,
}

impl Expected {
    fn of(parameters: &Parameters, is_client: bool) -> Expected {
        let Parameters { messages, signal_every, .. } = *parameters;
        let sends = is_client || parameters.is_mutual();
        Expected {
            requests: if sends { messages } else { 0 },
            requests_completed: if sends { messages.div_ceil(signal_every.into()) } else { 0 },
            buffers: parameters.expected(is_client),
        }
    }
}

/// Runs a test to its end and checks all counts.
fn check(rig: &mut Rig, parameters: &Parameters) {
    rig.run_until(|rig| rig.has_ended(0) && rig.has_ended(1));
    for (which, is_client) in [(0, false), (1, true)] {
        let expected = Expected::of(parameters, is_client);
        let outcome = rig.result(which).as_ref().unwrap();
        let messages = if expected.requests > 0 { expected.requests } else { expected.buffers };
        assert_eq!((outcome.messages, outcome.is_client), (messages, is_client), "{parameters:?}");
        assert_eq!(outcome.elapsed > Duration::ZERO, messages > 0, "{parameters:?}");
        let trips = if parameters.test.kind == Kind::Latency { expected.requests.saturating_sub(1) } else { 0 };
        assert_eq!(rig.trips[which].len() as u64, trips, "{parameters:?}");
        assert!(rig.trips[which].iter().sum::<Duration>() <= outcome.elapsed);
        // Each end has one queue pair, and one more message: the final one.
        let qps: Vec<Counters> = rig.fabric.counters().into_values().filter(|qp| qp.requests > 0).collect();
        assert_eq!(qps.len(), 2);
        let is_measured = |counters: &&Counters| {
            let Counters { requests, buffers, receives_polled, .. } = **counters;
            (requests, buffers, receives_polled) == (expected.requests + 1, expected.buffers + 1, expected.buffers + 1)
        };
        let counters = qps.iter().find(is_measured).unwrap_or_else(|| panic!("{parameters:?}: {qps:?}"));
        // An end with the peer's final message need not wait for its own to complete.
        let completed = expected.requests_completed..=expected.requests_completed + 1;
        assert!(completed.contains(&counters.sends_polled), "{parameters:?}: {qps:?}");
    }
}

#[test]
fn tests_complete_with_no_more_operations_than_perftest() {
    for test in tests() {
        for seed in 0..4 {
            let parameters = parameters(test);
            let mut rig = Rig::new(seed, parameters);
            check(&mut rig, &parameters);
            assert_nothing_is_left(rig);
        }
    }
}

#[test]
fn bidirectional_tests_complete() {
    for test in tests().filter(|test| test.kind == Kind::Bandwidth) {
        for seed in 0..4 {
            let parameters = Parameters { bidirectional: true, ..parameters(test) };
            let mut rig = Rig::new(seed, parameters);
            check(&mut rig, &parameters);
            assert_nothing_is_left(rig);
        }
    }
}

#[test]
fn lists_signal_intervals_and_inline_are_supported() {
    for test in tests().filter(|test| test.kind == Kind::Bandwidth) {
        for (tx_depth, list, signal_every, inline) in [(1, 1, 1, 0), (12, 4, 8, 100), (64, 32, 64, 0), (8, 8, 8, 99)] {
            let parameters = Parameters { tx_depth, list, signal_every, inline, messages: 303, ..parameters(test) };
            let mut rig = Rig::new(list.into(), parameters);
            check(&mut rig, &parameters);
            let posts = rig.fabric.counters().into_values().map(|qp| qp.request_posts).max();
            assert_eq!(posts, Some(303_u64.div_ceil(list.into()) + 1));
            assert_nothing_is_left(rig);
        }
    }
}

#[test]
fn shorter_last_list_is_supported() {
    for test in tests().filter(|test| test.kind == Kind::Bandwidth) {
        for (messages, bidirectional) in [(1000, false), (1008, false), (5000, false), (200, true)] {
            let (list, signal_every) = (16, 16);
            let parameters = Parameters { list, signal_every, messages, bidirectional, ..parameters(test) };
            let mut rig = Rig::new(messages, parameters);
            check(&mut rig, &parameters);
            let posts: Vec<u64> = rig.fabric.counters().into_values().map(|qp| qp.request_posts).collect();
            assert_eq!(posts.iter().max(), Some(&(messages.div_ceil(16) + 1)), "{parameters:?}: {posts:?}");
            assert_nothing_is_left(rig);
        }
    }
}

#[test]
fn extreme_sizes_and_counts_are_supported() {
    for test in tests() {
        for (size, messages, rx_depth) in [(1, 600, 512), (1 << 20, 5, 1), (8 << 20, 5, 512)] {
            let size = if test.is_atomic() { 8 } else { size };
            let parameters = Parameters { size, messages, rx_depth, ..parameters(test) };
            let mut rig = Rig::new(7, parameters);
            check(&mut rig, &parameters);
            assert_nothing_is_left(rig);
        }
    }
}

#[test]
fn iwarp_tests_complete() {
    for test in tests() {
        let parameters = parameters(test);
        if goes_by_iwarp(&parameters) {
            for seed in 0..4 {
                let mut rig = Rig::on(seed, DeviceConfig::iwarp, test, parameters);
                check(&mut rig, &parameters);
                assert_nothing_is_left(rig);
            }
        }
    }
}

#[test]
fn device_without_inline_is_supported() {
    let test = Test { verb: Verb::Send, kind: Kind::Latency };
    let parameters = Parameters { inline: 220, ..parameters(test) };
    let mut rig = Rig::on(1, |address| DeviceConfig { inline: 0, ..DeviceConfig::roce(address) }, test, parameters);
    check(&mut rig, &parameters);
}

#[test]
fn silent_peer_is_probed_and_not_given_up() {
    let parameters = parameters(Test { verb: Verb::Read, kind: Kind::Latency });
    let mut rig = Rig::new(1, parameters);
    rig.run_until(|rig| rig.trips[1].len() > 10);
    // The server only waits for the final message.
    for _ in 0..3 {
        (0..5000).for_each(|_| rig.turn(0));
        rig.let_time_pass(Duration::from_secs(11));
    }
    (0..5000).for_each(|_| rig.turn(0));
    rig.run_until(|rig| rig.has_ended(0) && rig.has_ended(1));
    assert!(rig.result(0).is_ok() && rig.result(1).is_ok());
    let probes = rig.fabric.counters().into_values().map(|qp| qp.requests).min();
    assert!(probes > Some(1), "{probes:?}");
}
