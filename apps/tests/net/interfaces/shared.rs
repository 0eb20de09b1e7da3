//! Interfaces shared with the kernel (`af_xdp:INTERFACE,share`).

use super::refusals::assert_refused;
use crate::common::client::{connect, exchange, random};
use crate::common::linerate;
use crate::common::wire::{ADDRESSES, Wire, linerate_in, servers};
use crate::links::assert_no_errors;
use linerate_harness::program::{Program, ip};
use linerate_harness::rerun::{in_concurrent_namespaces, in_namespaces};
use linerate_harness::tests;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::Command;

/// Connects this namespace with `namespace`, whose kernel has addresses and its default route on the interface.
pub fn connect_kernels(namespace: &str, queues: usize) {
    Wire::AfXdp.connect_queues(namespace, queues);
    for arguments in
        ["addr add 10.9.0.4/24 dev lr1", "addr add fd09::4/64 dev lr1 nodad", "route add default via 10.9.0.1"]
    {
        ip(&format!("-n {namespace} {arguments}"));
    }
}

/// Passes a message through an open connection and back.
pub fn assert_alive(stream: &mut TcpStream) {
    stream.write_all(b"alive").unwrap();
    let mut reply = [0; 5];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"alive");
}

/// Asserts that the interface is left as found, and that the connections of the `kernel`'s server end in order.
pub fn assert_undisturbed(namespace: &str, streams: impl IntoIterator<Item = TcpStream>, kernel: Program) {
    let link = Command::new("ip").args(["-n", namespace, "link", "show", "lr1"]).output().unwrap();
    let link = String::from_utf8_lossy(&link.stdout);
    assert!(!link.contains("xdp") && !link.contains("PROMISC"), "the interface is left as found: {link}");
    for mut stream in streams {
        stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap(), 0, "the server has finished the connection");
    }
    assert_eq!(kernel.stop().json()["broken"], 0);
}

fn serve(namespace: &str, more: &str) -> Command {
    linerate_in(namespace, &format!("echo serve --via af_xdp:lr1,share {ADDRESSES} {more}"))
}

/// Opens connections of the kernel to its server on `port`, which outlive three servers, stopped or killed. `serves`
/// starts and uses a server, and returns it with the number of connections that it accepted.
pub fn assert_shared(port: u16, queues: usize, serves: impl Fn(&str, u8, &mut [TcpStream; 2]) -> (Program, u64)) {
    in_concurrent_namespaces(|namespace| {
        connect_kernels(namespace, queues);
        let addresses = ["10.9.0.4", "[fd09::4]"].map(|ip| format!("{ip}:{port}"));
        let [v4, v6] = &addresses;
        let kernel = format!("echo serve --via kernel --listen {v4} --listen {v6} --json");
        let kernel = Program::serve(linerate_in(namespace, &kernel));
        let mut streams = addresses.map(|address| connect(address.parse().unwrap()));
        for (round, is_killed) in [false, true, false].into_iter().enumerate() {
            streams.iter_mut().for_each(assert_alive);
            let (server, accepted) = serves(namespace, round as u8, &mut streams);
            if is_killed {
                server.kill();
            } else {
                let summary = server.stop().json();
                assert_eq!(summary["accepted"], accepted, "{summary}");
            }
            streams.iter_mut().for_each(assert_alive);
        }
        assert_undisturbed(namespace, streams, kernel);
    });
}

fn serves_with_the_kernel(queues: usize) {
    assert_shared(7, queues, |namespace, _, streams| {
        let server = Program::serve(serve(namespace, &format!("--workers {queues}")));
        servers().into_iter().for_each(|address| exchange(address, &random(1 << 20), 4));
        streams.iter_mut().for_each(assert_alive);
        (server, 8)
    });
}

tests! {
    shared_interface_of_one_queue_serves_with_the_kernel => serves_with_the_kernel(1);
    shared_interface_of_two_queues_serves_with_the_kernel => serves_with_the_kernel(2);
}

#[test]
fn load_uses_a_shared_interface() {
    in_concurrent_namespaces(|namespace| {
        connect_kernels(namespace, 1);
        let server = Program::serve(linerate("echo serve --via kernel --listen 10.9.0.1:7 --listen [fd09::1]:7"));
        for (own, peer) in [("10.9.0.2/24", "10.9.0.1:7"), ("fd09::2/64", "[fd09::1]:7")] {
            let load = "--connections 8 --duration 300ms --idle wait --json";
            let load = format!("echo load --via af_xdp:lr1,share --ip {own} --connect {peer} {load}");
            assert_no_errors(&Program::start(linerate_in(namespace, &load)).wait());
        }
        assert!(server.stop().status.success());
    });
}

#[test]
fn interface_that_cannot_be_shared_is_refused() {
    in_namespaces(|namespace| {
        connect_kernels(namespace, 2);
        assert_refused(serve(namespace, "--workers 1"), 1, &["receives on 2 queues", "--workers 2", "ethtool -L lr1"]);
        let with_mac = serve(namespace, "--workers 2 --mac 02:00:00:00:00:09");
        assert_refused(with_mac, 1, &["keeps its Ethernet address", "leave --mac out"]);
        let of_kernel = "echo serve --via af_xdp:lr1,share --ip 10.9.0.4/24 --listen 10.9.0.4:7 --workers 2";
        let parts = ["10.9.0.4 is an address of this host's kernel", "leave --ip out"];
        assert_refused(linerate_in(namespace, of_kernel), 1, &parts);
        for option in ["--dhcp", "--slaac", "--vlan 5"] {
            let name = option.split(' ').next().unwrap();
            let parts = [name, "has no effect with --via af_xdp:INTERFACE,share"];
            assert_refused(serve(namespace, option), 2, &parts);
        }
        let first = Program::serve(serve(namespace, "--workers 2"));
        assert_refused(serve(namespace, "--workers 2"), 1, &["'lr1' is being used by another Linerate process"]);
        assert!(first.stop().status.success());
    });
}
