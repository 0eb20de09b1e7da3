//! Tests of the client with a scripted peer.

use super::echo::{Acks, Requests};
use super::messages::Messages;
use super::options;
use super::tuples::{CLIENT_MAC, SERVER, SERVER_MAC, client_of};
use super::{Agreed, BenchError, ClientConfig, SyntheticClient};
use linerate_bypass::memory_nic::{Link, LinkConfig, MemoryNic, MemoryPacket};
use linerate_bypass::{Nic, Packet};
use linerate_service::time::Instant;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    EthernetAddress, EthernetFrame, EthernetProtocol, IpProtocol, Ipv4Packet, Ipv4Repr, TcpPacket, TcpSeqNumber,
};

const HEADERS: usize = 14 + 20 + 20 + 12;

/// Peer's view of connection 0, and its next segment.
#[derive(Debug, Clone)]
struct Segment {
    sequence: u32,
    acknowledged: u32,
    stamps: Option<(u32, u32)>,
    payload: Vec<u8>,
    /// Payload bytes per packet of the frame.
    chunk: usize,
    rst: bool,
    checksum: bool,
}

struct Peer {
    nic: MemoryNic,
    client: SyntheticClient,
    /// Correct answer, except its payload.
    proper: Segment,
}

impl Peer {
    /// Creates a client with connection 0 established, with timestamps.
    fn new(tso: Option<usize>) -> Self {
        let (nic, other) = Link::pair(LinkConfig { checksum_offload: true, tso, ..LinkConfig::default() });
        let config = ClientConfig { flows: 1, timestamps: true, software_checksum: false };
        let mut client = SyntheticClient::new(other, &config);
        client.set_time(Instant::from_nanos(5_000_000));
        client.begin(0..1).unwrap();
        let proper = Segment {
            sequence: 9_000,
            acknowledged: 0,
            stamps: None,
            payload: Vec::new(),
            chunk: 2000,
            rst: false,
            checksum: true,
        };
        let mut peer = Peer { nic, client, proper };
        peer.receive();
        peer.synchronize();
        assert_eq!(peer.client.complete().unwrap(), 1);
        peer.proper.sequence += 1;
        peer.receive();
        peer
    }

    /// Receives the client's segments, which must be in order, and returns the payload of each frame.
    fn receive(&mut self) -> Vec<Vec<u8>> {
        let mut frames: Vec<MemoryPacket> = Vec::with_capacity(32);
        while self.nic.rx_burst(&mut frames) > 0 && frames.len() < frames.capacity() {}
        let payload = |frame: &MemoryPacket| {
            let bytes = frame.segments().collect::<Vec<_>>().concat();
            let tcp = TcpPacket::new_checked(&bytes[34..]).unwrap();
            let (agreed, stamps) = options::read(&tcp).unwrap();
            if tcp.syn() {
                let all = Agreed { segment_size: 1460, timestamps: true, window_scale: Some(7), sack: true };
                assert_eq!(agreed, all, "the SYN offers all usual options");
            }
            self.proper.acknowledged = (tcp.seq_number() + tcp.segment_len()).0 as u32;
            self.proper.stamps = stamps.map(|(tsval, _)| (1000, tsval));
            tcp.payload().to_vec()
        };
        frames.iter().map(payload).collect()
    }

    fn synchronize(&mut self) {
        let Segment { sequence, acknowledged, stamps, .. } = self.proper;
        let mut bytes = frame_bytes(20 + 20);
        let mut tcp = headers(&mut bytes, 20, sequence, acknowledged);
        tcp.set_syn(true);
        options::write_syn(tcp.options_mut(), Some(0));
        // The same options, except TSecr in the last four bytes.
        tcp.options_mut()[12..16].copy_from_slice(&stamps.unwrap().1.to_be_bytes());
        tcp.fill_checksum(&(*SERVER.ip()).into(), &client_of(0).0.into());
        self.transmit(&bytes, bytes.len());
    }

    fn send(&mut self, segment: Segment) {
        let options = if segment.stamps.is_some() { 12 } else { 0 };
        let mut bytes = frame_bytes(20 + options + segment.payload.len());
        let mut tcp = headers(&mut bytes, options, segment.sequence, segment.acknowledged);
        tcp.set_rst(segment.rst);
        if let Some((tsval, tsecr)) = segment.stamps {
            options::write_stamps(tcp.options_mut(), tsval, tsecr);
        }
        tcp.payload_mut().copy_from_slice(&segment.payload);
        if segment.checksum {
            tcp.fill_checksum(&(*SERVER.ip()).into(), &client_of(0).0.into());
        }
        self.transmit(&bytes, HEADERS + segment.chunk);
    }

    fn transmit(&mut self, bytes: &[u8], chunk: usize) {
        let mut chunks = bytes.chunks(chunk).map(|bytes| {
            let mut packet = self.nic.allocate().unwrap();
            packet.append(bytes.len()).unwrap().copy_from_slice(bytes);
            packet
        });
        let mut frame = chunks.next().unwrap();
        chunks.for_each(|chunk| frame.chain(chunk).unwrap());
        assert_eq!(self.nic.tx_burst(&mut vec![frame]), 1);
    }
}

fn frame_bytes(l4_len: usize) -> Vec<u8> {
    vec![0; 34 + l4_len]
}

