//! Raw frames between two processes.

use super::links::{assert_no_errors, assert_nothing_left, socket};
use super::program::linerate;
use linerate_harness::program::{Program, turn};

fn exchange_frames(reflect: &str, load: &str) {
    let _turn = turn();
    let reflector = Program::serve(linerate(&format!("raw reflect --json --via {reflect}")));
    let load = Program::start(linerate(&format!("raw load --json --duration 500ms --warm-up 100ms --via {load}")));
    let pid = load.pid();
    let ended = load.wait();
    assert_no_errors(&ended);
    assert_nothing_left(pid);
    let ended = reflector.stop();
    assert!(ended.status.success(), "{ended:?}");
    let summary = ended.json();
    assert!(summary["rx_frames"].as_u64() > Some(0) && summary["rx_frames"] == summary["tx_frames"], "{summary}");
}

#[test]
fn frames_are_reflected_over_virtio_user() {
    let directory = tempfile::tempdir().unwrap();
    let socket = socket(&directory);
    exchange_frames(&format!("vhost:{socket}"), &format!("virtio-user:{socket} --depth 64"));
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
