//! Layout of packets, and the invariant CRC.

use super::datagrams::{KEY, address, ready, send, to};
use super::packets::*;
use super::*;
use crate::path::Path;
use crate::wire::{self, Bth, Malformed, parse};

fn hex(text: &str) -> Vec<u8> {
    let digit = |at| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(digit).collect()
}

/// Packets of other implementations.
#[test]
fn captured_packets_have_valid_icrc() {
    let captured = [
        // CNP of a ConnectX-4 Lx, with BECN.
        concat!("45c2003c718c4000401191610a0011010a001201", "000012b700280000", "8100ffff4000011800000000").to_owned()
            + "00000000000000000000000000000000"
            + "82fd002a",
        // UC SEND only of 18 bytes.
        concat!("45010040047840004011b4d5c0a80007c0a80007", "c00012b7002caca2", "2460ffff000000d300cf1710").to_owned()
            + "4630818be28935d90e9a95505401be885e500000"
            + "78f353f3",
    ];
    let [cnp, send] = captured.map(|text| hex(&text));
    let [parsed_cnp, parsed_send] = [&cnp, &send].map(|packet| parse(packet).unwrap());
    assert_eq!((parsed_cnp.bth.opcode, parsed_cnp.bth.qp, parsed_cnp.rest), (0x81, 0x118, &[0; 16][..]));
    assert_eq!(parsed_cnp.addresses(), [[10, 0, 18, 1], [10, 0, 17, 1]].map(IpAddr::from));
    assert_eq!((parsed_send.bth.opcode, parsed_send.bth.qp, parsed_send.bth.psn), (0x24, 0xd3, 0xcf_1710));
    assert_eq!((parsed_send.bth.pad, parsed_send.rest.len()), (2, 18));
    for packet in [cnp, send] {
        assert_eq!(sealed(packet[..packet.len() - 4].to_vec()), packet, "the CRC of the tests");
    }
}

/// The sum is computed in one or two parts, after zeros up to whole blocks.
#[test]
fn icrc_covers_packets_of_any_length() {
    let addresses: [[IpAddr; 2]; 2] =
        [[[10, 0, 0, 1].into(), [10, 0, 0, 2].into()], ["fd00::1".parse().unwrap(), "fd00::2".parse().unwrap()]];
    for ([from, to], len) in addresses.into_iter().flat_map(|ends| (0..600).map(move |len| (ends, len))) {
        let rest: Vec<u8> = (0..len).map(|at: usize| (at * 11 / 7) as u8).collect();
        let packet = Packet { from, to, opcode: 4, solicited: false, qp: 1, ack: true, psn: 3, rest: rest.clone() };
        assert_eq!(parse(&packet.bytes()).map(|parsed| parsed.rest.to_vec()), Ok(rest.clone()), "{len} bytes");
        let path = Path::new([from, to], 0);
        let mut own = vec![0; wire::packet_len(0, len)];
        let bth = Bth { opcode: 4, qp: 1, ack: true, psn: 3, ..Bth::default() };
        wire::write(&mut own, &path, bth, &[], len, |payload| payload.copy_from_slice(&rest));
        assert_eq!(own, packet.bytes()[path.headers(own.len()).bytes().len()..], "{len} bytes");
    }
}

/// Opcode, solicited event, acknowledgement request, extension headers and payload of a packet.
type Layout = (u8, bool, bool, Vec<u8>);

