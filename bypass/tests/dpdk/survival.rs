//! Tests of links whose other end starts late, is killed, and returns.

use super::frames::{bounce, eal, echo, open, small};
use super::process::{self, socket, wait_for};
use linerate_bypass::dpdk::{Eal, OpenError, Port, PortConfig, QueuePair};
use linerate_bypass::{Nic, Packet};
use linerate_harness::rerun::parts;
use linerate_service::Stop;
use rustix::process::Signal;
use std::ffi::{CString, c_char, c_int};
use std::time::Duration;

const VIA: &str = "LINERATE_TEST_VIA";

/// Kills the peer of an open link twice and restarts it, and verifies that frames cross again.
fn survives(local: fn(&str) -> String, peer: fn(&str) -> String) {
    parts(|role| match role {
        "peer" => {
            let port = open(&eal(), &std::env::var(VIA).unwrap(), small());
            echo(&mut port.take_queues()[0]);
        }
        _ => {
            let socket = socket("survival");
            let start = || process::peer("peer", &[(VIA, &peer(&socket))]);
            let mut peer = start();
            let port = open(&eal(), &local(&socket), small());
            let mut queue = port.take_queues().remove(0);
            for n in 0..3 {
                let round = n * 1_000;
                // The worker polls meanwhile, and may hold frames for the old peer.
                let mut received = Vec::with_capacity(32);
                wait_for("the link", || {
                    queue.rx_burst(&mut received);
                    queue.link_up()
                });
                drop(received);
                bounce(&mut queue, round..round + 500, 200);
                if n == 2 {
                    break;
                }
                let kept = super::frames::packet(&mut queue, &super::frames::frame(7, 100));
                let mut pending = vec![super::frames::packet(&mut queue, &super::frames::frame(8, 100))];
                peer.kill();
                let mut received = Vec::with_capacity(32);
                wait_for("the link's loss", || {
                    queue.rx_burst(&mut received);
                    !queue.link_up()
                });
                // Frames are held back without a crash, and remain intact.
                for _ in 0..100 {
                    queue.rx_burst(&mut received);
                    queue.tx_burst(&mut pending);
                }
                assert_eq!(kept.data(), super::frames::frame(7, 100));
                drop((kept, pending, received));
                peer = start();
            }
            drop(queue);
            drop(port);
            drop(peer);
            let _ = std::fs::remove_file(&socket);
        }
    });
}

#[test]
fn virtio_user_port_survives_its_vhost_peer() {
    survives(|socket| format!("virtio-user:{socket}"), |socket| format!("vhost:{socket}"));
}

#[test]
fn vhost_port_survives_its_virtio_user_peer() {
    survives(|socket| format!("vhost:{socket}"), |socket| format!("virtio-user:{socket}"));
}

/// Truncates the memory of process `pid`, all files without a name, as a hostile peer could.
fn truncate_memory(pid: u32) {
    let mut truncated = 0;
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap() {
        let path = entry.unwrap().path();
        if std::fs::read_link(&path).is_ok_and(|target| target.to_string_lossy().starts_with("/memfd:")) {
            std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(0).unwrap();
            truncated += 1;
        }
    }
    assert!(truncated > 0, "process {pid} has no memory in files");
}

#[test]
fn vhost_port_survives_a_peer_that_truncates_its_memory() {
    parts(|role| match role {
        "peer" => {
            let port = open(&eal(), &std::env::var(VIA).unwrap(), small());
            echo(&mut port.take_queues()[0]);
        }
        _ => {
            let socket = socket("truncated");
            let start = || process::peer("peer", &[(VIA, &format!("virtio-user:{socket}"))]);
            let mut peer = start();
            let port = open(&eal(), &format!("vhost:{socket}"), small());
            let mut queue = port.take_queues().remove(0);
            let mut received = Vec::with_capacity(32);
            wait_for("the link", || queue.link_up());
            bounce(&mut queue, 0..500, 200);
            // The stopped peer neither accesses its memory nor disconnects.
            peer.signal(Signal::STOP);
            truncate_memory(peer.pid());
            let mut pending = Vec::new();
            for n in 0..1_000 {
                queue.rx_burst(&mut received);
                received.clear();
                if pending.is_empty() {
                    pending.push(super::frames::packet(&mut queue, &super::frames::frame(n, 100)));
                }
                queue.tx_burst(&mut pending);
            }
            peer.kill();
            wait_for("the link's loss", || {
                queue.rx_burst(&mut received);
                received.clear();
                !queue.link_up()
            });
            drop(pending);
            peer = start();
            wait_for("the link", || {
                queue.rx_burst(&mut received);
                received.clear();
                queue.link_up()
            });
            bounce(&mut queue, 1_000..1_500, 200);
            drop((queue, port, peer));
            let _ = std::fs::remove_file(&socket);
        }
    });
}

