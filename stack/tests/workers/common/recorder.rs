//! Port that records the memory addresses of received and sent TCP payload.

use linerate_bypass::{BURST, Capabilities, MacAddr, Nic, Packet, QueueStats, Sleeper};
use linerate_service::Bytes;
use smoltcp::wire::{EthernetFrame, EthernetProtocol, Ipv4Packet, Ipv6Packet, TcpPacket};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// Number of recorded bytes per stream.
const MOST: usize = 4 << 20;

/// One direction of a connection, as seen at a port.
#[derive(Debug, Default, Clone)]
pub struct Stream {
    /// Sequence number of the first byte.
    first: Option<u32>,
    /// Address of each byte when it first passed the port; 0 before.
    pub addresses: Vec<usize>,
    /// Bytes that passed again.
    pub repeated: usize,
    /// Bytes that passed again at another address.
    pub moved: usize,
}

impl Stream {
    fn note(&mut self, sequence: u32, address: usize, len: usize) {
        let Some(first) = self.first else { return };
        // Test streams are shorter than half of the sequence space.
        let Ok(from) = usize::try_from(sequence.wrapping_sub(first) as i32) else { return };
        let len = len.min(MOST.saturating_sub(from));
        if len == 0 {
            return;
        }
        if self.addresses.len() == from {
            return self.addresses.extend(address..address + len);
        }
        if self.addresses.len() < from + len {
            self.addresses.resize(from + len, 0);
        }
        for (at, recorded) in self.addresses[from..from + len].iter_mut().enumerate() {
            if *recorded == 0 {
                *recorded = address + at;
            } else {
                self.repeated += 1;
                self.moved += usize::from(*recorded != address + at);
            }
        }
    }
}

/// Streams of a port, by local and remote TCP port.
#[derive(Debug, Default)]
pub struct Notes {
    pub received: HashMap<(u16, u16), Stream>,
    pub sent: HashMap<(u16, u16), Stream>,
}

struct Payload {
    source: u16,
    destination: u16,
    syn: bool,
    sequence: u32,
    /// Address and length of each chunk.
    chunks: Vec<(usize, usize)>,
}

impl Payload {
    /// Parses `frame`; `None` if it does not carry TCP.
    fn of(frame: &impl Packet) -> Option<Payload> {
        let data = frame.data();
        let ethernet = EthernetFrame::new_checked(data).ok()?;
        let (ip_header, ip_payload) = match ethernet.ethertype() {
            EthernetProtocol::Ipv4 => {
                let ip = Ipv4Packet::new_unchecked(&data[14..]);
                (usize::from(ip.header_len()), usize::from(ip.total_len()) - usize::from(ip.header_len()))
            }
            EthernetProtocol::Ipv6 => (40, usize::from(Ipv6Packet::new_unchecked(&data[14..]).payload_len())),
            _ => return None,
        };
        let protocol = if ip_header == 40 && data[14] >> 4 == 6 { data[14 + 6] } else { data[14 + 9] };
        if protocol != 6 {
            return None;
        }
        let tcp = TcpPacket::new_unchecked(&data[14 + ip_header..]);
        let header = 14 + ip_header + usize::from(tcp.header_len());
        let mut left = ip_payload - usize::from(tcp.header_len());
        let mut chunks = Vec::new();
        let mut skip = header;
        for segment in frame.segments() {
            let payload = &segment[skip.min(segment.len())..];
            skip -= skip.min(segment.len());
            // Short frames are padded.
            let payload = &payload[..payload.len().min(left)];
            left -= payload.len();
            if !payload.is_empty() {
                chunks.push((payload.as_ptr() as usize, payload.len()));
            }
        }
        let sequence = tcp.seq_number().0 as u32;
        Some(Payload { source: tcp.src_port(), destination: tcp.dst_port(), syn: tcp.syn(), sequence, chunks })
    }

    fn note(self, stream: &mut Stream) {
        if self.syn {
            stream.first = Some(self.sequence.wrapping_add(1));
        }
        let mut sequence = self.sequence;
        for (address, len) in self.chunks {
            stream.note(sequence, address, len);
            sequence = sequence.wrapping_add(len as u32);
        }
    }
}

/// Recording wrapper of the port `nic`.
pub struct Recorder<N> {
    nic: N,
    notes: Arc<Mutex<Notes>>,
    burst: Vec<Option<Payload>>,
}

impl<N: Nic> Recorder<N> {
    /// Wraps `nic`.
    pub fn new(nic: N) -> Self {
        Recorder { nic, notes: Arc::default(), burst: Vec::with_capacity(BURST) }
    }

    /// Returns the record, which is updated while the port is in use.
    pub fn notes(&self) -> Arc<Mutex<Notes>> {
        self.notes.clone()
    }

    /// Returns the wrapped port.
    pub fn inner(&mut self) -> &mut N {
        &mut self.nic
    }
}

impl<N: Nic> Nic for Recorder<N> {
    type Packet = N::Packet;

    fn mac(&self) -> MacAddr {
        self.nic.mac()
    }

    fn capabilities(&self) -> &Capabilities {
        self.nic.capabilities()
    }

    fn link_up(&mut self) -> bool {
        self.nic.link_up()
    }

    fn rx_burst(&mut self, into: &mut Vec<N::Packet>) -> usize {
        let before = into.len();
        let n = self.nic.rx_burst(into);
        let mut notes = self.notes.lock().unwrap();
        for payload in into[before..].iter().filter_map(Payload::of) {
            let connection = (payload.destination, payload.source);
            payload.note(notes.received.entry(connection).or_default());
        }
        n
    }

    fn tx_burst(&mut self, from: &mut Vec<N::Packet>) -> usize {
        self.burst.extend(from.iter().map(Payload::of));
        let n = self.nic.tx_burst(from);
        let mut notes = self.notes.lock().unwrap();
        for payload in self.burst.drain(..).take(n).flatten() {
            let connection = (payload.source, payload.destination);
            payload.note(notes.sent.entry(connection).or_default());
        }
        n
    }

    fn allocate(&mut self) -> Option<N::Packet> {
        self.nic.allocate()
    }

    fn attach(&mut self, bytes: Bytes) -> Result<N::Packet, Bytes> {
        self.nic.attach(bytes)
    }

    /// Does not wake the worker: only messages and a stop end its sleep.
    fn arm(&mut self, _: &mut Sleeper) -> bool {
        true
    }

    fn stats(&self) -> QueueStats {
        self.nic.stats()
    }
}
