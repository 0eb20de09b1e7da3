//! Captures of RoCEv2 packets: checked by `tshark`, and their ICRC by an implementation independent of linerate's.

use crate::error::{Context, Result, failed};
use crate::host::Lab;
use crate::program::Program;
use std::fs;
use std::path::Path;
use std::process::Command;

/// UDP port of RoCEv2.
const ROCE: u16 = 4791;
/// Filter of packets that are malformed, or not recognised as RoCEv2.
const WRONG: &str = "_ws.malformed or (udp.dstport == 4791 and not infiniband)";
/// Lengths of the headers of a pcap file, of its records, of Ethernet, and of UDP.
const FILE: usize = 24;
const RECORD: usize = 16;
const ETHERNET: usize = 14;
const UDP: usize = 8;
/// Offset in the BTH of the byte that the ICRC masks.
const RESV8A: usize = 4;

/// Checks a capture and returns its number of RoCEv2 packets.
pub fn check(lab: &Lab, file: &Path) -> Result<usize> {
    let wrong = tshark(lab, file, &["-Y", WRONG])?;
    if let Some(line) = wrong.lines().next() {
        return failed(format!("{} packets are malformed, the first one: {line}", wrong.lines().count()));
    }
    // `tshark` shows the ICRC, but does not check it.
    let plain = file.with_extension("pcap");
    tshark(lab, file, &["-F", "pcap", "-w", &plain.to_string_lossy()])?;
    let bytes = fs::read(&plain).context("the capture")?;
    let crc = Crc::new();
    let mut count = 0;
    for (number, frame) in (1..).zip(frames(&bytes)) {
        match icrc(&crc, frame) {
            None => {}
            Some((carried, expected)) if carried == expected => count += 1,
            Some((carried, expected)) => {
                return failed(format!("packet {number} has the ICRC {carried:#010x} instead of {expected:#010x}"));
            }
        }
    }
    fs::remove_file(plain).context("the capture")?;
    if count == 0 { failed("no packet was captured") } else { Ok(count) }
}

fn tshark(lab: &Lab, file: &Path, arguments: &[&str]) -> Result<String> {
    let mut command = Command::new("tshark");
    // Its heuristic for RPC takes short messages for malformed RPC messages.
    command.args(["-n", "--disable-protocol", "rpcordma", "-r"]).arg(file).args(arguments);
    Ok(Program::start("tshark", &command, &lab.log)?.succeed()?.stdout)
}

/// Returns the frames of a pcap file.
fn frames(mut file: &[u8]) -> impl Iterator<Item = &[u8]> {
    file = file.get(FILE..).unwrap_or_default();
    std::iter::from_fn(move || {
        let (record, rest) = file.split_at_checked(RECORD)?;
        let len = u32::from_le_bytes(*record[8..].first_chunk()?);
        let (frame, rest) = rest.split_at_checked(len as usize)?;
        file = rest;
        Some(frame)
    })
}

/// Returns the ICRC that a RoCEv2 packet over IPv4 carries, and the one that it should carry (IBA A17.3.3); `None` for
/// other frames.
fn icrc(crc: &Crc, frame: &[u8]) -> Option<(u32, u32)> {
    let ip = frame.get(ETHERNET..)?;
    let (is_ipv4, is_udp) = (frame[12..14] == [8, 0] && ip.first()? >> 4 == 4, *ip.get(9)? == 17);
    let len = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
    let header = usize::from(ip[0] & 15) * 4;
    let port = u16::from_be_bytes(*ip.get(header + 2..)?.first_chunk()?);
    if !(is_ipv4 && is_udp && port == ROCE) {
        return None;
    }
    let (covered, carried) = ip.get(..len)?.split_last_chunk()?;
    // Eight bytes in place of a local route header, and the bytes that routers may change, are ones.
    let mut bytes = [&[0xff; 8], covered].concat();
    let bth = header + UDP;
    for masked in [1, 8, 10, 11, header + 6, header + 7, bth + RESV8A] {
        *bytes.get_mut(8 + masked)? = 0xff;
    }
    Some((u32::from_le_bytes(*carried), crc.of(&bytes)))
}

/// CRC-32 of IEEE 802.3, by bytes.
struct Crc([u32; 256]);

impl Crc {
    fn new() -> Crc {
        let step = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
        Crc(std::array::from_fn(|byte| (0..8).fold(byte as u32, step)))
    }

    fn of(&self, bytes: &[u8]) -> u32 {
        !bytes.iter().fold(!0, |crc, byte| crc >> 8 ^ self.0[usize::from(crc as u8 ^ byte)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn icrc_of_a_published_packet_is_correct() {
        // Congestion notification packet of a ConnectX-4 Lx.
        let packet = "45c2003c718c4000401191610a0011010a001201000012b7002800008100ffff4000011800000000";
        let hex = |text: &str| -> Vec<u8> {
            (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
        };
        let frame = [&[0; 12][..], &[8, 0], &hex(packet), &[0; 16], &hex("82fd002a")].concat();
        assert_eq!(icrc(&Crc::new(), &frame), Some((0x2a00_fd82, 0x2a00_fd82)));
        assert_eq!(icrc(&Crc::new(), &frame[..40]), None);
    }
}
