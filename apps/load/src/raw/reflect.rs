//! Reflector of raw frames.

use super::ETHERNET;
use linerate_bypass::{BURST, MacAddr, Nic, Packet};

/// Returns every frame in place with its Ethernet addresses swapped.
///
/// A frame to a group address returns with this port's address as its source, because no station has a group address.
/// Frames that the port does not accept at once wait, and receiving stops while the buffer is full, so that a faster
/// sender fills the port's ring.
pub struct Reflector<N: Nic> {
    nic: N,
    mac: MacAddr,
    frames: Vec<N::Packet>,
    unanswered: u64,
}

impl<N: Nic> Reflector<N> {
    /// Creates a reflector on `nic`.
    pub fn new(nic: N) -> Self {
        let mac = nic.mac();
        Reflector { nic, mac, frames: Vec::with_capacity(2 * BURST), unanswered: 0 }
    }

    /// Receives a burst and sends it back; returns the number of frames moved.
    pub fn turn(&mut self) -> usize {
        let waiting = self.frames.len();
        let received = self.nic.rx_burst(&mut self.frames);
        let mut kept = waiting;
        for at in waiting..waiting + received {
            if swap_addresses(&mut self.frames[at], self.mac) {
                self.frames.swap(kept, at);
                kept += 1;
            }
        }
        self.unanswered += (waiting + received - kept) as u64;
        self.frames.truncate(kept);
        if self.frames.is_empty() {
            return received;
        }
        received + self.nic.tx_burst(&mut self.frames)
    }

    /// Returns the number of frames not returned: shorter than an Ethernet header, or in a shared buffer.
    pub fn unanswered(&self) -> u64 {
        self.unanswered
    }

    /// Returns the queue pair.
    pub fn nic(&self) -> &N {
        &self.nic
    }
}

/// Swaps the addresses of `frame`; returns whether that was possible.
#[inline]
fn swap_addresses(frame: &mut impl Packet, own: MacAddr) -> bool {
    let Some(header) = frame.data_mut().and_then(|data| data.first_chunk_mut::<ETHERNET>()) else { return false };
    let (to, from) = header[..12].split_at_mut(6);
    to.swap_with_slice(from);
    if from[0] & 1 != 0 {
        from.copy_from_slice(&own.0);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_bypass::memory_nic::{Link, LinkConfig, MemoryNic};

    fn rig(config: LinkConfig) -> (MemoryNic, Reflector<MemoryNic>) {
        let (nic, peer) = Link::pair(config);
        (nic, Reflector::new(peer))
    }

    fn send(nic: &mut MemoryNic, bytes: &[u8]) {
        let mut frame = nic.allocate().unwrap();
        frame.append(bytes.len()).unwrap().copy_from_slice(bytes);
        assert_eq!(nic.tx_burst(&mut vec![frame]), 1);
    }

    fn received(nic: &mut MemoryNic) -> Vec<Vec<u8>> {
        let mut frames = Vec::with_capacity(BURST);
        nic.rx_burst(&mut frames);
        frames.iter().map(|frame| frame.data().to_vec()).collect()
    }

    #[test]
    fn frame_returns_with_swapped_addresses_only() {
        let (mut nic, mut reflector) = rig(LinkConfig::default());
        let bytes: Vec<u8> = (0..100).map(|n| 2 * n).collect();
        send(&mut nic, &bytes);
        assert_eq!(reflector.turn(), 2);
        assert_eq!(received(&mut nic), [[&bytes[6..12], &bytes[..6], &bytes[12..]].concat()]);
    }

    #[test]
    fn group_frame_returns_from_the_ports_address() {
        let (mut nic, mut reflector) = rig(LinkConfig::default());
        let mut bytes = [7; 60];
        bytes[..6].fill(0xff);
        bytes[6..12].copy_from_slice(&nic.mac().0);
        send(&mut nic, &bytes);
        reflector.turn();
        let back = received(&mut nic);
        assert_eq!((&back[0][..6], &back[0][6..12]), (&nic.mac().0[..], &reflector.nic().mac().0[..]));
    }

    #[test]
    fn short_frame_is_counted_and_the_rest_of_its_burst_returns() {
        let (mut nic, mut reflector) = rig(LinkConfig::default());
        for len in [60, 13, 61, 1, 14] {
            send(&mut nic, &vec![2; len]);
        }
        reflector.turn();
        let lengths: Vec<usize> = received(&mut nic).iter().map(Vec::len).collect();
        assert_eq!((lengths, reflector.unanswered()), (vec![60, 61, 14], 2));
    }

    #[test]
    fn frames_that_the_port_does_not_accept_wait() {
        let (mut nic, mut reflector) = rig(LinkConfig { ring: 8, ..LinkConfig::default() });
        let mut sent = 0_u8;
        let mut back = Vec::new();
        while back.len() < 200 {
            // Enough frames to keep the return path full most of the time.
            for _ in 0..4 {
                let mut frame = nic.allocate().unwrap();
                frame.append(60).unwrap().fill(sent & 0xfe);
                sent = sent.wrapping_add(u8::from(nic.tx_burst(&mut vec![frame]) == 1) * 2);
            }
            reflector.turn();
            if sent.is_multiple_of(3) {
                back.extend(received(&mut nic));
            }
        }
        assert_eq!(reflector.unanswered(), 0);
        for (n, frame) in back.iter().enumerate() {
            assert_eq!(usize::from(frame[59]), 2 * n % 256, "in order, and none is missing");
        }
    }
}
