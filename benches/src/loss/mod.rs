//! Bytes sent again on a link that loses frames at random, by transport: a bulk transfer between two ends in memory, in
//! virtual time.
//!
//! All transports use the same link, and the same seeds lose frames with the same probability in both directions. The
//! payload of each frame is counted as it is sent. The transfer ends when all bytes are delivered and acknowledged, so
//! every further payload byte was sent again.

mod rc;
mod tcp;
mod ud;

pub use linerate_rdma::measuring::Recovery;

use linerate_bypass::memory_nic::{DropIf, End, Impairments, Link, LinkConfig, MemoryNic, Rate};
use linerate_bypass::{BURST, Nic, Packet};
use linerate_service::time::{Duration, Instant};
use linerate_stack::{NativeEngine, SmoltcpEngine};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Maximum virtual time of a transfer.
const TIME_LIMIT: Duration = Duration::from_secs(24 * 3600);
/// Smallest step of the clock.
const STEP: Duration = Duration::from_nanos(100);
/// Bytes of frames that may wait for the link. More than any window, so that frames are lost at random only.
const QUEUE: usize = 64 << 20;
/// Bytes of Ethernet and IPv4 headers.
const IP_END: usize = 34;

/// Transport with its recovery of lost frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// Reliable connection of the InfiniBand specification: go-back-N. A model.
    Rc,
    /// Sessions of `--rdma-mode ud`.
    Ud,
    /// The same sessions with go-back-N.
    UdGoBackN,
    /// TCP of the native engine, with SACK.
    Native,
    /// TCP of smoltcp.
    Smoltcp,
}

impl Transport {
    pub const ALL: [Transport; 5] =
        [Transport::Rc, Transport::UdGoBackN, Transport::Ud, Transport::Native, Transport::Smoltcp];

    /// Returns the name for tables.
    pub fn name(self) -> &'static str {
        match self {
            Transport::Rc => "RC, model",
            Transport::Ud => "ud",
            Transport::UdGoBackN => "ud, go-back-N",
            Transport::Native => "native TCP",
            Transport::Smoltcp => "smoltcp",
        }
    }
}

/// Link and transfer.
#[derive(Debug, Clone, Copy)]
pub struct Transfer {
    /// Probability that a frame is lost, in each direction.
    pub loss: f64,
    /// Delay of the link in each direction, in microseconds.
    pub delay_us: u64,
    /// Rate of the link in each direction, in bits per second.
    pub bits_per_second: u64,
    /// Payload to deliver.
    pub bytes: u64,
    /// Seed of the losses.
    pub seed: u64,
}

/// Counts of a transfer.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Payload bytes delivered to the receiver, once and in order.
    pub delivered: u64,
    /// Payload bytes sent.
    pub sent: u64,
    /// Frames of the sender.
    pub frames: u64,
    /// Frames lost in the direction of the payload.
    pub lost: u64,
}

impl Counts {
    /// Returns the bytes sent again per byte delivered.
    pub fn resent(&self) -> f64 {
        (self.sent - self.delivered) as f64 / self.delivered as f64
    }
}

/// Transfer that did not end.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// The transfer exceeded its time limit, or neither end had further work.
    #[error("{transport}: {delivered} of {bytes} bytes were delivered in {} s of virtual time", TIME_LIMIT.as_secs())]
    Stalled {
        /// Name of the transport.
        transport: &'static str,
        /// Bytes delivered.
        delivered: u64,
        /// Bytes to deliver.
        bytes: u64,
    },
    /// A transport ended the connection, or received an invalid datagram.
    #[error("{transport}: the connection was lost")]
    Lost {
        /// Name of the transport.
        transport: &'static str,
    },
}

/// One end of a transfer.
trait Endpoint {
    /// Processes received frames and sends those that are due. Returns true if there was any work.
    fn turn(&mut self, now: Instant) -> bool;
    /// Returns the time of the next work without received frames.
    fn due(&mut self) -> Option<Instant>;
    fn nic(&mut self) -> &mut MemoryNic;
}

