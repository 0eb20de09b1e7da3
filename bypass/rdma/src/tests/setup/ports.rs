//! Devices with several ports, and InfiniBand devices.

use crate::provider::PathOptions;
use crate::tests::rig::{Peer, Rig, Setup};
use crate::{Config, Connect, ExchangeError, Listeners, Mode};
use linerate_roce::testing::DeviceConfig;
use linerate_service::{CloseReason, ConnectError};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Adds a port in the next /24.
fn two_ports(device: &mut DeviceConfig) {
    let IpAddr::V4(address) = device.address else { panic!("{device:?}") };
    let [a, b, c, d] = address.octets();
    *device = device.clone().with_port([a, b, c + 1, d].into());
}

fn infiniband(device: &mut DeviceConfig) {
    *device = DeviceConfig::infiniband(device.address);
}

/// Connects two idle ends.
fn connected(connect: Connect, device: fn(&mut DeviceConfig), server: [u8; 4]) -> Rig {
    let defaults = Setup::default();
    let config = Config {
        connect,
        connect_timeout: Duration::from_millis(100),
        timeout: Duration::from_micros(4),
        ..defaults.config
    };
    let setup = Setup { network: [server[0], 0, 0], config, device, ..defaults };
    let mut rig = Rig::new(&setup, [Peer::sends(&[]), Peer::echoes()]);
    // The kernel chooses a free TCP port.
    let address = SocketAddr::from((server, if connect == Connect::Exchange { 0 } else { 7 }));
    let listening = rig.listens(address);
    rig.connect_to(listening);
    rig.run_until(|ends| ends.iter().all(|end| end.worker.summary().accepted + end.worker.summary().connected == 1));
    rig
}

fn is_kept(rig: &mut Rig) {
    (0..5000).for_each(|_| rig.step());
    assert!(rig.ends.iter().all(|end| end.worker.service().ended.is_empty()));
}

#[test]
fn change_of_one_port_keeps_connections_of_the_other() {
    for (connect, server) in [(Connect::Manager, [10, 0, 1, 2]), (Connect::Exchange, [127, 0, 1, 2])] {
        let mut rig = connected(connect, two_ports, server);
        let device = rig.ends[1].device.clone();
        rig.fabric.change_address(&device, 1, [server[0], 0, 0, 77].into());
        is_kept(&mut rig);
        rig.fabric.take_down(&device, 1);
        is_kept(&mut rig);
        // An address was added to the interface of the port.
        rig.fabric.gid_event(&device, 2);
        is_kept(&mut rig);
        rig.fabric.change_address(&device, 2, [server[0], 0, 1, 77].into());
        rig.run_until(|ends| ends[1].worker.service().ended == [CloseReason::Reset]);
    }
}

#[test]
fn connections_of_a_port_that_is_down_end() {
    let mut rig = connected(Connect::Manager, two_ports, [10, 0, 1, 2]);
    let device = rig.ends[1].device.clone();
    rig.fabric.take_down(&device, 2);
    rig.run_until(|ends| ends[1].worker.service().ended == [CloseReason::TimedOut]);
}

#[test]
fn gid_event_keeps_infiniband_connections() {
    let mut rig = connected(Connect::Manager, infiniband, [10, 0, 0, 2]);
    for end in 0..2 {
        let device = rig.ends[end].device.clone();
        rig.fabric.gid_event(&device, 1);
        is_kept(&mut rig);
    }
}

/// Creates two ends with path options and, for rdma_cm, port 2. The TCP exchange uses port 1, because the kernel
/// connects from one address of the loopback interface. Also returns the listening address.
fn choosing(connect: Connect, mode: Mode) -> (Rig, SocketAddr) {
    let defaults = Setup::default();
    let path = PathOptions { traffic_class: 104, service_level: 3, pkey_index: 1 };
    let connect_timeout = Duration::from_millis(100);
    let by_cm = connect == Connect::Manager;
    let port = by_cm.then_some(2);
    let config = Config { connect, mode, connect_timeout, path, port, max_connections: 4, ..defaults.config };
    let network = if by_cm { [10, 0, 0] } else { [127, 0, 0] };
    let setup = Setup { network, config, device: two_ports, offers: mode != Mode::Ud, ..defaults };
    let mut rig = Rig::new(&setup, [Peer::sends(&[(100, false)]), Peer::echoes()]);
    rig.tick = 20_000;
    let [a, b, _] = network;
    let address = rig.listens(SocketAddr::from(([a, b, by_cm.into(), 2], if by_cm { 7 } else { 0 })));
    (rig, address)
}

#[test]
fn chosen_path_is_used_by_both_connection_methods() {
    for (connect, mode, port) in
        [(Connect::Manager, Mode::Send, 2), (Connect::Exchange, Mode::Send, 1), (Connect::Exchange, Mode::Ud, 1)]
    {
        let (mut rig, address) = choosing(connect, mode);
        // Neither end closes.
        rig.ends[0].worker.service_mut().total = usize::MAX;
        rig.connect_to(address);
        rig.run_until(|ends| ends.iter().all(|end| end.worker.service().received == 100));
        for end in &rig.ends {
            let paths = rig.fabric.paths(&end.device);
            assert!(paths.contains(&(port, 1, 104, 3)), "{connect:?} {mode:?}: {paths:?}");
        }
    }
}

#[test]
fn address_of_another_port_is_refused() {
    let (mut rig, _) = choosing(Connect::Manager, Mode::Send);
    rig.connect_to(([10, 0, 0, 2], 7).into());
    rig.run_until(|ends| ends[0].worker.service().failed == [(7, ConnectError::Unreachable)]);
    let fabric = rig.fabric.clone();
    let mut device = DeviceConfig::roce([127, 0, 0, 9].into());
    two_ports(&mut device);
    let device = fabric.device("model9", device);
    let listens = |port, gid_index, ip: [u8; 4]| {
        let config = Config { port, gid_index, ..Config::default() };
        Listeners::by_exchange(&device, &[SocketAddr::from((ip, 0))], &config)
    };
    // Index 3 is the address in RoCE version 2.
    for (port, gid_index, ip, is_possible) in [
        (None, None, [127, 0, 0, 9], true),
        (Some(1), Some(3), [127, 0, 0, 9], true),
        (Some(2), None, [127, 0, 0, 9], false),
        (None, Some(2), [127, 0, 0, 9], false),
        (Some(2), Some(3), [127, 0, 1, 9], true),
    ] {
        match listens(port, gid_index, ip) {
            Ok(_) => assert!(is_possible, "{port:?} {gid_index:?} {ip:?}"),
            Err(error) => assert!(!is_possible && matches!(error, ExchangeError::NotChosen(_)), "{error}"),
        }
    }
}
