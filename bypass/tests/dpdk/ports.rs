//! Ports and queue pairs, on DPDK's own virtual devices.

use super::frames::{bounce, bytes, eal_with, frame, number, open, packet, small};
use super::process::{alone, alone_in_a_namespace, ip, wait_for};
use linerate_bypass::dpdk::{Eal, EalConfig, EalError, Hugepages, Mbuf, OpenError, Port, PortConfig, QueuePair};
use linerate_bypass::{BURST, L4, MacAddr, Nic, Packet, TxOffload};

/// A port whose ring leads back to itself, and its queue pair.
fn ring(config: PortConfig) -> (Eal, Port, QueuePair) {
    let eal = eal_with(&["--no-pci", "--vdev=net_ring0"]);
    let port = open(&eal, "eal", config);
    let queue = port.take_queues().remove(0);
    (eal, port, queue)
}

#[test]
fn eal_starts_once_and_says_so_the_second_time() {
    alone("ports::eal_starts_once_and_says_so_the_second_time", || {
        let eal = super::frames::eal();
        assert!(eal.version().starts_with("DPDK "));
        assert_eq!(Eal::start(&EalConfig::default()).unwrap_err(), EalError::AlreadyStarted);
    });
}

#[test]
fn hugepages_that_are_not_there_are_required_or_missed_with_the_remedy() {
    alone("ports::hugepages_that_are_not_there_are_required_or_missed_with_the_remedy", || {
        let config = EalConfig { hugepages: Hugepages::Require, memory_mb: Some(1 << 30), ..EalConfig::default() };
        let error = Eal::start(&config).unwrap_err().to_string();
        assert!(error.contains("run 'sysctl -w vm.nr_hugepages="), "{error}");
    });
}

#[test]
fn an_argument_that_eal_refuses_is_an_error_with_its_reason() {
    alone("ports::an_argument_that_eal_refuses_is_an_error_with_its_reason", || {
        let arguments = vec!["--no-pci".to_owned(), "--vdev=net_nonsense0".to_owned()];
        let config = EalConfig { hugepages: Hugepages::Never, arguments, ..EalConfig::default() };
        let error = Eal::start(&config).unwrap_err().to_string();
        assert!(error.contains("net_nonsense0"), "{error}");
    });
}

#[test]
fn eal_with_no_port_says_how_to_name_one() {
    alone("ports::eal_with_no_port_says_how_to_name_one", || {
        let eal = super::frames::eal();
        assert_eq!(Port::open(&eal, &"eal".parse().unwrap(), small()).unwrap_err(), OpenError::NoPort);
    });
}

#[test]
fn frames_pass_a_port_unchanged_and_uncopied() {
    alone("ports::frames_pass_a_port_unchanged_and_uncopied", || {
        let (_eal, port, mut queue) = ring(small());
        let _thread = _eal.register_thread().unwrap();
        let sent = packet(&mut queue, &frame(1, 900));
        let address = sent.data().as_ptr();
        let mut frames = vec![sent];
        assert_eq!((queue.tx_burst(&mut frames), frames.len()), (1, 0));
        let mut received = Vec::with_capacity(1);
        assert_eq!(queue.rx_burst(&mut received), 1);
        assert_eq!(received[0].data().as_ptr(), address);
        assert_eq!(queue.rx_burst(&mut received), 0, "there is no room for more");
        drop(received);
        bounce(&mut queue, 0..1_000, 1_514);
        assert_eq!(queue.stats().copied_bytes, 0);
        assert_eq!(port.mempool().available(), port.mempool().size());
    });
}

#[test]
fn a_full_ring_leaves_the_rest_with_the_caller_in_order() {
    alone("ports::a_full_ring_leaves_the_rest_with_the_caller_in_order", || {
        let (_eal, port, mut queue) = ring(small());
        let mut frames: Vec<_> = (0..3_000).map(|n| packet(&mut queue, &frame(n, 64))).collect();
        let mut taken = 0;
        loop {
            match queue.tx_burst(&mut frames) {
                0 => break,
                n => taken += n,
            }
        }
        assert!(taken > 0 && taken + frames.len() == 3_000, "{taken} of 3000 were taken");
        assert_eq!((queue.stats().tx_frames, queue.stats().tx_bytes), (taken as u64, 64 * taken as u64));
        assert!(queue.stats().tx_full > 0);
        let mut received: Vec<Mbuf> = Vec::with_capacity(3_000);
        wait_for("all frames", || {
            queue.tx_burst(&mut frames);
            queue.rx_burst(&mut received);
            received.len() == 3_000
        });
        assert!(received.iter().map(|packet| number(packet.data()).unwrap()).eq(0..3_000));
        drop(received);
        assert_eq!(port.mempool().available(), port.mempool().size());
    });
}

