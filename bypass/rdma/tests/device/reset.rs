//! Reset and reuse of queue pairs.

use crate::rig::Rig;
use linerate_rdma::provider::{Operation, Transition, WcStatus};

#[test]
fn drained_qps_are_reused() {
    let Some(rig) = Rig::open() else { return };
    let qps = rig.qps();
    let [one, other] = qps;
    for round in 0..20_u64 {
        let byte = round as u8 + 1;
        (0..3).for_each(|id| rig.receive(other, 10 + id, 1024..1088));
        rig.fill(0..64, byte);
        rig.fill(1024..1088, 0);
        rig.send(one, 1, &[rig.sge(0..64)], Operation::Send);
        let found = rig.completions(2);
        assert!(found.iter().all(|completion| completion.status == WcStatus::Success), "{round}: {found:?}");
        assert_eq!(rig.bytes(1024..1088), vec![byte; 64]);
        for qp in qps {
            rig.modify_qp(qp, &Transition::Error);
        }
        // Two buffers are flushed, and the last request.
        rig.send(one, 2, &[], Operation::Send);
        let found = rig.completions(3);
        assert!(found.iter().all(|completion| completion.status == WcStatus::Flushed), "{round}: {found:?}");
        for qp in qps {
            rig.modify_qp(qp, &Transition::Reset);
        }
        rig.connect(qps);
    }
}
