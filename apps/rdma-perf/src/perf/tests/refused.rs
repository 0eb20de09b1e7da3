//! Refused clients, and peers that are no servers.

use super::super::Refusal;
use super::*;
use linerate_rdma::verbs::{CmNotification, EventChannel};

const SEND: Test = Test { verb: Verb::Send, kind: Kind::Latency };
const READ: Test = Test { verb: Verb::Read, kind: Kind::Bandwidth };

#[test]
fn client_of_other_test_is_refused_and_next_is_served() {
    let mut rig = Rig::on(1, DeviceConfig::roce, READ, parameters(SEND));
    rig.run_until(|rig| rig.has_ended(1));
    let error = rig.result(1).as_ref().unwrap_err();
    assert!(matches!(error, PerfError::Refused(Refusal::Test(READ))), "{error:?}");
    assert!(error.to_string().contains("linerate-rdma-perf read bw"), "{error}");
    rig.ends[1] = State::Running(End::client(&rig.devices[1], parameters(READ), SERVER).unwrap());
    rig.run_until(|rig| rig.has_ended(0) && rig.has_ended(1));
    assert!(rig.result(0).is_ok() && rig.result(1).is_ok());
}

#[test]
fn second_client_is_refused_while_busy() {
    let mut rig = Rig::new(1, Parameters { messages: 100_000, ..parameters(SEND) });
    rig.run_until(|rig| rig.trips[1].len() > 10);
    let State::Running(first) = std::mem::replace(
        &mut rig.ends[1],
        State::Running(End::client(&rig.devices[1], parameters(SEND), SERVER).unwrap()),
    ) else {
        panic!("already ended")
    };
    for _ in 0..1000 {
        // A server polls the connection manager from time to time.
        (0..1100).for_each(|_| rig.turn(0));
        rig.let_time_pass(Duration::from_millis(11));
        (0..10).for_each(|_| rig.step());
        if rig.has_ended(1) {
            break;
        }
    }
    assert!(matches!(rig.result(1), Err(PerfError::Refused(Refusal::Busy))), "{:?}", rig.ends[1].describe());
    rig.ends[1] = State::Running(first);
    let trips = rig.trips[1].len();
    rig.run_until(|rig| rig.trips[1].len() > trips + 100);
}

#[test]
fn missing_server_is_reported() {
    let mut rig = Rig::new(1, parameters(SEND));
    rig.ends[0] = State::Ended(Err(PerfError::TimedOut));
    rig.run_until(|rig| rig.has_ended(1));
    assert!(matches!(rig.result(1), Err(PerfError::NobodyListens)), "{:?}", rig.result(1));
}

#[test]
fn address_of_other_device_is_refused() {
    for (which, is_answered) in [(1, false), (0, true)] {
        let mut rig = Rig::new(1, parameters(SEND));
        rig.fabric.resolve_elsewhere(&rig.devices[which], true);
        rig.run_until(|rig| rig.has_ended(1));
        match rig.result(1) {
            Err(PerfError::Unreachable) => assert!(!is_answered),
            Err(PerfError::Refused(Refusal::Elsewhere)) => assert!(is_answered),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn other_program_is_detected() {
    let mut rig = Rig::new(1, parameters(SEND));
    rig.ends[0] = State::Ended(Err(PerfError::TimedOut));
    let mut channel = EventChannel::new(&rig.devices[0]).unwrap();
    let mut listener = channel.id().unwrap();
    listener.listen(SERVER, 1).unwrap();
    while !rig.has_ended(1) {
        rig.step();
        if let Some(CmNotification::Request { id, .. }) = channel.next_event().unwrap() {
            id.reject(b"this is another program").unwrap();
        }
    }
    assert!(matches!(rig.result(1), Err(PerfError::Stranger)), "{:?}", rig.result(1));
}

#[test]
fn local_limits_are_checked_before_connecting() {
    let fabric = Fabric::new(FabricConfig::default());
    let device = fabric.device("model", DeviceConfig::iwarp(SERVER.ip()));
    let bandwidth = Parameters::new(Test { verb: Verb::Send, kind: Kind::Bandwidth });
    let client = End::client(&device, bandwidth, address(2));
    assert!(matches!(client.err(), Some(PerfError::Here(Refusal::IwarpSend))));
}
