//! What clients send, in whatever pieces it comes: requests are run where they lie, what is not whole is kept, and long values go
//! to where they will stay.

use crate::service::Kv;
use crate::service::conn::{Client, Incoming, Speech};
use crate::service::workers::shard_borrow::Job;
use crate::store::{LONG_THRESHOLD, Long, LongWriter};
use linerate_bypass::Transport;

/// Why no more requests of a client are read for now.
pub(in crate::service) enum Stop {
    /// There are no more.
    Empty,
    /// One goes on with a long value, which begins so far behind the others.
    Long { at: usize, len: usize },
    /// Something is to be waited for, or the client is closed.
    Pause,
}

impl Kv {
    /// Takes in the first slice of what `client` has sent.
    pub(in crate::service) fn serve_slice(&mut self, net: &mut impl Transport, client: &mut Client) {
        let slice = net.peek(client.conn);
        let taken = if client.incoming.is_some() {
            self.receive(client, slice)
        } else if client.input.is_empty() {
            self.serve_fresh(client, slice)
        } else {
            self.serve_rest(client, slice)
        };
        self.host.read(taken);
        net.consume(client.conn, taken);
        if client.incoming.as_ref().is_some_and(|incoming| incoming.left == 0) {
            self.received(client);
        }
    }

    /// Runs the requests in `slice`. Returns how many of its bytes are done with.
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

    /// Runs the request that begins with what is kept and goes on with `slice`. Returns how many bytes of that are done with.
    fn serve_rest(&mut self, client: &mut Client, slice: &[u8]) -> usize {
        let mut input = std::mem::take(&mut client.input);
        let before = input.len();
        input.extend_from_slice(slice);
        let (used, stop) = self.run_all(client, &input, before);
        let taken = match stop {
            Stop::Empty => slice.len(),
            Stop::Long { at, len } => {
                let at = used + at;
                // Had it been known before that it is long, nothing would have been kept of it.
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
        input.drain(..used);
        input.shrink_to(2 * LONG_THRESHOLD);
        client.input = input;
        taken
    }

    /// Runs what is kept, if all of a request is there.
    pub(in crate::service) fn serve_input(&mut self, client: &mut Client) {
        let mut before = 0;
        while client.is_ready() && client.input.len() != before {
            before = client.input.len();
            self.serve_rest(client, &[]);
        }
    }

    /// A value of `len` bytes that is to come.
    fn incoming(&self, len: usize) -> Incoming {
        let most = self.settings().memory as usize / self.stores.len();
        Incoming::new(len, (len <= most).then(|| LongWriter::new(len)))
    }

    /// Takes what there is of the long value that comes next at the beginning of `slice`. Returns how many bytes that were.
    fn receive(&mut self, client: &mut Client, slice: &[u8]) -> usize {
        let Some(incoming) = &mut client.incoming else { return 0 };
        let mut taken = 0;
        loop {
            taken += incoming.take(&slice[taken..]);
            if taken == slice.len() || incoming.left == 0 {
                return taken;
            }
            let Some(store) = &mut self.stores[self.worker] else {
                // Its memory is that of our shard, which is lent.
                client.awaits += 1;
                self.lending.queue([self.worker].into_iter().collect(), Job::Ask(client.conn));
                return taken;
            };
            let is_extended = incoming.writer.as_mut().map(|writer| store.extend_long(writer, self.now));
            if is_extended.is_some_and(|result| result.is_err()) {
                incoming.writer = None;
            }
        }
    }

    /// The long value that was coming has come.
    fn received(&mut self, client: &mut Client) {
        let Some(Incoming { writer, end, .. }) = client.incoming.take() else { return };
        let long = writer.map(LongWriter::finish);
        match (&mut client.speech, long) {
            (Speech::Resp { parser, has_no_room, .. }, long) => {
                *has_no_room |= long.is_none();
                parser.give(long.unwrap_or_else(Long::empty));
            }
            (Speech::Memcached { parser }, Some(long)) => parser.give(long, end),
            (Speech::Memcached { parser }, None) => parser.refuse(0),
        }
        self.serve_input(client);
    }
}
