//! Model of a reliable connection (InfiniBand Architecture Specification, volume 1, §9.7): go-back-N by packet sequence
//! numbers.
//!
//! The responder accepts packets in order only. It acknowledges the last packet of each message and repeated packets,
//! and reports the first packet beyond a gap by a NAK, but no further one until the missing packet arrives, as
//! Soft-RoCE does. The requester sends everything again from the packet that a NAK names, or after a time-out from the
//! first one without an acknowledgement. Like a NIC, it hands a packet to the link when the link is free.

use super::{Counts, Endpoint, IP_END, LossyLink, Transfer, TransferError, Transport, received, send};
use linerate_bypass::memory_nic::MemoryNic;
use linerate_service::time::{Duration, Instant};
use std::cmp::Ordering;

/// Payload of a packet: the path MTU of RoCE on a link of 1500 bytes.
const MTU: usize = 1024;
/// Packets of a message: a receive buffer of 4 kB.
const MESSAGE: u64 = 4;
/// Packets in flight: the messages that the default of `--rdma-buffers` permits.
const WINDOW: u64 = 32 * MESSAGE;
/// Time without an acknowledgement after which packets are sent again: the default of `--rdma-timeout`.
const TIMEOUT: Duration = Duration::from_nanos(4096 << 16);
/// UDP header and base transport header.
const HEADERS: usize = IP_END + 8 + 12;
/// Bytes of a frame without payload: headers, this model's numbers, and the check sequence.
const OVERHEAD: usize = HEADERS + 9;

const DATA: u8 = 0;
const ACK: u8 = 1;
const NAK: u8 = 2;

/// Returns the packet of a frame: its type and its number.
fn packet(frame: &[u8]) -> Option<(u8, u64)> {
    let (kind, number) = frame.get(HEADERS..)?.split_first()?;
    Some((*kind, u64::from_be_bytes(*number.first_chunk()?)))
}

fn send_packet(nic: &mut MemoryNic, kind: u8, number: u64, payload: usize) -> bool {
    let mut content = [kind; 9];
    content[1..].copy_from_slice(&number.to_be_bytes());
    send(nic, HEADERS, &content, payload)
}

struct Requester {
    nic: MemoryNic,
    /// Packets of the transfer.
    all: u64,
    /// First packet without an acknowledgement, and next packet to send.
    first: u64,
    next: u64,
    /// Time of the last progress or repetition.
    since: Instant,
    /// Time at which the link is free, and the time that a packet occupies it.
    free: Instant,
    packet_time: Duration,
}

impl Requester {
    fn may_send(&self) -> bool {
        self.next < self.all.min(self.first + WINDOW)
    }

    fn acknowledged(&mut self, before: u64, now: Instant) {
        if before > self.first {
            (self.first, self.since) = (before, now);
            self.next = self.next.max(before);
        }
    }
}

impl Endpoint for Requester {
    fn turn(&mut self, now: Instant) -> bool {
        let mut packets = Vec::new();
        let mut is_busy = received(&mut self.nic, |frame| packets.extend(packet(frame)));
        for (kind, number) in packets {
            match kind {
                ACK => self.acknowledged(number + 1, now),
                NAK if number >= self.first => {
                    self.acknowledged(number, now);
                    (self.next, self.since) = (number, now);
                }
                _ => {}
            }
        }
        if self.first < self.next && self.since + TIMEOUT <= now {
            (self.next, self.since) = (self.first, now);
        }
        if self.may_send() && self.free <= now && send_packet(&mut self.nic, DATA, self.next, MTU) {
            if self.first == self.next {
                self.since = now;
            }
            self.next += 1;
            self.free = now + self.packet_time;
            is_busy = true;
        }
        is_busy
    }

    fn due(&mut self) -> Option<Instant> {
        let retry = (self.first < self.next).then(|| self.since + TIMEOUT);
        let send = self.may_send().then_some(self.free);
        [retry, send].into_iter().flatten().min()
    }

    fn nic(&mut self) -> &mut MemoryNic {
        &mut self.nic
    }
}

struct Responder {
    nic: MemoryNic,
    expected: u64,
    has_sent_nak: bool,
}

impl Endpoint for Responder {
    fn turn(&mut self, _: Instant) -> bool {
        let mut replies = Vec::new();
        let is_busy = received(&mut self.nic, |frame| {
            let Some((DATA, number)) = packet(frame) else { return };
            let is_last = (number + 1).is_multiple_of(MESSAGE);
            match number.cmp(&self.expected) {
                Ordering::Equal => {
                    (self.expected, self.has_sent_nak) = (number + 1, false);
                    replies.extend(is_last.then_some((ACK, number)));
                }
                Ordering::Greater => {
                    let is_first = !std::mem::replace(&mut self.has_sent_nak, true);
                    replies.extend(is_first.then_some((NAK, self.expected)));
                }
                Ordering::Less => replies.extend(is_last.then(|| (ACK, self.expected - 1))),
            }
        });
        for (kind, number) in replies {
            send_packet(&mut self.nic, kind, number, 0);
        }
        is_busy
    }

    fn due(&mut self) -> Option<Instant> {
        None
    }

    fn nic(&mut self) -> &mut MemoryNic {
        &mut self.nic
    }
}

/// Transfers whole messages.
pub(super) fn run(transfer: &Transfer) -> Result<Counts, TransferError> {
    let (lossy, [a, b]) = LossyLink::new(transfer, |frame| frame.len().saturating_sub(OVERHEAD));
    let all = transfer.bytes.div_ceil(MTU as u64).next_multiple_of(MESSAGE);
    let nanos = (MTU + OVERHEAD) as u64 * 8 * 1_000_000_000 / transfer.bits_per_second;
    let start = Instant::ZERO;
    let packet_time = Duration::from_nanos(nanos);
    let mut requester = Requester { nic: a, all, first: 0, next: 0, since: start, free: start, packet_time };
    let mut responder = Responder { nic: b, expected: 0, has_sent_nak: false };
    let done = |requester: &Requester, responder: &Responder| {
        Ok((requester.first == all).then_some(responder.expected * MTU as u64))
    };
    let counts = lossy.run((&mut requester, &mut responder), done)?;
    let (transport, delivered) = (Transport::Rc.name(), responder.expected * MTU as u64);
    counts.ok_or(TransferError::Stalled { transport, delivered, bytes: transfer.bytes })
}
