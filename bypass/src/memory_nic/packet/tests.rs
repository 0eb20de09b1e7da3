//! Tests of packets against a model of byte vectors and buffer references.

use super::*;
use crate::memory_nic::packet::pool::HEADROOM;
use crate::memory_nic::{Link, LinkConfig, MemoryNic};
use crate::{L4, Nic, RxInfo, TxOffload};
use proptest::prelude::*;
use std::collections::BTreeSet;

const POOL: usize = 12;
const DATA_ROOM: usize = 64;

#[derive(Debug, Clone)]
enum Op {
    Allocate,
    Attach { len: usize },
    Write { packet: usize },
    Prepend { packet: usize, n: usize },
    Append { packet: usize, n: usize },
    Adjust { packet: usize, n: usize },
    Trim { packet: usize, n: usize },
    Rewrite { packet: usize, n: usize },
    Chain { packet: usize, tail: usize },
    Unchain { packet: usize },
    Clone { packet: usize },
    Copy { packet: usize },
    Flip { packet: usize, bit: usize },
    Truncate { packet: usize, n: usize },
    IntoBytes { packet: usize, from: usize, len: usize },
    Retain { packet: usize, from: usize },
    SliceBytes { bytes: usize, from: usize, len: usize },
    AttachBytes { bytes: usize },
    DropBytes { bytes: usize },
    Drop { packet: usize },
    Send { packet: usize },
}

fn op() -> impl Strategy<Value = Op> {
    let i = 0..POOL;
    let n = 0..100usize;
    prop_oneof![
        4 => Just(Op::Allocate),
        1 => n.clone().prop_map(|len| Op::Attach { len }),
        4 => i.clone().prop_map(|packet| Op::Write { packet }),
        3 => (i.clone(), n.clone()).prop_map(|(packet, n)| Op::Prepend { packet, n }),
        5 => (i.clone(), n.clone()).prop_map(|(packet, n)| Op::Append { packet, n }),
        2 => (i.clone(), n.clone()).prop_map(|(packet, n)| Op::Adjust { packet, n }),
        2 => (i.clone(), n.clone()).prop_map(|(packet, n)| Op::Trim { packet, n }),
        2 => (i.clone(), n.clone()).prop_map(|(packet, n)| Op::Rewrite { packet, n }),
        3 => (i.clone(), i.clone()).prop_map(|(packet, tail)| Op::Chain { packet, tail }),
        2 => i.clone().prop_map(|packet| Op::Unchain { packet }),
        3 => i.clone().prop_map(|packet| Op::Clone { packet }),
        1 => i.clone().prop_map(|packet| Op::Copy { packet }),
        1 => (i.clone(), 0..800usize).prop_map(|(packet, bit)| Op::Flip { packet, bit }),
        1 => (i.clone(), 1..100usize).prop_map(|(packet, n)| Op::Truncate { packet, n }),
        2 => (i.clone(), n.clone(), n.clone()).prop_map(|(packet, from, len)| Op::IntoBytes { packet, from, len }),
        3 => (i.clone(), n.clone()).prop_map(|(packet, from)| Op::Retain { packet, from }),
        1 => (i.clone(), n.clone(), n).prop_map(|(bytes, from, len)| Op::SliceBytes { bytes, from, len }),
        1 => i.clone().prop_map(|bytes| Op::AttachBytes { bytes }),
        2 => i.clone().prop_map(|bytes| Op::DropBytes { bytes }),
        2 => i.clone().prop_map(|packet| Op::Drop { packet }),
        1 => i.prop_map(|packet| Op::Send { packet }),
    ]
}

/// Segment of the model.
#[derive(Debug, Clone)]
struct Segment {
    /// Slot of the pool that the segment occupies.
    slot: usize,
    /// Slot whose buffer contains the data, and their offset; `None` for bytes attached from outside of the pool.
    buffer: Option<usize>,
    start: usize,
    bytes: Vec<u8>,
    /// True if the bytes are attached, and therefore never written.
    attached: bool,
}

