//! Tests of ports and queue pairs on DPDK's virtual devices.

use super::frames::{bounce, bytes, eal_with, frame, number, open, packet, small};
use super::process::{socket, wait_for};
use linerate_bypass::arena::{self, Arena, ArenaConfig};
use linerate_bypass::dpdk::{
    Backing, Eal, EalConfig, EalError, Hugepages, Mbuf, OpenError, Port, PortConfig, QueuePair,
};
use linerate_bypass::{BURST, L4, MacAddr, Nic, Packet, TxOffload};
use linerate_harness::hugepages;
use linerate_harness::program::ip;
use linerate_harness::rerun::{alone, alone_in_a_namespace};

/// Opens a port whose ring connects to itself. Returns it with its queue pair.
fn ring(config: PortConfig) -> (Eal, Port, QueuePair) {
    let eal = eal_with(&["--no-pci", "--vdev=net_ring0"]);
    let port = open(&eal, "eal", config);
    let queue = port.take_queues().remove(0);
    (eal, port, queue)
}

#[test]
fn eal_starts_only_once() {
    alone(|| {
        let eal = super::frames::eal();
        assert!(eal.version().starts_with("DPDK "));
        assert_eq!(Eal::start(&EalConfig::default()).unwrap_err(), EalError::AlreadyStarted);
    });
}

#[test]
fn missing_hugepages_are_reported_with_a_remedy() {
    alone(|| {
        let config =
            EalConfig { hugepages: Hugepages::Require, ports_mb: 1 << 30, arenas_mb: 8, ..EalConfig::default() };
        let error = Eal::start(&config).unwrap_err().to_string();
        assert!(error.ends_with("run 'linerate hugepages reserve --memory 1073741832M --top-up' as root"), "{error}");
    });
}

/// Opens a port with two queue pairs under a limit of hugepages that is `spare_mb` above its estimated memory. Returns
/// the pages of EAL, or `None` if this machine permits no limit.
fn backing_within(spare_mb: i64) -> Option<Backing> {
    let config = PortConfig { queues: 2, peer_timeout: None, ..PortConfig::default() };
    let limit = u64::try_from((i64::from(config.memory_mb()) + spare_mb).max(0)).unwrap() << 20;
    if !hugepages::available() {
        return None;
    }
    let _limited = hugepages::Limited::enter(limit)?;
    let eal = Eal::start(&EalConfig { ports_mb: config.memory_mb(), arenas_mb: 7, ..EalConfig::default() }).unwrap();
    let port = open(&eal, &format!("vhost:{}", socket("pages")), config);
    assert!(port.mempool().size() > 2 * 16_384);
    Some(eal.backing().clone())
}

#[test]
fn hugepages_that_suffice_for_the_ports_are_used() {
    alone(|| {
        if let Some(backing) = backing_within(2) {
            assert_eq!(backing, Backing::Hugepages);
        }
    });
}

#[test]
fn hugepages_beyond_the_limit_of_the_cgroup_are_not_used() {
    alone(|| {
        let Some(backing) = backing_within(-2) else { return };
        let Backing::OrdinaryPages { reason } = backing else { panic!("hugepages beyond the limit") };
        assert!(reason.contains("cgroup"), "{reason}");
    });
}

#[test]
fn arena_beyond_the_limit_of_the_cgroup_has_ordinary_pages() {
    alone(|| {
        if !hugepages::available() {
            return;
        }
        let Some(_limited) = hugepages::Limited::enter(8 << 20) else { return };
        let arena = |bytes| Arena::new(ArenaConfig { bytes, hugepages: true }).unwrap();
        assert_eq!(arena(8 << 20).backing(), arena::Backing::Hugepages);
        let beyond = arena(16 << 20);
        assert_eq!(beyond.backing(), arena::Backing::Pages);
        while let Some(mut block) = beyond.alloc(Arena::MAX_LEN) {
            block.fill(7);
            std::mem::forget(block);
        }
    });
}

#[test]
fn eal_argument_error_has_a_reason() {
    alone(|| {
        let arguments = vec!["--no-pci".to_owned(), "--vdev=net_nonsense0".to_owned()];
        let config = EalConfig { hugepages: Hugepages::Never, arguments, ..EalConfig::default() };
        let error = Eal::start(&config).unwrap_err().to_string();
        assert!(error.contains("net_nonsense0"), "{error}");
    });
}

#[test]
fn eal_without_ports_is_an_error_with_a_remedy() {
    alone(|| {
        let eal = super::frames::eal();
        assert_eq!(Port::open(&eal, &"eal".parse().unwrap(), small()).unwrap_err(), OpenError::NoPort);
    });
}

