//! iperf, version 2, from the kernel into the discard service.

use super::engine::on_engine;
use super::namespace::in_namespaces;
use super::wire::{Wire, servers};
use std::process::Command;

/// Bytes that one connection of iperf sends.
const BYTES: u64 = 20_000_000;
const CONNECTIONS: u64 = 4;

/// Whether there is an iperf of version 2; says so if not.
fn is_installed(test: &str) -> bool {
    let version = Command::new("iperf").arg("-v").output();
    let is_2 = |text: &[u8]| String::from_utf8_lossy(text).contains("iperf version 2");
    let found = version.is_ok_and(|output| is_2(&output.stdout) || is_2(&output.stderr));
    if !found {
        eprintln!("skipped: {test} needs iperf, version 2: apt-get install iperf");
    }
    found
}

/// All that iperf says it has sent arrives.
fn discards(name: &str, wire: Wire) {
    if !is_installed(name) {
        return;
    }
    in_namespaces(name, |namespace| {
        wire.connect(namespace);
        let program = wire.serve(&on_engine("discard -v"), namespace);
        for server in servers() {
            let (ip, port) = (server.ip().to_string(), server.port().to_string());
            let mut iperf = Command::new("iperf");
            iperf.args(["-c", &ip, "-p", &port, "-n", &BYTES.to_string(), "-P", &CONNECTIONS.to_string()]);
            iperf.args(server.is_ipv6().then_some("-V"));
            let output = iperf.output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && said.contains("bits/sec"), "{output:?}");
        }
        let ended = program.stop();
        let summary = ended.json();
        assert!(summary["accepted"] == 2 * CONNECTIONS && summary["finished"] == 2 * CONNECTIONS, "{ended:?}");
        // iperf writes whole blocks.
        let discarded = ended.stderr.iter().find_map(|line| {
            let count = line.split(" bytes of payload thrown away").next().filter(|count| *count != line)?;
            count.split_whitespace().last()?.parse::<u64>().ok()
        });
        let least = 2 * CONNECTIONS * BYTES;
        assert!(discarded.is_some_and(|bytes| (least..least + least / 10).contains(&bytes)), "{ended:?}");
    });
}

#[test]
fn iperf_sends_to_the_discard_service_over_af_xdp() {
    discards("iperf::iperf_sends_to_the_discard_service_over_af_xdp", Wire::AfXdp);
}

#[test]
fn iperf_sends_to_the_discard_service_over_tap() {
    discards("iperf::iperf_sends_to_the_discard_service_over_tap", Wire::Tap);
}
