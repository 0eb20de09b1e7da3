//! Encoding of requests, replies and refusals.

use super::super::parameters::{RemoteMemory, TestRequest};
use super::super::{Malformed, Refusal};
use super::*;
use linerate_rdma::provider::PrivateData;

#[test]
fn request_and_reply_round_trip() {
    for test in tests() {
        for bidirectional in [false, test.kind == Kind::Bandwidth] {
            let parameters = Parameters {
                test,
                size: 0x0102_0304,
                messages: 0x0102_0304_0506_0708,
                tx_depth: 0x1122,
                rx_depth: 0x3344,
                list: 0x5566,
                signal_every: 0x7788,
                inline: 0x99aa,
                reads: 7,
                bidirectional,
            };
            let request =
                TestRequest { parameters, memory: RemoteMemory { address: 0x0807_0605_0403_0201, rkey: 0xabcd_ef01 } };
            assert!(request.write().len() <= PrivateData::LEN);
            // Devices pad with zeros.
            let mut written = request.write();
            written.resize(PrivateData::LEN, 0);
            assert_eq!(TestRequest::read(&written), Some(Ok(request)));
            assert_eq!(RemoteMemory::read_answer(&request.memory.write_answer()), Some(request.memory));
        }
    }
    assert_eq!(
        (TestRequest::read(b"another"), RemoteMemory::read_answer(b"another"), Refusal::read(b"another")),
        (None, None, None)
    );
}

#[test]
fn refusals_round_trip() {
    for refusal in [
        Refusal::Version,
        Refusal::Test(Test { verb: Verb::Read, kind: Kind::Bandwidth }),
        Refusal::Size(77),
        Refusal::Depth(78),
        Refusal::IwarpSend,
        Refusal::IwarpBidirectional,
        Refusal::Malformed(Malformed::Messages),
        Refusal::Malformed(Malformed::Address),
        Refusal::Busy,
        Refusal::Elsewhere,
        Refusal::Failed,
        Refusal::NoAtomics,
    ] {
        let mut written = refusal.write().to_vec();
        written.resize(PrivateData::LEN, 0);
        assert_eq!(Refusal::read(&written), Some(refusal));
    }
}

#[test]
fn other_release_is_refused() {
    let mut request =
        TestRequest { parameters: parameters(tests().next().unwrap()), memory: RemoteMemory::default() }.write();
    request[4] += 1;
    assert_eq!(TestRequest::read(&request), Some(Err(Refusal::Version)));
}

#[test]
fn atomic_tests_need_eight_bytes_and_device_support() {
    let defaults = Parameters::new(Test { verb: Verb::Atomic(AtomicKind::FetchAdd), kind: Kind::Bandwidth });
    for size in [1, 7, 9, 16] {
        let refused = Parameters { size, ..defaults }.check(&limits(), 8 << 20);
        assert_eq!(refused, Err(Refusal::Malformed(Malformed::AtomicSize)));
    }
    let without = DeviceLimits { atomics: linerate_rdma::provider::AtomicCap::None, ..limits() };
    assert_eq!(defaults.check(&without, 8 << 20), Err(Refusal::NoAtomics));
    let swaps = Test { verb: Verb::Atomic(AtomicKind::CompareSwap), ..defaults.test };
    assert!(defaults.test.serves(swaps) && !swaps.serves(Test { kind: Kind::Latency, ..swaps }));
    assert!(!swaps.serves(Test { verb: Verb::Read, ..swaps }));
}

#[test]
fn defaults_fit_any_device() {
    for test in tests() {
        assert_eq!(Parameters::new(test).check(&limits(), 8 << 20), Ok(()));
    }
}
