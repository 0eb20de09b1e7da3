//! Test frames, and the sending and echoing ends.

use super::process::{is_orphan, wait_for};
use linerate_bypass::dpdk::{Backing, Eal, EalConfig, Hugepages, Mbuf, Port, PortConfig, QueuePair};
use linerate_bypass::{BURST, Nic, Packet};
use std::time::Duration;

/// Starts EAL with ordinary pages, so that the tests require nothing of the machine.
pub fn eal() -> Eal {
    start(EalConfig { hugepages: Hugepages::Never, memory_mb: Some(256), ..EalConfig::default() })
}

/// Starts EAL with hugepages, if enough are free.
pub fn eal_in_hugepages() -> Option<Eal> {
    let config = EalConfig { hugepages: Hugepages::Require, ..EalConfig::default() };
    match Eal::start(&config) {
        Ok(eal) => {
            assert_eq!(*eal.backing(), Backing::Hugepages);
            Some(eal)
        }
        Err(error) => {
            eprintln!("skipped: a link between hugepages ({error})");
            None
        }
    }
}

/// Starts EAL with additional arguments.
pub fn eal_with(arguments: &[&str]) -> Eal {
    let arguments = arguments.iter().map(|argument| argument.to_string()).collect();
    start(EalConfig { hugepages: Hugepages::Never, memory_mb: Some(256), arguments, ..EalConfig::default() })
}

fn start(config: EalConfig) -> Eal {
    Eal::start(&config).unwrap()
}

/// Opens a port of `via` with a small pool, which is quick to check.
pub fn small() -> PortConfig {
    PortConfig { pool_size: Some(4096), peer_timeout: Some(Duration::from_secs(45)), ..PortConfig::default() }
}

pub fn open(eal: &Eal, via: &str, config: PortConfig) -> Port {
    Port::open(eal, &via.parse().unwrap(), config).unwrap_or_else(|error| panic!("{via}: {error}"))
}

/// Returns frame `n` of `len` bytes: an Ethernet header of a local experimental type, the number, and a pattern.
pub fn frame(n: u64, len: usize) -> Vec<u8> {
    let mut frame = vec![0; len];
    frame[..6].copy_from_slice(&[0xff; 6]);
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 9]);
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame[14..22].copy_from_slice(&n.to_be_bytes());
    for (at, byte) in frame.iter_mut().enumerate().skip(22) {
        *byte = (n as usize * 31 + at) as u8;
    }
    frame
}

/// Returns the number of a test frame that arrived intact, or `None` for another frame.
pub fn number(frame_bytes: &[u8]) -> Option<u64> {
    if frame_bytes.get(12..14)? != [0x88, 0xb5] {
        return None;
    }
    let n = u64::from_be_bytes(frame_bytes.get(14..22)?.try_into().unwrap());
    assert_eq!(frame_bytes, frame(n, frame_bytes.len()), "frame {n} arrived changed");
    Some(n)
}

pub fn bytes(packet: &Mbuf) -> Vec<u8> {
    packet.segments().flatten().copied().collect()
}

pub fn packet(queue: &mut QueuePair, bytes: &[u8]) -> Mbuf {
    let mut packet = queue.allocate().expect("the pool is empty");
    packet.append(bytes.len()).expect("the frame does not fit").copy_from_slice(bytes);
    packet
}

/// Sends frames `from..to` of `len` bytes, a burst at a time, and waits for each to return.
pub fn bounce(queue: &mut QueuePair, numbers: std::ops::Range<u64>, len: usize) {
    let (mut out, mut back) = (Vec::with_capacity(BURST), Vec::with_capacity(BURST));
    let mut next = numbers.start;
    while next < numbers.end {
        let burst = (numbers.end - next).min(BURST as u64);
        for n in next..next + burst {
            out.push(packet(queue, &frame(n, len)));
        }
        let mut expected = next;
        wait_for("a frame's return", || {
            queue.tx_burst(&mut out);
            queue.rx_burst(&mut back);
            for packet in back.drain(..) {
                if let Some(n) = number(&bytes(&packet)) {
                    assert_eq!(n, expected, "frames returned in another order");
                    expected += 1;
                }
            }
            expected == next + burst
        });
        next += burst;
    }
}

/// Echoes every received frame until the parent process ends.
pub fn echo(queue: &mut QueuePair) {
    let mut frames = Vec::with_capacity(BURST);
    while !is_orphan() {
        queue.rx_burst(&mut frames);
        queue.tx_burst(&mut frames);
    }
}
