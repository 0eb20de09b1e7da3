//! Tests of split and packed virtqueues: frames with shared payload, through rings shorter than a burst.

use super::frames::{bytes, eal, frame, number, open, packet, small};
use super::links::between;
use super::process::wait_for;
use linerate_bypass::dpdk::{PortConfig, QueuePair};
use linerate_bypass::{BURST, Nic, Packet};
use linerate_service::Bytes;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Load: descriptors of each ring, and numbers of segments of successive frames.
#[derive(Clone, Copy)]
struct Load {
    descriptors: u16,
    segments: (usize, usize),
}

/// Frames of one indirect descriptor each, in rings shorter than a burst: the driver frees frames of the burst that it
/// is sending.
const SHORT: Load = Load { descriptors: 16, segments: (1, 4) };
/// Frames of one indirect descriptor each, and frames that take one descriptor per segment if the driver receives them
/// unchanged.
const MIXED: Load = Load { descriptors: 64, segments: (1, 12) };

/// Time limit for sending, on a busy machine.
const ENOUGH: Duration = Duration::from_secs(5);
const LEN: usize = 400;
/// Length of the headers, which no `Bytes` covers.
const HEADERS: usize = 54;

/// Builds frame `n` as a chain. Returns it with the retained payload of each segment.
fn chain(queue: &mut QueuePair, n: u64, segments: (usize, usize)) -> (linerate_bypass::dpdk::Mbuf, Vec<Bytes>) {
    let whole = frame(n, LEN);
    let (least, most) = segments;
    let segments = least + n as usize % (most + 1 - least);
    let each = (LEN - HEADERS).div_ceil(segments);
    let mut parts = whole[HEADERS..].chunks(each);
    let mut head = packet(queue, &[&whole[..HEADERS], parts.next().unwrap()].concat());
    let mut payload = vec![head.retain(HEADERS).unwrap()];
    for part in parts {
        let mut segment = packet(queue, part);
        payload.push(segment.retain(0).unwrap());
        head.chain(segment).ok().unwrap();
    }
    (head, payload)
}

/// Sends up to `frames` shared chains in bursts to a peer that returns them, through many turns of the ring. Verifies
/// the returned frames, and the retained payload some bursts later.
fn send_shared_chains(queue: &mut QueuePair, frames: u64, segments: (usize, usize)) {
    let (mut out, mut back) = (Vec::with_capacity(BURST), Vec::with_capacity(BURST));
    let mut held: VecDeque<(u64, Vec<Bytes>)> = VecDeque::new();
    let (mut next, mut returned) = (0, 0);
    let end = Instant::now() + ENOUGH;
    while returned < next || next == 0 {
        while out.len() < BURST && next < frames && Instant::now() < end {
            let (head, payload) = chain(queue, next, segments);
            held.push_back((next, payload));
            out.push(head);
            next += 1;
        }
        let before = returned;
        wait_for("a frame's return", || {
            queue.tx_burst(&mut out);
            queue.rx_burst(&mut back);
            for frame in back.drain(..) {
                if let Some(n) = number(&bytes(&frame)) {
                    assert_eq!(n, returned, "frames returned in another order");
                    returned += 1;
                }
            }
            returned > before
        });
        while held.len() > 2 * BURST {
            let (n, payload) = held.pop_front().unwrap();
            let payload: Vec<u8> = payload.iter().flat_map(|part| part.iter().copied()).collect();
            assert_eq!(payload, frame(n, LEN)[HEADERS..], "the payload of frame {n} has changed");
        }
    }
}

/// Sends shared chains over a virtio-user port with `options`, and verifies that all packets are back in the pool after
/// it is closed.
fn over_virtio_user(options: &str, load: Load) {
    let peer = |socket: &str| format!("vhost:{socket}");
    between(peer, 1, "ordinary", |socket| {
        let eal = eal();
        let Load { descriptors, segments } = load;
        let config = PortConfig { rx_descriptors: Some(descriptors), tx_descriptors: Some(descriptors), ..small() };
        let port = open(&eal, &format!("virtio-user:{socket},queue_size={descriptors},{options}"), config);
        let pool = port.mempool().clone();
        let mut queue = port.take_queues().remove(0);
        wait_for("the link", || queue.link_up());
        let is_packed = options.contains("packed_vq=1");
        assert_eq!(queue.masks_reference_counts(), !is_packed);
        send_shared_chains(&mut queue, 20_000, segments);
        assert_eq!(queue.stats().copied_bytes > 0, is_packed && segments.1 > 7, "{} bytes", queue.stats().copied_bytes);
        assert_eq!(queue.stats().tx_dropped, 0);
        drop((queue, port));
        assert_eq!(pool.available(), pool.size());
    });
}

#[test]
fn packed_virtqueue_keeps_shared_chains_intact() {
    over_virtio_user("packed_vq=1,in_order=0", SHORT);
}

#[test]
fn packed_virtqueue_keeps_shared_chains_of_many_lengths_intact() {
    over_virtio_user("packed_vq=1,in_order=0", MIXED);
}

#[test]
fn packed_in_order_virtqueue_keeps_shared_chains_intact() {
    over_virtio_user("packed_vq=1,in_order=1", SHORT);
}

#[test]
fn packed_in_order_virtqueue_keeps_shared_chains_of_many_lengths_intact() {
    over_virtio_user("packed_vq=1,in_order=1", MIXED);
}

#[test]
fn split_virtqueue_keeps_shared_chains_intact() {
    over_virtio_user("packed_vq=0,in_order=0", SHORT);
}

#[test]
fn split_virtqueue_keeps_shared_chains_of_many_lengths_intact() {
    over_virtio_user("packed_vq=0,in_order=0", MIXED);
}

#[test]
fn split_in_order_virtqueue_keeps_shared_chains_intact() {
    over_virtio_user("packed_vq=0,in_order=1", SHORT);
}

#[test]
fn split_in_order_virtqueue_keeps_shared_chains_of_many_lengths_intact() {
    over_virtio_user("packed_vq=0,in_order=1", MIXED);
}
