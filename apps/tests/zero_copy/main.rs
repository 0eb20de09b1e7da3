//! Payload is not copied over links in shared memory, by address and by the program's own count. Needs root and hugepages.

#[path = "../common/mod.rs"]
#[expect(dead_code, reason = "each target of tests uses a part of it")]
mod common;
#[path = "../../../stack/tests/workers/common/observer.rs"]
mod observer;
#[path = "../../../bypass/tests/dpdk/process.rs"]
#[expect(dead_code, reason = "each target of tests uses a part of it")]
mod process;
#[path = "../../../stack/tests/workers/common/recorder.rs"]
#[expect(dead_code, reason = "each target of tests uses a part of it")]
mod recorder;

use common::{Program, Server, run, text};
use linerate_bypass::Via;
use linerate_bypass::dpdk::{Eal, EalConfig, Port, PortConfig, QueuePair};
use linerate_bypass::time::Clock;
use linerate_stack::{Config, Mailboxes, Worker};
use observer::{How, Observer};
use process::{alone, socket};
use recorder::Recorder;

/// Message sizes: less than a segment, a segment, some, many.
const SIZES: [usize; 5] = [1, 64, 1_448, 20_000, 1 << 20];

/// Hugepages that two processes take, in kB.
const NEEDED: u64 = 512 << 10;

/// Whether this machine lets us; says why not.
fn possible() -> bool {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap();
    let value = |name: &str| {
        let line = meminfo.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_whitespace().nth(1).and_then(|value| value.parse::<u64>().ok()).unwrap_or(0)
    };
    let possible = rustix::process::geteuid().is_root() && value("HugePages_Free") * value("Hugepagesize") >= NEEDED;
    if !possible {
        eprintln!("skipped: needs root and {} MB of free hugepages", NEEDED >> 10);
    }
    possible
}

/// What the load is told besides its network and its messages. However slow the machine, some of the longest messages
/// must make it. Nobody else is on the link who could have its address.
const LOAD: &str = "--ip 10.9.0.2/24 --ip fd09::2/64 --no-dad --duration 500ms --json";

/// Serves on the end `ours` of a link, watched, while a load of messages of each size and way runs at its other end.
fn an_echo_stays_where_it_is(name: &str, ours: &str, theirs: &str) {
    if !possible() {
        return;
    }
    alone(name, || {
        let socket = socket("zero-copy");
        let via: Via = ours.replace("SOCKET", &socket).parse().unwrap();
        let theirs = theirs.replace("SOCKET", &socket);
        let load = |size: usize, to: &str| {
            let connections = How::all(size).len();
            let load =
                format!("echo load --via {theirs} {LOAD} --connect {to} --size {size} --connections {connections}");
            Program::start(&load)
        };
        let addressed = || SIZES.into_iter().zip(["10.9.0.1:7", "[fd09::1]:7"].into_iter().cycle());
        let eal = Eal::start(&EalConfig::for_via(&via, Vec::new())).unwrap();
        // The end that connects waits for the other.
        let mut early =
            matches!(via, Via::VirtioUser { .. }).then(|| addressed().next().map(|(size, to)| load(size, to)));
        let port = Port::open(&eal, &via, PortConfig::default()).unwrap();
        let queue = Recorder::new(port.take_queues().pop().unwrap());
        let notes = queue.notes();
        let config = Config {
            addresses: vec!["10.9.0.1/24".parse().unwrap(), "fd09::1/64".parse().unwrap()],
            dad_transmits: 0,
            listen: vec!["0.0.0.0:7".parse().unwrap(), "[::]:7".parse().unwrap()],
            ..Config::default()
        };
        let clock = Clock::start();
        let mailboxes = Mailboxes::for_workers(1).pop().unwrap();
        let mut worker: Worker<Recorder<QueuePair>, _> =
            Worker::new(&config, mailboxes, queue, |_| Observer::new(Vec::new()), clock.now());
        let mut connections = 0;
        for (size, to) in addressed() {
            let hows = How::all(size);
            worker.service_mut().hows = hows.to_vec();
            let mut load = early.take().flatten().unwrap_or_else(|| load(size, to));
            while load.child().try_wait().unwrap().is_none() {
                (0..1000).for_each(|_| _ = worker.turn(clock.now()));
            }
            let output = load.wait();
            assert!(output.status.success(), "{size} bytes: {output:?}");
            let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            assert!(report["requests"].as_u64().unwrap() > 0 && report["errors"] == 0, "{size} bytes: {report}");
            let notes = std::mem::take(&mut *notes.lock().unwrap());
            for (index, (peer, seen)) in worker.service_mut().seen.drain(..).enumerate() {
                let what = format!("{size} bytes, {:?}", hows[index % hows.len()]);
                let (received, sent) = (&notes.received[&(7, peer)], &notes.sent[&(7, peer)]);
                assert!(sent.places.len() >= size && sent.places.iter().all(|place| *place != 0), "{what}");
                assert_eq!(sent.moved, 0, "{what}: bytes were sent again from elsewhere");
                assert!(received.places.starts_with(&sent.places), "{what}: not sent from where it was received");
                let looked_at = seen.iter().zip(&received.places).filter(|(seen, _)| **seen != 0);
                assert!(looked_at.clone().count() > 0, "{what}: the service has seen nothing");
                assert!({ looked_at }.all(|(seen, received)| seen == received), "{what}: the service saw copies");
                connections += 1;
            }
        }
        assert_eq!(connections, SIZES.len() * 4);
        let summary = worker.summary();
        assert_eq!(summary.copied_bytes, 0, "{summary:?}");
        drop(worker);
        drop(port);
        let _ = std::fs::remove_file(&socket);
    });
}