#[test]
fn an_empty_pool_is_back_pressure_and_every_packet_comes_back() {
    alone("ports::an_empty_pool_is_back_pressure_and_every_packet_comes_back", || {
        let (_eal, port, mut queue) = ring(small());
        let mut held: Vec<_> = std::iter::from_fn(|| queue.allocate()).collect();
        assert_eq!(held.len(), port.mempool().size());
        assert_eq!(queue.stats().pool_empty, 1);
        held.iter_mut().for_each(|packet| packet.append(64).unwrap().fill(0));
        queue.tx_burst(&mut held);
        let mut received = Vec::with_capacity(32);
        assert!(queue.rx_burst(&mut received) > 0);
        drop((held, received));
        wait_for("the ring to run dry", || queue.rx_burst(&mut Vec::with_capacity(32)) == 0);
        assert_eq!(port.mempool().available(), port.mempool().size());
    });
}

#[test]
fn as_many_packets_as_the_port_allows_can_be_held_while_others_cross() {
    alone("ports::as_many_packets_as_the_port_allows_can_be_held_while_others_cross", || {
        let eal = eal_with(&["--no-pci", "--vdev=net_ring0", "--vdev=net_null0", "--vdev=net_null1"]);
        let port = open(&eal, "eal", small());
        let mut queue = port.take_queues().remove(0);
        let may_hold = port.capabilities().pool;
        assert!(may_hold > 2_000, "{may_hold} of 4096");
        // A thread that frees what another allocated has a cache full of it.
        let elsewhere: Vec<_> = (0..384).map(|_| queue.allocate().unwrap()).collect();
        std::thread::scope(|scope| {
            let cache = scope.spawn(|| {
                let _thread = eal.register_thread().unwrap();
                drop(elsewhere);
            });
            cache.join().unwrap();
        });
        let held: Vec<_> = (0..may_hold).map(|_| queue.allocate().unwrap()).collect();
        bounce(&mut queue, 0..1_000, 64);
        assert_eq!(queue.stats().pool_empty, 0);
        drop((held, queue, port));
        let may_hold = |config| open(&eal, "eal", config).capabilities().pool;
        assert_eq!(may_hold(PortConfig { queues: 2, ..PortConfig::default() }), 16_384, "a share of each");
        assert_eq!(may_hold(PortConfig { pool_size: Some(1), ..small() }), BURST, "however small the pool is");
    });
}

#[test]
fn what_can_never_be_sent_is_dropped_and_counted_between_what_can() {
    alone("ports::what_can_never_be_sent_is_dropped_and_counted_between_what_can", || {
        let (_eal, port, mut queue) = ring(small());
        let mut frames = vec![
            packet(&mut queue, &frame(0, 64)),
            packet(&mut queue, &[0; 1_515]),
            packet(&mut queue, &frame(1, 1_514)),
            packet(&mut queue, &[0; 13]),
            packet(&mut queue, &frame(2, 64)),
        ];
        assert_eq!(queue.tx_burst(&mut frames), 5);
        assert_eq!((queue.stats().tx_frames, queue.stats().tx_dropped), (3, 2));
        let mut received = Vec::with_capacity(32);
        queue.rx_burst(&mut received);
        assert!(received.iter().map(|packet| number(packet.data()).unwrap()).eq(0..3));
        drop(received);
        assert_eq!(port.mempool().available(), port.mempool().size());
    });
}

#[test]
fn a_port_that_sends_no_chains_sends_copies_and_counts_the_bytes() {
    alone_in_a_namespace("ports::a_port_that_sends_no_chains_sends_copies_and_counts_the_bytes", || {
        ip("link add lr0 type veth peer name lr1");
        ip("link set lr0 up");
        ip("link set lr1 up");
        let eal = super::frames::eal();
        let small = || PortConfig { pool_size: Some(8_192), ..small() };
        let (left, right) = (open(&eal, "af_xdp:lr0", small()), open(&eal, "af_xdp:lr1", small()));
        let (mut from, mut to) = (left.take_queues().remove(0), right.take_queues().remove(0));
        let whole = frame(1, 1_000);
        let mut chain = packet(&mut from, &whole[..100]);
        chain.chain(packet(&mut from, &whole[100..])).ok().unwrap();
        let plain = packet(&mut from, &frame(2, 1_000));
        let shared = packet(&mut from, &frame(3, 1_000));
        let clone = shared.try_clone().unwrap();
        let value = packet(&mut from, &frame(4, 1_000)).into_bytes(0..1_000);
        let attached = from.attach(value).unwrap();
        // From the other port's pool.
        let foreign = packet(&mut to, &frame(5, 1_000));
        // Retained: shared with who keeps its payload.
        let mut sent = packet(&mut from, &frame(6, 1_000));
        let kept = sent.retain(14).unwrap();
        let mut frames = vec![chain, plain, clone, attached, foreign, sent];
        wait_for("the frames' departure", || {
            from.tx_burst(&mut frames);
            frames.is_empty()
        });
        assert_eq!(from.stats().copied_bytes, 5_000);
        let mut received = Vec::with_capacity(32);
        let mut numbers = Vec::new();
        wait_for("the frames' arrival", || {
            to.rx_burst(&mut received);
            numbers.extend(received.drain(..).filter_map(|packet| number(&bytes(&packet))));
            numbers.len() == 6
        });
        assert_eq!(numbers, [1, 2, 3, 4, 5, 6]);
        assert_eq!(kept[..], frame(6, 1_000)[14..]);
        assert_eq!(shared.data(), frame(3, 1_000));
    });
}

