//! Connection setup by the connection manager, and teardown.

use crate::tests::rig::{Peer, Rig, Setup};
use crate::{Config, Connector};
use linerate_roce::testing::SimDevice;
use linerate_service::{CloseReason, ConnectError};
use std::net::SocketAddr;

/// Creates two ends, the first of which connects to the second.
pub fn rig(setup: &Setup, parts: &[(usize, bool)], listens: bool) -> Rig {
    let sender = Peer { remote: Some(ADDRESS), ..Peer::sends(parts) };
    let mut rig = Rig::new(setup, [sender, Peer::echoes()]);
    rig.ends[0].connects(&[]);
    rig.ends[1].connects(if listens { std::slice::from_ref(&ADDRESS) } else { &[] });
    rig
}

pub static ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2)), 7);

#[test]
fn connection_opens_and_closes_without_leftovers() {
    for seed in 0..30 {
        let defaults = Setup::default();
        let config =
            Config { offer_from: 3000, srq: (seed % 3 == 0).then_some(8), pool: seed as usize % 4, ..defaults.config };
        let setup = Setup { seed, config, ..defaults };
        let mut rig = rig(&setup, &[(100, false), (5000, true), (20, true)], true);
        rig.run_until(|ends| ends.iter().all(|end| end.worker.service().ended == [CloseReason::Finished]));
        assert_eq!(rig.ends[0].worker.service().received, 5120);
        assert_eq!(rig.fabric.not_ready(), 0);
        rig.end();
    }
}

#[test]
fn prepared_qps_are_used_and_replaced() {
    let defaults = Setup::default();
    let setup = Setup { config: Config { pool: 3, max_connections: 4, ..defaults.config }, ..defaults };
    let mut rig = rig(&setup, &[(100, false)], true);
    let prepared = |rig: &Rig| [0, 1].map(|end| rig.ends[end].connector.as_ref().unwrap().prepared(0));
    assert_eq!((prepared(&rig), rig.fabric.live().qps), ([3, 3], 6));
    let mut least = [3, 3];
    for _ in 0..10_000 {
        rig.step();
        least = [0, 1].map(|end| least[end].min(prepared(&rig)[end]));
        // Never more than the maximum number of connections.
        assert!(rig.fabric.live().qps <= 8);
    }
    assert_eq!((least, prepared(&rig), rig.fabric.live().qps), ([2, 2], [3, 3], 6));
    assert!(rig.ends.iter().all(|end| end.worker.service().ended == [CloseReason::Finished]));
}

#[test]
fn qps_and_identifiers_are_destroyed_with_connections() {
    let setup = Setup::default();
    let mut rig = rig(&setup, &[(100, false)], true);
    rig.run_until(|ends| ends.iter().all(|end| !end.worker.service().ended.is_empty()));
    let is_clean = |rig: &Rig| rig.fabric.live().qps == 0 && rig.fabric.live().cm_ids == 1;
    for _ in 0..10_000 {
        if is_clean(&rig) {
            return;
        }
        rig.step();
    }
    panic!("{:?}", rig.fabric.live());
}

#[test]
fn connect_without_listener_is_refused() {
    let mut rig = rig(&Setup::default(), &[(100, false)], false);
    rig.run_until(|ends| ends[0].worker.service().failed == [(7, ConnectError::Refused)]);
}

#[test]
fn connect_after_stop_listening_is_refused() {
    let mut rig = rig(&Setup::default(), &[(100, false)], true);
    rig.ends[1].worker.stop_listening();
    rig.run_until(|ends| ends[0].worker.service().failed == [(7, ConnectError::Refused)]);
}

#[test]
fn connector_drops_identifiers_before_channel() {
    let mut rig = rig(&Setup::default(), &[(100, false)], true);
    for _ in 0..50 {
        rig.step();
    }
    let connector: Connector<SimDevice> = rig.ends[1].connector.take().unwrap();
    drop(connector);
}
