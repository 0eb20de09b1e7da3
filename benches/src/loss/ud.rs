//! Sessions of `--rdma-mode ud`.

use super::{Counts, Endpoint, IP_END, LossyLink, Recovery, Transfer, TransferError, Transport, received, send};
use linerate_bypass::memory_nic::MemoryNic;
use linerate_rdma::measuring::{HEADER, SessionEnd};
use linerate_service::Bytes;
use linerate_service::time::Instant;

/// Payload of a datagram: with the header of the session, the path MTU of RoCE on a link of 1500 bytes.
const PAYLOAD: usize = 1024 - HEADER;
/// UDP header, base transport header, and datagram header.
const HEADERS: usize = IP_END + 8 + 12 + 8;

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
            is_busy |= send(nic, HEADERS, header, message.map_or(0, |message| message.len()));
            true
        });
        is_busy
    }

    fn due(&mut self) -> Option<Instant> {
        self.session.due()
    }

    fn nic(&mut self) -> &mut MemoryNic {
        &mut self.nic
    }
}

/// Transfers whole messages.
pub(super) fn run(transfer: &Transfer, recovery: Recovery) -> Result<Counts, TransferError> {
    let transport = if recovery == Recovery::Selective { Transport::Ud } else { Transport::UdGoBackN }.name();
    let (lossy, [a, b]) = LossyLink::new(transfer, |frame| frame.len().saturating_sub(HEADERS + HEADER));
    let messages = transfer.bytes.div_ceil(PAYLOAD as u64);
    let (mut sender, mut receiver) = (UdEnd::new(a, recovery, messages), UdEnd::new(b, recovery, 0));
    let done = |sender: &UdEnd, receiver: &UdEnd| match sender.is_lost || receiver.is_lost {
        true => Err(TransferError::Lost { transport }),
        false => Ok((sender.left == 0 && sender.session.unacked() == 0).then_some(receiver.delivered)),
    };
    let counts = lossy.run((&mut sender, &mut receiver), done)?;
    counts.ok_or(TransferError::Stalled { transport, delivered: receiver.delivered, bytes: transfer.bytes })
}
