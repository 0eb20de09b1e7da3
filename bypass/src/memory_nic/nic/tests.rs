//! Tests of a link without impairments.

use super::*;
use crate::memory_nic::{DropIf, Impairments, Steering};
use crate::{L4, RxChecksum, TxOffload};
use std::sync::atomic::{AtomicUsize, Ordering};

fn frame(nic: &mut MemoryNic, len: usize) -> MemoryPacket {
    let mut frame = nic.allocate().unwrap();
    frame.append(len).unwrap().fill(0xa5);
    frame
}

fn receive(nic: &mut MemoryNic) -> Vec<MemoryPacket> {
    let mut received = Vec::with_capacity(BURST);
    nic.rx_burst(&mut received);
    received
}

#[test]
fn frame_arrives_at_the_other_end_in_place() {
    let (mut a, mut b) = Link::pair(LinkConfig::default());
    let sent = frame(&mut a, 60);
    let address = sent.data().as_ptr();
    assert_eq!(a.tx_burst(&mut vec![sent]), 1);
    assert!(receive(&mut a).is_empty());
    let received = receive(&mut b);
    assert_eq!(received.len(), 1);
    assert_eq!((received[0].data(), received[0].data().as_ptr()), (&[0xa5; 60][..], address));
    assert_eq!((a.stats().tx_frames, a.stats().tx_bytes), (1, 60));
    assert_eq!((b.stats().rx_frames, b.stats().rx_bytes), (1, 60));
    assert_eq!(a.pool_available(), a.pool_capacity() - 1);
    drop(received);
    assert_eq!(a.pool_available(), a.pool_capacity());
}

#[test]
fn frames_that_exceed_the_ring_stay_with_the_sender_in_order() {
    let (mut a, mut b) = Link::pair(LinkConfig { ring: 4, pool: 8, ..LinkConfig::default() });
    let mut burst: Vec<_> = (60..66).map(|len| frame(&mut a, len)).collect();
    assert_eq!(a.tx_burst(&mut burst), 4);
    assert_eq!(burst.iter().map(Packet::len).collect::<Vec<_>>(), [64, 65]);
    assert_eq!(a.tx_burst(&mut burst), 0);
    assert_eq!(a.stats().tx_full, 2);
    assert_eq!(receive(&mut b).iter().map(Packet::len).collect::<Vec<_>>(), [60, 61, 62, 63]);
    assert_eq!(a.tx_burst(&mut burst), 2);
    assert_eq!(receive(&mut b).len(), 2);
    assert_eq!((a.stats().tx_frames, a.pool_available()), (6, 8));
}

#[test]
fn receive_vector_never_grows() {
    let (mut a, mut b) = Link::pair(LinkConfig::default());
    let mut burst: Vec<_> = (0..2 * BURST).map(|_| frame(&mut a, 60)).collect();
    a.tx_burst(&mut burst);
    let mut received = Vec::with_capacity(3);
    assert_eq!(b.rx_burst(&mut received), received.capacity());
    assert_eq!(b.rx_burst(&mut received), 0);
    let mut received = Vec::with_capacity(10 * BURST);
    assert_eq!(b.rx_burst(&mut received), BURST);
}

#[test]
fn empty_pool_allocates_nothing_and_counts() {
    let (mut a, _b) = Link::pair(LinkConfig { pool: 2, ..LinkConfig::default() });
    let (first, second) = (a.allocate(), a.allocate());
    assert!(a.allocate().is_none());
    assert_eq!(a.attach(Bytes::from_static(b"x")).unwrap_err(), Bytes::from_static(b"x"));
    assert!(first.as_ref().unwrap().try_clone().is_none());
    assert_eq!((a.stats().pool_empty, a.pool_available()), (2, 0));
    drop((first, second));
    assert_eq!(a.pool_available(), 2);
}

