//! Invariants of the segments that the native engine sends.

use crate::scenario::{Change, EngineKind, Scenario};
use linerate_bypass::memory_nic::Frame;
use smoltcp::wire::{EthernetFrame, EthernetProtocol, IpAddress, IpProtocol, Ipv4Packet, Ipv6Packet, TcpPacket};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;

/// Returns the distance from `b` to `a` in sequence space.
fn beyond(a: u32, b: u32) -> i32 {
    a.wrapping_sub(b) as i32
}

#[derive(Debug, Default)]
struct Options {
    mss: Option<u16>,
    scale: Option<u8>,
    timestamp: Option<u32>,
    sack: Vec<(u32, u32)>,
}

impl Options {
    fn read(mut bytes: &[u8]) -> Self {
        let mut options = Options::default();
        let word = |bytes: &[u8]| u32::from_be_bytes(bytes[..4].try_into().unwrap());
        while let [kind, rest @ ..] = bytes {
            let len = match kind {
                0 => break,
                1 => 1,
                _ => usize::from(rest[0]),
            };
            let value = &bytes[len.min(2)..len];
            match kind {
                2 => options.mss = Some(u16::from_be_bytes([value[0], value[1]])),
                3 => options.scale = Some(value[0]),
                5 => options.sack = value.chunks(8).map(|block| (word(block), word(&block[4..]))).collect(),
                8 => options.timestamp = Some(word(value)),
                _ => {}
            }
            bytes = &bytes[len..];
        }
        options
    }
}

/// Parsed segment.
#[derive(Debug)]
struct Segment {
    seq: u32,
    ack: Option<u32>,
    syn: bool,
    fin: bool,
    rst: bool,
    window: u16,
    header: usize,
    payload: usize,
    options: Options,
}

/// Segments sent by one end of a connection.
#[derive(Debug, Default, Clone)]
struct Half {
    isn: u32,
    /// True if SYN-ACKs with several ISNs have been sent, as with cookies: the valid one is unknown.
    ambiguous: bool,
    mss: u16,
    scale: Option<u8>,
    /// Sequence number after the last one sent.
    next: u32,
    fin: Option<u32>,
    ack: Option<u32>,
    edge: Option<u32>,
    timestamp: Option<u32>,
}

/// Checker of every frame.
pub struct Wire {
    scenario: Rc<Scenario>,
    /// True if the link has no outages.
    always_up: bool,
    /// Half connections by source and destination.
    halves: HashMap<(SocketAddr, SocketAddr), Half>,
}

impl Wire {
    pub fn new(scenario: Rc<Scenario>) -> Self {
        let always_up = !scenario.timeline.iter().any(|(_, change)| matches!(change, Change::Link(false)));
        Wire { scenario, always_up, halves: HashMap::new() }
    }

    /// Checks `frame`, which was just sent.
    ///
    /// # Panics
    /// If the native engine must not send it.
    pub fn frame(&mut self, frame: &Frame) {
        let ethernet = EthernetFrame::new_unchecked(&frame.bytes[..]);
        let packet = ethernet.payload();
        let (from, to, tcp): (IpAddress, IpAddress, &[u8]) = match ethernet.ethertype() {
            EthernetProtocol::Ipv4 => {
                let ip = Ipv4Packet::new_unchecked(packet);
                if ip.next_header() != IpProtocol::Tcp {
                    return;
                }
                assert!(self.scenario.link.checksum_offload || ip.verify_checksum());
                (ip.src_addr().into(), ip.dst_addr().into(), &packet[20..usize::from(ip.total_len())])
            }
            EthernetProtocol::Ipv6 => {
                let ip = Ipv6Packet::new_unchecked(packet);
                if ip.next_header() != IpProtocol::Tcp {
                    return;
                }
                (ip.src_addr().into(), ip.dst_addr().into(), &packet[40..40 + usize::from(ip.payload_len())])
            }
            _ => return,
        };
        let segment = TcpPacket::new_unchecked(tcp);
        let flow = (SocketAddr::new(from.into(), segment.src_port()), SocketAddr::new(to.into(), segment.dst_port()));
        let header = usize::from(segment.header_len());
        let segment = Segment {
            seq: segment.seq_number().0 as u32,
            ack: segment.ack().then_some(segment.ack_number().0 as u32),
            syn: segment.syn(),
            fin: segment.fin(),
            rst: segment.rst(),
            window: segment.window_len(),
            header,
            payload: tcp.len() - header,
            options: Options::read(&tcp[20..header]),
        };
        let native = self.scenario.host(frame.from).engine == EngineKind::Native;
        if native && !self.scenario.link.checksum_offload {
            assert!(TcpPacket::new_unchecked(tcp).verify_checksum(&from, &to), "wrong checksum: {segment:?}");
        }
        if let Err(wrong) = self.segment(flow, &segment, frame, native) {
            let (own, peer) = (self.halves.get(&flow), self.halves.get(&(flow.1, flow.0)));
            panic!(
                "at {:?} {wrong}: {} to {}: {segment:?}\n  sent before: {own:?}\n  by the peer: {peer:?}",
                frame.at, flow.0, flow.1
            );
        }
    }