#[test]
fn a_header_that_others_see_is_copied_before_a_driver_may_write_it() {
    alone("ports::a_header_that_others_see_is_copied_before_a_driver_may_write_it", || {
        let (_eal, _port, mut queue) = ring(small());
        let mut original = packet(&mut queue, &frame(1, 100));
        original.set_tx_offload(TxOffload {
            l2_len: 14,
            l3_len: 20,
            l4_len: 0,
            ipv4: true,
            ipv4_checksum: true,
            l4_checksum: None,
            tso: None,
        });
        let clone = original.try_clone().unwrap();
        queue.tx_burst(&mut vec![clone]);
        assert_eq!(queue.stats().copied_bytes, 100);
        assert_eq!(original.data(), frame(1, 100));
    });
}

/// What a driver does for a TCP segment over IPv4 with plain headers: it writes within the first 54 bytes.
const CHECKSUMS: TxOffload = TxOffload {
    l2_len: 14,
    l3_len: 20,
    l4_len: 20,
    ipv4: true,
    ipv4_checksum: true,
    l4_checksum: Some(L4::Tcp),
    tso: None,
};

#[test]
fn retained_payload_is_sent_with_headers_of_its_own_without_a_copy() {
    alone("ports::retained_payload_is_sent_with_headers_of_its_own_without_a_copy", || {
        let (_eal, port, mut queue) = ring(small());
        let mut sent = packet(&mut queue, &frame(1, 900));
        // Before or after: the request leaves what is known of the headers alone.
        let early = sent.retain(54).unwrap();
        sent.set_tx_offload(CHECKSUMS);
        let late = sent.retain(800).unwrap();
        assert_eq!(queue.tx_burst(&mut vec![sent]), 1);
        let mut received = Vec::with_capacity(1);
        assert_eq!(queue.rx_burst(&mut received), 1);
        assert_eq!((received[0].data(), queue.stats().copied_bytes), (&frame(1, 900)[..], 0));
        drop(received);
        assert_eq!(port.mempool().available(), port.mempool().size() - 1);
        assert_eq!((&early[..], &late[..]), (&frame(1, 900)[54..], &frame(1, 900)[800..]));
        drop((early, late));
        assert_eq!(port.mempool().available(), port.mempool().size());
    });
}

#[test]
fn headers_that_anybody_else_can_see_are_copied_whatever_was_retained() {
    alone("ports::headers_that_anybody_else_can_see_are_copied_whatever_was_retained", || {
        let (_eal, _port, mut queue) = ring(small());
        let copied = |queue: &mut QueuePair, sent: Mbuf| {
            let before = queue.stats().copied_bytes;
            let mut received = Vec::with_capacity(1);
            assert_eq!(queue.tx_burst(&mut vec![sent]), 1);
            queue.rx_burst(&mut received);
            assert_eq!(received[0].segments().flatten().copied().collect::<Vec<_>>(), frame(1, 900));
            (queue.stats().copied_bytes - before) as usize
        };
        let segment = |queue: &mut QueuePair| {
            let mut segment = packet(queue, &frame(1, 900));
            segment.set_tx_offload(CHECKSUMS);
            segment
        };
        let mut reaches_into_headers = segment(&mut queue);
        let kept = reaches_into_headers.retain(53).unwrap();
        assert_eq!(copied(&mut queue, reaches_into_headers), 900);
        let mut reaches_later = segment(&mut queue);
        let kept = (kept, reaches_later.retain(54).unwrap(), reaches_later.retain(53).unwrap());
        assert_eq!(copied(&mut queue, reaches_later), 900);
        let mut cloned = segment(&mut queue);
        let kept = (kept, cloned.retain(54).unwrap());
        let clone = cloned.try_clone().unwrap();
        assert_eq!(copied(&mut queue, clone), 900);
        assert_eq!(copied(&mut queue, cloned), 900, "a clone has been there");
        let mut had_a_clone = segment(&mut queue);
        let clone = had_a_clone.try_clone().unwrap();
        let kept = (kept, had_a_clone.retain(54).unwrap());
        assert_eq!(copied(&mut queue, had_a_clone), 900);
        // What is left in front of the retained bytes is less than the headers.
        let mut moved = packet(&mut queue, &[&[0; 10][..], &frame(1, 900)].concat());
        moved.set_tx_offload(CHECKSUMS);
        let kept = (kept, moved.retain(60).unwrap());
        assert!(moved.adjust(10));
        assert_eq!(copied(&mut queue, moved), 900);
        // No segmentation is asked for, and no header ends within the first segment.
        let mut split = packet(&mut queue, &frame(1, 900)[..40]);
        split.chain(packet(&mut queue, &frame(1, 900)[40..])).ok().unwrap();
        split.set_tx_offload(CHECKSUMS);
        assert_eq!(copied(&mut queue, split), 900);
        let fine = segment(&mut queue);
        assert_eq!(copied(&mut queue, fine), 0);
        assert_eq!(kept.1[..], frame(1, 900)[50..]);
        drop((clone, kept));
    });
}