#[test]
fn what_arrives_by_vhost_is_seen_and_sent_back_where_it_lies() {
    let name = "what_arrives_by_vhost_is_seen_and_sent_back_where_it_lies";
    an_echo_stays_where_it_is(name, "vhost:SOCKET", "virtio-user:SOCKET");
}

#[test]
fn what_arrives_by_virtio_user_is_seen_and_sent_back_where_it_lies() {
    let name = "what_arrives_by_virtio_user_is_seen_and_sent_back_where_it_lies";
    an_echo_stays_where_it_is(name, "virtio-user:SOCKET", "vhost:SOCKET");
}

#[test]
fn what_arrives_by_memif_is_seen_and_sent_back_where_it_lies() {
    let name = "what_arrives_by_memif_is_seen_and_sent_back_where_it_lies";
    an_echo_stays_where_it_is(name, "memif:SOCKET,server", "memif:SOCKET");
}

/// Neither end counts a copied byte, whatever the size of the messages. Services on threads of their own that are behind with what has
/// come have it copied, so that it does not keep the port's packets: theirs are on the workers.
fn nothing_is_counted(serve_via: &str, load_via: &str) {
    if !possible() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("link.sock");
    let named = |via: &str| via.replace("SOCKET", socket.to_str().unwrap());
    let (serve_via, load_via) = (named(serve_via), named(load_via));
    let addresses = "--ip 10.9.0.1/24 --ip fd09::1/64 --no-dad --listen 10.9.0.1:7 --listen [fd09::1]:7";
    let server = Server::start("echo", &format!("--via {serve_via} --threading inline {addresses} --json"));
    for (size, to) in SIZES.into_iter().zip(["10.9.0.1:7", "[fd09::1]:7"].into_iter().cycle()) {
        for load in ["", "--connections 8 --depth 4", "--connections 8 --depth 4 --pacing"] {
            let output = run(&format!(
                "-v echo load --via {load_via} --threading inline {LOAD} --connect {to} --size {size} {load}"
            ));
            assert!(output.status.success(), "{size} bytes: {output:?}");
            assert!(text(&output.stderr).contains("copied      0 bytes of payload"), "{size} bytes: {output:?}");
        }
    }
    let output = server.stop();
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(summary["copied_bytes"] == 0 && summary["tx_bytes"].as_u64().unwrap() > 0, "{summary}");
}

#[test]
fn neither_end_of_a_virtio_user_link_copies_at_any_size() {
    nothing_is_counted("vhost:SOCKET", "virtio-user:SOCKET");
}

#[test]
fn neither_end_of_a_memif_link_copies_at_any_size() {
    nothing_is_counted("memif:SOCKET,server", "memif:SOCKET");
}