    fn segment(
        &mut self,
        flow: (SocketAddr, SocketAddr),
        segment: &Segment,
        frame: &Frame,
        native: bool,
    ) -> Result<(), &'static str> {
        let back = (flow.1, flow.0);
        // smoltcp delays ACKs for longer than a tail loss probe takes.
        let both = self.scenario.hosts.iter().all(|host| host.engine == EngineKind::Native);
        let clean = both && self.scenario.is_clean();
        let fault = |wrong: bool, fault| if native && wrong { Err(fault) } else { Ok(()) };
        if segment.rst {
            return fault(clean && !self.scenario.hosts.is_empty() && segment.payload > 0, "a reset with data");
        }
        if segment.syn {
            return self.syn(flow, segment, clean);
        }
        let Some(peer) = self.halves.get(&back).cloned() else { return Ok(()) };
        let Some(own) = self.halves.get_mut(&flow) else { return Ok(()) };
        if own.ambiguous || peer.ambiguous {
            return Ok(());
        }
        let Some(ack) = segment.ack else { return fault(true, "no acknowledgement") };
        let end = segment.seq.wrapping_add(segment.payload as u32);
        let scale = own.scale.and(peer.scale).and(own.scale).unwrap_or(0);
        let edge = ack.wrapping_add(u32::from(segment.window) << scale);

        fault(beyond(ack, peer.next) > 0, "acknowledges unsent data")?;
        fault(own.ack.is_some_and(|before| beyond(ack, before) < 0), "acknowledges less than before")?;
        // The right edge may move left by less than the unit of the window field (RFC 7323 §2.4).
        let moves_left = own.edge.is_some_and(|before| beyond(edge, before) <= -(1 << scale));
        fault(moves_left, "the right edge of the window moves left")?;
        // Frames sent while the link is down are not visible.
        fault(self.always_up && beyond(segment.seq, own.next) > 0, "leaves a gap")?;
        let older = |before: u32| segment.options.timestamp.is_none_or(|value| beyond(value, before) < 0);
        fault(own.timestamp.is_some_and(older), "a missing or decreasing timestamp")?;
        if segment.payload > 0 {
            fault(peer.edge.is_some_and(|edge| beyond(end, edge) > 0), "beyond the receive window")?;
            let link = &self.scenario.link;
            let cut = link.tso.is_some() && link.tso_from.is_none_or(|end| end == frame.from);
            let length = frame.bytes.len() - 14;
            let whole = segment.header - 20 + segment.payload;
            fault(!cut && whole > usize::from(peer.mss), "longer than the peer's MSS")?;
            fault(!cut && length > usize::from(link.mtu), "longer than the link MTU")?;
            fault(clean && beyond(own.next, segment.seq) > 0, "an unnecessary retransmission")?;
        }
        if let Some(fin) = own.fin {
            fault(segment.payload > 0 && beyond(end, fin) > 0, "data after the FIN")?;
            fault(segment.fin && end != fin, "a FIN at another sequence number")?;
            fault(clean && segment.fin, "an unnecessary retransmission of the FIN")?;
        }
        for (i, (left, right)) in segment.options.sack.iter().enumerate() {
            fault(beyond(*right, *left) <= 0, "an empty SACK block")?;
            fault(beyond(*right, peer.next) > 0, "a SACK block of unsent data")?;
            fault(i > 0 && beyond(*left, ack) <= 0, "a SACK block of acknowledged data that is not the first")?;
        }

        if segment.fin {
            own.fin = Some(end);
        }
        let next = end.wrapping_add(u32::from(segment.fin));
        if beyond(next, own.next) > 0 {
            own.next = next;
        }
        own.ack = Some(own.ack.map_or(ack, |before| if beyond(ack, before) > 0 { ack } else { before }));
        own.edge = Some(own.edge.map_or(edge, |before| if beyond(edge, before) > 0 { edge } else { before }));
        if own.timestamp.is_some() {
            own.timestamp = segment.options.timestamp;
        }
        Ok(())
    }

    /// Processes the SYN of one end.
    fn syn(&mut self, flow: (SocketAddr, SocketAddr), segment: &Segment, clean: bool) -> Result<(), &'static str> {
        let back = (flow.1, flow.0);
        if let Some(own) = self.halves.get_mut(&flow) {
            if own.isn == segment.seq {
                return if clean { Err("an unnecessary retransmission of the SYN") } else { Ok(()) };
            }
            if segment.ack.is_some() {
                own.ambiguous = true;
                return Ok(());
            }
        }
        let mut timestamp = segment.options.timestamp;
        match segment.ack {
            None => _ = self.halves.remove(&back),
            Some(_) => {
                // Timestamps are used by both ends or neither (RFC 7323 §3.2).
                if let Some(peer) = self.halves.get_mut(&back) {
                    peer.timestamp = peer.timestamp.and(timestamp).and(peer.timestamp);
                    timestamp = peer.timestamp.and(timestamp);
                }
            }
        }
        let edge = segment.ack.map(|ack| ack.wrapping_add(segment.window.into()));
        self.halves.insert(
            flow,
            Half {
                isn: segment.seq,
                mss: segment.options.mss.unwrap_or(536),
                scale: segment.options.scale,
                next: segment.seq.wrapping_add(1),
                ack: segment.ack,
                edge,
                timestamp,
                ..Half::default()
            },
        );
        Ok(())
    }
}
