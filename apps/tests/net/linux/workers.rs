//! Two workers on two queues: every connection is served, whichever queue its frames arrive on.

use crate::common::client::{exchange, random};
use crate::common::linerate;
use crate::common::wire::{Wire, linerate_in};
use crate::links::{assert_no_errors, load, socket};
use linerate_harness::process::Ended;
use linerate_harness::program::{Program, turn};
use linerate_harness::rerun::{has_cores, in_namespaces};

/// Asserts that both workers logged accepted connections, `total` together.
#[track_caller]
fn assert_shared(ended: &Ended, total: u64) {
    assert!(ended.status.success(), "{ended:?}");
    let accepted: Vec<u64> = ended
        .stderr
        .lines()
        .filter_map(|line| line.split_once("worker ")?.1.split_once(": accepted ")?.1.split(',').next()?.parse().ok())
        .collect();
    assert_eq!(accepted.len(), 2, "{ended:?}");
    assert!(accepted.iter().all(|&n| n > 0) && accepted.iter().sum::<u64>() == total, "{accepted:?}");
    assert_eq!(ended.json()["accepted"], total);
}

#[test]
fn workers_share_connections_of_linux_clients_over_af_xdp() {
    if !has_cores(2) {
        return;
    }
    in_namespaces(|server| {
        Wire::AfXdp.connect_queues(server, 2);
        let serve = "-v echo serve --via af_xdp:lr1 --workers 2 --ip 10.9.0.2/24 --ip fd09::2/64 --idle wait --json";
        let program = Program::serve(linerate_in(server, &format!("{serve} --listen 10.9.0.2:7 --listen [fd09::2]:7")));
        let bytes = random(10_000_000);
        exchange("10.9.0.2:7".parse().unwrap(), &bytes, 64);
        exchange("[fd09::2]:7".parse().unwrap(), &bytes, 64);
        let ended = program.stop();
        assert_shared(&ended, 128);
        // The kernel hashes flows differently, so some frames arrive at the other worker.
        assert!(ended.json()["misdirected"].as_u64().unwrap() > 0, "{ended:?}");
    });
}

#[test]
fn workers_share_connections_of_a_load_over_virtio() {
    if !has_cores(2) {
        return;
    }
    let _turn = turn();
    let directory = tempfile::tempdir().unwrap();
    let socket = socket(&directory);
    let serve = "-v echo serve --workers 2 --ip 10.9.0.2/24 --listen 10.9.0.2:7 --idle wait --json";
    let server = Program::serve(linerate(&format!("{serve} --via vhost:{socket}")));
    let more = "--workers 2 --connections 64 --duration 1s";
    let ended = Program::start(load(&format!("virtio-user:{socket}"), more)).wait();
    assert_no_errors(&ended);
    assert_shared(&server.stop(), 64);
}
