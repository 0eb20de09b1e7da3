//! Objects and their dependencies.

use super::*;

fn destroy(end: &End) -> Vec<i32> {
    let of = |result: io::Result<()>| result.err().and_then(|error| error.raw_os_error()).unwrap_or(0);
    let sim = &end.sim;
    vec![
        of(call!(sim.dealloc_pd(end.pd))),
        of(call!(sim.destroy_comp_channel(end.channel))),
        of(call!(sim.destroy_cq(end.cq))),
        of(end.srq.map_or(Ok(()), |srq| call!(sim.destroy_srq(srq)))),
    ]
}

/// Returns two ends, all objects of the first one destroyed, each once it has no dependents.
pub fn destroyed() -> (Fabric, End, End) {
    let setup = Setup { srq: Some(SrqInitAttr { buffers: 4, sges: 1 }), ..Setup::default() };
    let (fabric, a, b) = connected(&setup);
    assert_eq!(destroy(&a), [libc::EBUSY; 4]);
    call!(a.sim.destroy_qp(a.qp)).unwrap();
    call!(a.sim.destroy_srq(a.srq.unwrap())).unwrap();
    assert_eq!(number(call!(a.sim.dealloc_pd(a.pd))), libc::EBUSY, "region");
    call!(a.sim.dereg_mr(a.mr)).unwrap();
    let (mw, _) = call!(a.sim.alloc_mw(a.pd)).unwrap();
    assert_eq!(number(call!(a.sim.dealloc_pd(a.pd))), libc::EBUSY, "window");
    call!(a.sim.dealloc_mw(mw)).unwrap();
    call!(a.sim.dealloc_pd(a.pd)).unwrap();
    assert_eq!(number(call!(a.sim.destroy_comp_channel(a.channel))), libc::EBUSY, "queue");
    call!(a.sim.destroy_cq(a.cq)).unwrap();
    call!(a.sim.destroy_comp_channel(a.channel)).unwrap();
    (fabric, a, b)
}

#[test]
fn object_with_dependents_is_busy() {
    destroyed();
}

#[test]
fn parent_domain_replaces_its_protection_domain_for_queue_pairs() {
    let (_fabric, a, _b) = connected(&Setup::default());
    let td = a.sim.alloc_td().unwrap();
    let parent = call!(a.sim.alloc_parent_domain(a.pd, td)).unwrap();
    assert_eq!(number(call!(a.sim.alloc_parent_domain(parent, td))), libc::EINVAL);
    let cap = QpCap { sends: 4, receives: 4, send_sges: 1, recv_sges: 1, inline: 0 };
    let attr = QpInitAttr { send_cq: a.cq, recv_cq: a.cq, srq: None, cap };
    let (qp, ..) = call!(a.sim.create_qp(parent, &attr)).unwrap();
    assert_eq!(number(call!(a.sim.dealloc_td(td))), libc::EBUSY);
    assert_eq!(number(call!(a.sim.dealloc_pd(parent))), libc::EBUSY);
    call!(a.sim.destroy_qp(qp)).unwrap();
    call!(a.sim.dealloc_pd(parent)).unwrap();
    call!(a.sim.dealloc_td(td)).unwrap();
}

#[test]
fn limits_are_enforced() {
    let mut setup = Setup::default();
    let limits = &mut setup.devices[0].limits;
    (limits.qps, limits.mrs, limits.mws, limits.pds, limits.cqs) = (1, 1, 0, 1, 1);
    (limits.srqs, limits.qp_wrs, limits.sges) = (0, 8, 3);
    let (_fabric, a, _b) = connected(&setup);
    let qp = |cap: QpCap| {
        let config = QpInitAttr { send_cq: a.cq, recv_cq: a.cq, srq: None, cap };
        number(call!(a.sim.create_qp(a.pd, &config)))
    };
    assert_eq!(number(a.sim.alloc_pd()), libc::ENOMEM);
    assert_eq!(number(call!(a.sim.reg_mr(a.pd, a.memory.start(), 1, LOCAL))), libc::ENOMEM);
    assert_eq!(number(call!(a.sim.alloc_mw(a.pd))), libc::ENOMEM);
    assert_eq!(number(call!(a.sim.create_cq(1, None, 0))), libc::ENOMEM);
    let srq = SrqInitAttr { buffers: 1, sges: 1 };
    assert_eq!(number(call!(a.sim.create_srq(a.pd, &srq))), libc::ENOMEM);
    assert_eq!(qp(setup.cap), libc::ENOMEM);
    for cap in [
        QpCap { sends: 9, ..setup.cap },
        QpCap { receives: 9, ..setup.cap },
        QpCap { send_sges: 4, ..setup.cap },
        QpCap { recv_sges: 4, ..setup.cap },
        QpCap { inline: 1 << 20, ..setup.cap },
    ] {
        assert_eq!(qp(cap), libc::EINVAL, "{cap:?}");
    }
}

#[test]
fn remote_write_requires_local_write() {
    let (_fabric, a, _b) = apart(&Setup::default());
    let access = Access { remote_write: true, ..Access::default() };
    assert_eq!(number(call!(a.sim.reg_mr(a.pd, a.memory.start(), 8, access))), libc::EINVAL);
    assert_eq!(number(call!(a.sim.reg_mr(a.pd, a.memory.start(), 0, LOCAL))), libc::EINVAL);
}
