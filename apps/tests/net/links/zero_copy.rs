//! Zero copy over shared-memory links, checked by addresses and by the program's counter. Needs root and hugepages.

#[path = "../../../../stack/tests/workers/common/observer.rs"]
mod observer;
#[path = "../../../../stack/tests/workers/common/recorder.rs"]
#[expect(dead_code, reason = "each test target uses a part of it")]
mod recorder;

use super::Link;
use crate::common::{run, serve, start, summary};
use linerate_bypass::Via;
use linerate_bypass::dpdk::{Eal, EalConfig, Port, PortConfig, QueuePair};
use linerate_harness::hugepages;
use linerate_harness::rerun::alone;
use linerate_harness::tests;
use linerate_service::time::Clock;
use linerate_stack::{Config, Mailboxes, Worker};
use observer::{EchoMode, Observer};
use recorder::Recorder;

/// Message sizes: below one segment, one segment, several, many.
const SIZES: [usize; 5] = [1, 64, 1_448, 20_000, 1 << 20];

/// Returns the command of a load over `via` of messages of `size` bytes to the server at `to`. The duration lets some
/// of the longest messages complete on a busy machine. No other host is on the link, so duplicate address detection is
/// unnecessary.
fn load_of(via: &str, size: usize, to: &str) -> String {
    let duration = if size < 100_000 { "200ms" } else { "2s" };
    let addresses = "--ip 10.9.0.2/24 --ip fd09::2/64 --no-dad";
    format!("echo load --via {via} {addresses} --idle wait --duration {duration} --json --connect {to} --size {size}")
}

/// Serves on the end `server_via` of a link under observation, with a load of every message size and write method at
/// the other end.
fn echo_sends_from_receive_buffers(link: fn() -> Link) {
    if !hugepages::available() {
        return;
    }
    alone(|| {
        let link = link();
        let via: Via = link.serve.parse().unwrap();
        let load = |size: usize, to: &str| {
            let connections = EchoMode::all(size).len();
            start(&format!("{} --connections {connections}", load_of(&link.load, size, to)))
        };
        let addressed = || SIZES.into_iter().zip(["10.9.0.1:7", "[fd09::1]:7"].into_iter().cycle());
        let eal = Eal::start(&EalConfig::for_via(&via, Vec::new())).unwrap();
        // A virtio-user end waits for its peer, so the load starts first.
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
            let modes = EchoMode::all(size);
            worker.service_mut().modes = modes.to_vec();
            let mut load = early.take().flatten().unwrap_or_else(|| load(size, to));
            while load.is_running() {
                (0..1000).for_each(|_| _ = worker.turn(clock.now()));
            }
            let report = summary(&load.wait());
            assert!(report["requests"].as_u64().unwrap() > 0 && report["errors"] == 0, "{size} bytes: {report}");
            let notes = std::mem::take(&mut *notes.lock().unwrap());
            for (index, (peer, seen)) in worker.service_mut().seen.drain(..).enumerate() {
                let case = format!("{size} bytes, {:?}", modes[index % modes.len()]);
                let (received, sent) = (&notes.received[&(7, peer)], &notes.sent[&(7, peer)]);
                assert!(sent.addresses.len() >= size && sent.addresses.iter().all(|address| *address != 0), "{case}");
                assert_eq!(sent.moved, 0, "{case}: bytes were retransmitted from another address");
                assert!(received.addresses.starts_with(&sent.addresses), "{case}: not sent from the receive buffer");
                let looked_at = seen.iter().zip(&received.addresses).filter(|(seen, _)| **seen != 0);
                assert!(looked_at.clone().count() > 0, "{case}: the service read nothing");
                assert!({ looked_at }.all(|(seen, received)| seen == received), "{case}: the service read copies");
                connections += 1;
            }
        }
        assert_eq!(connections, SIZES.len() * 4);
        let summary = worker.summary();
        assert_eq!(summary.copied_bytes, 0, "{summary:?}");
        drop(worker);
        drop(port);
    });
}

/// Checks that neither end counts copied bytes at any message size. Services run inline: a split service that is
/// slow has its data copied, to release packets of the port.
fn copies_nothing(link: Link) {
    if !hugepages::available() {
        return;
    }
    let addresses = "--ip 10.9.0.1/24 --ip fd09::1/64 --no-dad --listen 10.9.0.1:7 --listen [fd09::1]:7";
    let args = format!("--via {} --threading inline --idle wait {addresses} --json", link.serve);
    let server = serve("echo", &args);
    for (size, to) in SIZES.into_iter().zip(["10.9.0.1:7", "[fd09::1]:7"].into_iter().cycle()) {
        for pacing in ["", "--pacing"] {
            let load = format!("--connections 8 --depth 4 {pacing}");
            let output = run(&format!("-v {} --threading inline {load}", load_of(&link.load, size, to)));
            assert!(output.status.success(), "{size} bytes: {output:?}");
            assert!(output.stderr.contains("copied      0 bytes of payload"), "{size} bytes: {output:?}");
        }
    }
    let summary = summary(&server.stop());
    assert!(summary["copied_bytes"] == 0 && summary["tx_bytes"].as_u64().unwrap() > 0, "{summary}");
}

tests! {
    vhost_echo_is_sent_from_receive_buffers => echo_sends_from_receive_buffers(Link::vhost);
    virtio_user_echo_is_sent_from_receive_buffers => echo_sends_from_receive_buffers(Link::vhost_swapped);
    memif_echo_is_sent_from_receive_buffers => echo_sends_from_receive_buffers(Link::memif);
    virtio_user_link_copies_nothing_at_any_size => copies_nothing(Link::vhost());
    memif_link_copies_nothing_at_any_size => copies_nothing(Link::memif());
}