// `rte_vhost.h`.
unsafe extern "C" {
    fn rte_vhost_driver_disable_features(path: *const c_char, features: u64) -> c_int;
}

/// `VIRTIO_F_RING_PACKED` (virtio 1.1, section 6).
const RING_PACKED: u64 = 1 << 34;

/// Opens a vhost port at `path` that offers split virtqueues only. The socket appears at `path` once the features are
/// set, so that no peer connects earlier.
fn open_split_vhost(eal: &Eal, path: &str) -> Port {
    let private = format!("{path}.private");
    let port = open(eal, &format!("vhost:{private}"), small());
    let c_path = CString::new(&*private).unwrap();
    // SAFETY: the string is terminated, outlives the call, and is the path of a registered vhost driver: the port's.
    let status = unsafe { rte_vhost_driver_disable_features(c_path.as_ptr(), RING_PACKED) };
    assert_eq!(status, 0);
    std::fs::rename(private, path).unwrap();
    port
}

/// Polls `queue` until its link is up or down.
fn wait_for_link(queue: &mut QueuePair, up: bool) {
    let mut received = Vec::with_capacity(32);
    wait_for(if up { "the link" } else { "the link's loss" }, || {
        queue.rx_burst(&mut received);
        received.clear();
        queue.link_up() == up
    });
}

#[test]
fn peer_that_returns_with_packed_virtqueues_is_refused() {
    parts(|role| match role {
        "split" => {
            let port = open_split_vhost(&eal(), &std::env::var(VIA).unwrap());
            echo(&mut port.take_queues()[0]);
        }
        // Ends after it was connected and refused.
        "packed" => {
            let port = open(&eal(), &format!("vhost:{}", std::env::var(VIA).unwrap()), small());
            let mut queue = port.take_queues().remove(0);
            wait_for_link(&mut queue, true);
            wait_for_link(&mut queue, false);
        }
        _ => {
            let socket = socket("packed");
            let mut peer = process::peer("split", &[(VIA, &socket)]);
            let port = open(&eal(), &format!("virtio-user:{socket},packed_vq=1"), small());
            let mut queue = port.take_queues().remove(0);
            wait_for_link(&mut queue, true);
            assert!(queue.masks_reference_counts(), "the virtqueues are packed");
            bounce(&mut queue, 0..500, 200);
            peer.kill();
            wait_for_link(&mut queue, false);
            std::fs::remove_file(&socket).unwrap();
            peer = process::peer("packed", &[(VIA, &socket)]);
            let mut received = Vec::with_capacity(32);
            wait_for("the end of the refused peer", || {
                queue.rx_burst(&mut received);
                assert!(!queue.link_up(), "packed virtqueues are in use");
                !peer.is_running()
            });
            peer = process::peer("split", &[(VIA, &socket)]);
            wait_for_link(&mut queue, true);
            bounce(&mut queue, 1_000..1_500, 200);
            drop((queue, port, peer));
            let _ = std::fs::remove_file(&socket);
        }
    });
}

#[test]
fn memif_client_survives_its_server() {
    survives(|socket| format!("memif:{socket}"), |socket| format!("memif:{socket},server"));
}

#[test]
fn memif_server_survives_its_client() {
    survives(|socket| format!("memif:{socket},server"), |socket| format!("memif:{socket}"));
}

#[test]
fn wait_for_a_peer_ends_on_stop_or_timeout() {
    linerate_harness::rerun::alone(|| {
        let eal = eal();
        let via = format!("virtio-user:{}", socket("nobody")).parse().unwrap();
        let timeout = PortConfig { peer_timeout: Some(Duration::from_millis(100)), ..small() };
        let error = Port::open(&eal, &via, timeout).unwrap_err();
        assert!(matches!(error, OpenError::NoPeer { .. }), "{error}");
        let stop = Stop::default();
        let config = PortConfig { peer_timeout: None, stop: stop.clone(), ..small() };
        std::thread::scope(|scope| {
            let opening = scope.spawn(|| Port::open(&eal, &via, config).unwrap_err());
            std::thread::sleep(Duration::from_millis(100));
            assert!(!opening.is_finished());
            stop.stop();
            assert_eq!(opening.join().unwrap(), OpenError::Stopped);
        });
    });
}

#[test]
fn silent_peer_is_not_awaited_for_ever() {
    linerate_harness::rerun::alone(|| {
        let eal = eal();
        let path = socket("silent");
        let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let via = format!("virtio-user:{path}").parse().unwrap();
        let timeout = PortConfig { peer_timeout: Some(Duration::from_millis(10)), ..small() };
        let error = Port::open(&eal, &via, timeout).unwrap_err();
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(error, OpenError::NoPeer { .. }), "{error}");
    });
}
