//! Sessions of `--rdma-mode ud`.

use super::{Counts, Endpoint, IP_END, LossyLink, Progress, Recovery, Transfer, TransferError, Transport};
use linerate_bypass::memory_nic::MemoryNic;
use linerate_bypass::{BURST, Nic, Packet};
use linerate_rdma::measuring::{HEADER, SessionEnd};
use linerate_service::Bytes;
use linerate_service::time::Instant;

/// Payload of a datagram: with the header of the session, the path MTU of RoCE on a link of 1500 bytes.
const PAYLOAD: usize = 1024 - HEADER;
/// UDP header, base transport header, datagram header, and check sequence, which is not at the end here.
const HEADERS: usize = IP_END + 8 + 12 + 8 + 4;

struct UdEnd {
    nic: MemoryNic,
    session: SessionEnd,
    payload: Bytes,
    /// Messages not yet passed to the session.
    left: u64,
    delivered: u64,
    is_lost: bool,
}

impl UdEnd {
    fn new(nic: MemoryNic, recovery: Recovery, left: u64) -> Self {
        let payload = Bytes::from(vec![0; PAYLOAD]);
        UdEnd { nic, session: SessionEnd::new(recovery), payload, left, delivered: 0, is_lost: false }
    }
}

impl Endpoint for UdEnd {
    fn turn(&mut self, now: Instant) -> bool {
        let UdEnd { nic, session, delivered, is_lost, .. } = self;
        let mut is_busy = received(nic, |frame| match session.receive(&Bytes::from(frame[HEADERS..].to_vec()), now) {
            Ok(messages) => *delivered += (messages * PAYLOAD) as u64,
            Err(_) => *is_lost = true,
        });
        *is_lost |= session.is_given_up();
        while self.left > 0 && session.room() > 0 {
            session.push(self.payload.clone());
            self.left -= 1;
        }
        session.send(now, |header, message| {
            is_busy |= send(nic, header, message.map_or(0, |message| message.len()));
            true
        });
        is_busy
    }

    fn due(&mut self) -> Option<Instant> {
        self.session.due()
    }

    fn next_arrival(&mut self) -> Option<Instant> {
        self.nic.next_arrival()
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

/// Sends a frame of empty headers, the header of the session, and `payload` empty bytes.
fn send(nic: &mut MemoryNic, header: &[u8], payload: usize) -> bool {
    let Some(mut frame) = nic.allocate() else { return false };
    let Some(bytes) = frame.append(HEADERS + header.len() + payload) else { return false };
    bytes.fill(0);
    bytes[HEADERS..HEADERS + header.len()].copy_from_slice(header);
    nic.tx_burst(&mut vec![frame]) == 1
}

/// Transfers whole messages.
pub(super) fn run(transfer: &Transfer, recovery: Recovery) -> Result<Counts, TransferError> {
    let transport = if recovery == Recovery::Selective { Transport::Ud } else { Transport::UdGoBackN };
    let payload = |frame: &[u8]| frame.len().saturating_sub(HEADERS + HEADER);
    let (lossy, [a, b]) = LossyLink::new(transport, transfer, payload);
    let messages = transfer.bytes.div_ceil(PAYLOAD as u64);
    let (mut sender, mut receiver) = (UdEnd::new(a, recovery, messages), UdEnd::new(b, recovery, 0));
    let progress = |sender: &UdEnd, receiver: &UdEnd| {
        if sender.is_lost || receiver.is_lost {
            Progress::Lost
        } else if sender.left == 0 && sender.session.unacked() == 0 {
            Progress::Complete(receiver.delivered)
        } else {
            Progress::Delivered(receiver.delivered)
        }
    };
    lossy.run((&mut sender, &mut receiver), progress)
}