struct World {
    a: MemoryNic,
    b: MemoryNic,
    packets: Vec<(MemoryPacket, Vec<Segment>)>,
    bytes: Vec<(Bytes, Option<usize>, Vec<u8>)>,
    fill: u8,
    slots: usize,
}

impl World {
    fn new() -> Self {
        let config = LinkConfig { pool: POOL, data_room: DATA_ROOM, ..LinkConfig::default() };
        let (a, b) = Link::pair(config);
        World { a, b, packets: Vec::new(), bytes: Vec::new(), fill: 0, slots: 0 }
    }

    fn next_slot(&mut self) -> usize {
        self.slots += 1;
        self.slots
    }

    fn fill(&mut self) -> u8 {
        self.fill = self.fill.wrapping_add(1);
        self.fill
    }

    /// Returns the slots in use.
    fn taken(&self) -> usize {
        let segments = self.packets.iter().flat_map(|(_, segments)| segments);
        let held = segments.flat_map(|segment| [Some(segment.slot), segment.buffer]);
        held.chain(self.bytes.iter().map(|(_, buffer, _)| *buffer)).flatten().collect::<BTreeSet<_>>().len()
    }

    fn is_writable(&self, segment: &Segment) -> bool {
        let held = self.packets.iter().flat_map(|(_, segments)| segments).map(|segment| segment.buffer);
        let refs = held.chain(self.bytes.iter().map(|(_, buffer, _)| *buffer)).filter(|b| *b == segment.buffer);
        !segment.attached && refs.count() == 1
    }

    fn check(&self) {
        for (packet, model) in &self.packets {
            let segments: Vec<_> = packet.segments().collect();
            assert_eq!(segments, model.iter().map(|segment| &segment.bytes[..]).collect::<Vec<_>>());
            assert_eq!(packet.len(), model.iter().map(|segment| segment.bytes.len()).sum::<usize>());
            assert_eq!((packet.data(), packet.segment_count()), (segments[0], model.len()));
            assert_eq!(packet.is_exclusive(), model.len() == 1 && self.is_writable(&model[0]));
        }
        for (bytes, _, model) in &self.bytes {
            assert_eq!(&bytes[..], &model[..]);
        }
        assert_eq!(self.a.pool_available(), POOL - self.taken());
    }