/// Returns operations with their length, and the requests and responses that they cause. `data` has 2049 bytes.
fn operations(address: u64, rkey: u32, data: &[u8]) -> Vec<(Operation, usize, Vec<Layout>, Vec<Layout>)> {
    use Operation::*;
    let (add, swap, expect) = (0x0102_0304_0506_0708, 0x1112_1314_1516_1718, 0x2122_2324_2526_2728);
    let (word, cell) = (hex("a0b0c0d0"), address + 2056);
    let immediate = 0xa0b0_c0d0;
    let only = |code, solicited, header: &[u8]| vec![(code, solicited, true, [header, &data[..3]].concat())];
    let split = |codes: [u8; 3], solicited, ack, first: &[u8], last: &[u8]| {
        vec![
            (codes[0], false, false, [first, &data[..1024]].concat()),
            (codes[1], false, false, data[1024..2048].to_vec()),
            (codes[2], solicited, ack, [last, &data[2048..]].concat()),
        ]
    };
    let (short, whole) = (reth(address, rkey, 3), reth(address, rkey, 2049));
    let with_word = [&short[..], &word].concat();
    // Each operation adds a buffer, which only SEND and WRITE with immediate take.
    let credits = [0, 0, 0, 0, 1, 2, 2, 2, 3, 4, 4, 5, 5, 5];
    let ack = |msn: usize| vec![(0x11, false, false, aeth(credits[msn], msn as u32))];
    let fetched =
        |code, msn: usize, data: &[u8]| vec![(code, false, false, [&aeth(credits[msn], msn as u32), data].concat())];
    let read = split([0x0d, 0x0e, 0x0f], false, false, &aeth(credits[9], 9), &aeth(credits[9], 9));
    let (write, write_immediate) = (Write { address, rkey }, WriteImmediate { address, rkey, immediate });
    let fetch_add = vec![(0x14, false, true, atomic_eth(cell, rkey, add, 0))];
    let compare_swap = vec![(0x13, false, true, atomic_eth(cell, rkey, swap, expect))];
    vec![
        (Send, 0, vec![(0x04, true, true, vec![])], ack(1)),
        (Send, 3, only(0x04, true, &[]), ack(2)),
        (Send, 2049, split([0x00, 0x01, 0x02], true, true, &[], &[]), ack(3)),
        (write, 3, only(0x0a, false, &short), ack(4)),
        (write, 2049, split([0x06, 0x07, 0x08], false, true, &whole, &[]), ack(5)),
        (write_immediate, 3, only(0x0b, true, &with_word), ack(6)),
        (write_immediate, 2049, split([0x06, 0x07, 0x09], true, true, &whole, &word), ack(7)),
        (Read { address, rkey }, 3, vec![(0x0c, false, true, short)], fetched(0x10, 8, &data[..3])),
        (Read { address, rkey }, 2049, vec![(0x0c, false, false, whole)], read),
        (FetchAdd { address: cell, rkey, add }, 8, fetch_add, fetched(0x12, 10, &[0; 8])),
        (CompareSwap { address: cell, rkey, expect, swap }, 8, compare_swap, fetched(0x12, 11, &add.to_be_bytes())),
        (SendImmediate(immediate), 3, only(0x05, true, &word), ack(12)),
        (SendImmediate(immediate), 2049, split([0x00, 0x01, 0x03], true, true, &[], &word), ack(13)),
    ]
}

#[test]
fn rc_packets_have_specified_layout() {
    let ends: [[IpAddr; 2]; 2] =
        [[[10, 0, 0, 1].into(), [10, 0, 0, 2].into()], ["fd00::1:2".parse().unwrap(), "fd00:5::1".parse().unwrap()]];
    for addresses in ends {
        let setup = Setup { devices: addresses.map(DeviceConfig::roce), ..Setup::default() };
        let (fabric, a, b) = connected(&setup);
        let data: Vec<u8> = (0..2049u32).map(|at| (at * 7 / 8) as u8).collect();
        a.memory.put(0, &data);
        let [mut psn, _] = [&a, &b].map(|end| end.number * 7 % (1 << 24));
        for (id, (operation, len, requests, responses)) in (0..).zip(operations(b.address(4096), b.keys.remote, &data))
        {
            b.receive(id, 2048, 2048 + 8);
            a.request(id, operation, &[a.sge(0, len)], SIGNALLED);
            fabric.take_sent();
            fabric.run();
            let sent = fabric.take_sent();
            let fetches = requests.len() < responses.len();
            let last = psn + requests.len() as u32 - 1;
            let packet = |(opcode, solicited, ack, rest), from: usize, qp, psn| Packet {
                from: addresses[from],
                to: addresses[1 - from],
                opcode,
                solicited,
                qp,
                ack,
                psn,
                rest,
            };
            let numbered = (psn..).zip(requests).map(|(psn, request)| packet(request, 0, b.number, psn));
            let first = if fetches { psn } else { last };
            let answers = (first..).zip(responses.clone()).map(|(psn, answer)| packet(answer, 1, a.number, psn));
            let expected: Vec<_> = numbered.chain(answers).collect();
            assert_eq!(sent.iter().map(|packet| Packet::read(packet)).collect::<Vec<_>>(), expected);
            let headers = if addresses[0].is_ipv4() { 28 } else { 48 };
            for (sent, expected) in sent.iter().zip(&expected) {
                assert_eq!(sent[headers..], expected.bytes()[headers..], "{operation:?}");
            }
            psn = if fetches { psn + responses.len() as u32 } else { last + 1 };
            assert_eq!(a.ends(), [(id, WcStatus::Success)]);
            b.poll();
            // Later operations transfer the same bytes.
            a.memory.put(0, &data);
        }
        let operation = b.memory.get(4096 + 2056, 8);
        assert_eq!(operation, 0x0102_0304_0506_0708u64.to_ne_bytes(), "unequal to the expected number");
    }
}

