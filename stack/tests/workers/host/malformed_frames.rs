//! Malformed and random frames cause no harm.

use crate::common::{HOST_MAC, frames, server};
use crate::host::protocols::{Bench, mac_of};
use linerate_service::time::Duration;
use proptest::prelude::*;
use smoltcp::wire::*;
use std::net::{Ipv4Addr, SocketAddr};

/// Returns valid frames to the host, for mutation.
fn seeds() -> Vec<Vec<u8>> {
    let (four, six) = ("10.0.0.2:7".parse().unwrap(), "[fd00::2]:7".parse().unwrap());
    let (from4, from6) = ("10.0.0.1:5000".parse().unwrap(), "[fd00::1]:5000".parse().unwrap());
    let syn = TcpRepr {
        control: TcpControl::Syn,
        max_seg_size: Some(1460),
        window_scale: Some(7),
        sack_permitted: true,
        ..frames::segment()
    };
    let data = TcpRepr {
        control: TcpControl::Psh,
        seq_number: TcpSeqNumber(1),
        ack_number: Some(TcpSeqNumber(1)),
        payload: b"some payload",
        ..frames::segment()
    };
    let fin = TcpRepr { control: TcpControl::Fin, ..data };
    let rst = TcpRepr { control: TcpControl::Rst, ..data };
    let mut seeds = Vec::new();
    for segment in [syn, data, fin, rst] {
        seeds.push(frames::tcp(mac_of(1), HOST_MAC, from4, four, segment));
        seeds.push(frames::tcp(mac_of(1), HOST_MAC, from6, six, segment));
    }
    for (from, to) in [(from4, four), (from6, six)] {
        let (source, destination): (SocketAddr, SocketAddr) = (from, to);
        let write = |bytes: &mut [u8], from: IpAddress, to: IpAddress| {
            let udp = UdpRepr { src_port: source.port(), dst_port: destination.port() };
            udp.emit(&mut UdpPacket::new_unchecked(bytes), &from, &to, 56, |b| b.fill(5), &Default::default());
        };
        seeds.push(frames::ip(mac_of(1), HOST_MAC, from.ip(), to.ip(), IpProtocol::Udp, 64, |b, from, to| {
            write(b, from, to)
        }));
    }
    for protocol in [IpProtocol::Icmp, IpProtocol::Udp, IpProtocol::Igmp, IpProtocol::Unknown(200)] {
        seeds.push(frames::ip(mac_of(1), HOST_MAC, from4.ip(), four.ip(), protocol, 64, |b, _, _| b.fill(3)));
    }
    for protocol in [IpProtocol::Icmpv6, IpProtocol::HopByHop, IpProtocol::Ipv6Frag, IpProtocol::Ipv6Route] {
        seeds.push(frames::ip(mac_of(1), HOST_MAC, from6.ip(), six.ip(), protocol, 64, |b, _, _| b.fill(0)));
    }
    seeds.push(
        [
            &[0xff; 6][..],
            &mac_of(1),
            &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1],
            &mac_of(1),
            &[10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2],
        ]
        .concat(),
    );
    seeds
}

/// Recomputes the checksums, so that a mutated frame passes further checks.
fn fix_checksums(frame: &mut [u8]) {
    if frame.len() < 54 || frame[12..14] != [8, 0] {
        return;
    }
    let mut ip = Ipv4Packet::new_unchecked(&mut frame[14..]);
    if ip.check_len().is_err() || usize::from(ip.header_len()) < 20 {
        return;
    }
    ip.fill_checksum();
    let (source, to) = (ip.src_addr().into(), ip.dst_addr().into());
    let protocol = ip.next_header();
    let payload = ip.payload_mut();
    match protocol {
        IpProtocol::Tcp if payload.len() >= 20 => TcpPacket::new_unchecked(payload).fill_checksum(&source, &to),
        IpProtocol::Udp if payload.len() >= 8 => {
            let mut udp = UdpPacket::new_unchecked(payload);
            if usize::from(udp.len()) >= 8 && usize::from(udp.len()) <= udp.as_ref().len() {
                udp.fill_checksum(&source, &to);
            }
        }
        IpProtocol::Icmp if payload.len() >= 8 => Icmpv4Packet::new_unchecked(payload).fill_checksum(),
        _ => {}
    }
}

proptest! {
    #[test]
    fn mutated_frames_are_harmless(
        frames in prop::collection::vec(
            (any::<prop::sample::Index>(), prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
             prop::option::of(any::<prop::sample::Index>()), any::<bool>()),
            1..60,
        )
    ) {
        let mut bench = Bench::new(&server());
        bench.introduce(Ipv4Addr::new(10, 0, 0, 1), mac_of(1));
        let seeds = seeds();
        for (seed, spoil, cut, mended) in frames {
            let mut frame = seeds[seed.index(seeds.len())].clone();
            for (at, byte) in spoil {
                let at = at.index(frame.len());
                frame[at] = byte;
            }
            if mended {
                fix_checksums(&mut frame);
            }
            if let Some(cut) = cut {
                frame.truncate(cut.index(frame.len()) + 1);
            }
            bench.send(&frame);
            bench.now += Duration::from_millis(7);
        }
        // The host still serves other stations, and no packet is lost.
        let syn = TcpRepr { control: TcpControl::Syn, ..frames::segment() };
        bench.introduce(Ipv4Addr::new(10, 0, 0, 3), mac_of(3));
        let from = "10.0.0.3:6000".parse().unwrap();
        let replies = bench.send(&frames::tcp(mac_of(3), HOST_MAC, from, "10.0.0.2:7".parse().unwrap(), syn));
        let answered = replies.iter().any(|reply| {
            reply[..6] == mac_of(3) && TcpPacket::new_checked(&reply[34..]).is_ok_and(|tcp| tcp.syn() && tcp.ack())
        });
        prop_assert!(answered);
    }

    #[test]
    fn random_frames_are_harmless(frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..200), 1..50)) {
        let mut bench = Bench::new(&server());
        let n = frames.len() as u64;
        for bytes in &frames {
            bench.send(bytes);
        }
        let drops: u64 = bench.host.workers[0].summary().drops.values().sum();
        prop_assert!(drops <= n);
        prop_assert_eq!(bench.nic.pool_available(), bench.nic.pool_capacity());
    }
}
