//! Tests of ports on kernel interfaces, with kernel sockets at the other end.

use super::frames::{eal, open, packet, small};
use super::process::wait_for;
use linerate_bypass::dpdk::{Eal, Mbuf, OpenError, Port, PortConfig, QueuePair};
use linerate_bypass::{BURST, L4, Nic, Packet, TxOffload};
use linerate_harness::program::ip;
use linerate_harness::rerun::alone_in_a_namespace;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Reverses a UDP datagram over IPv4 in place. Returns whether it was one. With `offload`, the port computes its
/// checksums.
fn turn_round(packet: &mut Mbuf, offload: bool) -> bool {
    let Some(frame) = packet.data_mut() else { return false };
    if frame.len() < 42 || frame[12..14] != [8, 0] || frame[23] != 17 {
        return false;
    }
    let (to, from) = frame.split_at_mut(6);
    to.swap_with_slice(&mut from[..6]);
    let (source, destination) = frame[26..34].split_at_mut(4);
    source.swap_with_slice(destination);
    let (source, destination) = frame[34..38].split_at_mut(2);
    source.swap_with_slice(destination);
    // The kernel may have left the checksum partial; a datagram without a checksum is valid as well.
    frame[40..42].fill(0);
    if offload {
        let pseudo_header = frame[26..34].chunks(2).chain([&[0, 17][..], &frame[38..40]]);
        let sum: u32 = pseudo_header.map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
        let sum = (sum >> 16) + (sum & 0xffff);
        frame[40..42].copy_from_slice(&(((sum >> 16) + sum) as u16).to_be_bytes());
        frame[24..26].fill(0);
        packet.set_tx_offload(TxOffload {
            l2_len: 14,
            l3_len: 20,
            l4_len: 8,
            ipv4: true,
            ipv4_checksum: true,
            l4_checksum: Some(L4::Udp),
            tso: None,
        });
    }
    true
}

/// Echoes datagrams on `queue` while the kernel, at the other end, sends datagrams of every size and receives them
/// back.
fn bounce_datagrams(mut queues: Vec<QueuePair>, largest: usize) -> Vec<QueuePair> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for queue in &mut queues {
            let stop = &stop;
            scope.spawn(move || {
                let (mut received, mut replies) = (Vec::with_capacity(BURST), Vec::with_capacity(BURST));
                while !stop.load(Ordering::Relaxed) {
                    queue.rx_burst(&mut received);
                    let offload = queue.capabilities().tx_checksum.udp && queue.stats().rx_frames.is_multiple_of(2);
                    let turned =
                        received.drain(..).filter_map(|mut packet| turn_round(&mut packet, offload).then_some(packet));
                    replies.extend(turned);
                    queue.tx_burst(&mut replies);
                    std::thread::yield_now();
                }
            });
        }
        // The threads must end also on failure.
        let result = std::panic::catch_unwind(|| {
            for flow in 0..8 {
                let socket = UdpSocket::bind(("10.9.0.1", 0)).unwrap();
                socket.connect(("10.9.0.2", 9_000 + flow)).unwrap();
                socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
                for n in 0..50 {
                    let sent: Vec<u8> = (0..1 + (largest - 1) * n / 49).map(|at| (at * 7 + n) as u8).collect();
                    let mut back = vec![0; 65_536];
                    socket.send(&sent).unwrap();
                    let len = socket.recv(&mut back).unwrap();
                    assert!(back[..len] == sent, "datagram {n} of flow {flow} returned changed");
                }
            }
        });
        stop.store(true, Ordering::Relaxed);
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
    });
    queues
}

fn address(interface: &str, port: &Port) {
    ip(&format!("addr add 10.9.0.1/24 dev {interface}"));
    ip(&format!("link set {interface} up"));
    ip(&format!("neigh add 10.9.0.2 lladdr {} dev {interface}", port.mac()));
}

#[test]
fn kernel_socket_receives_its_datagrams_back_over_tap() {
    alone_in_a_namespace(|| {
        let eal = eal();
        let port = open(&eal, "tap:lr0", small());
        assert!(port.capabilities().rx_partial_checksum && port.capabilities().tx_checksum.udp);
        address("lr0", &port);
        let queues = bounce_datagrams(port.take_queues(), 1_472);
        drop((queues, port));
        assert!(!exists("lr0"), "the interface remains");
    });
}

#[test]
fn kernel_socket_receives_its_datagrams_back_over_af_xdp() {
    alone_in_a_namespace(|| {
        ip("link add lr0 type veth peer name lr1");
        ip("link set lr1 up");
        let eal = eal();
        let port = open(&eal, "af_xdp:lr1", PortConfig { pool_size: Some(16_384), ..small() });
        assert!(port.capabilities().rx_partial_checksum && !port.capabilities().multi_segment_tx);
        address("lr0", &port);
        wait_for("the link", || port.link_up());
        let queues = bounce_datagrams(port.take_queues(), 1_472);
        assert_eq!(queues[0].stats().copied_bytes, 0);
        ip("link set lr0 down");
        wait_for("the link's loss", || !port.link_up());
    });
}

