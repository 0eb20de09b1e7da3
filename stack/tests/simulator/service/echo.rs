//! Echo and relay: an end sends the data received on its connection, or on a partner connection.

use super::{Actor, Conn};
use crate::content::LONGEST;
use crate::plan::{Echo, Pace, Source};
use linerate_service::time::{Duration, Instant};
use linerate_service::{Bytes, ConnId, Transport};

/// Time for which a relay connection waits for a partner before it echoes.
const PARTNER_TIMEOUT: Duration = Duration::from_millis(700);

impl Actor {
    pub(super) fn echo(&mut self, net: &mut impl Transport, id: ConnId, conn: &mut Conn, how: Echo, now: Instant) {
        if how == Echo::Forward && conn.plan.reading_pace == Pace::Eager {
            let moved = net.forward(id, id);
            self.received(conn, None, moved);
            self.sent(conn.n, moved);
            return;
        }
        loop {
            if let Some(bytes) = conn.backlog.take() {
                let len = bytes.len();
                if let Err(unsent) = net.send(id, bytes) {
                    conn.backlog = Some(unsent.bytes);
                    return;
                }
                self.sent(conn.n, len);
            }
            let allowance = usize::try_from(conn.reading.allowance(now)).unwrap_or(usize::MAX);
            if allowance == 0 || net.received(id) == 0 {
                return;
            }
            if how == Echo::PeekAndWrite {
                let slice = net.peek(id).to_vec();
                let len = net.write(id, &slice[..slice.len().min(allowance)]);
                if len == 0 {
                    return;
                }
                self.received(conn, Some(&slice[..len]), len);
                net.consume(id, len);
                self.sent(conn.n, len);
                conn.reading.passed(len as u64, now);
            } else if how == Echo::PeekAndAnswer {
                let slice = net.peek(id).to_vec();
                let bytes = &slice[..slice.len().min(allowance).min(self.max_chunk())];
                let len = bytes.len();
                self.received(conn, Some(bytes), len);
                conn.reading.passed(len as u64, now);
                if net.respond(id, len, len, |out| out.copy_from_slice(bytes)) {
                    self.sent(conn.n, len);
                } else {
                    conn.backlog = Some(Bytes::from(bytes.to_vec()));
                }
            } else {
                let most = allowance.min(conn.dice.0.usize(1..=self.max_chunk()));
                let Some(bytes) = net.take(id, most) else { return };
                self.received(conn, Some(&bytes), bytes.len());
                conn.reading.passed(bytes.len() as u64, now);
                conn.backlog = Some(bytes);
            }
        }
    }

    /// Returns the maximum number of bytes read before they are sent, so that they fit when the buffer is free.
    fn max_chunk(&self) -> usize {
        self.ledger.borrow().scenario.host(self.end).config.tx_buffer.unwrap_or(LONGEST) / 4
    }

    /// Forwards received data from `from` to `to` and records it.
    pub(super) fn forward_recorded(
        &self,
        net: &mut impl Transport,
        (from, n): (ConnId, usize),
        (to, m): (ConnId, usize),
    ) {
        let moved = net.forward(from, to);
        let mut ledger = self.ledger.borrow_mut();
        ledger.note(n, self.end).received += moved as u64;
        ledger.note(m, self.end).sent += moved as u64;
        let sent = ledger.of(n, self.end.other()).sent;
        assert!(ledger.of(n, self.end).received <= sent, "connection {n}: more received than sent");
    }

    pub(super) fn partner(&self, id: ConnId) -> Option<(ConnId, usize)> {
        self.partners.iter().find(|(own, ..)| *own == id).map(|(_, partner, n)| (*partner, *n))
    }

    pub(super) fn relay(&mut self, net: &mut impl Transport, id: ConnId, conn: &mut Conn, now: Instant) {
        if self.partner(id).is_none() && conn.partner_by.is_some_and(|by| by <= now) {
            conn.partner_by = None;
            self.alone = self.alone.filter(|(alone, _)| *alone != id);
            conn.source = Source::Echo(Echo::Forward);
            return self.echo(net, id, conn, Echo::Forward, now);
        }
        let Some((partner, m)) = self.partner(id) else { return };
        conn.partner_by = None;
        self.forward_recorded(net, (id, conn.n), (partner, m));
        self.forward_recorded(net, (partner, m), (id, conn.n));
        // The end of one stream ends the other.
        let mut ledger = self.ledger.borrow_mut();
        for (n, to, m) in [(conn.n, partner, m), (m, id, conn.n)] {
            if ledger.of(n, self.end).peer_closed && !ledger.of(m, self.end).closed {
                ledger.note(m, self.end).closed = true;
                net.close(to);
            }
        }
    }

    /// Pairs two relay connections.
    pub(super) fn find_partner(&mut self, id: ConnId, conn: &mut Conn, now: Instant) {
        let Some((other, m)) = self.alone.take() else {
            self.alone = Some((id, conn.n));
            conn.partner_by = Some(now + PARTNER_TIMEOUT);
            return;
        };
        self.partners.push((id, other, m));
        self.partners.push((other, id, conn.n));
        let mut ledger = self.ledger.borrow_mut();
        let streams = [conn.n, m].map(|n| ledger.incoming(n, self.end));
        ledger.note(m, self.end).outgoing = streams[0];
        ledger.note(conn.n, self.end).outgoing = streams[1];
    }
}