#[test]
fn frames_that_can_never_be_sent_are_dropped_and_counted() {
    let (mut a, mut b) = Link::pair(LinkConfig::default());
    let too_long = frame(&mut a, 1500 + FRAME_OVERHEAD + 1);
    let empty = a.allocate().unwrap();
    let mut offload = frame(&mut a, 60);
    offload.set_tx_offload(TxOffload {
        l2_len: 14,
        l3_len: 20,
        l4_len: 20,
        ipv4: true,
        ipv4_checksum: false,
        l4_checksum: Some(L4::Tcp),
        tso: None,
    });
    let longest = frame(&mut a, 1500 + FRAME_OVERHEAD);
    assert_eq!(a.tx_burst(&mut vec![too_long, empty, offload, longest]), 4);
    assert_eq!((a.stats().tx_dropped, a.stats().tx_frames), (3, 1));
    assert_eq!(receive(&mut b).len(), 1);
}

#[test]
fn maximum_frame_length_depends_on_the_requested_offload() {
    let offload = |l2_len, l3_len, l4_len, tso: Option<u16>| {
        let l4_checksum = tso.is_none().then_some(L4::Tcp);
        Some(TxOffload { l2_len, l3_len, l4_len, ipv4: true, ipv4_checksum: true, l4_checksum, tso })
    };
    let cases = [
        (1, None, true),
        (1518, None, true),
        (1519, None, false),
        (54, offload(14, 20, 20, None), true),
        (53, offload(14, 20, 20, None), false),
        (1518, offload(14, 20, 20, None), true),
        (1519, offload(14, 20, 20, None), false),
        (4054, offload(14, 20, 20, Some(1460)), true),
        (4055, offload(14, 20, 20, Some(1460)), false),
        (4054, offload(14, 20, 20, Some(1461)), false),
        (4054, offload(14, 20, 20, Some(0)), false),
        (1519, None, false),
        (1518, offload(254, 20, 20, None), true),
        (1518, offload(255, 20, 20, None), false),
        (1518, offload(usize::MAX, 1, 1, None), false),
        (1518, offload(14, usize::MAX, 20, None), false),
        (1518, offload(14, 20, 256, None), false),
        (1000, None, true),
    ];
    let config =
        LinkConfig { checksum_offload: true, tso: Some(4000), data_room: 8192, pool: 32, ..LinkConfig::default() };
    let (mut a, mut b) = Link::pair(config);
    for reversed in [false, true] {
        let mut cases = cases;
        if reversed {
            cases.reverse();
        }
        let before = a.stats().tx_dropped;
        let mut burst = Vec::new();
        for (len, offload, _) in cases {
            let mut frame = frame(&mut a, len);
            offload.into_iter().for_each(|offload| frame.set_tx_offload(offload));
            burst.push(frame);
        }
        assert_eq!(a.tx_burst(&mut burst), cases.len());
        let good: Vec<_> = cases.iter().filter(|(.., good)| *good).map(|(len, ..)| *len).collect();
        assert_eq!(receive(&mut b).iter().map(Packet::len).collect::<Vec<_>>(), good);
        assert_eq!(a.stats().tx_dropped - before, (cases.len() - good.len()) as u64);
    }
}

#[test]
fn chain_with_attached_bytes_crosses_without_a_copy() {
    let (mut a, mut b) = Link::pair(LinkConfig::default());
    let value = Bytes::from(vec![3; 1000]);
    let mut sent = frame(&mut a, 54);
    sent.chain(a.attach(value.clone()).unwrap()).unwrap();
    a.tx_burst(&mut vec![sent]);
    let received = receive(&mut b);
    let segments: Vec<_> = received[0].segments().collect();
    assert_eq!(segments, [&[0xa5; 54][..], &value[..]]);
    assert_eq!((segments[1].as_ptr(), a.stats().copied_bytes), (value.as_ptr(), 0));
}

