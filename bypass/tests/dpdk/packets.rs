//! Tests of the packet contract on DPDK's mbufs.

use super::frames::eal;
use linerate_bypass::Packet;
use linerate_bypass::dpdk::{Eal, Mbuf, Mempool, MempoolConfig};
use linerate_harness::rerun::alone;
use linerate_service::{Bytes, Memory};

const PACKETS: u32 = 255;

fn pool(eal: &Eal) -> Mempool {
    Mempool::new(eal, MempoolConfig { packets: PACKETS, ..MempoolConfig::default() }).unwrap()
}

/// Runs `body` with a pool, and verifies that every packet has returned to it.
fn with_pool(body: impl FnOnce(&Mempool)) {
    alone(|| {
        let eal = eal();
        let pool = pool(&eal);
        body(&pool);
        assert_eq!(pool.available(), pool.size(), "packets are missing");
    });
}

fn packet(pool: &Mempool, bytes: &[u8]) -> Mbuf {
    let mut packet = pool.allocate().unwrap();
    packet.append(bytes.len()).unwrap().copy_from_slice(bytes);
    packet
}

#[test]
fn ends_move_within_the_buffer_and_not_beyond() {
    with_pool(|pool| {
        let mut packet = packet(pool, b"payload");
        packet.prepend(4).unwrap().copy_from_slice(b"head");
        assert_eq!((packet.data(), packet.len()), (&b"headpayload"[..], 11));
        assert!(packet.adjust(2) && packet.trim(3));
        assert_eq!(packet.data(), b"adpayl");
        assert!(!packet.adjust(7) && !packet.trim(7));
        assert_eq!(packet.data(), b"adpayl");
        assert!(packet.prepend(129).is_none() && packet.append(2049).is_none());
        assert!(packet.append(pool.data_room() - 7).is_some());
        assert!(packet.prepend(usize::MAX).is_none() && packet.append(usize::MAX).is_none());
        packet.data_mut().unwrap()[0] = b'A';
        assert_eq!(&packet.data()[..6], b"Adpayl");
        assert!(packet.rewrite(usize::MAX).is_none() && packet.rewrite(pool.data_room() + 127).is_none());
        assert_eq!(&packet.data()[..6], b"Adpayl");
        packet.rewrite(5).unwrap().copy_from_slice(b"other");
        assert_eq!((packet.data(), packet.len()), (&b"other"[..], 5));
        let kept = packet.retain(0).unwrap();
        assert!(packet.rewrite(1).is_none());
        assert_eq!((packet.data(), &kept[..]), (&b"other"[..], &b"other"[..]));
    });
}

#[test]
fn frame_and_its_device_header_start_a_cache_line() {
    alone(|| {
        let eal = eal();
        for (device_header, at_most) in [(0, 0), (12, 4), (64, 0), (70, 2)] {
            let pool =
                Mempool::new(&eal, MempoolConfig { packets: PACKETS, device_header, ..MempoolConfig::default() })
                    .unwrap();
            for mut packet in std::iter::from_fn(|| pool.allocate()).collect::<Vec<_>>() {
                packet.append(1);
                let begins = packet.data().as_ptr().addr() - usize::from(device_header);
                assert!(begins % 64 <= at_most, "{device_header}: {begins:#x}");
            }
        }
    });
}

#[test]
fn chain_is_one_packet_and_can_be_unchained() {
    with_pool(|pool| {
        let mut head = packet(pool, b"one");
        let mut middle = packet(pool, b"two");
        middle.chain(packet(pool, b"three")).ok().unwrap();
        head.chain(middle).ok().unwrap();
        assert_eq!((head.len(), head.data()), (11, &b"one"[..]));
        assert_eq!(head.segments().collect::<Vec<_>>(), [&b"one"[..], b"two", b"three"]);
        assert!(head.trim(2));
        head.append(1).unwrap()[0] = b'!';
        let clone = head.try_clone().unwrap();
        let tail = head.unchain().unwrap();
        assert_eq!((head.len(), tail.len()), (3, 7));
        assert!(head.unchain().is_none());
        assert_eq!(tail.segments().collect::<Vec<_>>(), [&b"two"[..], b"thr!"]);
        assert_eq!(clone.segments().flatten().copied().collect::<Vec<_>>(), b"onetwothr!");
    });
}

