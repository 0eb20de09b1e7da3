//! Packets of a scripted peer, written and read without the code under test.

use std::fmt;
use std::net::IpAddr;

/// Packet between two addresses.
#[derive(Clone, PartialEq, Eq)]
pub struct Packet {
    pub from: IpAddr,
    pub to: IpAddr,
    pub opcode: u8,
    pub solicited: bool,
    pub qp: u32,
    pub ack: bool,
    pub psn: u32,
    /// Extension headers and payload.
    pub rest: Vec<u8>,
}

impl Packet {
    /// Returns the packet from the IP header on. Fields that routers change have arbitrary values.
    pub fn bytes(&self) -> Vec<u8> {
        let pad = self.rest.len().next_multiple_of(4) - self.rest.len();
        let udp_len = (8 + 12 + self.rest.len() + pad + 4) as u16;
        let mut bytes = match (self.from, self.to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let len = (20 + udp_len).to_be_bytes();
                [&[0x45, 0x8a], &len[..], &[0, 0, 0x40, 0, 61, 17, 0xbe, 0xef], &from.octets(), &to.octets()].concat()
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let len = udp_len.to_be_bytes();
                [&[0x68, 0xa5, 1, 2], &len[..], &[17, 61], &from.octets(), &to.octets()].concat()
            }
            _ => panic!("two families"),
        };
        bytes.extend([4791u16, 4791, udp_len, 0xbeef].map(u16::to_be_bytes).concat());
        let flags = u8::from(self.solicited) << 7 | 0x40 | (pad as u8) << 4;
        bytes.extend([self.opcode, flags, 0xff, 0xff]);
        bytes.extend(self.qp.to_be_bytes());
        bytes.extend((u32::from(self.ack) << 31 | self.psn).to_be_bytes());
        bytes.extend(&self.rest);
        bytes.resize(bytes.len() + pad, 0);
        sealed(bytes)
    }

    /// Reads a packet with a correct ICRC.
    pub fn read(bytes: &[u8]) -> Self {
        let address = |at: usize, len: usize| match <[u8; 4]>::try_from(&bytes[at..at + len]) {
            Ok(octets) => IpAddr::from(octets),
            Err(_) => IpAddr::from(<[u8; 16]>::try_from(&bytes[at..at + len]).unwrap()),
        };
        let (from, to, at) = match bytes[0] >> 4 {
            4 => (address(12, 4), address(16, 4), 28),
            _ => (address(8, 16), address(24, 16), 48),
        };
        let (whole, crc) = bytes.split_at(bytes.len() - 4);
        assert_eq!(crc, icrc(whole).to_le_bytes(), "ICRC");
        let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
        Packet {
            from,
            to,
            opcode: bytes[at],
            solicited: bytes[at + 1] & 0x80 != 0,
            qp: word(at + 4),
            ack: bytes[at + 8] & 0x80 != 0,
            psn: word(at + 8) & 0xff_ffff,
            rest: whole[at + 12..whole.len() - usize::from(bytes[at + 1] >> 4 & 3)].to_vec(),
        }
    }
}

impl fmt::Debug for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Packet { opcode, solicited, qp, ack, psn, rest, .. } = self;
        let start = &rest[..rest.len().min(40)];
        write!(f, "{opcode:#04x} to {qp:#x}, {psn:#x}, {solicited}, {ack}, {} bytes: {start:x?}", rest.len())
    }
}

/// Appends the ICRC.
pub fn sealed(bytes: Vec<u8>) -> Vec<u8> {
    let crc = icrc(&bytes).to_le_bytes();
    [bytes, crc.to_vec()].concat()
}

/// Returns the ICRC of a packet from the IP header on (annex A17.3.3), bit by bit.
pub fn icrc(packet: &[u8]) -> u32 {
    // Version 6: traffic class and flow label, hop limit. Version 4: type of service, time to live, header checksum.
    let (masked, udp): (&[usize], usize) = match packet[0] >> 4 {
        6 => (&[1, 2, 3, 7], 40),
        _ => (&[1, 8, 10, 11], 20),
    };
    let byte = |(at, &byte): (usize, &u8)| match at {
        0 if packet[0] >> 4 == 6 => byte | 0x0f,
        at if masked.contains(&at) => 0xff,
        // UDP checksum; FECN, BECN and reserved bits.
        at if at == udp + 6 || at == udp + 7 || at == udp + 12 => 0xff,
        _ => byte,
    };
    let bytes = [0xff; 8].into_iter().chain(packet.iter().enumerate().map(byte));
    !bytes.fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 })
    })
}

pub fn reth(address: u64, rkey: u32, len: u32) -> Vec<u8> {
    [&address.to_be_bytes()[..], &rkey.to_be_bytes(), &len.to_be_bytes()].concat()
}

pub fn atomic_eth(address: u64, rkey: u32, swap: u64, compare: u64) -> Vec<u8> {
    [&address.to_be_bytes()[..], &rkey.to_be_bytes(), &swap.to_be_bytes(), &compare.to_be_bytes()].concat()
}

pub fn aeth(syndrome: u8, msn: u32) -> Vec<u8> {
    (u32::from(syndrome) << 24 | msn).to_be_bytes().to_vec()
}

pub fn deth(key: u32, source: u32) -> Vec<u8> {
    [key.to_be_bytes(), source.to_be_bytes()].concat()
}