#[test]
fn pool_capability_leaves_room_for_the_ring() {
    let pool = |pool, ring| Link::pair(LinkConfig { pool, ring, ..LinkConfig::default() }).0.capabilities().pool;
    assert_eq!((pool(8192, 1024), pool(100, 1024), pool(1, 1)), (7168, 50, 1));
}

#[test]
fn retained_bytes_and_the_sent_frame_outlive_each_other() {
    let (mut a, mut b) = Link::pair(LinkConfig { pool: 2, ..LinkConfig::default() });
    let mut sent = frame(&mut a, 154);
    let mut tail = frame(&mut a, 100);
    let payload = sent.retain(54).unwrap();
    let more = tail.retain(0).unwrap();
    assert_eq!((payload.as_ptr(), payload.len()), (sent.data()[54..].as_ptr(), 100));
    assert!(sent.data_mut().is_none() && sent.prepend(1).is_none() && sent.append(1).is_none());
    sent.chain(tail).unwrap();
    a.tx_burst(&mut vec![sent]);
    let received = receive(&mut b);
    let segments: Vec<_> = received[0].segments().collect();
    assert_eq!((segments[0].len(), segments[0][54..].as_ptr()), (154, payload.as_ptr()));
    assert_eq!((segments[1].as_ptr(), a.stats().copied_bytes), (more.as_ptr(), 0));
    drop(more);
    assert_eq!(a.pool_available(), 0, "the receiver has the frame");
    drop(received);
    assert_eq!((a.pool_available(), &payload[..]), (1, &[0xa5; 100][..]));
    drop(payload);
    assert_eq!(a.pool_available(), 2);
}

#[test]
fn port_without_shared_transmission_copies_retained_frames() {
    let (mut a, mut b) = Link::pair(LinkConfig { multi_segment: false, ..LinkConfig::default() });
    let mut sent = frame(&mut a, 154);
    let payload = sent.retain(54).unwrap();
    a.tx_burst(&mut vec![sent]);
    let mut received = receive(&mut b);
    assert_eq!(a.stats().copied_bytes, 154);
    received[0].data_mut().unwrap().fill(0);
    assert_eq!(payload[..], [0xa5; 100]);
}

#[test]
fn port_without_multi_segment_copies_chains_and_clones() {
    let config = LinkConfig { multi_segment: false, pool: 4, ..LinkConfig::default() };
    let (mut a, mut b) = Link::pair(config);
    let mut chain = frame(&mut a, 54);
    chain.chain(a.attach(Bytes::from(vec![3; 100])).unwrap()).unwrap();
    a.tx_burst(&mut vec![chain]);
    let plain = frame(&mut a, 60);
    let shared = plain.try_clone().unwrap();
    a.tx_burst(&mut vec![shared]);
    let received = receive(&mut b);
    assert_eq!(received.iter().map(|p| (p.segment_count(), p.len())).collect::<Vec<_>>(), [(1, 154), (1, 60)]);
    assert_eq!(&received[0].data()[50..58], [0xa5, 0xa5, 0xa5, 0xa5, 3, 3, 3, 3]);
    assert_ne!(received[1].data().as_ptr(), plain.data().as_ptr());
    assert_eq!(a.stats().copied_bytes, 214);

    // With no packet for the copy, the frame stays with its sender.
    let last = plain.try_clone().unwrap();
    let mut burst = vec![last];
    assert_eq!(a.tx_burst(&mut burst), 0);
    assert_eq!((a.stats().pool_empty, a.stats().tx_full), (1, 1));
    drop(plain);
    assert_eq!(a.tx_burst(&mut burst), 1);
    drop((received, receive(&mut b)));
    assert_eq!((a.stats().copied_bytes, a.pool_available()), (214, 4));
}

