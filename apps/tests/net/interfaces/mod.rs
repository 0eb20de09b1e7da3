//! Interfaces that are down, disappear or lose their XDP program, offloads of VLAN tags, and second clients of a link.

mod kernel_addresses;
mod refusals;
pub mod shared;
mod unprivileged;

use crate::common::client::{connect, exchange};
use crate::common::wire::{ADDRESSES, V4, Wire, linerate_in};
use crate::links::{Link, load};
use linerate_harness::namespace::command_in;
use linerate_harness::process::Ended;
use linerate_harness::program::{Program, ip, run};
use linerate_harness::rerun::{in_concurrent_namespaces, in_namespaces, is_installed};
use linerate_harness::wait_for;
use refusals::assert_refused;
use shared::{assert_alive, connect_kernels};
use std::process::Command;

fn serve(namespace: &str, via: &str, more: &str) -> Command {
    linerate_in(namespace, &format!("echo serve --via {via} {ADDRESSES} --no-dad {more}"))
}

/// Asserts exit status 1 and an error that contains all `parts`.
#[track_caller]
fn assert_failed(ended: &Ended, parts: &[&str]) {
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    let line = ended.stderr.lines().last().unwrap();
    assert!(line.starts_with("linerate: ") && parts.iter().all(|part| line.contains(part)), "{ended:?}");
}

#[test]
fn removed_interface_ends_its_program_with_an_error() {
    in_concurrent_namespaces(|namespace| {
        for via in ["af_xdp:lr1", "af_xdp:lr1,share", "tap:lr1"] {
            let makes_interface = via.starts_with("tap");
            if !makes_interface {
                Wire::AfXdp.connect(namespace);
            }
            let server = Program::serve(serve(namespace, via, ""));
            if !makes_interface {
                exchange(V4.parse().unwrap(), b"hello", 1);
            }
            ip(&format!("-n {namespace} link del lr1"));
            assert_failed(&server.wait(), &["'lr1'", "removed", "start this program again"]);
        }
        // A renamed interface, and one that has been moved, no longer exist under the name.
        for change in ["set dev lr1 down name lr3", "set dev lr1 netns 1"] {
            Wire::AfXdp.connect(namespace);
            let server = Program::serve(serve(namespace, "af_xdp:lr1", ""));
            ip(&format!("-n {namespace} link {}", change.replace("netns 1", &format!("netns {}", std::process::id()))));
            assert_failed(&server.wait(), &["'lr1'", "renamed"]);
            ip("link del lr0");
        }
    });
}

#[test]
fn link_of_an_interface_is_reported_and_is_a_metric() {
    in_concurrent_namespaces(|namespace| {
        Wire::AfXdp.connect(namespace);
        ip(&format!("-n {namespace} link set lr1 down"));
        let mut server = Program::serve(serve(namespace, "af_xdp:lr1", "--metrics 127.0.0.1:0"));
        let warning = server.wait_for_log("WARN");
        assert!(warning.contains("'lr1' is down") && warning.contains("ip link set dev lr1 up"), "{warning}");
        let metrics = |server: &Program| {
            let (_, address) = server.ready.split_once("metrics at ").unwrap();
            let mut curl = command_in(namespace, "curl");
            curl.args(["-s", address.split_once(')').map_or(address, |(address, _)| address)]);
            run(curl).stdout
        };
        let has_link = |server: &Program, up: &str| {
            metrics(server).contains(&format!("linerate_link_up{{worker=\"0\",interface=\"lr1\"}} {up}\n"))
        };
        wait_for("a link that is down", || has_link(&server, "0"));
        ip(&format!("-n {namespace} link set lr1 up"));
        wait_for("a link that is up", || has_link(&server, "1"));
        exchange(V4.parse().unwrap(), b"hello", 1);
        ip("link set lr0 down");
        server.wait_for_log("WARN af_xdp:lr1: the link is down");
        assert!(server.stop().status.success());
    });
}

