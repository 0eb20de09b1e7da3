//! Datagrams of UDP, one at a time from each port, each returned by one datagram.

use super::segment::{ETHERNET, IP};
use super::tuples::{SERVER, client_of};
use super::{BenchError, MAX_DATAGRAM, SyntheticClient};
use linerate_bypass::memory_nic::MemoryPacket;
use linerate_bypass::{BURST, L4, Nic, Packet, TxOffload};
use smoltcp::wire::{IpProtocol, Ipv4Packet, UdpPacket, checksum};

const UDP: usize = 8;

/// Datagrams of a client from its ports in turn. The payload repeats the number of the datagram.
#[derive(Debug)]
pub struct Datagrams {
    ports: usize,
    size: usize,
    sent: u64,
    received: u64,
}

impl Datagrams {
    /// Creates datagrams with `size` bytes of payload from `ports` ports.
    ///
    /// # Panics
    /// If there are no ports.
    pub fn new(ports: usize, size: usize) -> Self {
        assert!(ports > 0);
        Datagrams { ports, size, sent: 0, received: 0 }
    }

    /// Returns the maximum number of datagrams in flight.
    pub fn burst(&self) -> usize {
        self.ports.min(BURST)
    }

    /// Sends the next `n` datagrams.
    pub fn send(&mut self, client: &mut SyntheticClient, n: usize) -> Result<(), BenchError> {
        if self.size > MAX_DATAGRAM {
            return Err(BenchError::TooLong { size: self.size, most: MAX_DATAGRAM });
        }
        for _ in 0..n {
            let packet = self.datagram(client)?;
            client.outgoing.push(packet);
            self.sent += 1;
        }
        client.flush()
    }

    fn datagram(&self, client: &mut SyntheticClient) -> Result<MemoryPacket, BenchError> {
        let (source, port) = client_of(self.sent as usize % self.ports);
        let destination = *SERVER.ip();
        let mut packet = client.nic.allocate().ok_or(BenchError::Full)?;
        let bytes = packet.append(ETHERNET + IP + UDP + self.size).ok_or(BenchError::Full)?;
        client.ip(bytes, source, IpProtocol::Udp, UDP + self.size);
        let mut udp = UdpPacket::new_unchecked(&mut bytes[ETHERNET + IP..]);
        udp.set_src_port(port);
        udp.set_dst_port(SERVER.port());
        udp.set_len((UDP + self.size) as u16);
        udp.payload_mut().fill(self.sent as u8);
        let ends = (source.into(), destination.into());
        if client.software_checksum {
            udp.fill_checksum(&ends.0, &ends.1);
            return Ok(packet);
        }
        udp.set_checksum(checksum::pseudo_header(&ends.0, &ends.1, IpProtocol::Udp, (UDP + self.size) as u32));
        packet.set_tx_offload(TxOffload {
            l2_len: ETHERNET,
            l3_len: IP,
            l4_len: UDP,
            ipv4: true,
            ipv4_checksum: true,
            l4_checksum: Some(L4::Udp),
            tso: None,
        });
        Ok(packet)
    }

    /// Receives and checks answers, which arrive in the order of the requests. Returns their number.
    pub fn check(&mut self, client: &mut SyntheticClient) -> Result<usize, BenchError> {
        let before = self.received;
        let mut received = std::mem::take(&mut client.received);
        while client.nic.rx_burst(&mut received) > 0 {
            for frame in received.drain(..) {
                if client.is_ip(&frame)? {
                    self.check_answer(client, &frame)?;
                    self.received += 1;
                }
            }
        }
        client.received = received;
        Ok((self.received - before) as usize)
    }

    fn check_answer(&self, client: &SyntheticClient, frame: &MemoryPacket) -> Result<(), BenchError> {
        let (address, port) = client_of(self.received as usize % self.ports);
        let data = frame.segments().collect::<Vec<_>>().concat();
        let ip = data.get(ETHERNET..).and_then(|data| Ipv4Packet::new_checked(data).ok());
        let ip = ip.filter(|ip| ip.next_header() == IpProtocol::Udp).ok_or(BenchError::Frame("not UDP over IPv4"))?;
        let udp = UdpPacket::new_checked(ip.payload()).map_err(|_| BenchError::Frame("its UDP header is invalid"))?;
        let (source, destination) = ((ip.src_addr(), udp.src_port()), (ip.dst_addr(), udp.dst_port()));
        if destination != (address, port) || source != (*SERVER.ip(), SERVER.port()) {
            return Err(BenchError::Frame("its addresses are not those of the request"));
        }
        if client.software_checksum && !(ip.verify_checksum() && udp.verify_checksum(&source.0.into(), &address.into()))
        {
            return Err(BenchError::Frame("its checksum is wrong"));
        }
        if udp.payload().len() != self.size || udp.payload().iter().any(|byte| *byte != self.received as u8) {
            return Err(BenchError::Frame("other bytes came back than were sent"));
        }
        Ok(())
    }
}