#[test]
fn chain_longer_than_a_frame_is_rejected_and_returned() {
    with_pool(|pool| {
        let mut head = packet(pool, &[0; 2048]);
        let refused = std::iter::repeat_with(|| head.chain(packet(pool, &[1; 2048]))).find_map(Result::err).unwrap();
        assert_eq!(refused.len(), 2048);
        assert!(head.len() <= 65_535 + 22 && head.len() + 2048 > 65_535 + 22);
    });
}

#[test]
fn shared_bytes_cannot_be_written() {
    with_pool(|pool| {
        let mut original = packet(pool, b"shared");
        let mut clone = original.try_clone().unwrap();
        assert_eq!(clone.data().as_ptr(), original.data().as_ptr());
        for packet in [&mut original, &mut clone] {
            assert!(packet.data_mut().is_none() && packet.prepend(1).is_none() && packet.append(1).is_none());
        }
        let mut again = clone.try_clone().unwrap();
        drop(original);
        // The clone's reference is the only one now, but the buffer belongs to another mbuf.
        assert!(clone.data_mut().is_none());
        assert!(again.adjust(2));
        assert_eq!((again.data(), clone.data()), (&b"ared"[..], &b"shared"[..]));
        drop(clone);
        assert_eq!(again.data(), b"ared");
        let mut original = packet(pool, b"shared");
        drop(original.try_clone().unwrap());
        assert!(original.data_mut().is_some(), "the clone is dropped");
    });
}

#[test]
fn bytes_keep_their_packet_on_every_thread() {
    with_pool(|pool| {
        let mut whole = packet(pool, b"0123456789");
        whole.chain(packet(pool, b"second")).ok().unwrap();
        let address = whole.data().as_ptr();
        let bytes = whole.into_bytes(2..8);
        assert_eq!(pool.available(), pool.size() - 1, "segments after the first are free");
        assert_eq!((bytes.as_ptr(), &bytes[..]), (address.wrapping_add(2), &b"234567"[..]));
        assert_eq!(bytes.memory(), Memory::Device);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..20_000).for_each(|_| assert_eq!(bytes.clone().slice(1..)[0], b'3')));
            }
        });
        assert_eq!(pool.available(), pool.size() - 1);
        let last = bytes.clone();
        drop(bytes);
        std::thread::spawn(move || drop(last)).join().unwrap();
    });
}

#[test]
fn retained_bytes_and_their_packet_may_end_in_any_order() {
    with_pool(|pool| {
        let mut first = packet(pool, b"headpayload");
        assert!(first.retain(12).is_none());
        assert!(first.data_mut().is_some(), "the call had no effect");
        let payload = first.retain(4).unwrap();
        assert_eq!((payload.as_ptr(), &payload[..]), (first.data()[4..].as_ptr(), &b"payload"[..]));
        assert_eq!(payload.memory(), Memory::Device);
        assert!(first.data_mut().is_none() && first.prepend(1).is_none() && first.append(1).is_none());
        let again = first.retain(8).unwrap();
        assert_eq!((&again[..], first.retain(11).unwrap().len()), (&b"oad"[..], 0));
        drop(first);
        assert_eq!(pool.available(), pool.size() - 1);
        drop(payload);
        assert_eq!((pool.available(), &again[..]), (pool.size() - 1, &b"oad"[..]));
        std::thread::spawn(move || drop(again)).join().unwrap();
        assert_eq!(pool.available(), pool.size());

        let mut second = packet(pool, b"headpayload");
        drop(second.retain(4));
        assert!(second.data_mut().is_some(), "the packet is exclusive again");
        second.chain(packet(pool, b"second")).ok().unwrap();
        let mut tail = second.unchain().unwrap();
        let (payload, shared) = (second.retain(4).unwrap(), tail.retain(0).unwrap());
        second.chain(tail).ok().unwrap();
        assert_eq!(pool.available(), pool.size() - 2);
        drop(second);
        assert_eq!((&payload[..], &shared[..]), (&b"payload"[..], &b"second"[..]));
    });
}