#[test]
fn offloaded_checksums_are_good_unless_the_link_damages_the_frame() {
    let config = LinkConfig { checksum_offload: true, tso: Some(65_000), ..LinkConfig::default() };
    let (mut a, mut b) = Link::pair(config);
    let offload = |tso| TxOffload {
        l2_len: 14,
        l3_len: 20,
        l4_len: 20,
        ipv4: true,
        ipv4_checksum: true,
        l4_checksum: Some(L4::Tcp),
        tso,
    };
    let mut checksums = |a: &mut MemoryNic, offload: Option<TxOffload>| {
        let mut sent = frame(a, 2000);
        assert!(offload.is_some_and(|offload| offload.tso.is_some()) || sent.trim(1000));
        if let Some(offload) = offload {
            sent.set_tx_offload(offload);
        }
        a.tx_burst(&mut vec![sent]);
        let info = receive(&mut b)[0].rx_info();
        (info.ipv4_checksum, info.l4_checksum)
    };
    assert_eq!(checksums(&mut a, None), (RxChecksum::Unknown, RxChecksum::Unknown));
    assert_eq!(checksums(&mut a, Some(offload(None))), (RxChecksum::Good, RxChecksum::Good));
    assert_eq!(checksums(&mut a, Some(offload(Some(1000)))), (RxChecksum::Good, RxChecksum::Good));
    a.link().impair(End::A, Impairments { corruption: 1.0, ..Impairments::default() });
    assert_eq!(checksums(&mut a, Some(offload(None))), (RxChecksum::Bad, RxChecksum::Bad));
    assert_eq!(checksums(&mut a, None), (RxChecksum::Unknown, RxChecksum::Unknown));
}

#[test]
fn frame_to_be_segmented_arrives_whole() {
    let config =
        LinkConfig { checksum_offload: true, tso: Some(65_000), tso_from: Some(End::A), ..LinkConfig::default() };
    let (mut a, mut b) = Link::pair(config);
    assert_eq!((a.capabilities().tso, a.capabilities().lro), (Some(65_000), false));
    assert_eq!((b.capabilities().tso, b.capabilities().lro), (None, true));
    assert!(b.capabilities().scatter_rx);
    let large = |nic: &mut MemoryNic| {
        let mut head = frame(nic, 54 + 1400);
        (1..12).for_each(|n| head.chain(frame(nic, 1400 + n)).unwrap());
        head.set_tx_offload(TxOffload {
            l2_len: 14,
            l3_len: 20,
            l4_len: 20,
            ipv4: true,
            ipv4_checksum: true,
            l4_checksum: Some(L4::Tcp),
            tso: Some(1400),
        });
        head
    };
    let sent = large(&mut a);
    let segments_sent: Vec<_> = sent.segments().map(|segment| (segment.as_ptr(), segment.len())).collect();
    a.tx_burst(&mut vec![sent]);
    let received = receive(&mut b).remove(0);
    assert!(received.segments().map(|segment| (segment.as_ptr(), segment.len())).eq(segments_sent));
    let info = received.rx_info();
    assert_eq!((info.ipv4_checksum, info.l4_checksum), (RxChecksum::Good, RxChecksum::Good));
    assert_eq!((a.stats().copied_bytes, a.stats().tx_dropped), (0, 0));

    let refused = large(&mut b);
    b.tx_burst(&mut vec![refused]);
    assert_eq!(b.stats().tx_dropped, 1);
}

#[test]
fn frames_arrive_on_their_own_or_the_steered_queue() {
    let (mut a, mut b) = Link::with_queues(LinkConfig::default(), 2);
    let sent = frame(&mut a[1], 60);
    a[1].tx_burst(&mut vec![sent]);
    assert_eq!((receive(&mut b[0]).len(), receive(&mut b[1]).len()), (0, 1));

    let steering = Steering::new(|frame| (frame.len(), Some(frame.len() as u32)));
    let config = LinkConfig { steering: Some(steering), ..LinkConfig::default() };
    let (mut a, mut b) = Link::with_queues(config, 3);
    assert!(b[0].capabilities().rss);
    let burst = [60, 61, 62, 63].map(|len| frame(&mut a[2], len));
    assert_eq!(a[2].tx_burst(&mut Vec::from(burst)), 4);
    let hashes = |nic| receive(nic).iter().map(|p| p.rx_info().rss_hash.unwrap()).collect::<Vec<_>>();
    assert_eq!(b.iter_mut().map(hashes).collect::<Vec<_>>(), [vec![60, 63], vec![61], vec![62]]);
}