    fn run(&mut self, op: Op) {
        let free = POOL - self.taken();
        let packets = self.packets.len();
        let has = |packet: usize| packet < packets;
        match op {
            Op::Allocate => {
                let packet = self.a.allocate();
                assert_eq!(packet.is_some(), free > 0);
                if let Some(packet) = packet {
                    let slot = self.next_slot();
                    let segment =
                        Segment { slot, buffer: Some(slot), start: HEADROOM, bytes: Vec::new(), attached: false };
                    self.packets.push((packet, vec![segment]));
                }
            }
            Op::Attach { len } => {
                let content = vec![self.fill(); len];
                match self.a.attach(Bytes::from(content.clone())) {
                    Ok(packet) => {
                        let slot = self.next_slot();
                        let segment = Segment { slot, buffer: None, start: 0, bytes: content, attached: true };
                        self.packets.push((packet, vec![segment]));
                    }
                    Err(bytes) => assert!(free == 0 && bytes[..] == content),
                }
            }
            Op::AttachBytes { bytes } if bytes < self.bytes.len() => {
                let (bytes, buffer, content) = self.bytes.swap_remove(bytes);
                match self.a.attach(bytes) {
                    Ok(packet) => {
                        let slot = self.next_slot();
                        let segment = Segment { slot, buffer, start: 0, bytes: content, attached: true };
                        self.packets.push((packet, vec![segment]));
                    }
                    Err(bytes) => {
                        assert_eq!(free, 0);
                        self.bytes.push((bytes, buffer, content));
                    }
                }
            }
            Op::Write { packet } if has(packet) => {
                let (writable, fill) = (self.is_writable(&self.packets[packet].1[0]), self.fill());
                let (packet, model) = &mut self.packets[packet];
                let data = packet.data_mut();
                assert_eq!(data.is_some(), writable);
                if let Some(data) = data {
                    data.fill(fill);
                    model[0].bytes.fill(fill);
                }
            }
            Op::Prepend { packet, n } if has(packet) => {
                let segment = &self.packets[packet].1[0];
                let fits = self.is_writable(segment) && n <= segment.start;
                let fill = self.fill();
                let (packet, model) = &mut self.packets[packet];
                let front = packet.prepend(n);
                assert_eq!(front.as_ref().map(|front| front.len()), fits.then_some(n));
                if let Some(front) = front {
                    front.fill(fill);
                    model[0].start -= n;
                    model[0].bytes.splice(0..0, std::iter::repeat_n(fill, n));
                }
            }
            Op::Append { packet, n } if has(packet) => {
                let segment = self.packets[packet].1.last().unwrap();
                let end = segment.start + segment.bytes.len();
                let fits = self.is_writable(segment) && n <= HEADROOM + DATA_ROOM - end;
                let fill = self.fill();
                let (packet, model) = &mut self.packets[packet];
                let back = packet.append(n);
                assert_eq!(back.as_ref().map(|back| back.len()), fits.then_some(n));
                if let Some(back) = back {
                    back.fill(fill);
                    model.last_mut().unwrap().bytes.extend(std::iter::repeat_n(fill, n));
                }
            }
            Op::Adjust { packet, n } if has(packet) => {
                let (packet, model) = &mut self.packets[packet];
                assert_eq!(packet.adjust(n), n <= model[0].bytes.len());
                if n <= model[0].bytes.len() {
                    model[0].bytes.drain(..n);
                    model[0].start += n;
                }
            }
            Op::Trim { packet, n } if has(packet) => {
                let (packet, model) = &mut self.packets[packet];
                let last = &mut model.last_mut().unwrap().bytes;
                assert_eq!(packet.trim(n), n <= last.len());
                last.truncate(last.len() - if n <= last.len() { n } else { 0 });
            }
            Op::Rewrite { packet, n } if has(packet) => {
                let (first, alone) = {
                    let segments = &self.packets[packet].1;
                    (&segments[0], segments.len() == 1)
                };
                let fits = alone && self.is_writable(first) && n <= HEADROOM + DATA_ROOM - first.start;
                let fill = self.fill();
                let (packet, model) = &mut self.packets[packet];
                let data = packet.rewrite(n);
                assert_eq!(data.as_ref().map(|data| data.len()), fits.then_some(n));
                if let Some(data) = data {
                    data.fill(fill);
                    model[0].bytes = std::iter::repeat_n(fill, n).collect();
                }
            }
            Op::Chain { packet, tail } if has(packet) && has(tail) && packet != tail => {
                let (tail, segments) = self.packets.remove(tail);
                let (packet, model) = &mut self.packets[packet.min(packets - 2)];
                packet.chain(tail).unwrap();
                model.extend(segments);
            }
            Op::Unchain { packet } if has(packet) => {
                let (packet, model) = &mut self.packets[packet];
                let tail = packet.unchain();
                let segments = model.split_off(1);
                assert_eq!(tail.is_some(), !segments.is_empty());
                self.packets.extend(tail.map(|tail| (tail, segments)));
            }
            Op::Clone { packet } if has(packet) => {
                let (packet, mut model) = (&self.packets[packet].0, self.packets[packet].1.clone());
                let clone = packet.try_clone();
                assert_eq!(clone.is_some(), model.len() <= free);
                if let Some(clone) = clone {
                    model.iter_mut().for_each(|segment| segment.slot = self.next_slot());
                    self.packets.push((clone, model));
                }
            }
            Op::Copy { packet } if has(packet) => {
                let packet = &self.packets[packet].0;
                let content = packet.segments().collect::<Vec<_>>().concat();
                let copy = packet.copy(None);
                let chunks = content.len().div_ceil(DATA_ROOM).max(1);
                assert_eq!(copy.is_some(), chunks <= free);
                if let Some(copy) = copy {
                    let model = (0..chunks).map(|chunk| {
                        let slot = self.next_slot();
                        let bytes = content.chunks(DATA_ROOM).nth(chunk).unwrap_or_default().to_vec();
                        Segment { slot, buffer: Some(slot), start: HEADROOM, bytes, attached: false }
                    });
                    let model = model.collect();
                    self.packets.push((copy, model));
                }
            }
            Op::Flip { packet, bit } if has(packet) => {
                let model = &self.packets[packet].1;
                let bytes = model.iter().enumerate().flat_map(|(s, m)| (0..m.bytes.len()).map(move |at| (s, at)));
                let at = bytes.clone().nth(bit / 8).filter(|(segment, _)| self.is_writable(&model[*segment]));
                let (packet, model) = &mut self.packets[packet];
                assert_eq!(packet.flip(bit), at.is_some());
                if let Some((segment, at)) = at {
                    model[segment].bytes[at] ^= 0x80 >> (bit % 8);
                }
            }
            Op::Truncate { packet, n } if has(packet) => {
                let (packet, model) = &mut self.packets[packet];
                let before = packet.len();
                packet.truncate(n);
                let mut left = n;
                let mut keep = 0;
                for segment in model.iter_mut() {
                    if n < before && left == 0 {
                        break;
                    }
                    keep += 1;
                    segment.bytes.truncate(left);
                    left -= segment.bytes.len();
                }
                model.truncate(keep);
            }
            Op::IntoBytes { packet, from, len } if has(packet) => {
                let (packet, model) = self.packets.remove(packet);
                let from = from.min(model[0].bytes.len());
                let to = (from + len).min(model[0].bytes.len());
                let address = packet.data()[from..].as_ptr();
                let bytes = packet.into_bytes(from..to);
                assert_eq!(bytes.as_ptr(), address);
                self.bytes.push((bytes, model[0].buffer, model[0].bytes[from..to].to_vec()));
            }
            Op::Retain { packet, from } if has(packet) => {
                let (packet, model) = &mut self.packets[packet];
                let retained = packet.retain(from);
                assert_eq!(retained.is_some(), from <= model[0].bytes.len());
                if let Some(bytes) = retained {
                    assert_eq!(bytes.as_ptr(), packet.data()[from..].as_ptr());
                    self.bytes.push((bytes, model[0].buffer, model[0].bytes[from..].to_vec()));
                }
            }
            Op::SliceBytes { bytes, from, len } if bytes < self.bytes.len() => {
                let (bytes, buffer, model) = &self.bytes[bytes];
                let from = from.min(model.len());
                let to = (from + len).min(model.len());
                let slice = (bytes.slice(from..to), *buffer, model[from..to].to_vec());
                self.bytes.push(slice);
            }
            Op::DropBytes { bytes } if bytes < self.bytes.len() => drop(self.bytes.swap_remove(bytes)),
            Op::Drop { packet } if has(packet) => drop(self.packets.remove(packet)),
            Op::Send { packet } if has(packet) => {
                let (packet, model) = self.packets.remove(packet);
                let empty = packet.is_empty();
                let mut burst = vec![packet];
                assert_eq!(self.a.tx_burst(&mut burst), 1);
                let mut received = Vec::with_capacity(1);
                assert_eq!(self.b.rx_burst(&mut received), usize::from(!empty));
                self.packets.extend(received.pop().map(|packet| (packet, model)));
            }
            _ => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 300 }))]

    #[test]
    fn packets_keep_their_content_and_shared_bytes_are_never_written(ops in prop::collection::vec(op(), 1..if cfg!(miri) { 20 } else { 120 })) {
        let mut world = World::new();
        for op in ops {
            world.run(op);
            world.check();
        }
        world.packets.clear();
        world.bytes.clear();
        prop_assert_eq!(world.a.pool_available(), POOL);
    }
}

