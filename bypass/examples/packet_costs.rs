//! Cost of each packet operation in instructions per packet, counted by callgrind: run `bypass/packet-costs.sh`.
//!
//! Each operation is a function of its own, called once per burst. Its instructions per packet are those that the
//! profile attributes to the function, calls included, divided by 32 times the number of bursts.

use linerate_bypass::memory_nic::{Link, LinkConfig};
use linerate_bypass::{BURST, L4, Nic, Packet, TxOffload};
use linerate_service::Bytes;
use std::hint::black_box;

/// Length of the headers of a TCP segment with timestamps.
const HEADERS: usize = 66;
const PAYLOAD: usize = 64;

/// Prevents the compiler from merging functions with equal code.
#[inline(always)]
fn distinct(op: usize) {
    black_box(op);
}

#[inline(never)]
fn op_allocate<N: Nic>(nic: &mut N, packets: &mut Vec<N::Packet>) {
    distinct(1);
    for _ in 0..BURST {
        if let Some(packet) = nic.allocate() {
            packets.push(packet);
        }
    }
}

#[inline(never)]
fn op_append<P: Packet>(packets: &mut [P]) {
    distinct(2);
    for packet in packets {
        black_box(packet.append(PAYLOAD));
    }
}

#[inline(never)]
fn op_prepend<P: Packet>(packets: &mut [P]) {
    distinct(3);
    for packet in packets {
        black_box(packet.prepend(HEADERS));
    }
}

#[inline(never)]
fn op_set_tx_offload<P: Packet>(packets: &mut [P], offload: TxOffload) {
    distinct(4);
    for packet in packets {
        packet.set_tx_offload(offload);
    }
}

#[inline(never)]
fn op_retain<P: Packet>(packets: &mut [P], kept: &mut Vec<Bytes>) {
    distinct(5);
    for packet in packets {
        if let Some(bytes) = packet.retain(HEADERS) {
            kept.push(bytes);
        }
    }
}

#[inline(never)]
fn op_tx_burst<N: Nic>(nic: &mut N, packets: &mut Vec<N::Packet>) {
    distinct(6);
    nic.tx_burst(packets);
}

#[inline(never)]
fn op_rx_burst<N: Nic>(nic: &mut N, packets: &mut Vec<N::Packet>) {
    distinct(7);
    nic.rx_burst(packets);
}

#[inline(never)]
fn op_look<P: Packet>(packets: &mut [P]) -> usize {
    distinct(8);
    packets.iter().map(|packet| packet.len() + usize::from(packet.data()[0])).sum()
}

#[inline(never)]
fn op_rx_info<P: Packet>(packets: &mut [P]) {
    distinct(9);
    for packet in packets {
        black_box(packet.rx_info());
    }
}

#[inline(never)]
fn op_adjust<P: Packet>(packets: &mut [P]) {
    distinct(10);
    for packet in packets {
        black_box(packet.adjust(HEADERS));
    }
}

#[inline(never)]
fn op_drop_packets<P: Packet>(packets: &mut Vec<P>) {
    distinct(11);
    packets.clear();
}

#[inline(never)]
fn op_into_bytes<P: Packet>(packets: &mut Vec<P>, kept: &mut Vec<Bytes>) {
    distinct(12);
    for packet in packets.drain(..) {
        kept.push(packet.into_bytes(0..PAYLOAD));
    }
}

#[inline(never)]
fn op_drop_shared_packets<P: Packet>(packets: &mut Vec<P>) {
    distinct(13);
    packets.clear();
}

#[inline(never)]
fn op_drop_shared_bytes(kept: &mut Vec<Bytes>) {
    distinct(14);
    kept.clear();
}

#[inline(never)]
fn op_drop_last_bytes(kept: &mut Vec<Bytes>) {
    distinct(15);
    kept.clear();
}

#[inline(never)]
fn op_attach<N: Nic>(nic: &mut N, bytes: &mut Vec<Bytes>, packets: &mut Vec<N::Packet>) {
    distinct(17);
    for bytes in bytes.drain(..) {
        if let Ok(packet) = nic.attach(bytes) {
            packets.push(packet);
        }
    }
}

#[inline(never)]
fn op_chain<P: Packet>(heads: &mut [P], tails: &mut Vec<P>) {
    distinct(18);
    for (head, tail) in heads.iter_mut().zip(tails.drain(..)) {
        assert!(head.chain(tail).is_ok());
    }
}

