//! Tests of links between two processes: vhost-user and memif.

use super::frames::{bounce, bytes, eal, eal_in_hugepages, echo, frame, number, open, packet, small};
use super::process::{self, is_orphan, socket, wait_for};
use linerate_bypass::dpdk::{Eal, EalConfig, Port, PortConfig, QueuePair};
use linerate_bypass::{BURST, L4, Nic, Packet, RxChecksum, TxOffload};
use linerate_harness::rerun::parts;
use linerate_service::Bytes;

use std::time::{Duration, Instant};

/// Variable with the socket of the link.
const SOCKET: &str = "LINERATE_TEST_SOCKET";
/// Variable with the number of queue pairs.
const QUEUES: &str = "LINERATE_TEST_QUEUES";

/// Variable with the kind of memory.
const MEMORY: &str = "LINERATE_TEST_MEMORY";

/// Runs one end in this process and an echoing end in a peer. `local` starts while the peer is being started.
pub fn between(peers: fn(&str) -> String, queues: u16, memory: &str, local: impl FnOnce(String)) {
    parts(|role| match role {
        "peer" => {
            let huge = std::env::var_os(MEMORY).is_some_and(|memory| memory == "huge");
            let eal = if huge { Eal::start(&EalConfig::default()).unwrap() } else { eal() };
            let queues = std::env::var(QUEUES).unwrap().parse().unwrap();
            let port = open(&eal, &peers(&std::env::var(SOCKET).unwrap()), PortConfig { queues, ..small() });
            let mut ends = port.take_queues();
            std::thread::scope(|scope| {
                for end in &mut ends {
                    scope.spawn(|| echo(end));
                }
            });
        }
        _ => {
            let socket = socket("link");
            let peer = process::peer("peer", &[(SOCKET, &socket), (QUEUES, &queues.to_string()), (MEMORY, memory)]);
            local(socket.clone());
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
fn frames_cross_a_vhost_link_started_by_the_virtio_end() {
    let peer = |socket: &str| format!("virtio-user:{socket}");
    between(peer, 1, "ordinary", |socket| {
        let eal = eal();
        let port = open(&eal, &format!("vhost:{socket}"), small());
        bounced(&port);
        drop(port);
        assert!(!std::path::Path::new(&socket).exists(), "the socket remains");
    });
}

#[test]
fn frames_cross_a_vhost_link_started_by_the_vhost_end() {
    let peer = |socket: &str| format!("vhost:{socket}");
    between(peer, 1, "ordinary", |socket| {
        let eal = eal();
        let port = open(&eal, &format!("virtio-user:{socket}"), small());
        let capabilities = port.capabilities();
        assert!(capabilities.tx_checksum.tcp && capabilities.rx_checksum.tcp);
        assert!(capabilities.multi_segment_tx && capabilities.tso.is_some());
        bounced(&port);
    });
}

/// Opens a port that sends no frame in several segments.
fn sends_in_one_chunk(via: &str) {
    let eal = eal();
    let port = open(&eal, via, PortConfig { multi_segment: false, ..small() });
    assert!(!port.capabilities().multi_segment_tx && port.capabilities().tso.is_none());
    let mut queue = port.take_queues().remove(0);
    wait_for("the link", || queue.link_up());
    let whole = frame(1, 900);
    let mut sent = packet(&mut queue, &whole[..54]);
    sent.chain(packet(&mut queue, &whole[54..])).ok().unwrap();
    let (mut frames, mut received) = (vec![sent], Vec::with_capacity(BURST));
    wait_for("the frame's return", || {
        queue.tx_burst(&mut frames);
        queue.rx_burst(&mut received);
        received.retain(|packet| number(&bytes(packet)).is_some());
        !received.is_empty()
    });
    assert_eq!((bytes(&received[0]), queue.stats().copied_bytes), (whole, 900));
}

#[test]
fn chain_crosses_a_vhost_link_in_one_segment_if_required() {
    let peer = |socket: &str| format!("vhost:{socket}");
    between(peer, 1, "ordinary", |socket| sends_in_one_chunk(&format!("virtio-user:{socket}")));
}

#[test]
fn chain_crosses_a_memif_link_in_one_segment_if_required() {
    let peer = |socket: &str| format!("memif:{socket},server");
    between(peer, 1, "ordinary", |socket| sends_in_one_chunk(&format!("memif:{socket}")));
}

#[test]
fn frames_cross_a_memif_link_from_either_end() {
    let peer = |socket: &str| format!("memif:{socket},server");
    between(peer, 1, "ordinary", |socket| {
        let eal = eal();
        let port = open(&eal, &format!("memif:{socket}"), small());
        bounced(&port);
    });
}

#[test]
fn two_queue_pairs_cross_a_vhost_link_side_by_side() {
    let peer = |socket: &str| format!("vhost:{socket}");
    between(peer, 2, "ordinary", |socket| {
        let eal = eal();
        let port = open(&eal, &format!("virtio-user:{socket}"), PortConfig { queues: 2, ..small() });
        bounced(&port);
    });
}

#[test]
fn two_queue_pairs_cross_a_memif_link_side_by_side() {
    let peer = |socket: &str| format!("memif:{socket}");
    between(peer, 2, "ordinary", |socket| {
        let eal = eal();
        let port = open(&eal, &format!("memif:{socket},server"), PortConfig { queues: 2, ..small() });
        bounced(&port);
    });
}

#[test]
fn vhost_link_between_hugepages_carries_an_arena_created_later() {
    let peer = |socket: &str| format!("vhost:{socket}");
    between(peer, 1, "huge", |socket| {
        let Some(eal) = eal_in_hugepages() else { return };
        let port = open(&eal, &format!("virtio-user:{socket}"), small());
        let mut queue = port.take_queues().remove(0);
        wait_for("the link", || queue.link_up());
        bounce(&mut queue, 0..1_000, 1_514);
        // EAL's memory grows by the arena, and the other end is notified.
        let arena = eal.arena(32 << 20).unwrap();
        for n in 0..20_u64 {
            let mut block = arena.alloc(1 << 20).unwrap();
            block[..900].copy_from_slice(&frame(n, 900));
            let value = block.freeze().slice(..900);
            let mut frames = vec![queue.attach(value).unwrap()];
            let mut received = Vec::with_capacity(32);
            wait_for("the value's return", || {
                queue.tx_burst(&mut frames);
                queue.rx_burst(&mut received) > 0
            });
            assert_eq!(number(&bytes(&received[0])), Some(n));
        }
        assert_eq!(queue.stats().copied_bytes, 0);
        drop((queue, port, arena));
        assert!(std::fs::read_dir("/dev/hugepages").map_or(true, |mut files| files.next().is_none()));
    });
}

#[test]
fn segment_of_many_packets_crosses_a_vhost_link_whole() {
    const PAYLOAD: usize = 20_000;
    parts(|role| match role {
        "sender" => {
            let eal = eal();
            let port = open(&eal, &format!("virtio-user:{}", std::env::var(SOCKET).unwrap()), small());
            let mut queue = port.take_queues().remove(0);
            while !is_orphan() {
                let mut head = packet(&mut queue, &headers(PAYLOAD));
                let payload: Vec<u8> = (0..PAYLOAD).map(|at| at as u8).collect();
                for part in payload.chunks(1_448) {
                    let part = packet(&mut queue, part);
                    head.chain(part).ok().unwrap();
                }
                head.set_tx_offload(TxOffload {
                    l2_len: 14,
                    l3_len: 20,
                    l4_len: 20,
                    ipv4: true,
                    ipv4_checksum: false,
                    l4_checksum: Some(L4::Tcp),
                    tso: Some(1_448),
                });
                let mut frames = vec![head];
                wait_for("the segment's departure", || queue.tx_burst(&mut frames) == 1);
                assert_eq!((queue.stats().copied_bytes, queue.stats().tx_dropped), (0, 0));
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        _ => {
            let eal = eal();
            let socket = socket("tso");
            let port = open(&eal, &format!("vhost:{socket}"), small());
            assert!(port.capabilities().lro && port.capabilities().scatter_rx);
            let sender = process::peer("sender", &[(SOCKET, &socket)]);
            let mut queue = port.take_queues().remove(0);
            let mut received = Vec::with_capacity(1);
            wait_for("the segment", || queue.rx_burst(&mut received) == 1);
            let segment = &received[0];
            assert!(segment.segments().count() > 1);
            assert_eq!(segment.len(), 54 + PAYLOAD);
            assert_eq!(segment.rx_info().l4_checksum, RxChecksum::Good, "the segment never crossed a wire");
            assert!(bytes(segment)[54..].iter().enumerate().all(|(at, byte)| *byte == at as u8));
            drop(sender);
        }
    });
}

/// Returns byte `at` of the payload of segment `n`.
fn pattern(n: usize, at: usize) -> u8 {
    (n * 31 + at * 7) as u8
}

/// Receives TCP segments, and replies to intact ones with a good checksum by a frame of their number.
fn check_segments(queue: &mut QueuePair) {
    let mut received = Vec::with_capacity(32);
    let mut replies = Vec::new();
    while !is_orphan() {
        queue.rx_burst(&mut received);
        for segment in received.drain(..) {
            let (info, whole) = (segment.rx_info(), bytes(&segment));
            if whole.len() < 54 || whole[12..14] != [8, 0] {
                continue;
            }
            let n = usize::from(whole[37]);
            let length = usize::from(u16::from_be_bytes([whole[16], whole[17]]));
            assert_eq!((whole.len(), info.l4_checksum), (14 + length, RxChecksum::Good), "segment {n}");
            assert_ne!(whole[50..52], [0, 0], "without the sum of the pseudo-header");
            assert!(whole[54..].iter().enumerate().all(|(at, byte)| *byte == pattern(n, at)), "segment {n} is changed");
            replies.push(packet(queue, &frame(n as u64, 60)));
        }
        queue.tx_burst(&mut replies);
    }
}

/// Sends segments with retained payload, short ones and ones to be segmented, to a peer that verifies them.
fn send_retained(peers: fn(&str) -> String, local: fn(&str) -> String) {
    const EACH: usize = 1_448;
    parts(|role| match role {
        "peer" => {
            let eal = eal();
            let port = open(&eal, &peers(&std::env::var(SOCKET).unwrap()), small());
            assert!(port.capabilities().lro && port.capabilities().scatter_rx);
            check_segments(&mut port.take_queues()[0]);
        }
        _ => {
            let socket = socket("retain");
            let peer = process::peer("peer", &[(SOCKET, &socket)]);
            let eal = eal();
            let port = open(&eal, &local(&socket), small());
            let pool = port.mempool().clone();
            let mut queue = port.take_queues().remove(0);
            // A virtio-user end connects, and then again with its configuration.
            wait_for("the link", || queue.link_up() && queue.capabilities().tso.is_some());
            assert!(queue.capabilities().tx_checksum.tcp);
            let mut kept = Vec::new();
            for (n, segments) in [(1, 1), (2, 1), (3, 12), (4, 45)] {
                let mut headers = headers(segments * EACH);
                headers[37] = n as u8;
                if segments == 1 {
                    // For segmentation, the port includes the length in the checksum.
                    let words = headers[26..34].chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
                    let sum = words.sum::<u32>() + 6 + 20 + EACH as u32;
                    headers[50..52].copy_from_slice(&((sum & 0xffff) + (sum >> 16)).to_be_bytes()[2..]);
                }
                let payload: Vec<u8> = (0..segments * EACH).map(|at| pattern(n, at)).collect();
                let mut parts = payload.chunks(EACH);
                // Headers in front of the payload, in one buffer.
                let mut whole = packet(&mut queue, parts.next().unwrap());
                whole.prepend(54).unwrap().copy_from_slice(&headers);
                whole.set_tx_offload(TxOffload {
                    l2_len: 14,
                    l3_len: 20,
                    l4_len: 20,
                    ipv4: true,
                    ipv4_checksum: false,
                    l4_checksum: Some(L4::Tcp),
                    tso: (segments > 1).then_some(EACH as u16),
                });
                kept.push((n, 0, whole.retain(54).unwrap()));
                for (at, part) in parts.enumerate() {
                    let mut part = packet(&mut queue, part);
                    kept.push((n, (at + 1) * EACH, part.retain(0).unwrap()));
                    whole.chain(part).ok().unwrap();
                }
                let mut frames = vec![whole];
                let mut received = Vec::with_capacity(32);
                wait_for("the answer", || {
                    queue.tx_burst(&mut frames);
                    queue.rx_burst(&mut received) == 1
                });
                assert_eq!(number(&bytes(&received[0])), Some(n as u64));
            }
            assert_eq!((queue.stats().copied_bytes, queue.stats().tx_dropped), (0, 0));
            drop((queue, port));
            assert_eq!(pool.available(), pool.size() - kept.len());
            for (n, from, bytes) in kept {
                assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == pattern(n, from + at)));
            }
            assert_eq!(pool.available(), pool.size());
            drop(peer);
            let _ = std::fs::remove_file(&socket);
        }
    });
}

#[test]
fn retained_payload_crosses_from_virtio_user_to_vhost_without_a_copy() {
    send_retained(|socket| format!("vhost:{socket}"), |socket| format!("virtio-user:{socket}"));
}

#[test]
fn retained_payload_crosses_from_vhost_to_virtio_user_without_a_copy() {
    send_retained(|socket| format!("virtio-user:{socket}"), |socket| format!("vhost:{socket}"));
}

#[test]
fn chains_accepted_by_the_peer_return_to_the_pool_with_the_next_burst() {
    between(
        |socket| format!("vhost:{socket}"),
        1,
        "ordinary",
        |socket| {
            let eal = eal();
            let port = open(&eal, &format!("virtio-user:{socket}"), small());
            let mut queue = port.take_queues().remove(0);
            wait_for("the link", || queue.link_up());
            bounce(&mut queue, 0..10, 60);
            let before = port.mempool().available();
            for _ in 0..50 {
                let mut chain = packet(&mut queue, &headers(44 * 100));
                for _ in 0..44 {
                    let part = packet(&mut queue, &[0; 100]);
                    chain.chain(part).ok().unwrap();
                }
                chain.set_tx_offload(TxOffload {
                    l2_len: 14,
                    l3_len: 20,
                    l4_len: 20,
                    ipv4: true,
                    ipv4_checksum: false,
                    l4_checksum: Some(L4::Tcp),
                    tso: Some(1_448),
                });
                let mut frames = vec![chain];
                wait_for("the chain's departure", || queue.tx_burst(&mut frames) == 1);
            }
            // Frames sent before these return have been accepted; the driver frees all but a few.
            bounce(&mut queue, 10..30, 60);
            bounce(&mut queue, 30..31, 60);
            let after = port.mempool().available();
            assert!(after + 32 > before, "{before} were free, and now {after}");
        },
    );
}

#[test]
fn vhost_port_offers_no_segmentation_to_a_guest_without_large_frames() {
    // Without mergeable buffers, a large frame would not fit.
    let peer = |socket: &str| format!("virtio-user:{socket},mrg_rxbuf=0");
    between(peer, 1, "ordinary", |socket| {
        let eal = eal();
        let port = open(&eal, &format!("vhost:{socket}"), small());
        assert_eq!(port.capabilities().tso, None, "there is no guest yet");
        let mut queue = port.take_queues().remove(0);
        wait_for("the link", || queue.link_up());
        // Long enough for the supervisor to read the guest's features.
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(100) {
            bounce(&mut queue, 0..100, 60);
        }
        assert_eq!((queue.capabilities().tso, port.capabilities().tso), (None, None));
        let mut large = packet(&mut queue, &headers(1_448));
        large.set_tx_offload(TxOffload {
            l2_len: 14,
            l3_len: 20,
            l4_len: 20,
            ipv4: true,
            ipv4_checksum: false,
            l4_checksum: Some(L4::Tcp),
            tso: Some(1_448),
        });
        queue.tx_burst(&mut vec![large]);
        assert_eq!(queue.stats().tx_dropped, 1);
    });
}

#[test]
fn retained_payload_crosses_a_memif_link_without_a_copy_by_this_crate() {
    let peer = |socket: &str| format!("memif:{socket},server");
    between(peer, 1, "ordinary", |socket| {
        let eal = eal();
        let port = open(&eal, &format!("memif:{socket}"), small());
        let pool = port.mempool().clone();
        let mut queue = port.take_queues().remove(0);
        wait_for("the link", || queue.link_up());
        let mut kept = Vec::new();
        for n in 0..100 {
            let mut whole = packet(&mut queue, &frame(n, 1_200)[..700]);
            let mut rest = packet(&mut queue, &frame(n, 1_200)[700..]);
            kept.push((whole.retain(54).unwrap(), rest.retain(0).unwrap()));
            whole.chain(rest).ok().unwrap();
            let mut frames = vec![whole];
            let mut received = Vec::with_capacity(32);
            wait_for("the frame's return", || {
                queue.tx_burst(&mut frames);
                queue.rx_burst(&mut received) == 1
            });
            assert_eq!(number(&bytes(&received[0])), Some(n));
        }
        assert_eq!(queue.stats().copied_bytes, 0);
        drop((queue, port));
        assert_eq!(pool.available(), pool.size() - 200);
        for (n, (first, second)) in kept.iter().enumerate() {
            assert_eq!([&first[..], &second[..]].concat(), frame(n as u64, 1_200)[54..]);
        }
        drop(kept);
        assert_eq!(pool.available(), pool.size());
    });
}

#[test]
fn retained_payload_is_shared_and_dropped_on_another_thread_while_sent() {
    const FRAMES: u64 = 20_000;
    let peer = |socket: &str| format!("vhost:{socket}");
    between(peer, 1, "ordinary", |socket| {
        let eal = eal();
        let port = open(&eal, &format!("virtio-user:{socket}"), small());
        let pool = port.mempool().clone();
        let mut queue = port.take_queues().remove(0);
        wait_for("the link", || queue.link_up());
        let (send, receive) = std::sync::mpsc::sync_channel::<(u64, Bytes)>(8);
        let keeper = std::thread::spawn(move || {
            // Drops occur a few bursts later: before, during and after the transmission of the frame.
            let mut kept = std::collections::VecDeque::new();
            for (n, bytes) in receive {
                kept.push_back((n, bytes.clone()));
                drop(bytes);
                while kept.len() > n as usize % 1_500 {
                    let (n, bytes) = kept.pop_front().unwrap();
                    assert_eq!(bytes[..], frame(n, 100)[54..]);
                }
            }
        });
        let (mut out, mut back) = (Vec::with_capacity(BURST), Vec::with_capacity(BURST));
        let (mut next, mut returned) = (0, 0);
        wait_for("the last frame's return", || {
            while out.len() < BURST && next < FRAMES && next < returned + 128 {
                let mut frame = packet(&mut queue, &frame(next, 100));
                send.send((next, frame.retain(54).unwrap())).unwrap();
                out.push(frame);
                next += 1;
            }
            queue.tx_burst(&mut out);
            queue.rx_burst(&mut back);
            for frame in back.drain(..) {
                assert_eq!(number(&bytes(&frame)), Some(returned));
                returned += 1;
            }
            returned == FRAMES
        });
        drop(send);
        keeper.join().unwrap();
        assert_eq!(queue.stats().copied_bytes, 0);
        drop((queue, port));
        assert_eq!(pool.available(), pool.size());
    });
}

/// Returns Ethernet, IPv4 and TCP headers of a segment with `payload` bytes, prepared for segmentation offload.
fn headers(payload: usize) -> Vec<u8> {
    let mut headers = vec![0; 54];
    headers[..12].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
    headers[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
    headers[16..18].copy_from_slice(&(40 + payload as u16).to_be_bytes());
    headers[22..24].copy_from_slice(&[64, 6]);
    headers[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    headers[34..38].copy_from_slice(&[0, 80, 0, 81]);
    headers[46] = 5 << 4;
    headers
}

#[test]
fn jumbo_frames_cross_a_vhost_link_in_large_packets() {
    let jumbo = || PortConfig { mtu: Some(9_000), ..small() };
    parts(|role| match role {
        "peer" => {
            let eal = eal();
            let port = open(&eal, &format!("vhost:{}", std::env::var(SOCKET).unwrap()), jumbo());
            echo(&mut port.take_queues()[0]);
        }
        _ => {
            let socket = socket("jumbo");
            let peer = process::peer("peer", &[(SOCKET, &socket)]);
            let eal = eal();
            let port = open(&eal, &format!("virtio-user:{socket}"), jumbo());
            assert_eq!(port.capabilities().mtu, 9_000);
            assert!(port.capabilities().data_room >= 9_014);
            let mut queue = port.take_queues().remove(0);
            let mut received = Vec::with_capacity(1);
            for n in 0..100 {
                let whole = frame(n, 9_014);
                let mut parts = whole.chunks(1_800);
                let mut chain = packet(&mut queue, parts.next().unwrap());
                for part in parts {
                    let part = packet(&mut queue, part);
                    chain.chain(part).ok().unwrap();
                }
                let mut frames = vec![chain];
                wait_for("the frame's return", || {
                    queue.tx_burst(&mut frames);
                    queue.rx_burst(&mut received) == 1
                });
                assert_eq!(received[0].segments().count(), 1);
                assert_eq!(number(&bytes(&received[0])), Some(n));
                received.clear();
            }
            drop(peer);
            std::fs::remove_file(&socket).unwrap();
        }
    });
}

#[test]
fn memif_burst_is_left_when_its_memory_is_unmapped() {
    let peer = |socket: &str| format!("memif:{socket},server");
    between(peer, 1, "ordinary", |socket| {
        let eal = eal();
        let port = open(&eal, &format!("memif:{socket}"), small());
        let mut queue = port.take_queues().remove(0);
        wait_for("the link", || queue.link_up());
        bounce(&mut queue, 0..100, 60);
        // The driver does this on EAL's thread when the other end leaves.
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let mut regions = 0;
        for line in maps.lines().filter(|line| line.contains("memif_region")) {
            let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
            let [start, end] = [start, end].map(|at| usize::from_str_radix(at, 16).unwrap());
            // SAFETY: only the driver accesses the memory, in bursts that are left on a fault.
            assert_eq!(unsafe { libc::munmap(start as *mut libc::c_void, end - start) }, 0);
            regions += 1;
        }
        assert!(regions > 0, "{maps}");
        let mut received = Vec::with_capacity(BURST);
        for n in 0..10 {
            let mut frames = vec![packet(&mut queue, &frame(n, 60))];
            queue.tx_burst(&mut frames);
            assert_eq!((queue.rx_burst(&mut received), frames.len()), (0, 0));
        }
    });
}