/// The bridge stores the tag outside of the frame, as a NIC that removes tags does.
#[test]
fn frame_with_a_vlan_tag_outside_of_it_is_not_taken() {
    if !std::fs::read_to_string("/proc/kallsyms").unwrap().contains("veth_xdp_rx_vlan_tag") {
        return println!("skipped: this kernel is older than 6.8");
    }
    alone_in_a_namespace(|| {
        ip("link add br0 type bridge");
        ip("link add lr0 type veth peer name lr1");
        let eal = eal();
        let _thread = eal.register_thread().unwrap();
        let [from, to] =
            ["tap:t0", "af_xdp:lr1"].map(|via| open(&eal, via, PortConfig { pool_size: Some(16_384), ..small() }));
        for name in ["t0", "lr0"] {
            ip(&format!("link set {name} master br0"));
        }
        ["br0", "t0", "lr0", "lr1"].iter().for_each(|name| ip(&format!("link set {name} up")));
        let (mut sender, mut receiver) = (from.take_queues().remove(0), to.take_queues().remove(0));
        // Broadcasts of a local experimental protocol (IEEE 802), with and without a tag of VLAN 5.
        let addresses = [[0xff; 6], [2, 0, 0, 0, 0, 9]].concat();
        let tagged = [&addresses[..], &[0x81, 0, 0, 5, 0x88, 0xb5], &[1; 60]].concat();
        let untagged = [&addresses[..], &[0x88, 0xb5], &[2; 60]].concat();
        let mut received = Vec::with_capacity(64);
        let mut arrived = 0;
        wait_for("frames without a tag", || {
            let mut frames = vec![packet(&mut sender, &tagged), packet(&mut sender, &untagged)];
            sender.tx_burst(&mut frames);
            receiver.rx_burst(&mut received);
            for frame in received.drain(..).filter(|frame| frame.data()[12..14] == [0x88, 0xb5]) {
                assert_eq!(frame.data()[14], 2, "a frame of VLAN 5");
                arrived += 1;
            }
            arrived >= 10
        });
    });
}

#[test]
fn veth_interface_with_two_queues_is_one_af_xdp_port() {
    alone_in_a_namespace(|| {
        ip("link add lr0 numrxqueues 2 numtxqueues 2 type veth peer name lr1 numrxqueues 2 numtxqueues 2");
        ip("link set lr1 up");
        let eal = eal();
        let port = open(&eal, "af_xdp:lr1", PortConfig { queues: 2, pool_size: Some(32_768), ..small() });
        address("lr0", &port);
        let queues = bounce_datagrams(port.take_queues(), 1_472);
        assert_eq!(queues.len(), 2);
        let each: Vec<_> = queues.iter().map(|queue| queue.stats().rx_frames).collect();
        assert!(each.iter().sum::<u64>() >= 400, "{each:?}");
    });
}

fn refusal(eal: &Eal, via: &str, config: PortConfig) -> OpenError {
    Port::open(eal, &via.parse().unwrap(), config).expect_err(via)
}

#[test]
fn unsuitable_interface_is_rejected_with_a_remedy() {
    alone_in_a_namespace(|| {
        ip("link add lr0 type veth peer name lr1");
        ip("link set lr0 up");
        ip("link set lr1 up");
        ip("addr add 10.9.0.1/24 dev lr0");
        ip("route add default via 10.9.0.254 dev lr0");
        let eal = eal();
        assert_eq!(refusal(&eal, "af_xdp:lr9", small()), OpenError::NoInterface("lr9".to_owned()));
        assert_eq!(refusal(&eal, "af_xdp:lr0", small()), OpenError::DefaultRoute("lr0".to_owned()));
        assert_eq!(refusal(&eal, "tap:lr0", small()), OpenError::InterfaceExists("lr0".to_owned()));
        let error = refusal(&eal, "af_xdp:lr1", PortConfig { queues: 2, ..small() }).to_string();
        assert!(error.contains("has 1 queue(s) and 2 are needed") && error.contains("numrxqueues 2"), "{error}");
        let error = refusal(&eal, "af_xdp:lr1", PortConfig { mtu: Some(9_000), ..small() }).to_string();
        assert!(error.contains("at most 1500 bytes") && error.contains("ip link set dev lr1 mtu"), "{error}");
        let port = open(&eal, "af_xdp:lr0", PortConfig { force: true, pool_size: Some(16_384), ..small() });
        let again = refusal(&eal, "af_xdp:lr0", PortConfig { force: true, ..small() });
        assert_eq!(again, OpenError::InterfaceInUse("lr0".to_owned()));
        drop(port);
    });
}

fn exists(interface: &str) -> bool {
    std::process::Command::new("ip").args(["link", "show", interface]).output().unwrap().status.success()
}
