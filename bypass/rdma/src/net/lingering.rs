//! Lingering close: input is discarded, within bounds, until the peer closes.

use super::Net;
use crate::provider::Provider;
use crate::wire::{HEADER, Kind, Malformed, OFFERS, Offer};
use linerate_service::{Bytes, CloseReason, ConnId, HostedNet, Receiving, Sending, Transport};

impl<C: Provider> Net<C> {
    /// Closes a connection and discards its input from now on. The connection's timer, which the service no longer
    /// uses, becomes the deadline.
    pub fn begin_lingering_close(&mut self, id: ConnId) {
        self.close(id);
        let discards = self.table.begin_lingering(id, self.now);
        let (Some(discards), Some(conn)) = (discards, self.table.slots.get_mut(id)) else { return };
        conn.one_sided_done.clear();
        if discards {
            let received = conn.rx.len();
            return self.discard(id, received);
        }
        // The peer has already closed: the connection ends once all data is sent.
        conn.rx.clear();
        if conn.life.is_finished() {
            self.end(id, CloseReason::Finished);
        }
        self.set_dirty(id);
    }

    /// Counts `n` bytes received during a lingering close, and discards consumable input.
    fn discard(&mut self, id: ConnId, n: usize) {
        let Some(conn) = self.table.slots.get_mut(id) else { return };
        conn.rx.advance(usize::MAX);
        if let Receiving::Discarding(linger) = &mut conn.life.receiving
            && !linger.discard(n)
        {
            return self.abort(id);
        }
        self.set_dirty(id);
    }

    /// Processes a stream message received after the end of the stream or during a lingering close.
    #[cold]
    pub(super) fn discard_message(&mut self, id: ConnId, kind: Kind, bytes: &Bytes) -> Result<(), Malformed> {
        let Some(conn) = self.table.slots.get_mut(id).filter(|conn| conn.life.is_lingering()) else {
            return Err(Malformed);
        };
        match kind {
            Kind::Data => self.discard(id, bytes.len() - HEADER),
            Kind::Offer => {
                conn.open_offers += 1;
                if conn.open_offers > OFFERS || !conn.link.takes_offers {
                    return Err(Malformed);
                }
                // Offers must be read in order, so this one is read like any other and counted on arrival.
                conn.rx.offer(Offer::read(bytes)?);
            }
            Kind::Finish => {
                let is_finished = self.table.finish_lingering(id);
                if is_finished {
                    self.end(id, CloseReason::Finished);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Discards bytes read from the peer's memory during a lingering close.
    #[cold]
    pub(super) fn discard_read(&mut self, id: ConnId, bytes: Bytes, is_of_stream: bool) {
        let Some(conn) = self.table.slots.get_mut(id) else { return };
        let n = bytes.len();
        if is_of_stream {
            conn.to_take += usize::from(conn.rx.read(bytes));
        }
        self.discard(id, n);
    }

    /// Handles the deadline of a lingering close.
    pub(super) fn linger_expired(&mut self, id: ConnId) {
        let is_delivered = self.table.slots.get(id).is_some_and(|conn| conn.life.sending == Sending::Finished);
        if !self.table.extend_lingering(id, self.now, is_delivered) {
            self.abort(id);
        }
    }
}