/// Writes the headers before the options.
fn headers(bytes: &mut [u8], options: usize, sequence: u32, acknowledged: u32) -> TcpPacket<&mut [u8]> {
    let mut ethernet = EthernetFrame::new_unchecked(&mut *bytes);
    ethernet.set_src_addr(EthernetAddress(SERVER_MAC.0));
    ethernet.set_dst_addr(EthernetAddress(CLIENT_MAC.0));
    ethernet.set_ethertype(EthernetProtocol::Ipv4);
    let ip = Ipv4Repr {
        src_addr: *SERVER.ip(),
        dst_addr: client_of(0).0,
        next_header: IpProtocol::Tcp,
        payload_len: bytes.len() - 34,
        hop_limit: 64,
    };
    ip.emit(&mut Ipv4Packet::new_unchecked(&mut bytes[14..]), &ChecksumCapabilities::default());
    let mut tcp = TcpPacket::new_unchecked(&mut bytes[34..]);
    tcp.set_src_port(7);
    tcp.set_dst_port(1024);
    tcp.set_seq_number(TcpSeqNumber(sequence as i32));
    tcp.set_ack_number(TcpSeqNumber(acknowledged as i32));
    tcp.set_header_len(20 + options as u8);
    tcp.set_ack(true);
    tcp.set_window_len(u16::MAX);
    tcp
}

/// Returns the client's result for an echo of 64 bytes modified by `change`.
fn check(change: impl FnOnce(&mut Segment)) -> Result<usize, BenchError> {
    let mut peer = Peer::new(None);
    let mut requests = Requests::new(0..1, 64, Acks::WithRequest);
    peer.client.set_time(Instant::from_nanos(6_000_000));
    requests.send(&mut peer.client, 1).unwrap();
    let payload = peer.receive().remove(0);
    let mut echo = Segment { payload, ..peer.proper.clone() };
    change(&mut echo);
    peer.send(echo);
    requests.check(&mut peer.client)
}

fn complaint(change: impl FnOnce(&mut Segment)) -> String {
    check(change).unwrap_err().to_string()
}

#[test]
fn echo_is_accepted_in_any_number_of_packets() {
    assert_eq!(check(|_| {}).unwrap(), 1);
    assert_eq!(check(|echo| echo.chunk = 13).unwrap(), 1);
    assert_eq!(check(|echo| echo.chunk = 0).unwrap(), 1);
}

#[test]
fn every_byte_of_echo_is_checked() {
    for at in 0..64 {
        assert!(complaint(|echo| echo.payload[at] ^= 0x10).contains("other bytes"));
        assert!(
            complaint(|echo| {
                echo.payload[at] ^= 0x10;
                echo.chunk = 7;
            })
            .contains("other bytes")
        );
    }
    assert!(complaint(|echo| echo.payload.truncate(63)).contains("not as long"));
}

#[test]
fn position_and_ack_of_echo_are_checked() {
    assert!(complaint(|echo| echo.sequence += 1).contains("not at"));
    assert!(complaint(|echo| echo.acknowledged -= 1).contains("does not acknowledge"));
    assert!(complaint(|echo| echo.rst = true).contains("RST"));
}

#[test]
fn timestamps_of_echo_are_checked() {
    assert!(complaint(|echo| echo.stamps = None).contains("lacks the agreed timestamps"));
    // TSval of the final handshake segment, a millisecond before the request's.
    assert!(
        complaint(|echo| echo.stamps = echo.stamps.map(|(own, echoed)| (own, echoed - 1000))).contains("request's")
    );
    assert!(complaint(|echo| echo.stamps = echo.stamps.map(|(own, echoed)| (own, echoed + 1))).contains("not sent"));
    assert!(complaint(|echo| echo.stamps = echo.stamps.map(|(_, echoed)| (u32::MAX, echoed))).contains("older than"));
}

#[test]
fn wrong_checksum_is_detected() {
    assert!(complaint(|echo| echo.checksum = false).contains("checksum"));
}

#[test]
fn merged_message_is_one_frame_of_several_packets() {
    let mut peer = Peer::new(Some(65_535));
    let mut messages = Messages::new(1, 16 << 10, true);
    messages.send(&mut peer.client, 1).unwrap();
    let mut frames: Vec<MemoryPacket> = Vec::with_capacity(32);
    assert_eq!(peer.nic.rx_burst(&mut frames), 1);
    let sizes: Vec<usize> = frames[0].segments().map(<[u8]>::len).collect();
    assert_eq!(sizes.len(), 9);
    assert_eq!(sizes[..8], [2048; 8], "as a port with buffers of 2 KB delivers it");
    assert_eq!(frames[0].len(), HEADERS + (16 << 10));
}

#[test]
fn every_second_segment_of_message_is_acknowledged_and_the_last() {
    let mut peer = Peer::new(None);
    let mut messages = Messages::new(1, 5000, false);
    messages.send(&mut peer.client, 1).unwrap();
    let message = peer.receive().concat();
    assert_eq!(message.len(), 5000);
    let mut acknowledgements = Vec::new();
    for part in message.chunks(1000) {
        peer.send(Segment { payload: part.to_vec(), ..peer.proper.clone() });
        peer.proper.sequence += 1000;
        assert_eq!(messages.check(&mut peer.client).unwrap(), usize::from(peer.proper.sequence == 9_001 + 5000));
        acknowledgements.push(peer.receive().len());
    }
    assert_eq!(acknowledgements, [0, 1, 0, 1, 1]);
    assert_eq!((messages.segments().data_received, messages.segments().acks_sent), (5, 3));
}
