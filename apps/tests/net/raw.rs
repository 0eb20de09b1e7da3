//! Raw frames between two processes.

use super::links::{assert_no_errors, assert_nothing_left, socket};
use super::program::linerate;
use linerate_harness::program::{Program, turn};

/// Frames in flight.
const DEPTH: u64 = 64;

fn exchange_frames(reflect: &str, load: &str) {
    let _turn = turn();
    let reflector = Program::serve(linerate(&format!("raw reflect --json --via {reflect}")));
    let load = format!("raw load --json --depth {DEPTH} --duration 500ms --warm-up 100ms --via {load}");
    let load = Program::start(linerate(&load));
    let pid = load.pid();
    let ended = load.wait();
    assert_no_errors(&ended);
    assert_nothing_left(pid);
    let ended = reflector.stop();
    assert!(ended.status.success(), "{ended:?}");
    let summary = ended.json();
    let [received, sent] = ["rx_frames", "tx_frames"].map(|name| summary[name].as_u64().unwrap());
    // Frames in flight at the end of the load are not reflected.
    assert!(received > 0 && (received.saturating_sub(DEPTH)..=received).contains(&sent), "{summary}");
}

#[test]
fn frames_are_reflected_over_virtio_user() {
    let directory = tempfile::tempdir().unwrap();
    let socket = socket(&directory);
    exchange_frames(&format!("vhost:{socket}"), &format!("virtio-user:{socket}"));
}

#[test]
fn frames_are_reflected_over_memif() {
    let directory = tempfile::tempdir().unwrap();
    let socket = socket(&directory);
    exchange_frames(&format!("memif:{socket},server"), &format!("memif:{socket}"));
}

#[test]
fn frame_above_the_mtu_is_refused() {
    let _turn = turn();
    let directory = tempfile::tempdir().unwrap();
    let ended = Program::start(linerate(&format!("raw load --via vhost:{} --size 9000", socket(&directory)))).wait();
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert!(
        ended.stderr.lines().count() == 1 && ended.stderr.contains("--size 9000") && ended.stderr.contains("--mtu"),
        "{ended:?}"
    );
}