#[test]
fn a_length_of_the_transport_header_left_out_is_not_believed() {
    alone("ports::a_length_of_the_transport_header_left_out_is_not_believed", || {
        let (_eal, _port, mut queue) = ring(small());
        let mut sent = packet(&mut queue, &frame(1, 900));
        sent.set_tx_offload(TxOffload { l4_len: 0, ..CHECKSUMS });
        let _kept = sent.retain(53).unwrap();
        queue.tx_burst(&mut vec![sent]);
        assert_eq!(queue.stats().copied_bytes, 900);
        let mut short = packet(&mut queue, &frame(2, 53));
        short.set_tx_offload(CHECKSUMS);
        queue.tx_burst(&mut vec![short]);
        assert_eq!((queue.stats().tx_dropped, queue.stats().tx_frames), (1, 1));
    });
}

#[test]
fn queue_pairs_are_given_once() {
    alone("ports::queue_pairs_are_given_once", || {
        let eal = eal_with(&["--no-pci", "--vdev=net_null0"]);
        let port = open(&eal, "eal", small());
        assert_eq!((port.take_queues().len(), port.take_queues().len()), (1, 0));
    });
}

#[test]
fn a_device_is_open_once_and_another_is_found() {
    alone("ports::a_device_is_open_once_and_another_is_found", || {
        let eal = eal_with(&["--no-pci", "--vdev=net_ring0", "--vdev=net_null0"]);
        let via = "eal".parse().unwrap();
        let ring = open(&eal, "eal", small());
        let null = open(&eal, "eal", small());
        assert_eq!(Port::open(&eal, &via, small()).unwrap_err(), OpenError::NoPort);
        drop((ring, null));
        assert_eq!(Port::open(&eal, &via, small()).unwrap_err(), OpenError::NoPort, "they are closed for good");
    });
}

#[test]
fn a_device_with_too_few_queues_says_so() {
    alone("ports::a_device_with_too_few_queues_says_so", || {
        let eal = eal_with(&["--no-pci", "--vdev=net_ring0"]);
        let config = PortConfig { queues: 1_000, ..small() };
        let error = Port::open(&eal, &"eal".parse().unwrap(), config).unwrap_err();
        assert!(matches!(error, OpenError::TooManyQueues { asked: 1_000, .. }), "{error}");
    });
}

#[test]
fn a_queue_pair_outlives_its_port_and_packets_outlive_both() {
    alone("ports::a_queue_pair_outlives_its_port_and_packets_outlive_both", || {
        let (_eal, port, mut queue) = ring(small());
        let pool = port.mempool().clone();
        drop(port);
        bounce(&mut queue, 0..100, 64);
        let kept = packet(&mut queue, &frame(1, 64));
        let bytes = packet(&mut queue, &frame(2, 64)).into_bytes(0..64);
        drop(queue);
        assert_eq!((kept.data(), &bytes[..]), (&frame(1, 64)[..], &frame(2, 64)[..]));
        assert_eq!(pool.available(), pool.size() - 2);
        drop((kept, bytes));
        assert_eq!(pool.available(), pool.size());
    });
}

#[test]
fn the_address_asked_for_is_the_ports() {
    alone("ports::the_address_asked_for_is_the_ports", || {
        let mac = MacAddr([2, 0, 0, 0, 0, 0x42]);
        let (_eal, port, queue) = ring(PortConfig { mac: Some(mac), ..small() });
        assert_eq!((port.mac(), queue.mac()), (mac, mac));
    });
}
