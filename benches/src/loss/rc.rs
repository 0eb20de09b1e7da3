//! Reliable connection of the engine of RoCEv2, over the adapter's worker and the UDP of the stack.

use super::upload::{RECEIVER, Upload};
use super::{Counts, Endpoint, IP_END, LossyLink, Transfer, TransferError, Transport};
use crate::engine::RoceEnd;
use linerate_load::services::Discard;
use linerate_roce::{Counters, Driver};
use linerate_service::Service;
use linerate_service::time::{Duration, Instant};

/// Headers of UDP and BTH, and the check sequence.
const HEADERS: usize = 8 + 12 + 4;
/// Header of the adapter's messages.
const MESSAGE_HEADER: usize = 8;
/// Longest time without a turn: the adapter's worker does not report its timers.
const CHECK_INTERVAL: Duration = Duration::from_millis(1);

impl<S: Service> Endpoint for RoceEnd<S> {
    fn turn(&mut self, now: Instant) -> bool {
        self.set_time(now);
        let has_connected = self.connector.turn(now).expect("a live device");
        self.worker.turn(now) > 0 || has_connected
    }

    fn due(&mut self) -> Option<Instant> {
        let mut driver = self.device.driver();
        let now = driver.now();
        if driver.engine().is_pending() {
            return Some(now);
        }
        let due = [driver.engine().next_deadline(), driver.0.next_deadline(), Some(now + CHECK_INTERVAL)];
        due.into_iter().flatten().min()
    }

    fn next_arrival(&mut self) -> Option<Instant> {
        self.device.driver().0.nic().next_arrival()
    }
}

/// Returns the bytes of the stream in a frame: the payload of a SEND without the message's header.
fn payload(frame: &[u8]) -> usize {
    let is_udp = frame.get(12..14) == Some(&[8, 0]) && frame.get(23) == Some(&17);
    let udp = frame.get(IP_END + 4..).and_then(<[u8]>::first_chunk);
    let (true, Some(&[high, low, _, _, opcode, flags])) = (is_udp, udp) else { return 0 };
    let headers = match opcode {
        // SEND first and only.
        0 | 4 => HEADERS + MESSAGE_HEADER,
        // SEND middle and last.
        1 | 2 => HEADERS,
        _ => return 0,
    };
    let padding = usize::from(flags >> 4 & 3);
    usize::from(u16::from_be_bytes([high, low])).saturating_sub(headers + padding)
}

pub(super) fn run(transfer: &Transfer) -> Result<Counts, TransferError> {
    run_with_counters(transfer).map(|(counts, _)| counts)
}

/// Returns the counters of the sender's engine in addition.
fn run_with_counters(transfer: &Transfer) -> Result<(Counts, Counters), TransferError> {
    let (lossy, [a, b]) = LossyLink::new(Transport::Rc, transfer, payload);
    let config = linerate_rdma::Config { max_connections: 1, ..linerate_rdma::Config::default() };
    let mut sender = RoceEnd::new(a, 1, &[], &config, Upload::new(transfer.bytes));
    let mut receiver = RoceEnd::new(b, 2, &[RECEIVER], &config, Discard::default());
    let progress = |sender: &RoceEnd<Upload>, receiver: &RoceEnd<Discard>| {
        sender.worker.service().progress(receiver.worker.service())
    };
    let counts = lossy.run((&mut sender, &mut receiver), progress)?;
    let counters = sender.device.driver().engine().counters();
    Ok((counts, counters))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engine_counts_the_packets_that_the_link_sees_again() {
        let transfer = Transfer { loss: 0.01, delay_us: 10, bits_per_second: 10_000_000_000, bytes: 4 << 20, seed: 3 };
        let (counts, counters) = run_with_counters(&transfer).unwrap();
        let packets = (counts.sent - counts.delivered).div_ceil(1024);
        let repeated = counters.repeated + counters.probes;
        assert!((packets..packets + packets / 50 + 10).contains(&repeated), "{packets}: {counters:?}");
    }
}