#[test]
fn frames_cross_a_port_unchanged_and_uncopied() {
    alone(|| {
        let (_eal, port, mut queue) = ring(small());
        let _thread = _eal.register_thread().unwrap();
        let sent = packet(&mut queue, &frame(1, 900));
        let address = sent.data().as_ptr();
        let mut frames = vec![sent];
        assert_eq!((queue.tx_burst(&mut frames), frames.len()), (1, 0));
        let mut received = Vec::with_capacity(1);
        assert_eq!(queue.rx_burst(&mut received), 1);
        assert_eq!(received[0].data().as_ptr(), address);
        assert_eq!(queue.rx_burst(&mut received), 0, "the vector is full");
        drop(received);
        bounce(&mut queue, 0..1_000, 1_514);
        assert_eq!(queue.stats().copied_bytes, 0);
        assert_eq!(port.mempool().available(), port.mempool().size());
    });
}

#[test]
fn full_ring_leaves_frames_with_the_caller_in_order() {
    alone(|| {
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
fn empty_pool_is_back_pressure_and_every_packet_returns() {
    alone(|| {
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
fn pool_share_can_be_held_while_frames_cross() {
    alone(|| {
        let eal =
            eal_with(&["--no-pci", "--vdev=net_ring0", "--vdev=net_null0", "--vdev=net_null1", "--vdev=net_null2"]);
        let port = open(&eal, "eal", small());
        let mut queue = port.take_queues().remove(0);
        let may_hold = port.capabilities().pool;
        assert!(may_hold > 2_000, "{may_hold} of 4096");
        // A thread that frees what another thread allocated has a full cache.
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
        assert_eq!(may_hold(PortConfig { held: 20_000, ..PortConfig::default() }), 20_000);
        assert_eq!(may_hold(PortConfig { pool_size: Some(1), ..small() }), BURST, "however small the pool is");
    });
}

#[test]
fn frames_that_can_never_be_sent_are_dropped_and_counted() {
    alone(|| {
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
fn port_without_chains_sends_copies_and_counts_the_bytes() {
    alone_in_a_namespace(|| {
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
        // Retained: shared with the holder of its payload.
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
fn shared_header_is_copied_before_a_driver_writes_it() {
    alone(|| {
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

/// Offloads of a TCP segment over IPv4 with minimal headers: the driver writes within the first 54 bytes.
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
fn retained_payload_with_exclusive_headers_is_sent_without_a_copy() {
    alone(|| {
        let (_eal, port, mut queue) = ring(small());
        let mut sent = packet(&mut queue, &frame(1, 900));
        // The order is irrelevant: the request keeps the end of the exclusive bytes.
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
fn shared_headers_are_copied_whatever_was_retained() {
    alone(|| {
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
        assert_eq!(copied(&mut queue, cloned), 900, "the frame was cloned");
        let mut had_a_clone = segment(&mut queue);
        let clone = had_a_clone.try_clone().unwrap();
        let kept = (kept, had_a_clone.retain(54).unwrap());
        assert_eq!(copied(&mut queue, had_a_clone), 900);
        // The bytes in front of the retained ones are shorter than the headers.
        let mut moved = packet(&mut queue, &[&[0; 10][..], &frame(1, 900)].concat());
        moved.set_tx_offload(CHECKSUMS);
        let kept = (kept, moved.retain(60).unwrap());
        assert!(moved.adjust(10));
        assert_eq!(copied(&mut queue, moved), 900);
        // No segmentation is requested, and no header ends within the first segment.
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
fn missing_transport_header_length_is_not_trusted() {
    alone(|| {
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
fn queue_pairs_are_taken_once() {
    alone(|| {
        let eal = eal_with(&["--no-pci", "--vdev=net_null0"]);
        let port = open(&eal, "eal", small());
        assert_eq!((port.take_queues().len(), port.take_queues().len()), (1, 0));
    });
}

#[test]
fn device_is_opened_once_and_the_next_is_found() {
    alone(|| {
        let eal = eal_with(&["--no-pci", "--vdev=net_ring0", "--vdev=net_null0"]);
        let via = "eal".parse().unwrap();
        let ring = open(&eal, "eal", small());
        let null = open(&eal, "eal", small());
        assert_eq!(Port::open(&eal, &via, small()).unwrap_err(), OpenError::NoPort);
        drop((ring, null));
        assert_eq!(Port::open(&eal, &via, small()).unwrap_err(), OpenError::NoPort, "closed devices are removed");
    });
}

#[test]
fn too_few_queues_are_an_error() {
    alone(|| {
        let eal = eal_with(&["--no-pci", "--vdev=net_ring0"]);
        let config = PortConfig { queues: 1_000, ..small() };
        let error = Port::open(&eal, &"eal".parse().unwrap(), config).unwrap_err();
        assert!(matches!(error, OpenError::TooManyQueues { requested: 1_000, .. }), "{error}");
    });
}

#[test]
fn queue_pair_outlives_its_port_and_packets_outlive_both() {
    alone(|| {
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
fn requested_mac_address_is_set() {
    alone(|| {
        let mac = MacAddr([2, 0, 0, 0, 0, 0x42]);
        let (_eal, port, queue) = ring(PortConfig { mac: Some(mac), ..small() });
        assert_eq!((port.mac(), queue.mac()), (mac, mac));
    });
}
