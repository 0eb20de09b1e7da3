//! iperf 2 as a client of the discard service.

use super::engine::on_engine;
use crate::common::wire::{Wire, servers};
use linerate_harness::rerun::{in_namespaces, skip};
use linerate_harness::tests;
use std::process::Command;

/// Bytes sent per connection of iperf.
const BYTES: u64 = 20_000_000;
const CONNECTIONS: u64 = 4;

/// Returns whether iperf 2 is installed. Prints a message if not.
fn is_installed() -> bool {
    let version = Command::new("iperf").arg("-v").output();
    let is_2 = |text: &[u8]| String::from_utf8_lossy(text).contains("iperf version 2");
    let found = version.is_ok_and(|output| is_2(&output.stdout) || is_2(&output.stderr));
    if !found {
        skip("needs iperf 2: apt-get install iperf");
    }
    found
}

/// Checks that the server receives all bytes that iperf sent.
fn discards(wire: Wire) {
    if !is_installed() {
        return;
    }
    in_namespaces(|namespace| {
        wire.connect(namespace);
        let program = wire.serve(&on_engine("discard -v"), namespace);
        for server in servers() {
            let (ip, port) = (server.ip().to_string(), server.port().to_string());
            let mut iperf = Command::new("iperf");
            iperf.args(["-c", &ip, "-p", &port, "-n", &BYTES.to_string(), "-P", &CONNECTIONS.to_string()]);
            iperf.args(server.is_ipv6().then_some("-V"));
            let output = iperf.output().unwrap();
            let stdout = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && stdout.contains("bits/sec"), "{output:?}");
        }
        let ended = program.stop();
        let summary = ended.json();
        assert!(summary["accepted"] == 2 * CONNECTIONS && summary["finished"] == 2 * CONNECTIONS, "{ended:?}");
        // iperf writes whole blocks.
        let discarded = ended.stderr.lines().find_map(|line| {
            let count = line.split(" payload bytes discarded").next().filter(|count| *count != line)?;
            count.split_whitespace().last()?.parse::<u64>().ok()
        });
        let min = 2 * CONNECTIONS * BYTES;
        assert!(discarded.is_some_and(|bytes| (min..min + min / 10).contains(&bytes)), "{ended:?}");
    });
}

tests! {
    discard_receives_all_bytes_of_iperf_over_af_xdp => discards(Wire::AfXdp);
    #[ignore = "AF_XDP covers most of it: ./run test --all"]
    discard_receives_all_bytes_of_iperf_over_tap => discards(Wire::Tap);
}
