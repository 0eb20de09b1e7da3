//! Bytes sent again on a link that loses frames at random, by transport: a bulk transfer between two ends in memory, in
//! virtual time.
//!
//! All transports use the same link, and the same seeds lose frames with the same probability in both directions. The
//! payload of each frame is counted as it is sent. The transfer ends when all bytes are delivered and acknowledged, so
//! every further payload byte was sent again.

mod rc;
mod tcp;
mod ud;
mod upload;

pub use linerate_rdma::measuring::Recovery;

use linerate_bypass::memory_nic::{DropIf, End, Impairments, Link, LinkConfig, MemoryNic, Rate};
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
    /// Reliable connection of RoCEv2 in software: go-back-N.
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
            Transport::Rc => "RC",
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
    /// Returns the time at which the next frame arrives.
    fn next_arrival(&mut self) -> Option<Instant>;
}

/// State of a transfer.
enum Progress {
    /// Bytes delivered so far.
    Delivered(u64),
    /// Bytes delivered, all of which are acknowledged.
    Complete(u64),
    /// The connection has ended early.
    Lost,
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
    transport: &'static str,
    bytes: u64,
}

impl LossyLink {
    /// Creates a link and its ends. `payload` returns the payload bytes of a frame of the sender.
    fn new(transport: Transport, transfer: &Transfer, payload: fn(&[u8]) -> usize) -> (LossyLink, [MemoryNic; 2]) {
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
        (LossyLink { link, sent, transport: transport.name(), bytes: transfer.bytes }, [a, b])
    }

    /// Runs both ends until the transfer is complete by `progress`.
    fn run<A: Endpoint, B: Endpoint>(
        &self,
        (sender, receiver): (&mut A, &mut B),
        progress: impl Fn(&A, &B) -> Progress,
    ) -> Result<Counts, TransferError> {
        let &LossyLink { transport, bytes, .. } = self;
        let clock = self.link.clock();
        loop {
            let now = clock.now();
            let is_busy = receiver.turn(now) | sender.turn(now);
            let delivered = match progress(sender, receiver) {
                Progress::Complete(delivered) => return Ok(self.counts(delivered)),
                Progress::Lost => return Err(TransferError::Lost { transport }),
                Progress::Delivered(delivered) => delivered,
            };
            if is_busy {
                continue;
            }
            let due = [sender.due(), receiver.due(), sender.next_arrival(), receiver.next_arrival()];
            match due.into_iter().flatten().min() {
                Some(next) if next < Instant::ZERO + TIME_LIMIT => clock.advance_to(next.max(now + STEP)),
                _ => return Err(TransferError::Stalled { transport, delivered, bytes }),
            }
        }
    }

    fn counts(&self, delivered: u64) -> Counts {
        let impaired = self.link.impaired(End::A);
        let sent = self.sent.load(Ordering::Relaxed);
        Counts { delivered, sent, frames: impaired.frames, lost: impaired.lost }
    }
}

#[cfg(test)]
mod tests;