#[test]
fn frames_of_several_senders_arrive_in_order_without_starvation() {
    const EACH: usize = if cfg!(miri) { 100 } else { 5_000 };
    let steering = Steering::new(|_| (0, None));
    let config = LinkConfig { steering: Some(steering), ring: 64, pool: 256, ..LinkConfig::default() };
    let (mut a, b) = Link::with_queues(config, 3);
    let finished = AtomicUsize::new(0);
    let mut b = std::thread::scope(|scope| {
        let mut b = b;
        let finished = &finished;
        for (queue, nic) in a.iter_mut().enumerate() {
            scope.spawn(move || {
                let mut burst = Vec::with_capacity(BURST);
                let (mut made, mut sent) = (0usize, 0);
                while sent < EACH && nic.link_up() {
                    while made < EACH && burst.len() < BURST {
                        let Some(mut frame) = nic.allocate() else { break };
                        let bytes = frame.append(16).unwrap();
                        bytes[..8].copy_from_slice(&queue.to_ne_bytes());
                        bytes[8..].copy_from_slice(&made.to_ne_bytes());
                        burst.push(frame);
                        made += 1;
                    }
                    match nic.tx_burst(&mut burst) {
                        0 => std::thread::yield_now(),
                        n => sent += n,
                    }
                }
                finished.fetch_add(1, Ordering::Release);
            });
        }
        let mut next = [0; 3];
        while next.iter().sum::<usize>() < 3 * EACH {
            let all_sent = finished.load(Ordering::Acquire) == 3;
            let received = receive(&mut b[0]);
            if received.is_empty() {
                assert!(!all_sent || b[0].next_arrival().is_some());
                std::thread::yield_now();
            }
            for frame in received {
                let word = |at: usize| usize::from_ne_bytes(frame.data()[at..at + 8].try_into().unwrap());
                assert_eq!(word(8), next[word(0)]);
                next[word(0)] += 1;
            }
        }
        b
    });
    assert!(a.iter().all(|nic| nic.pool_available() == nic.pool_capacity()));

    // Two bursts of each wait, and every one has its turn within three polls.
    for (queue, nic) in a.iter_mut().enumerate() {
        let mut burst: Vec<_> = (0..2 * BURST).map(|_| frame(nic, 60 + queue)).collect();
        nic.tx_burst(&mut burst);
    }
    let mut lengths: Vec<_> = (0..3).map(|_| receive(&mut b[0])[0].len()).collect();
    lengths.sort_unstable();
    assert_eq!(lengths, [60, 61, 62]);
}

#[test]
fn frames_sent_without_a_link_or_a_peer_are_lost() {
    let (mut a, mut b) = Link::pair(LinkConfig::default());
    let link = a.link().clone();
    link.set_up(false);
    assert!(!a.link_up() && !b.link_up());
    let lost = frame(&mut a, 60);
    assert_eq!(a.tx_burst(&mut vec![lost]), 1);
    link.set_up(true);
    assert!(a.link_up());
    assert!(receive(&mut b).is_empty());
    let unread = frame(&mut a, 60);
    a.tx_burst(&mut vec![unread]);
    drop(b);
    assert!(!a.link_up());
    let lost = frame(&mut a, 60);
    assert_eq!(a.tx_burst(&mut vec![lost]), 1);
    assert_eq!((link.impaired(End::A).down, a.pool_available()), (2, a.pool_capacity()));
}