fn nic(pool: usize) -> MemoryNic {
    Link::pair(LinkConfig { pool, ..LinkConfig::default() }).0
}

#[test]
#[should_panic(expected = "range end index 11 out of range")]
fn range_beyond_the_first_segment_panics() {
    let mut packet = nic(1).allocate().unwrap();
    packet.append(10).unwrap();
    packet.into_bytes(5..11);
}

#[test]
fn rest_of_a_chain_grows_at_its_end() {
    let mut nic = nic(5);
    let mut chain = nic.allocate().unwrap();
    for _ in 1..4 {
        chain.chain(nic.allocate().unwrap()).unwrap();
    }
    let mut left = chain.unchain().unwrap();
    left.append(1).unwrap();
    left.chain(nic.allocate().unwrap()).unwrap();
    left.append(2).unwrap();
    let lengths: Vec<_> = left.segments().map(<[u8]>::len).collect();
    assert_eq!((lengths, left.segment_count(), chain.segment_count()), (vec![0, 0, 1, 2], 4, 1));
}

#[test]
#[cfg_attr(miri, ignore = "Miri takes too long to make as long a chain")]
fn chain_longer_than_a_frame_is_rejected() {
    let mut nic = nic(MAX_SEGMENTS as usize + 1);
    let mut chain = nic.allocate().unwrap();
    for _ in 1..MAX_SEGMENTS {
        chain.chain(nic.allocate().unwrap()).unwrap();
    }
    let mut one_more = nic.allocate().unwrap();
    one_more.append(1).unwrap();
    let one_more = chain.chain(one_more).unwrap_err();
    assert_eq!((chain.segment_count(), chain.len(), one_more.len()), (MAX_SEGMENTS as usize, 0, 1));
    drop((chain, one_more));
    assert_eq!(nic.pool_available(), nic.pool_capacity());
}

