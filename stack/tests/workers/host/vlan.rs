//! VLANs: hosts of one VLAN communicate only with each other, and the stack above is unaffected.

use crate::common::client::Client;
use crate::common::services::Echo;
use crate::common::{HOST_MAC, Net, SERVER, SERVER6, frames, host, server};
use crate::host::protocols::Bench;
use linerate_bypass::memory_nic::{LinkConfig, MemoryNic};
use linerate_service::time::Duration;
use linerate_stack::{Config, Engine, VlanId};
use proptest::prelude::*;
use smoltcp::wire::{ArpOperation, TcpControl, TcpPacket, TcpRepr};

const MINUTE: Duration = Duration::from_secs(60);
const OTHER: [u8; 6] = [2, 1, 0, 0, 0, 1];
const DROPPED: &str = "frame of another VLAN";

fn vlan(id: u16) -> Option<VlanId> {
    VlanId::new(id).ok()
}

with_each_engine! {
    hosts_of_same_vlan_exchange_streams,
}

fn hosts_of_same_vlan_exchange_streams<A: Engine<MemoryNic>, B: Engine<MemoryNic>>() {
    let plain = LinkConfig::default;
    let tso = |vlan| LinkConfig { checksum_offload: true, tso: Some(32_000), data_room: 4096, vlan, ..plain() };
    let links = [
        ("software", plain()),
        ("software, no chains", LinkConfig { multi_segment: false, ..plain() }),
        ("software, TSO", tso(false)),
        ("port", LinkConfig { vlan: true, ..plain() }),
        ("port, TSO", tso(true)),
    ];
    for (by, link) in links {
        for to in [SERVER, SERVER6] {
            let (a, b) = (Config { vlan: vlan(5), ..host(1) }, Config { vlan: vlan(5), ..server() });
            let by_port = link.vlan;
            let client = || Client::new(to, 3, 100_000);
            let mut net: Net<_, _, A, B> = Net::start_with(link.clone(), 1, &a, client, &b, Echo::default);
            net.link.capture();
            net.expect("every connection closed", MINUTE, |net| net.a.service().all_finished());
            net.a.service().assert_exact();
            let captured = net.link.captured();
            assert!(captured.len() > 10, "{by}: {}", captured.len());
            for frame in captured {
                // A port inserts its tag after the capture point.
                assert_eq!(frame.bytes[12..16] == [0x81, 0, 0, 5], !by_port, "{by}: {:x?}", &frame.bytes[..16]);
            }
            assert_eq!((net.a.drops(DROPPED), net.b.drops(DROPPED)), (0, 0), "{by}");
        }
    }
}

#[test]
fn hosts_of_different_vlans_are_isolated() {
    for (a, b) in [(vlan(5), vlan(6)), (vlan(5), None), (None, vlan(5))] {
        for by_port in [false, true] {
            let link = LinkConfig { vlan: by_port, ..LinkConfig::default() };
            if by_port && b.is_none() {
                // A port without tag offload keeps the tag.
                continue;
            }
            let (a_config, b_config) = (Config { vlan: a, ..host(1) }, Config { vlan: b, ..server() });
            let mut net = Net::with(link, 1, &a_config, || Client::new(SERVER, 1, 10), &b_config, Echo::default);
            net.expect("the connection closed", MINUTE, |net| net.a.service().all_finished());
            assert!(net.a.service().outcomes[0].failed.is_some());
            assert!(net.b.drops(DROPPED) >= 3, "every ARP request");
            assert_eq!(net.b.workers[0].summary().accepted, 0);
        }
    }
}

/// Returns a host in `vlan` that knows 10.0.0.1.
fn bench(vlan: Option<VlanId>) -> Bench {
    let mut bench = Bench::new(&Config { vlan, ..server() });
    bench.send(&arp());
    if let Some(vlan) = vlan {
        bench.send(&tagged(&arp(), vlan.get()));
    }
    bench
}

/// Returns an ARP request for the worker's address.
fn arp() -> Vec<u8> {
    frames::arp(ArpOperation::Request, (OTHER, [10, 0, 0, 1].into()), ([0xff; 6], [10, 0, 0, 2].into()))
}

