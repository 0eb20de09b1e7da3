//! Links between two processes: vhost-user and memif.

use super::frames::{bounce, eal, echo, open, small};
use super::process::{Peer, parts, socket, wait_for};
use linerate_bypass::Nic;
use linerate_bypass::dpdk::{Port, PortConfig};

/// Where a peer finds the socket of its test.
const SOCKET: &str = "LINERATE_TEST_SOCKET";
/// How many queue pairs it is to have.
const QUEUES: &str = "LINERATE_TEST_QUEUES";

/// Runs one end here and the other in a peer, which echoes; `ours` begins when the peer is being started.
fn between(name: &str, peers: fn(&str) -> String, queues: u16, ours: impl FnOnce(String)) {
    parts(name, |role| match role {
        "peer" => {
            let eal = eal();
            let queues = std::env::var(QUEUES).unwrap().parse().unwrap();
            let port = open(&eal, &peers(&std::env::var(SOCKET).unwrap()), PortConfig { queues, ..small() });
            let mut ends = port.take_queues();
            std::thread::scope(|scope| {
                for end in ends.iter_mut().skip(1) {
                    scope.spawn(|| echo(end, || false));
                }
            });
            echo(&mut ends[0], || false);
        }
        _ => {
            let socket = socket("link");
            let peer = Peer::start(name, "peer", &[(SOCKET, &socket), (QUEUES, &queues.to_string())]);
            ours(socket.clone());
            drop(peer);
            let _ = std::fs::remove_file(&socket);
        }
    });
}

fn bounced(port: &Port) {
    let mut queues = port.take_queues();
    for queue in &mut queues {
        wait_for("the link", || queue.link_up());
        bounce(queue, 0..1_000, 60);
        bounce(queue, 1_000..1_100, 1_514);
        assert!(queue.stats().rx_frames >= 1_100 && queue.stats().tx_frames >= 1_100);
    }
    drop(queues);
}

#[test]
fn frames_cross_a_vhost_link_that_the_virtio_end_began() {
    let peer = |socket: &str| format!("virtio-user:{socket}");
    between("links::frames_cross_a_vhost_link_that_the_virtio_end_began", peer, 1, |socket| {
        let eal = eal();
        let port = open(&eal, &format!("vhost:{socket}"), small());
        bounced(&port);
        drop(port);
        assert!(!std::path::Path::new(&socket).exists(), "the socket is left behind");
    });
}

#[test]
fn frames_cross_a_vhost_link_that_the_vhost_end_began() {
    let peer = |socket: &str| format!("vhost:{socket}");
    between("links::frames_cross_a_vhost_link_that_the_vhost_end_began", peer, 1, |socket| {
        let eal = eal();
        let port = open(&eal, &format!("virtio-user:{socket}"), small());
        let capabilities = port.capabilities();
        assert!(capabilities.tx_checksum.tcp && capabilities.rx_checksum.tcp);
        assert!(capabilities.multi_segment_tx && capabilities.tso.is_some());
        bounced(&port);
    });
}

#[test]
fn frames_cross_a_memif_link_from_either_end() {
    let peer = |socket: &str| format!("memif:{socket},server");
    between("links::frames_cross_a_memif_link_from_either_end", peer, 1, |socket| {
        let eal = eal();
        let port = open(&eal, &format!("memif:{socket}"), small());
        bounced(&port);
    });
}
