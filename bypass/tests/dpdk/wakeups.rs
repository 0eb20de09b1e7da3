//! Tests of ports that wake sleeping workers.

use super::frames::{bounce, bytes, eal, frame, number, open, packet, small};
use super::process::{self, is_orphan, socket, wait_for};
use linerate_bypass::dpdk::{Eal, Mbuf, Port, PortConfig, QueuePair};
use linerate_bypass::{BURST, Nic, Sleeper};
use linerate_harness::program::ip;
use linerate_harness::rerun::{alone_in_a_namespace, parts};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Variable with the socket of the link.
const SOCKET: &str = "LINERATE_TEST_SOCKET";
/// Variable with the number of sleeps of a test.
const SLEEPS: &str = "LINERATE_TEST_SLEEPS";
/// Sleeps without the variable.
const FEW: u64 = 20_000;
/// Sleep after which a wake-up is lost.
const LOST: Duration = Duration::from_secs(5);

fn wakes() -> PortConfig {
    PortConfig { wakes: true, pool_size: Some(16_384), ..small() }
}

fn sleeps() -> u64 {
    std::env::var(SLEEPS).map_or(FEW, |sleeps| sleeps.parse().unwrap())
}

/// End of a link, whose owner sleeps until frames arrive.
struct End {
    queue: QueuePair,
    sleeper: Sleeper,
    sleeps: u64,
    frames: Vec<Mbuf>,
}

impl End {
    fn new(port: &Port) -> Self {
        let queue = port.take_queues().remove(0);
        End { queue, sleeper: Sleeper::new().unwrap(), sleeps: 0, frames: Vec::with_capacity(BURST) }
    }

    /// Receives frames, and returns whether there are any before the sleep is over.
    fn receive(&mut self) -> bool {
        let mut has_slept = true;
        self.queue.rx_burst(&mut self.frames);
        while self.frames.is_empty() && has_slept {
            assert!(self.queue.arm(&mut self.sleeper), "the port does not wake");
            if self.queue.rx_burst(&mut self.frames) == 0 {
                self.sleeps += 1;
                has_slept = self.sleeper.sleep(LOST);
            }
            self.queue.disarm();
            self.queue.rx_burst(&mut self.frames);
        }
        has_slept
    }

    fn send(&mut self) {
        wait_for("room in the queue", || {
            self.queue.tx_burst(&mut self.frames);
            self.frames.is_empty()
        });
    }

    /// Sends frames one by one, each of which wakes the other end and returns.
    fn bounce(&mut self, until: u64) {
        // Links are up, and notifications off, before the first sleep.
        bounce(&mut self.queue, 0..100, 60);
        let (mut random, mut n) = (fastrand::Rng::with_seed(1), 100);
        while self.sleeps < until {
            let at = Instant::now();
            // The other end falls asleep meanwhile, or is at any step of that.
            let pause = Duration::from_nanos(random.u64(0..10_000));
            while at.elapsed() < pause {
                std::hint::spin_loop();
            }
            self.frames.push(packet(&mut self.queue, &frame(n, 60)));
            self.send();
            let mut has_returned = false;
            while !has_returned {
                assert!(self.receive(), "a wake-up was lost after {} sleeps", self.sleeps);
                has_returned = self.frames.drain(..).any(|frame| number(&bytes(&frame)) == Some(n));
            }
            n += 1;
        }
    }

    /// Returns frames until `is_over`. A lost wake-up is found by the other end.
    fn echo(&mut self, is_over: impl Fn() -> bool) {
        while !is_over() {
            self.receive();
            self.frames.retain(|frame| number(&bytes(frame)).is_some());
            self.send();
        }
    }
}

/// Runs one end of a link in this process, and the other in a peer.
fn over_link(peer: fn(&str) -> String, local: fn(&str) -> String) {
    parts(|role| match role {
        "peer" => {
            let port = open(&eal(), &peer(&std::env::var(SOCKET).unwrap()), wakes());
            End::new(&port).echo(is_orphan);
        }
        _ => {
            let socket = socket("wakeups");
            let other = process::peer("peer", &[(SOCKET, &socket)]);
            let port = open(&eal(), &local(&socket), wakes());
            let mut end = End::new(&port);
            wait_for("the link", || end.queue.link_up());
            let begun = Instant::now();
            end.bounce(1);
            assert!(begun.elapsed() < LOST, "the other end slept through the new link");
            end.bounce(sleeps());
            drop(other);
            let _ = std::fs::remove_file(&socket);
        }
    });
}

#[test]
fn frame_wakes_each_end_of_a_vhost_link() {
    over_link(|socket| format!("vhost:{socket}"), |socket| format!("virtio-user:{socket}"));
}

#[test]
fn frame_wakes_each_end_of_a_vhost_link_with_packed_virtqueues() {
    over_link(|socket| format!("vhost:{socket}"), |socket| format!("virtio-user:{socket},packed_vq=1"));
}

fn over_ports(eal: &Eal, ports: [Port; 2], interfaces: &[&str]) {
    interfaces.iter().for_each(|name| ip(&format!("link set {name} up")));
    let [mut near, mut far] = ports.each_ref().map(End::new);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _thread = eal.register_thread().unwrap();
            far.echo(|| is_over.load(Ordering::Relaxed));
        });
        let _thread = eal.register_thread().unwrap();
        wait_for("the links", || ports.iter().all(Port::link_up));
        near.bounce(sleeps());
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn frame_wakes_each_end_of_a_veth_pair_with_af_xdp() {
    alone_in_a_namespace(|| {
        ip("link add lr0 type veth peer name lr1");
        let eal = eal();
        let ports = ["af_xdp:lr0", "af_xdp:lr1"].map(|via| open(&eal, via, wakes()));
        over_ports(&eal, ports, &["lr0", "lr1"]);
    });
}

#[test]
fn frame_wakes_each_end_of_a_bridge_with_tap_interfaces() {
    alone_in_a_namespace(|| {
        ip("link add br0 type bridge");
        let eal = eal();
        let ports = ["tap:t0", "tap:t1"].map(|via| open(&eal, via, wakes()));
        ["t0", "t1"].iter().for_each(|name| ip(&format!("link set {name} master br0")));
        over_ports(&eal, ports, &["br0", "t0", "t1"]);
    });
}

#[test]
fn memif_port_does_not_wake() {
    parts(|_| {
        let socket = socket("wakeups");
        let port = open(&eal(), &format!("memif:{socket},server"), wakes());
        let mut end = End::new(&port);
        assert!(!end.queue.arm(&mut end.sleeper));
    });
}

#[test]
fn sleeper_is_woken_by_the_link_that_the_other_end_has_opened_again() {
    parts(|role| match role {
        "peer" => {
            let port = open(&eal(), &format!("vhost:{}", std::env::var(SOCKET).unwrap()), wakes());
            End::new(&port).echo(is_orphan);
        }
        _ => {
            let socket = socket("wakeups");
            let start = || process::peer("peer", &[(SOCKET, &socket)]);
            let mut other = start();
            let port = open(&eal(), &format!("virtio-user:{socket}"), wakes());
            let mut end = End::new(&port);
            for round in 1..=3 {
                wait_for("the link", || end.queue.link_up());
                end.bounce(100 * round);
                drop(std::mem::replace(&mut other, start()));
                wait_for("the link's loss", || !end.queue.link_up());
            }
            drop(other);
            let _ = std::fs::remove_file(&socket);
        }
    });
}