fn syn() -> Vec<u8> {
    let syn = TcpRepr { control: TcpControl::Syn, ..frames::segment() };
    frames::tcp(OTHER, HOST_MAC, "10.0.0.1:5000".parse().unwrap(), "10.0.0.2:7".parse().unwrap(), syn)
}

fn tagged(frame: &[u8], tci: u16) -> Vec<u8> {
    [&frame[..12], &[0x81, 0], &tci.to_be_bytes(), &frame[12..]].concat()
}

fn is_syn_ack(frame: &[u8]) -> bool {
    frame[12..14] == [8, 0] && TcpPacket::new_checked(&frame[34..]).is_ok_and(|tcp| tcp.syn() && tcp.ack())
}

/// IEEE 802.1Q §6.9: a tag with VLAN id 0 carries only a priority.
#[test]
fn priority_tagged_frame_counts_as_untagged() {
    for tci in [0, 0xe000, 0x1000, 0xf000] {
        let mut bench = bench(None);
        let replies = bench.send(&tagged(&arp(), tci));
        assert_eq!(replies[0][12..14], [8, 6], "the reply has no tag");
        assert!(is_syn_ack(&bench.send(&tagged(&syn(), tci))[0]));
        assert_eq!(bench.host.drops(DROPPED), 0);
    }
}

#[test]
fn other_or_double_tag_is_dropped_and_counted() {
    for own in [None, vlan(5)] {
        let mut bench = bench(own);
        let before = bench.host.drops(DROPPED);
        let tag = own.map_or(0, VlanId::get);
        let doubled = [tagged(&tagged(&syn(), 7), tag), tagged(&tagged(&syn(), tag), tag)];
        let mut service = tagged(&tagged(&syn(), 7), tag);
        service[16..18].copy_from_slice(&[0x88, 0xa8]);
        let others = [4, 6, 0xe006, 0xfff].map(|tci| tagged(&syn(), tci));
        let mut wrong = [&doubled[..], &others, &[service]].concat();
        if own.is_some() {
            wrong.extend([syn(), tagged(&syn(), 0), tagged(&syn(), 0xe000)]);
        }
        for frame in &wrong {
            assert_eq!(bench.send(frame), Vec::<Vec<u8>>::new(), "{own:?}: {:x?}", &frame[12..20]);
        }
        assert_eq!(bench.host.drops(DROPPED) - before, wrong.len() as u64);
        // Valid frames are accepted with any priority.
        let right = if own.is_some() { tagged(&syn(), tag | 0xe000) } else { syn() };
        let reply = &bench.send(&right)[0];
        assert!(match own {
            Some(vlan) =>
                reply[12..16] == tagged(&[0; 12], vlan.get())[12..]
                    && is_syn_ack(&[&reply[..12], &reply[16..]].concat()),
            None => is_syn_ack(reply),
        });
    }
}

#[test]
fn vlan_id_is_1_to_4094() {
    for (text, right) in [("1", true), ("4094", true), ("0", false), ("4095", false), ("65536", false), ("x", false)] {
        let read: Result<VlanId, _> = text.parse();
        assert_eq!(read.is_ok(), right, "{text}");
        if let Err(error) = read {
            assert!(error.to_string().contains(text) && error.to_string().contains("1 to 4094"), "{error}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    /// Frames cut at any length, with random bytes after their addresses.
    #[test]
    fn mutated_tags_are_harmless(
        own in prop::option::of(1u16..4095),
        spoilt in prop::collection::vec((any::<bool>(), any::<[u8; 4]>(), any::<bool>(), 1usize..80), 1..40),
    ) {
        let mut bench = bench(own.and_then(vlan));
        for (twice, bytes, is_tag, cut) in spoilt {
            let mut frame = tagged(&syn(), own.unwrap_or(0));
            if twice {
                frame = tagged(&frame, own.unwrap_or(0));
            }
            frame[12..16].copy_from_slice(&bytes);
            if is_tag {
                frame[12..14].copy_from_slice(&[0x81, 0]);
            }
            frame.truncate(cut);
            bench.send(&frame);
        }
        let right = own.map_or_else(syn, |own| tagged(&syn(), own));
        let answered = bench.send(&right).iter().any(|reply| {
            is_syn_ack(&if own.is_some() { [&reply[..12], &reply[16..]].concat() } else { reply.clone() })
        });
        prop_assert!(answered);
    }
}
