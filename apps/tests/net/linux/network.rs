//! VLANs, address announcements, fragments, long frames, DHCP and multiple addresses.

use crate::common::client::{exchange, random};
use crate::common::wire::{ADDRESSES, V4, Wire, linerate_in, servers};
use crate::common::{linerate, stop};
use crate::links::{assert_no_errors, load, socket};
use linerate_harness::program::{Program, ip, turn};
use linerate_harness::rerun::{in_concurrent_namespaces, is_installed};
use linerate_harness::{TIMEOUT, wait_for};
use std::net::UdpSocket;
use std::process::Command;
use std::time::Duration;

/// Creates an interface of the kernel in VLAN 5 with addresses. Prints a message if the kernel lacks the VLAN module.
fn join_vlan() -> bool {
    ip("link set lr0 up");
    let added = Command::new("ip").args("link add link lr0 name lr0.5 type vlan id 5".split(' ')).output().unwrap();
    if String::from_utf8_lossy(&added.stderr).contains("Unknown device type") {
        eprintln!("skipped: this kernel has no VLANs (module 8021q)");
        return false;
    }
    assert!(added.status.success(), "{added:?}");
    ip("addr add 10.9.0.1/24 dev lr0.5");
    ip("addr add fd09::1/64 dev lr0.5 nodad");
    ip("link set lr0.5 up");
    true
}

/// Exchanges 1 MB over IPv4 and IPv6, and checks the summary.
fn exchange_in_vlan(program: Program) {
    for server in servers() {
        exchange(server, &random(1 << 20), 4);
    }
    let ping =
        Command::new("ping").args(["-c", "1", "-W", "5", "-s", "1472", "-M", "do", "10.9.0.2"]).output().unwrap();
    assert!(ping.status.success(), "the MTU must exclude the tag: {ping:?}");
    assert_eq!(stop(program)["accepted"], 8);
}

#[test]
fn kernel_vlan_is_served_over_tap() {
    in_concurrent_namespaces(|_| {
        let program = Program::serve(linerate(&format!("echo serve --via tap:lr0 {ADDRESSES} --vlan 5")));
        if join_vlan() {
            exchange_in_vlan(program);
        }
    });
}

#[test]
fn kernel_vlan_is_served_over_af_xdp() {
    in_concurrent_namespaces(|namespace| {
        ip(&format!("link add lr0 type veth peer name lr1 netns {namespace}"));
        ip(&format!("-n {namespace} link set lr1 up"));
        // AF_XDP does not see tags that are stored outside the frame (VLAN offload).
        let disabled = Command::new("ethtool").args(["-K", "lr0", "txvlan", "off"]).output();
        if !disabled.is_ok_and(|output| output.status.success()) {
            return eprintln!("skipped: ethtool is not installed");
        }
        if !join_vlan() {
            return;
        }
        let program = linerate_in(namespace, &format!("echo serve --via af_xdp:lr1 {ADDRESSES} --vlan 5"));
        exchange_in_vlan(Program::serve(program));
    });
}

#[test]
fn vhost_processes_communicate_in_the_same_vlan_only() {
    let _turn = turn();
    for (vlan, connects) in [(5, true), (6, false)] {
        let directory = tempfile::tempdir().unwrap();
        let socket = socket(&directory);
        let addresses = "--ip 10.9.0.2/24 --listen 10.9.0.2:7 --idle wait --json";
        let server = Program::serve(linerate(&format!("echo serve --via vhost:{socket} {addresses} --vlan 5")));
        let more = format!("--vlan {vlan} --connections 8 --duration 300ms");
        let ended = Program::start(load(&format!("virtio-user:{socket}"), &more)).wait();
        assert_eq!(ended.status.success(), connects, "{ended:?}");
        if connects {
            assert_no_errors(&ended);
        }
        let summary = server.stop().json();
        assert_eq!(summary["drops"].get("frame of another VLAN").is_none(), connects, "{summary}");
    }
}

/// Returns whether the kernel's neighbour table maps `address` to `mac`.
fn has_neighbor(address: &str, mac: &str) -> bool {
    let output = Command::new("ip").args(["neigh", "show", address]).output().unwrap();
    String::from_utf8_lossy(&output.stdout).contains(&format!("lladdr {mac}"))
}

/// The neighbour entry is fresh, so the kernel does not probe by itself.
#[test]
fn kernel_notices_a_takeover_from_the_announcement() {
    in_concurrent_namespaces(|namespace| {
        Wire::AfXdp.connect(namespace);
        for mac in ["02:00:00:00:00:11", "02:00:00:00:00:12"] {
            let server = Wire::AfXdp.serve(&format!("echo --mac {mac}"), namespace);
            if mac.ends_with("11") {
                for server in servers() {
                    exchange(server, b"hello", 1);
                }
            }
            wait_for("the kernel's table", || has_neighbor("10.9.0.2", mac) && has_neighbor("fd09::2", mac));
            assert!(server.stop().status.success());
        }
    });
}

#[test]
fn duplicate_address_ends_the_program_without_no_dad() {
    in_concurrent_namespaces(|namespace| {
        Wire::AfXdp.connect(namespace);
        ip("addr add fd09::2/64 dev lr0 nodad");
        let serve = |more: &str| linerate_in(namespace, &format!("echo serve --via af_xdp:lr1 {ADDRESSES} {more}"));
        let ended = Program::start(serve("")).wait();
        assert_eq!(ended.status.code(), Some(1), "{ended:?}");
        assert!(ended.stderr.lines().any(|line| line.contains("fd09::2") && line.contains("--no-dad")), "{ended:?}");
        assert!(Program::serve(serve("--no-dad")).stop().status.success());
    });
}