#[test]
fn link_with_steering_goes_down_once_all_queues_of_the_peer_are_dropped() {
    let steering = Steering::new(|frame| (frame.len() % 2, None));
    let (mut a, mut b) = Link::with_queues(LinkConfig { steering: Some(steering), ..LinkConfig::default() }, 2);
    drop(b.pop());
    assert!(a.iter_mut().all(MemoryNic::link_up));
    let mut burst = vec![frame(&mut a[1], 60), frame(&mut a[1], 61)];
    assert_eq!(a[1].tx_burst(&mut burst), 2);
    assert_eq!(receive(&mut b[0]).iter().map(Packet::len).collect::<Vec<_>>(), [60]);
    assert_eq!(a[1].link().impaired(End::A).down, 1);
    drop(b);
    assert!(!a.iter_mut().any(MemoryNic::link_up));
}

#[test]
fn packets_and_bytes_outlive_the_link() {
    let (mut a, mut b) = Link::pair(LinkConfig::default());
    let sent = frame(&mut a, 60);
    a.tx_burst(&mut vec![sent]);
    let mut received = receive(&mut b);
    drop((a, b));
    let clone = received[0].try_clone().unwrap();
    let bytes = received.remove(0).into_bytes(10..20);
    drop(clone);
    std::thread::spawn(move || assert_eq!(bytes[..], [0xa5; 10])).join().unwrap();
}

#[test]
fn capture_contains_every_sent_frame_including_lost_ones() {
    let (mut a, mut b) = Link::pair(LinkConfig::default());
    let link = a.link().clone();
    let drop_if = Some(DropIf::new(|frame| frame.len() == 61));
    link.impair(End::A, Impairments { drop_if, ..Impairments::default() });
    link.capture();
    let burst = [60, 61, 62].map(|len| frame(&mut a, len));
    a.tx_burst(&mut Vec::from(burst));
    assert_eq!(receive(&mut b).len(), 2);
    let frames = link.captured();
    assert_eq!(frames.iter().map(|f| (f.from, f.bytes.len())).collect::<Vec<_>>(), [60, 61, 62].map(|n| (End::A, n)));
    assert!(link.captured().is_empty());
}

#[test]
fn ends_may_be_on_two_threads() {
    let (mut a, mut b) = Link::pair(LinkConfig { ring: 64, pool: 256, ..LinkConfig::default() });
    const FRAMES: usize = if cfg!(miri) { 200 } else { 20_000 };
    let echo = std::thread::spawn(move || {
        let (mut frames, mut echoed) = (Vec::with_capacity(BURST), 0);
        while echoed < FRAMES && b.link_up() {
            b.rx_burst(&mut frames);
            match b.tx_burst(&mut frames) {
                0 => std::thread::yield_now(),
                n => echoed += n,
            }
        }
        b
    });
    let (mut outgoing, mut received) = (Vec::with_capacity(BURST), Vec::with_capacity(BURST));
    let (mut written, mut returned) = (0, 0);
    while returned < FRAMES {
        while outgoing.len() < BURST && written < FRAMES {
            let Some(mut frame) = a.allocate() else { break };
            frame.append(60).unwrap()[..8].copy_from_slice(&written.to_be_bytes());
            outgoing.push(frame);
            written += 1;
        }
        a.tx_burst(&mut outgoing);
        if a.rx_burst(&mut received) == 0 {
            assert!(a.link_up(), "the echo has failed");
            std::thread::yield_now();
        }
        for frame in received.drain(..) {
            assert_eq!(frame.data()[..8], returned.to_be_bytes());
            returned += 1;
        }
    }
    let b = echo.join().unwrap();
    assert_eq!(
        (a.stats().tx_frames, b.stats().rx_frames, b.stats().tx_frames),
        (FRAMES as u64, FRAMES as u64, FRAMES as u64)
    );
    assert_eq!(a.pool_available(), a.pool_capacity());
}

#[test]
#[should_panic(expected = "segmentation requires multi_segment and checksum_offload")]
fn segmentation_without_checksum_offload_is_rejected() {
    Link::pair(LinkConfig { tso: Some(65_000), ..LinkConfig::default() });
}
