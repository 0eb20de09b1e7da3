//! Input of connections. Requests run in the receive buffer, incomplete ones are buffered, and long values are written
//! to the arena.

use crate::service::Kv;
use crate::service::conn::{Client, IncomingValue, ProtocolState};
use crate::service::workers::shard_borrow::Job;
use crate::store::{LONG_THRESHOLD, Long, LongWriter};
use linerate_service::Transport;

/// Bytes added at once to an incomplete request.
const PART: usize = 16 << 10;

/// Reason for not running further requests.
pub(in crate::service) enum Stop {
    /// All complete requests have run.
    Empty,
    /// The next request has a long value that starts at this offset after the consumed bytes.
    Long { at: usize, len: usize },
    /// The client waits for something or is closed.
    Pause,
}

impl Kv {
    /// Consumes the first slice of the received data.
    pub(in crate::service) fn serve_slice(&mut self, net: &mut impl Transport, client: &mut Client) {
        let slice = net.peek(client.conn);
        let taken = if client.incoming.is_some() {
            self.receive(client, slice)
        } else if client.input.is_empty() {
            self.serve_fresh(client, slice)
        } else {
            self.serve_rest(client, slice)
        };
        self.server.read(taken);
        net.consume(client.conn, taken);
        if client.incoming.as_ref().is_some_and(|incoming| incoming.left == 0) {
            self.received(client);
        }
    }

    /// Runs the requests in `slice`. Returns the number of bytes consumed.
    fn serve_fresh(&mut self, client: &mut Client, slice: &[u8]) -> usize {
        let (used, stop) = self.run_all(client, slice, slice.len());
        match stop {
            Stop::Empty => {
                client.input.extend_from_slice(&slice[used..]);
                slice.len()
            }
            Stop::Long { at, len } => {
                let at = used + at;
                client.input.extend_from_slice(&slice[used..at]);
                client.incoming = Some(self.incoming(len));
                at + self.receive(client, &slice[at..])
            }
            Stop::Pause => used,
        }
    }

    /// Runs the request that starts with the buffered input and continues with `slice`. Returns the number of bytes
    /// consumed from `slice`.
    fn serve_rest(&mut self, client: &mut Client, slice: &[u8]) -> usize {
        let slice = &slice[..slice.len().min(PART)];
        let mut input = std::mem::take(&mut client.input);
        let before = input.len();
        input.extend_from_slice(slice);
        let (used, stop) = self.run_all(client, &input, before);
        // The arguments of an incomplete request have not been counted.
        self.long_work.parsed += slice.len() as u64 / 32;
        let taken = match stop {
            Stop::Empty => slice.len(),
            Stop::Long { at, len } => {
                let at = used + at;
                // If the value started in the buffered input, an earlier call would have begun to receive it.
                debug_assert!(at >= before, "{at} of {before}");
                client.incoming = Some(self.incoming(len));
                let taken = self.receive(client, &input[at..]);
                input.truncate(at);
                (at + taken).saturating_sub(before)
            }
            Stop::Pause => {
                input.truncate(before.max(used));
                input.len() - before
            }
        };
        if used > 0 {
            input.drain(..used);
            input.shrink_to(2 * LONG_THRESHOLD);
        }
        client.input = input;
        taken
    }

    /// Runs the complete requests in the buffered input.
    pub(in crate::service) fn serve_input(&mut self, client: &mut Client) {
        let mut before = 0;
        while client.is_ready() && client.input.len() != before {
            before = client.input.len();
            self.serve_rest(client, &[]);
        }
    }

    /// Returns the state for a long value of `len` bytes.
    fn incoming(&self, len: usize) -> IncomingValue {
        let most = self.settings().memory as usize / self.stores.len();
        IncomingValue::new(len, (len <= most).then(|| LongWriter::new(len)))
    }

    /// Copies the next part of the long value from the start of `slice`. Returns the number of bytes consumed.
    fn receive(&mut self, client: &mut Client, slice: &[u8]) -> usize {
        let Some(incoming) = &mut client.incoming else { return 0 };
        let mut taken = 0;
        loop {
            taken += incoming.take(&slice[taken..]);
            if taken == slice.len() || incoming.left == 0 {
                return taken;
            }
            let Some(store) = &mut self.stores[self.worker] else {
                // The value needs memory of this worker's shard, which is lent.
                client.pending_replies += 1;
                self.shard_borrow.queue([self.worker].into_iter().collect(), Job::Request(client.conn));
                return taken;
            };
            let is_extended = incoming.writer.as_mut().map(|writer| store.extend_long(writer, self.now));
            if is_extended.is_some_and(|result| result.is_err()) {
                incoming.writer = None;
            }
        }
    }

    /// Passes the complete long value to the parser.
    fn received(&mut self, client: &mut Client) {
        let Some(IncomingValue { writer, end, .. }) = client.incoming.take() else { return };
        let long = writer.map(LongWriter::finish);
        match (&mut client.protocol_state, long) {
            (ProtocolState::Resp { parser, has_no_room, .. }, long) => {
                *has_no_room |= long.is_none();
                parser.give(long.unwrap_or_else(Long::empty));
            }
            (ProtocolState::Memcached { parser }, Some(long)) => parser.give(long, end),
            (ProtocolState::Memcached { parser }, None) => parser.refuse(0),
        }
        self.serve_input(client);
    }
}