#[test]
fn fragmented_datagrams_are_dropped_or_reassembled() {
    in_concurrent_namespaces(|namespace| {
        Wire::AfXdp.connect(namespace);
        let socket = UdpSocket::bind("10.9.0.1:0").unwrap();
        socket.connect(V4).unwrap();
        let datagram = random(3000);
        for reassembles in [false, true] {
            let server = Wire::AfXdp.serve(if reassembles { "echo --fragments" } else { "echo" }, namespace);
            exchange(V4.parse().unwrap(), b"hello", 1);
            socket.set_read_timeout(Some(if reassembles { TIMEOUT } else { Duration::from_millis(300) })).unwrap();
            socket.send(&datagram).unwrap();
            let mut back = [0; 4000];
            let echoed = socket.recv(&mut back).ok().map(|n| back[..n] == datagram);
            assert_eq!(echoed, reassembles.then_some(true));
            let summary = server.stop().json();
            assert_eq!(summary["drops"]["IP fragment"].as_u64(), (!reassembles).then_some(3), "{summary}");
        }
    });
}

/// Arguments of dnsmasq on this end of the wire, without DNS and files.
pub const DNSMASQ: [&str; 8] = [
    "--no-daemon",
    "--conf-file=/dev/null",
    "--port=0",
    "--user=root",
    "--leasefile-ro",
    "--pid-file",
    "--interface=lr0",
    "--bind-interfaces",
];

/// The lease lasts two minutes and is renewed after four seconds.
#[test]
fn dhcp_lease_of_dnsmasq_is_obtained_and_renewed() {
    in_concurrent_namespaces(|namespace| {
        if !is_installed("dnsmasq", &["--version"], "dnsmasq-base") {
            return;
        }
        Wire::AfXdp.connect(namespace);
        let mut command = Command::new("dnsmasq");
        command.args(DNSMASQ).args(["--dhcp-authoritative", "--no-ping"]);
        command.arg("--dhcp-range=10.9.0.50,10.9.0.50,255.255.255.0,2m");
        command.args(["router,10.9.0.1,10.9.0.9", "T1,4", "T2,60"].map(|it| format!("--dhcp-option=option:{it}")));
        let mut dnsmasq = Program::start(command);
        dnsmasq.wait_for_log("DHCP, sockets bound");
        let serve = "echo serve -v --via af_xdp:lr1 --dhcp --listen 0.0.0.0:7 --idle wait --json";
        let mut server = Program::serve(linerate_in(namespace, serve));
        server.wait_for_log("DHCP: 10.9.0.50/24, gateway 10.9.0.1, lease of 120 s");
        let address = "10.9.0.50:7".parse().unwrap();
        dnsmasq.wait_for_log("DHCPACK(lr0) 10.9.0.50");
        exchange(address, &random(100_000), 4);
        for _ in 0..2 {
            dnsmasq.wait_for_log("DHCPREQUEST(lr0) 10.9.0.50");
            dnsmasq.wait_for_log("DHCPACK(lr0) 10.9.0.50");
            exchange(address, &random(1000), 1);
        }
        assert_eq!(server.stop().json()["accepted"], 6);
    });
}

/// `--no-multi-segment` sends each segment as a separate frame.
#[test]
fn long_frames_cross_a_vhost_link() {
    let _turn = turn();
    let directory = tempfile::tempdir().unwrap();
    let socket = socket(&directory);
    let addresses = "--ip 10.9.0.2/24 --listen 10.9.0.2:7 --idle wait --json --mtu 9000 --no-multi-segment";
    let server = Program::serve(linerate(&format!("discard serve --via vhost:{socket} {addresses}")));
    let args = "--ip 10.9.0.1/24 --connect 10.9.0.2:7 --idle wait --json --mtu 9000 --no-multi-segment";
    let load = linerate(&format!("discard load --via virtio-user:{socket} {args} --connections 2 --duration 500ms"));
    let ended = Program::start(load).wait();
    assert!(ended.status.success(), "{ended:?}");
    let summary = server.stop().json();
    let number = |name: &str| summary[name].as_f64().unwrap();
    assert!(number("rx_bytes") / number("rx_frames") > 8000.0, "{summary}");
}

#[test]
fn every_address_answers_ping_and_is_served() {
    in_concurrent_namespaces(|namespace| {
        Wire::AfXdp.connect(namespace);
        let more = "--ip 10.9.0.3/24 --ip fd09::3/64 --listen 10.9.0.3:7 --listen [fd09::3]:7";
        let server = Wire::AfXdp.serve(&format!("echo {more}"), namespace);
        for to in ["10.9.0.2:7", "10.9.0.3:7", "[fd09::2]:7", "[fd09::3]:7"].map(|to| to.parse().unwrap()) {
            exchange(to, &random(1000), 2);
            let to = to.ip().to_string();
            let ping = Command::new("ping").args(["-c", "1", "-W", "5", &to]).output().unwrap();
            assert!(ping.status.success(), "{ping:?}");
        }
        assert_eq!(server.stop().json()["accepted"], 8);
    });
}
