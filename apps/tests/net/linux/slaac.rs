//! IPv6 addresses from router advertisements of dnsmasq and radvd.

use super::network::DNSMASQ;
use crate::common::client::{exchange, random};
use crate::common::wire::{Wire, linerate_in};
use linerate_harness::program::{Program, ip};
use linerate_harness::rerun::{in_concurrent_namespaces, skip};
use linerate_harness::wait_for;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;

/// Address that the server forms from its Ethernet address.
const SERVER: &str = "[fd0a::ff:fe00:11]:7";
const SERVE: &str = "echo serve --via af_xdp:lr1 --slaac --mac 02:00:00:00:00:11 --listen [::]:7 --idle wait --json -v";

fn server() -> SocketAddr {
    SERVER.parse().unwrap()
}

/// Connects this namespace, the router's, with `namespace`. Prints a message if `router` is not installed.
fn connect(namespace: &str, router: &str) -> bool {
    // radvd exits with status 1 after it has printed its version.
    if Command::new(router).arg("--version").output().is_err() {
        skip(&format!("needs {router}: apt-get install {router}"));
        return false;
    }
    Wire::AfXdp.connect(namespace);
    // Otherwise the kernel in the server's namespace gets a default route, and the interface is refused.
    let ignore_ra = "echo 0 > /proc/sys/net/ipv6/conf/lr1/accept_ra";
    let output = Command::new("ip").args(["netns", "exec", namespace, "sh", "-c", ignore_ra]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    ip("addr add fd0a::1/64 dev lr0 nodad");
    std::fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1").unwrap();
    // Routers advertise from their link-local address, which duplicate address detection delays.
    wait_for("the router's address", || {
        let shown = Command::new("ip").args(["-6", "addr", "show", "dev", "lr0", "scope", "link"]).output().unwrap();
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        shown.contains("fe80::") && !shown.contains("tentative")
    });
    true
}

/// Returns the kernel's description of its connection to the server.
fn connection() -> String {
    let shown = Command::new("ss").args(["-6tin", "dst", SERVER]).output().unwrap();
    String::from_utf8_lossy(&shown.stdout).into_owned()
}

/// Echoes `bytes` over `stream`.
fn echo(stream: &mut TcpStream, bytes: &[u8]) {
    for part in bytes.chunks(10_000) {
        stream.write_all(part).unwrap();
        let mut back = vec![0; part.len()];
        stream.read_exact(&mut back).unwrap();
        assert!(back == part);
    }
}

#[test]
fn advertised_prefix_and_mtu_of_dnsmasq_are_used() {
    in_concurrent_namespaces(|namespace| {
        if !connect(namespace, "dnsmasq") {
            return;
        }
        let mut command = Command::new("dnsmasq");
        command.args(DNSMASQ).args([
            "--enable-ra",
            "--dhcp-range=fd0a::,ra-only,64,10m",
            "--ra-param=lr0,mtu:1400,60,1800",
        ]);
        let mut dnsmasq = Program::start(command);
        dnsmasq.wait_for_log("router advertisement on fd0a::");
        let mut server = Program::serve(linerate_in(namespace, SERVE));
        server.wait_for_log("SLAAC: fd0a::ff:fe00:11/64");
        exchange(self::server(), &random(1 << 20), 4);
        let mut stream = TcpStream::connect(self::server()).unwrap();
        echo(&mut stream, &random(100_000));
        // 1400 minus the headers of IPv6 and TCP and the timestamps, in both directions.
        let shown = connection();
        assert!(shown.contains(" mss:1328") && shown.contains(" rcvmss:1328"), "{shown}");
        drop(stream);
        assert_eq!(server.stop().json()["accepted"], 5);
    });
}

#[test]
#[ignore = "an address takes eight seconds to expire: ./run test --all"]
fn address_expires_without_advertisements_of_radvd() {
    in_concurrent_namespaces(|namespace| {
        if !connect(namespace, "radvd") {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let (config, pid) = (directory.path().join("radvd.conf"), directory.path().join("radvd.pid"));
        std::fs::write(
            &config,
            "interface lr0 { AdvSendAdvert on; MinRtrAdvInterval 3; MaxRtrAdvInterval 4; AdvDefaultLifetime 60;
             prefix fd0a::/64 { AdvValidLifetime 8; AdvPreferredLifetime 8; }; };",
        )
        .unwrap();
        let advertise = || {
            let mut command = Command::new("radvd");
            command.args(["--nodaemon", "--logmethod", "stderr", "--debug", "1"]);
            command.arg("--config").arg(&config).arg("--pidfile").arg(&pid);
            Program::start(command)
        };
        let radvd = advertise();
        let mut server = Program::serve(linerate_in(namespace, SERVE));
        server.wait_for_log("SLAAC: fd0a::ff:fe00:11/64");
        let mut stream = TcpStream::connect(self::server()).unwrap();
        echo(&mut stream, &random(1000));
        // On exit radvd advertises that it is no longer a router.
        radvd.stop();
        server.wait_for_log("SLAAC: no router");
        server.wait_for_log("SLAAC: fd0a::ff:fe00:11/64 has expired");
        let radvd = advertise();
        server.wait_for_log("SLAAC: fd0a::ff:fe00:11/64");
        exchange(self::server(), &random(1000), 1);
        radvd.stop();
        let summary = server.stop().json();
        assert_eq!(summary["accepted"], 2, "{summary}");
        assert!(summary["drops"].get("invalid router advertisement").is_none(), "{summary}");
    });
}