#[test]
fn datagram_has_specified_layout() {
    let (fabric, a, b) = ready(&Setup::default());
    send(&a, 1, to(address(&a, &b), &b), b"abc");
    fabric.run();
    let [from, to] = [1, 2].map(|last| IpAddr::from([10, 0, 0, last]));
    let rest = [deth(KEY, a.number), b"abc".to_vec()].concat();
    let expected = Packet { from, to, opcode: 0x64, solicited: true, qp: b.number, ack: false, psn: 7, rest };
    let sent = fabric.take_sent();
    assert_eq!(sent.iter().map(|packet| packet[28..].to_vec()).collect::<Vec<_>>(), [&expected.bytes()[28..]]);
}

#[test]
fn invalid_headers_are_discarded() {
    let addresses: [[IpAddr; 2]; 2] =
        [[[10, 0, 0, 1].into(), [10, 0, 0, 2].into()], ["fd00::1".parse().unwrap(), "fd00::2".parse().unwrap()]];
    for [from, to] in addresses {
        let (opcode, qp, psn) = (4, 0x12_3456, 0xab_cdef);
        let packet = Packet { from, to, opcode, solicited: true, qp, ack: true, psn, rest: vec![1, 2, 3] };
        let bytes = packet.bytes();
        let parsed = parse(&bytes).unwrap();
        assert_eq!((parsed.addresses(), parsed.rest), ([to, from], &[1, 2, 3][..]));
        assert_eq!((parsed.bth.qp, parsed.bth.psn, parsed.bth.pad), (qp, psn, 1));
        assert!(parsed.bth.solicited && parsed.bth.ack);
        assert!(parse(&[&bytes[..], &[9; 8]].concat()).is_ok(), "with padding of Ethernet");
        for len in 0..bytes.len() {
            assert!(parse(&bytes[..len]).is_err(), "{len} bytes");
        }
        let udp = if from.is_ipv4() { 20 } else { 40 };
        let bth = udp + 8;
        // Bits that routers change are not covered; those of the length change the place of the CRC.
        let variable = |at: usize, bit: u8| match (at, udp) {
            (0, 40) => bit < 4,
            (1 | 8 | 10 | 11, 20) | (1 | 2 | 3 | 7, 40) => true,
            _ => [udp + 6, udp + 7, bth + 4].contains(&at),
        };
        for (at, bit) in (0..bytes.len()).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
            let mut changed = bytes.clone();
            changed[at] ^= 1 << bit;
            assert_eq!(parse(&changed).is_ok(), variable(at, bit), "byte {at} bit {bit}");
        }
        let resealed = |at: usize, value: u8| {
            let mut changed = bytes[..bytes.len() - 4].to_vec();
            changed[at] = value;
            let changed = sealed(changed);
            parse(&changed).map(|packet| (packet.bth.opcode, packet.rest.len()))
        };
        assert_eq!(resealed(bth + 2, 0x7f), Ok((4, 3)), "limited member of the partition");
        assert_eq!(resealed(bth, 0xff), Ok((0xff, 3)), "any opcode");
        for (at, value) in [(bth + 1, 0x51), (bth + 2, 0xfe), (bth + 3, 0xfe), (0, 0x46), (0, 0x75)] {
            assert_eq!(resealed(at, value), Err(Malformed::Header), "byte {at}");
        }
    }
    let [from, to] = addresses[0];
    let short = Packet { from, to, opcode: 4, solicited: false, qp: 1, ack: false, psn: 0, rest: vec![] };
    let mut padded = short.bytes()[..40].to_vec();
    padded[29] |= 0x30;
    assert_eq!(parse(&sealed(padded)).err(), Some(Malformed::Header), "more padding than payload");
}