#[test]
fn tag_is_inserted_in_front_of_retained_payload_in_place() {
    with_pool(|pool| {
        const FRAME: &[u8] = b"aaaaaabbbbbb\x08\x00payload";
        const TAGGED: &[u8] = b"aaaaaabbbbbb\x81\x00\x20\x05\x08\x00payload";
        for retained in [false, true] {
            let mut frame = packet(pool, FRAME);
            let payload = retained.then(|| frame.retain(14).unwrap());
            let address = frame.data()[14..].as_ptr();
            assert!(frame.tag(0x2005, || None));
            assert_eq!((frame.data(), frame.len()), (TAGGED, TAGGED.len()));
            assert_eq!(frame.data()[18..].as_ptr(), address);
            if let Some(payload) = payload {
                assert_eq!((&payload[..], payload.as_ptr()), (&b"payload"[..], address));
                assert_eq!(frame.untag(), None, "the bytes' holder would see the addresses move");
            }
            assert_eq!((frame.untag(), frame.data()), (Some(0x2005), FRAME));
            assert_eq!((frame.untag(), frame.data()), (None, FRAME));
        }
        // Addresses that are shared, or without headroom, move to a packet in front of the chain.
        let cloned = packet(pool, FRAME);
        let clone = cloned.try_clone().unwrap();
        let mut seen = packet(pool, FRAME);
        let all = seen.retain(0).unwrap();
        let mut full = packet(pool, &FRAME[12..]);
        assert!(full.prepend(116).is_some());
        full.prepend(12).unwrap().copy_from_slice(&FRAME[..12]);
        let of_full = full.data()[12..].to_vec();
        let rest = [&FRAME[12..], &FRAME[12..], &of_full];
        for (mut frame, rest) in [cloned, seen, full].into_iter().zip(rest) {
            assert!(frame.tag(0x2005, || pool.allocate()));
            assert_eq!(frame.segments().count(), 2);
            let bytes: Vec<u8> = frame.segments().flatten().copied().collect();
            assert_eq!(bytes, [&TAGGED[..16], rest].concat());
        }
        assert_eq!((clone.data(), &all[..]), (FRAME, FRAME));
        let mut without = packet(pool, FRAME);
        let _clone = without.try_clone().unwrap();
        assert!(!without.tag(0x2005, || None));
        assert!(!packet(pool, &FRAME[..11]).tag(0x2005, || pool.allocate()));
    });
}

#[test]
fn clone_and_attached_bytes_can_be_retained() {
    with_pool(|pool| {
        let original = packet(pool, b"headpayload");
        let mut clone = original.try_clone().unwrap();
        let of_clone = clone.retain(4).unwrap();
        drop((original, clone));
        assert_eq!(&of_clone[..], b"payload");
        let mut attached = pool.attach(of_clone.slice(1..)).unwrap();
        assert!(attached.adjust(1));
        let part = attached.retain(1).unwrap();
        assert_eq!((&part[..], part.as_ptr()), (&b"load"[..], of_clone[3..].as_ptr()));
        drop((attached, of_clone));
        assert_eq!(&part[..], b"load");
    });
}

#[test]
fn retained_bytes_are_dropped_on_another_thread_while_packets_are_cloned() {
    with_pool(|pool| {
        let (send, receive) = std::sync::mpsc::sync_channel::<Bytes>(16);
        let keeper = std::thread::spawn(move || {
            for bytes in receive {
                let twin = bytes.clone();
                drop(bytes);
                assert!(twin.iter().all(|byte| *byte == twin[0]));
            }
        });
        for n in 0..20_000u32 {
            let mut packet = packet(pool, &[n as u8; 100]);
            send.send(packet.retain(54).unwrap()).unwrap();
            send.send(packet.retain(10).unwrap()).unwrap();
            if n.is_multiple_of(3) {
                drop(packet.try_clone());
            }
        }
        drop(send);
        keeper.join().unwrap();
    });
}