/// Sends `transfer` by `transport`, and counts.
pub fn run(transport: Transport, transfer: &Transfer) -> Result<Counts, TransferError> {
    match transport {
        Transport::Rc => rc::run(transfer),
        Transport::Ud => ud::run(transfer, Recovery::Selective),
        Transport::UdGoBackN => ud::run(transfer, Recovery::GoBackN),
        Transport::Native => tcp::run::<NativeEngine<_>>(transfer, transport),
        Transport::Smoltcp => tcp::run::<SmoltcpEngine>(transfer, transport),
    }
}

/// Link of a transfer. The sender has end A.
struct LossyLink {
    link: Link,
    sent: Arc<AtomicU64>,
}

impl LossyLink {
    /// Creates a link and its ends. `payload` returns the payload bytes of a frame of the sender.
    fn new(transfer: &Transfer, payload: fn(&[u8]) -> usize) -> (LossyLink, [MemoryNic; 2]) {
        let (a, b) = Link::pair(LinkConfig::default());
        let link = a.link().clone();
        let sent = Arc::new(AtomicU64::new(0));
        let counter = sent.clone();
        let count = move |frame: &[u8]| {
            counter.fetch_add(payload(frame) as u64, Ordering::Relaxed);
            false
        };
        let impairments = Impairments {
            seed: transfer.seed,
            loss: transfer.loss,
            delay: Duration::from_micros(transfer.delay_us),
            rate: Some(Rate { bits_per_second: transfer.bits_per_second, queue_bytes: QUEUE }),
            ..Impairments::default()
        };
        link.impair(End::A, Impairments { drop_if: Some(DropIf::new(count)), ..impairments.clone() });
        link.impair(End::B, Impairments { seed: !transfer.seed, ..impairments });
        (LossyLink { link, sent }, [a, b])
    }

    /// Runs both ends until `delivered` returns the number of delivered bytes, which ends the transfer. Returns `None`
    /// if the ends stall, or if the transfer takes longer than [`TIME_LIMIT`]. Fails with the error of `delivered`.
    fn run<A: Endpoint, B: Endpoint>(
        &self,
        (sender, receiver): (&mut A, &mut B),
        mut delivered: impl FnMut(&A, &B) -> Result<Option<u64>, TransferError>,
    ) -> Result<Option<Counts>, TransferError> {
        let clock = self.link.clock();
        while clock.now() < Instant::ZERO + TIME_LIMIT {
            let now = clock.now();
            let is_busy = receiver.turn(now) | sender.turn(now);
            if let Some(delivered) = delivered(sender, receiver)? {
                let impaired = self.link.impaired(End::A);
                let sent = self.sent.load(Ordering::Relaxed);
                return Ok(Some(Counts { delivered, sent, frames: impaired.frames, lost: impaired.lost }));
            }
            if is_busy {
                continue;
            }
            let due = [sender.due(), receiver.due(), sender.nic().next_arrival(), receiver.nic().next_arrival()];
            let Some(next) = due.into_iter().flatten().min() else { return Ok(None) };
            clock.advance_to(next.max(now + STEP));
        }
        Ok(None)
    }
}

/// Receives all frames that have arrived.
fn received(nic: &mut MemoryNic, mut process: impl FnMut(&[u8])) -> bool {
    let mut frames = Vec::with_capacity(BURST);
    let mut any = false;
    while nic.rx_burst(&mut frames) > 0 {
        any = true;
        frames.drain(..).for_each(|frame| process(frame.data()));
    }
    any
}

/// Sends a frame of `headers` empty bytes, `content`, and `payload` empty bytes.
fn send(nic: &mut MemoryNic, headers: usize, content: &[u8], payload: usize) -> bool {
    let Some(mut frame) = nic.allocate() else { return false };
    let Some(bytes) = frame.append(headers + content.len() + payload) else { return false };
    bytes.fill(0);
    bytes[headers..headers + content.len()].copy_from_slice(content);
    nic.tx_burst(&mut vec![frame]) == 1
}

#[cfg(test)]
mod tests;