#[test]
fn clone_keeps_the_requested_offload() {
    let mut nic = nic(2);
    let mut packet = nic.allocate().unwrap();
    let offload = TxOffload {
        l2_len: 14,
        l3_len: 40,
        l4_len: 20,
        ipv4: false,
        ipv4_checksum: false,
        l4_checksum: Some(L4::Tcp),
        tso: None,
    };
    packet.set_tx_offload(offload);
    let clone = packet.try_clone().unwrap();
    assert_eq!((clone.port(), clone.port().headers()), (packet.port(), Some((14, 60))));
    assert!(clone.port().requests_checksum());
}

#[test]
fn packet_does_not_inherit_the_offload_of_its_predecessor() {
    let mut nic = nic(1);
    let mut packet = nic.allocate().unwrap();
    packet.append(60).unwrap();
    packet.mark_sent(Instant::ZERO, Some(1));
    packet.mark_received();
    assert_eq!(packet.rx_info(), RxInfo { rss_hash: Some(1), ..RxInfo::default() });
    drop(packet);
    let packet = nic.allocate().unwrap();
    assert_eq!((packet.len(), packet.rx_info(), packet.port()), (0, RxInfo::default(), Port::default()));
}

#[test]
fn packets_return_from_other_threads() {
    const PACKETS: u32 = if cfg!(miri) { 200 } else { 20_000 };
    let mut nic = nic(64);
    let (to_clone, clone) = std::sync::mpsc::channel::<MemoryPacket>();
    let (to_keep, keep) = std::sync::mpsc::channel::<Bytes>();
    let cloner = std::thread::spawn(move || {
        for packet in clone {
            if let Some(mut clone) = packet.try_clone() {
                assert!(clone.data_mut().is_none());
                to_keep.send(clone.into_bytes(1..9)).unwrap();
            }
            drop(packet);
        }
    });
    let keeper = std::thread::spawn(move || {
        for bytes in keep {
            assert!(bytes.iter().all(|byte| *byte == bytes[0]));
        }
    });
    for n in 0..PACKETS {
        let mut packet = loop {
            match nic.allocate() {
                Some(packet) => break packet,
                None => std::thread::yield_now(),
            }
        };
        packet.append(10).unwrap().fill(n as u8);
        to_clone.send(packet).unwrap();
    }
    drop(to_clone);
    cloner.join().unwrap();
    keeper.join().unwrap();
    assert_eq!(nic.pool_available(), nic.pool_capacity());
}