#[test]
fn attached_bytes_are_sent_in_place_and_released_once() {
    with_pool(|pool| {
        let bytes = packet(pool, b"a value of a table").into_bytes(2..18);
        let mut attached = pool.attach(bytes.clone()).unwrap();
        assert_eq!((attached.data().as_ptr(), attached.len()), (bytes.as_ptr(), 16));
        assert!(attached.data_mut().is_none() && attached.prepend(1).is_none() && attached.append(1).is_none());
        assert!(attached.adjust(6) && attached.trim(2));
        let clone = attached.try_clone().unwrap();
        assert_eq!((clone.data(), clone.data().as_ptr()), (&b"of a tab"[..], bytes[6..].as_ptr()));
        // The clone must not depend on the private area of the first packet, which is reused.
        drop(attached);
        let again: Vec<_> = std::iter::from_fn(|| pool.attach(bytes.clone()).ok()).collect();
        assert_eq!(again.len(), pool.size() - 2);
        assert_eq!(clone.data(), b"of a tab");
        let back = clone.into_bytes(0..2);
        assert_eq!((&back[..], back.as_ptr()), (&b"of"[..], bytes[6..].as_ptr()));
        drop((bytes, again));
        assert_eq!(pool.available(), pool.size() - 1, "the last slice holds the value");
        drop(back);
    });
}

#[test]
fn process_memory_is_not_attached() {
    with_pool(|pool| {
        let bytes = pool.attach(Bytes::from(vec![1, 2, 3])).map(|_| ()).unwrap_err();
        assert_eq!(&bytes[..], [1, 2, 3]);
    });
}

#[test]
fn empty_pool_allocates_nothing_until_packets_return() {
    with_pool(|pool| {
        let first = packet(pool, b"first");
        let mut all: Vec<_> = std::iter::from_fn(|| pool.allocate()).collect();
        assert_eq!(all.len(), pool.size() - 1);
        assert!(first.try_clone().is_none());
        let bytes = first.into_bytes(0..5);
        assert_eq!(pool.attach(bytes).map(|_| ()).unwrap_err(), Bytes::from_static(b"first"));
        all.truncate(10);
        assert_eq!(pool.available(), pool.size() - 10);
    });
}

#[test]
fn reference_count_overflow_leaks_only_the_packet() {
    alone(|| {
        let eal = eal();
        let pool = pool(&eal);
        let mut wanted = packet(&pool, b"wanted by all");
        let bytes = wanted.retain(0).unwrap();
        let clones: Vec<_> = (0..70_000).map(|_| bytes.clone()).collect();
        drop((wanted.retain(0), wanted.try_clone()));
        drop(wanted);
        assert!(pool.attach(bytes.clone()).is_ok());
        drop(clones);
        assert_eq!(&bytes[..], b"wanted by all");
        drop(bytes);
        assert_eq!(pool.available(), pool.size() - 1);
        let all: Vec<_> = std::iter::from_fn(|| pool.allocate()).collect();
        assert_eq!(all.len(), pool.size() - 1);
    });
}

#[test]
fn arena_in_eal_memory_is_attached_in_place() {
    alone(|| {
        let eal = eal();
        let pool = pool(&eal);
        let arena = eal.arena(3 << 20).unwrap();
        let mut block = arena.alloc(5_000).unwrap();
        block.fill(7);
        let value = block.freeze();
        assert_eq!(value.memory(), Memory::Device);
        let attached = pool.attach(value.slice(1_000..3_000)).unwrap();
        assert_eq!((attached.data().as_ptr(), attached.data()), (value[1_000..].as_ptr(), &[7; 2_000][..]));
        drop((arena, value));
        assert_eq!(attached.data(), [7; 2_000], "the packet keeps the block alive, and the block the arena");
        drop(attached);
        let error = eal.arena(1 << 40).unwrap_err().to_string();
        assert!(error.contains("1099511627776 contiguous bytes"), "{error}");
    });
}
