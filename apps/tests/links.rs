//! Two processes over shared-memory links: virtio-user with vhost, and memif. Needs root and hugepages.
#![cfg(feature = "dpdk")]

mod common;

use common::{run, serve, start};
use linerate_harness::hugepages;
use linerate_harness::metrics::await_metric;
use linerate_harness::process::Ended;

/// Returns the number of requests of a load without errors.
fn answered(output: &Ended) -> u64 {
    assert!(output.status.success(), "{output:?}");
    let report: serde_json::Value = output.json();
    assert_eq!(report["errors"], 0, "{report}");
    report["requests"].as_u64().unwrap()
}

/// Repeats a load with increasing duration until it completes a request: on a busy machine the server may not run
/// during a short load. Returns the number of attempts.
fn load_until_answered(load: &str) -> usize {
    let answered = |time: &&str| answered(&run(&format!("echo load {load} --duration {time} --json"))) > 0;
    1 + ["300ms", "3s", "12s"].iter().position(answered).expect("a reply")
}

/// Serves at one end and loads from the other over IPv4 and IPv6. Checks that the socket is removed.
fn echo_over(serve_via: &str, load_via: &str) {
    if !hugepages::available() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("link.sock");
    let named = |via: &str| via.replace("SOCKET", socket.to_str().unwrap());
    let (serve_via, load_via) = (named(serve_via), named(load_via));
    let addresses = "--ip 10.9.0.1/24 --ip fd09::1/64 --listen 10.9.0.1:7 --listen [fd09::1]:7";
    let server = serve("echo", &format!("--via {serve_via} {addresses} --json"));
    let ready = format!("ready echo on 10.9.0.1:7, [fd09::1]:7 via {serve_via}, 1 worker");
    assert!(server.ready.starts_with(&ready), "{}", server.ready);
    let mut connections = 0;
    for (load, each) in [
        ("--connect 10.9.0.1:7 --connections 64", 64),
        ("--connect [fd09::1]:7 --connections 5 --size 10000 --depth 3", 5),
        ("--connect 10.9.0.1:7 --idle backoff", 1),
    ] {
        let load = format!("--via {load_via} --ip 10.9.0.2/24 --ip fd09::2/64 {load}");
        connections += each * load_until_answered(&load);
    }
    let closed = run(&format!("echo load --via {load_via} --ip 10.9.0.2/24 --connect 10.9.0.1:9 --json"));
    assert_eq!(closed.status.code(), Some(1), "{closed:?}");
    assert!(closed.stderr.contains("10.9.0.1:9: connection refused"), "{closed:?}");
    let output = server.stop();
    assert!(output.status.success(), "{output:?}");
    let summary: serde_json::Value = output.json();
    assert_eq!(summary["accepted"], connections, "{summary}");
    assert!(!socket.exists());
}

#[test]
fn virtio_user_link_carries_consecutive_loads() {
    echo_over("vhost:SOCKET", "virtio-user:SOCKET");
}

#[test]
fn memif_link_carries_consecutive_loads() {
    echo_over("memif:SOCKET,server", "memif:SOCKET");
}

#[test]
fn load_started_first_waits_for_its_server() {
    if !hugepages::available() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("link.sock");
    let socket = socket.display();
    let args = "--ip 10.9.0.2/24 --connect 10.9.0.1:7 --duration 3s --json";
    let mut load = start(&format!("-v echo load --via virtio-user:{socket} {args}"));
    load.wait_for_log("waiting for the other end");
    let server = serve("echo", &format!("--via vhost:{socket} --ip 10.9.0.1/24 --listen 10.9.0.1:7"));
    let output = load.wait();
    assert!(answered(&output) > 0, "{output:?}");
    assert!(server.stop().status.success());
}

/// Stops a server during a load, which must complete without errors.
fn load_outlasts_drain(engine: &str) {
    if !hugepages::available() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("link.sock");
    let socket = socket.display();
    let server = format!("--via vhost:{socket} --ip 10.9.0.1/24 --listen 10.9.0.1:7 --idle backoff --engine {engine}");
    let mut server = serve("echo", &format!("{server} --drain 1m --metrics 127.0.0.1:0 --json"));
    let load = format!("echo load --via virtio-user:{socket} --ip 10.9.0.2/24 --connect 10.9.0.1:7 --idle backoff");
    let running = start(&format!("{load} --connections 16 --duration 5s --json"));
    await_metric(&server.ready, "linerate_connections", 16);
    await_metric(&server.ready, "linerate_rx_frames_total", 100);
    server.signal(rustix::process::Signal::TERM);
    server.wait_for_log("draining: 16 connections");
    assert!(answered(&running.wait()) > 0);
    let output = server.wait();
    assert!(output.status.success(), "{output:?}");
    let summary: serde_json::Value = output.json();
    assert_eq!((&summary["accepted"], &summary["broken"]), (&16.into(), &0.into()), "{summary}");
}

#[test]
fn load_over_a_link_outlasts_a_drain() {
    load_outlasts_drain("native");
}

#[test]
fn load_over_a_link_outlasts_a_drain_with_smoltcp() {
    load_outlasts_drain("smoltcp");
}
