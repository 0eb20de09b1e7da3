//! Properties of some devices: ports, link layers, queue pair numbers, and failures without completions.

use super::*;
use crate::tests::connecting::{both_connected, parties};
use linerate_rdma_provider::{LinkLayer, PortState};

fn with(change: impl Fn(&mut DeviceConfig)) -> Setup {
    let mut setup = Setup::default();
    setup.devices.iter_mut().for_each(change);
    setup
}

#[test]
fn ports_have_their_own_addresses_and_states() {
    let mut setup = Setup::default();
    setup.devices[1] = setup.devices[1].clone().with_port([10, 0, 1, 2].into());
    let (fabric, a, b) = connected(&setup);
    let last = |port| b.sim.gids(port).unwrap().last().unwrap().ip().to_string();
    assert_eq!([last(1), last(2)], ["10.0.0.2", "10.0.1.2"]);
    assert_eq!((b.sim.limits().unwrap().ports, number(b.sim.gids(3))), (2, libc::EINVAL));
    fabric.take_down(&b.sim, 2);
    assert_eq!(b.events(), [AsyncEvent::PortError(2)]);
    assert_eq!([1, 2].map(|port| b.sim.port(port).unwrap().state), [PortState::Active, PortState::Down]);
    b.receive(1, 0, 1);
    a.send(1, b"x");
    fabric.run();
    assert_eq!(a.ends(), [(1, WcStatus::Success)], "over port 1");
    fabric.take_down(&b.sim, 1);
    a.send(2, b"x");
    fabric.run();
    assert_eq!(a.ends(), [(2, WcStatus::RetryExceeded)]);
}

#[test]
fn infiniband_ports_have_lids_and_gids_that_are_no_addresses() {
    let setup = with(|device| *device = DeviceConfig::infiniband(device.address));
    let (fabric, a, b) = parties(&setup);
    let port = a.end.sim.port(1).unwrap();
    assert!(port.link == LinkLayer::InfiniBand && port.lid > 0);
    let gids = a.end.sim.gids(1).unwrap();
    assert_eq!(gids.iter().map(|gid| gid.kind).collect::<Vec<_>>(), [GidKind::InfiniBand]);
    let (own, _) = both_connected(&fabric, &a, &b);
    assert_eq!(call!(a.end.sim.cm_source(own)).unwrap(), (1, gids[0].raw));
    b.end.receive(1, 0, 1);
    a.end.send(1, b"x");
    fabric.run();
    assert_eq!(a.end.ends(), [(1, WcStatus::Success)]);
}

#[test]
fn recycled_numbers_are_last_in_first_out() {
    let setup = with(|device| device.recycles_numbers = true);
    let (_fabric, mut a, _b) = connected(&setup);
    let (first, first_qp) = (a.number, a.qp);
    a.another(&setup);
    let (second, second_qp) = (a.number, a.qp);
    call!(a.sim.destroy_qp(first_qp)).unwrap();
    call!(a.sim.destroy_qp(second_qp)).unwrap();
    a.another(&setup);
    assert_eq!(a.number, second);
    a.another(&setup);
    assert_eq!(a.number, first);
}

#[test]
fn removed_device_completes_nothing() {
    let (fabric, a, b) = connected(&with(|device| device.flushes_on_fatal = false));
    a.receive(1, 0, 1);
    a.send(2, b"x");
    fabric.fatal(&a.sim);
    fabric.run();
    assert_eq!((a.events(), a.ends()), (vec![AsyncEvent::DeviceFatal], vec![]));
    b.send(3, b"x");
    fabric.run();
    assert_eq!(b.ends(), [(3, WcStatus::RetryExceeded)]);
    call!(a.sim.destroy_qp(a.qp)).unwrap();
    assert_eq!(fabric.live_of(&a.sim), Live { qps: 0, ..fabric.live_of(&a.sim) });
}

#[test]
fn announced_windows_may_be_unavailable() {
    let (_fabric, a, _b) = apart(&with(|device| device.allocates_windows = false));
    assert!(a.sim.limits().unwrap().mw_type_2);
    assert_eq!(number(call!(a.sim.alloc_mw(a.pd))), libc::EOPNOTSUPP);
}

#[test]
fn device_sees_buffer_after_its_delay() {
    for (rnr_retries, status) in [(0, WcStatus::RnrRetryExceeded), (7, WcStatus::Success)] {
        let setup = Setup { rnr_retries, ..with(|device| device.post_delay = Duration::from_micros(50)) };
        let (fabric, a, b) = connected(&setup);
        b.receive(1, 0, 1);
        a.send(1, b"x");
        fabric.run();
        assert_eq!(a.ends(), [(1, status)]);
    }
}

#[test]
fn buffer_that_the_device_does_not_see_yet_does_not_block_auto_mode() {
    let mut setup = Setup { rnr_retries: 7, ..with(|device| device.post_delay = Duration::from_micros(50)) };
    setup.fabric.mode = Mode::Auto;
    let (fabric, a, b) = connected(&setup);
    b.receive(1, 0, 1);
    a.send(1, b"x");
    assert_eq!(a.ends(), []);
    fabric.pass(Duration::from_millis(2));
    assert_eq!(a.ends(), [(1, WcStatus::Success)]);
}
