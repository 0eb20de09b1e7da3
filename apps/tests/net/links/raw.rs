//! Raw frames between two processes.

use super::{Link, assert_no_errors, assert_nothing_left};
use crate::common::{assert_refused, linerate, summary};
use linerate_harness::program::{Program, turn};
use linerate_harness::tests;

/// Frames in flight.
const DEPTH: u64 = 64;

fn exchange_frames(link: Link) {
    let _turn = turn();
    let reflector = Program::serve(linerate(&format!("raw reflect --json --via {}", link.serve)));
    let load = format!("raw load --json --depth {DEPTH} --duration 500ms --warm-up 100ms --via {}", link.load);
    let load = Program::start(linerate(&load));
    let pid = load.pid();
    let ended = load.wait();
    assert_no_errors(&ended);
    assert_nothing_left(pid);
    let summary = summary(&reflector.stop());
    let [received, sent] = ["rx_frames", "tx_frames"].map(|name| summary[name].as_u64().unwrap());
    // Frames in flight at the end of the load are not reflected.
    assert!(received > 0 && (received.saturating_sub(DEPTH)..=received).contains(&sent), "{summary}");
}

tests! {
    frames_are_reflected_over_virtio_user => exchange_frames(Link::vhost());
    frames_are_reflected_over_memif => exchange_frames(Link::memif());
}

#[test]
fn frame_above_the_mtu_is_refused() {
    let _turn = turn();
    let link = Link::vhost_swapped();
    let load = linerate(&format!("raw load --via {} --size 9000", link.load));
    assert_refused(load, 1, &["--size 9000", "--mtu"]);
}