#[test]
fn xdp_program_stays_with_its_process_and_ends_with_it() {
    in_concurrent_namespaces(|namespace| {
        Wire::AfXdp.connect(namespace);
        let description = || run(command_in(namespace, "ip").args(["link", "show", "lr1"])).stdout;
        let server = Program::serve(serve(namespace, "af_xdp:lr1", ""));
        assert!(description().contains("xdp"), "{}", description());
        let removal = command_in(namespace, "ip").args("link set dev lr1 xdp off".split(' ')).output().unwrap();
        assert!(!removal.status.success(), "{removal:?}");
        exchange(V4.parse().unwrap(), b"hello", 1);
        server.kill();
        assert!(!description().contains("xdp"), "{}", description());
        let restarted = Program::serve(serve(namespace, "af_xdp:lr1", ""));
        exchange(V4.parse().unwrap(), b"hello", 1);
        assert!(restarted.stop().status.success());
    });
}

#[test]
fn removal_of_vlan_tags_is_off_while_an_interface_is_used() {
    in_concurrent_namespaces(|namespace| {
        if !is_installed("ethtool", &["--version"], "ethtool") {
            return;
        }
        connect_kernels(namespace, 1);
        let is_on = || {
            let features = run(command_in(namespace, "ethtool").args(["-k", "lr1"])).stdout;
            features.contains("rx-vlan-offload: on")
        };
        for via in ["af_xdp:lr1", "af_xdp:lr1,share"] {
            assert!(is_on());
            let server = Program::serve(serve(namespace, via, if via.ends_with("share") { "" } else { "--force" }));
            assert!(!is_on(), "{via}");
            assert!(server.stop().status.success());
        }
        assert!(is_on());
        run(command_in(namespace, "ethtool").args(["-K", "lr1", "rxvlan", "off"]));
        assert!(Program::serve(serve(namespace, "af_xdp:lr1,share", "")).stop().status.success());
        assert!(!is_on(), "restored");
    });
}

/// The interface of a server takes its ports, and no others of the kernel.
#[test]
fn kernel_keeps_ports_for_outgoing_connections_of_others() {
    in_namespaces(|namespace| {
        connect_kernels(namespace, 1);
        let of_kernel = linerate_in(namespace, "echo serve --via kernel --listen 0.0.0.0:61616");
        let kernel = Program::serve(of_kernel);
        let mut open = connect("10.9.0.4:61616".parse().unwrap());
        let share = |more: &str| {
            linerate_in(namespace, &format!("echo serve --via af_xdp:lr1,share --listen 10.9.0.4:7 {more}"))
        };
        let server = Program::serve(share(""));
        exchange("10.9.0.4:7".parse().unwrap(), b"hello", 1);
        exchange("10.9.0.4:61616".parse().unwrap(), b"hello", 1);
        assert_alive(&mut open);
        assert!(server.stop().status.success());
        let outgoing = "--outgoing-ports 61000-65535";
        assert_refused(share(outgoing), 1, &["61616", "listening socket", "ss -natp", "--outgoing-ports"]);
        // Connections of an ended listener remain if another process has them.
        assert_refused(share("--outgoing-ports 61617-65535 --listen 10.9.0.4:61616"), 1, &["61616", "in use"]);
        assert_alive(&mut open);
        kernel.stop();
        drop(open);
        assert!(Program::serve(share(outgoing)).stop().status.success());
    });
}

#[test]
fn second_client_of_a_vhost_socket_is_refused_or_announced() {
    in_namespaces(|namespace| {
        let link = Link::vhost();
        let mut server = Program::serve(link.server());
        let mut first = Program::start(link.load("1m"));
        first.wait_for_log("measuring");
        let refused = Program::start(load(&link.load, "--duration 1s")).wait();
        assert_failed(&refused, &["another Linerate process", &link.socket, "one client"]);
        assert!(first.is_running());
        let report = first.stop().json();
        assert!(report["errors"] == 0 && report["requests"].as_u64() > Some(0), "{report}");
        // The first client of another namespace is not known here.
        let other = format!("echo load --via {} --ip 10.9.0.1/24 --connect 10.9.0.2:7 --idle wait", link.load);
        let mut other = Program::start(linerate_in(namespace, &format!("-v {other} --duration 1m --connections 1")));
        other.wait_for_log("measuring");
        let mut second = Program::start(link.load("1m"));
        server.wait_for_log("replaced the client");
        second.wait_for_log("measuring");
        [other, second].into_iter().for_each(Program::kill);
        server.stop();
    });
}