#[inline(never)]
fn op_segments<P: Packet>(packets: &mut [P]) -> usize {
    distinct(19);
    packets.iter().flat_map(|packet| packet.segments()).map(|bytes| bytes.len()).sum()
}

#[inline(never)]
fn op_drop_attached_chains<P: Packet>(packets: &mut Vec<P>) {
    distinct(20);
    packets.clear();
}

/// Does nothing: the cost of a call and a loop.
#[inline(never)]
fn op_nothing<P: Packet>(packets: &mut [P]) {
    distinct(16);
    for packet in packets {
        black_box(packet);
    }
}

fn run<N: Nic>(to: &mut N, from: &mut impl FnMut(&mut N, &mut Vec<N::Packet>), bursts: usize) {
    let checksums = to.capabilities().tx_checksum.tcp;
    let offload = TxOffload {
        l2_len: 14,
        l3_len: 20,
        l4_len: 32,
        ipv4: true,
        ipv4_checksum: to.capabilities().tx_checksum.ipv4,
        l4_checksum: checksums.then_some(L4::Tcp),
        tso: None,
    };
    let (mut packets, mut received) = (Vec::with_capacity(BURST), Vec::with_capacity(BURST));
    let mut kept = Vec::with_capacity(BURST);
    for burst in 0..bursts {
        op_allocate(to, &mut packets);
        op_nothing(&mut packets);
        op_append(&mut packets);
        op_prepend(&mut packets);
        op_set_tx_offload(&mut packets, offload);
        let retains = burst % 2 == 1;
        if retains {
            op_retain(&mut packets, &mut kept);
        }
        op_tx_burst(to, &mut packets);
        assert!(packets.is_empty());
        from(to, &mut received);
        assert_eq!(received.len(), BURST);
        black_box(op_look(&mut received));
        op_rx_info(&mut received);
        op_adjust(&mut received);
        match burst % 4 {
            0 => op_drop_packets(&mut received),
            1 => {
                op_drop_shared_packets(&mut received);
                op_drop_last_bytes(&mut kept);
            }
            2 => {
                op_into_bytes(&mut received, &mut kept);
                if burst % 8 == 2 {
                    op_drop_last_bytes(&mut kept);
                    continue;
                }
                op_attach(to, &mut kept, &mut received);
                op_allocate(to, &mut packets);
                op_append(&mut packets);
                op_chain(&mut packets, &mut received);
                black_box(op_segments(&mut packets));
                op_drop_attached_chains(&mut packets);
            }
            _ => {
                op_drop_shared_bytes(&mut kept);
                op_drop_packets(&mut received);
            }
        }
    }
    assert_eq!(to.stats().copied_bytes, 0);
}

/// Measures the operations on a DPDK port whose ring connects to itself, with a capture of its frames if `captured`.
#[cfg(feature = "dpdk")]
fn ring(bursts: usize, captured: bool) {
    use linerate_bypass::capture::capture;
    use linerate_bypass::dpdk::{Eal, EalConfig, Hugepages, Port, PortConfig};
    let arguments = ["--no-pci", "--vdev=net_ring0"].map(str::to_owned).to_vec();
    let config = EalConfig { hugepages: Hugepages::Never, memory_mb: Some(64), arguments, ..EalConfig::default() };
    let eal = Eal::start(&config).expect("EAL starts without hugepages");
    let config = PortConfig { pool_size: Some(4096), ..PortConfig::default() };
    let port = Port::open(&eal, &"eal".parse().expect("a network"), config).expect("the ring opens");
    let mut queue = port.take_queues().remove(0);
    let (keeps, mut reader) = capture(4 * BURST, 256, None);
    if captured {
        queue.set_capture(keeps);
    }
    let from = &mut |queue: &mut _, received: &mut _| {
        op_rx_burst(queue, received);
        while reader.read(|record| black_box(record.len)).is_some() {}
    };
    run(&mut queue, from, bursts);
    assert_eq!(reader.missed(), 0);
}

fn main() {
    let arguments: Vec<_> = std::env::args().collect();
    let bursts = arguments.get(2).map_or(1_000, |n| n.parse().expect("a number of bursts"));
    match arguments.get(1).map(String::as_str) {
        #[cfg(feature = "dpdk")]
        Some("ring") => ring(bursts, false),
        #[cfg(feature = "dpdk")]
        Some("captured") => ring(bursts, true),
        _ => {
            let config = LinkConfig { checksum_offload: true, ..LinkConfig::default() };
            let (mut a, mut b) = Link::pair(config);
            run(&mut a, &mut |_, received| op_rx_burst(&mut b, received), bursts);
        }
    }
}
