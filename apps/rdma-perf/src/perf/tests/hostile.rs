//! Clients that violate the protocol.

use super::super::parameters::{RemoteMemory, TestRequest};
use super::super::{Malformed, Refusal};
use super::*;
use linerate_rdma::provider::{CmConnParam, CmEventKind, PrivateData};
use linerate_rdma::verbs::{CmNotification, EventChannel};

const WRITE: Test = Test { verb: Verb::Write, kind: Kind::Bandwidth };
const SEND: Test = Test { verb: Verb::Send, kind: Kind::Bandwidth };

/// Sends a connect request with `bytes`. Returns the refusal, if any, and the memory regions then registered.
fn send_request(server: Test, bytes: &[u8]) -> (Option<PrivateData>, usize) {
    let mut rig = Rig::on(1, DeviceConfig::roce, server, parameters(server));
    rig.ends[1] = State::Ended(Err(PerfError::TimedOut));
    let mut channel = EventChannel::new(&rig.devices[1]).unwrap();
    let mut id = channel.id().unwrap();
    id.resolve_address(SERVER, 1000).unwrap();
    for _ in 0..5000 {
        rig.step();
        let Some(CmNotification::Event(event)) = channel.next_event().unwrap() else { continue };
        match event.kind {
            CmEventKind::AddressResolved => id.resolve_route(1000).unwrap(),
            CmEventKind::RouteResolved => {
                let parameters = CmConnParam {
                    qp: 0x77,
                    responder_resources: 16,
                    initiator_depth: 16,
                    retries: 7,
                    rnr_retries: 7,
                    is_shared: true,
                    private_data: PrivateData::new(bytes),
                };
                id.connect(&parameters).unwrap();
            }
            CmEventKind::Rejected => {
                assert!(!rig.has_ended(0), "{:?}", rig.ends[0].describe());
                return (Some(event.private_data), rig.fabric.live_of(&rig.devices[0]).mrs);
            }
            CmEventKind::Response => return (None, rig.fabric.live_of(&rig.devices[0]).mrs),
            _ => {}
        }
    }
    panic!("there is no answer: {}", rig.ends[0].describe())
}

fn refusal(parameters: Parameters, address: u64) -> Option<Refusal> {
    let request = TestRequest { parameters, memory: RemoteMemory { address, rkey: 1 } };
    let (refused, mrs) = send_request(parameters.test, &request.write());
    refused.map(|private_data| {
        assert_eq!(mrs, 0, "memory for {parameters:?}");
        Refusal::read(private_data.bytes()).unwrap()
    })
}

#[test]
fn invalid_requests_are_refused_without_allocation() {
    let good = parameters(SEND);
    assert_eq!(refusal(good, 0), None);
    let senseless = |malformed| Some(Refusal::Malformed(malformed));
    for (bad, why) in [
        (Parameters { size: 0, ..good }, Some(Refusal::Size(8 << 20))),
        (Parameters { size: (8 << 20) + 1, ..good }, Some(Refusal::Size(8 << 20))),
        (Parameters { size: u32::MAX, ..good }, Some(Refusal::Size(8 << 20))),
        (Parameters { messages: 0, ..good }, senseless(Malformed::Messages)),
        (Parameters { messages: u64::MAX, ..good }, senseless(Malformed::Messages)),
        (Parameters { tx_depth: 0, ..good }, senseless(Malformed::TxDepth)),
        (Parameters { tx_depth: u16::MAX, ..good }, senseless(Malformed::TxDepth)),
        (Parameters { rx_depth: 0, ..good }, senseless(Malformed::RxDepth)),
        (Parameters { rx_depth: u16::MAX, messages: 1 << 30, ..good }, senseless(Malformed::RxDepth)),
        (Parameters { rx_depth: 16_384, messages: 1 << 30, ..good }, Some(Refusal::Depth(4094))),
        (Parameters { tx_depth: 16_384, ..good }, Some(Refusal::Depth(4094))),
        (Parameters { list: 0, ..good }, senseless(Malformed::List)),
        (Parameters { list: 33, tx_depth: 66, ..good }, senseless(Malformed::List)),
        (Parameters { list: 3, ..good }, senseless(Malformed::List)),
        (Parameters { signal_every: 0, ..good }, senseless(Malformed::SignalEvery)),
        (Parameters { signal_every: 129, ..good }, senseless(Malformed::SignalEvery)),
        (Parameters { list: 2, signal_every: 3, ..good }, senseless(Malformed::SignalEvery)),
        (Parameters { reads: 0, ..good }, senseless(Malformed::Reads)),
    ] {
        assert_eq!(refusal(bad, 0), why, "{bad:?}");
    }
    assert_eq!(refusal(good, u64::MAX), senseless(Malformed::Address));
}

#[test]
fn arbitrary_requests_are_refused_or_served() {
    let good = TestRequest { parameters: parameters(WRITE), memory: RemoteMemory::default() }.write();
    let mut random = fastrand::Rng::with_seed(1);
    for round in 0..200 {
        let mut bytes = good.clone();
        bytes.truncate(random.usize(..=good.len() + round % 2 * 60));
        for _ in 0..random.usize(1..8) {
            if !bytes.is_empty() {
                let at = random.usize(..bytes.len());
                bytes[at] = random.u8(..);
            }
        }
        let (refused, mrs) = send_request(WRITE, &bytes);
        assert!(mrs <= 2 && (refused.is_none() || mrs == 0));
    }
}

/// Returns the error of a server whose client requests one test and performs another.
fn pretending(seed: u64, requested: Parameters, does: Parameters) -> PerfError {
    let mut rig = Rig::new(seed, requested);
    for _ in 0..10_000 {
        if let State::Running(client) = &mut rig.ends[1]
            && client.pretend(does)
        {
            break;
        }
        rig.step();
    }
    rig.run_until(|rig| rig.has_ended(0) || rig.has_ended(1));
    for _ in 0..200 {
        (0..2000).for_each(|_| rig.step());
        rig.let_time_pass(Duration::from_millis(50));
        if rig.has_ended(0) {
            break;
        }
    }
    let State::Ended(result) = std::mem::replace(&mut rig.ends[0], State::Ended(Err(PerfError::TimedOut))) else {
        panic!("the server continues")
    };
    result.unwrap_err()
}

#[test]
fn unexpected_messages_end_test() {
    let requested = parameters(SEND);
    for (does, why) in [
        (Parameters { size: 99, ..requested }, "unexpected message"),
        (Parameters { messages: 299, ..requested }, "too early"),
        (Parameters { messages: 301, ..requested }, "unexpected message"),
        (Parameters { test: WRITE, ..requested }, "too early"),
    ] {
        for seed in 0..4 {
            let error = pretending(seed, requested, does);
            // The device denies writes without access first.
            let is_denied = does.test == WRITE && matches!(error, PerfError::Request { .. } | PerfError::Lost(_));
            assert!(is_denied || error.to_string().contains(why), "{does:?}: {error}");
        }
    }
    // In a READ test, only the final message is expected.
    let read = parameters(Test { verb: Verb::Read, kind: Kind::Bandwidth });
    for seed in 0..4 {
        let error = pretending(seed, read, Parameters { test: SEND, ..read });
        assert!(matches!(error, PerfError::Request { .. } | PerfError::Broken(_)), "{error}");
    }
}
