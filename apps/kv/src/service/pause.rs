//! Pauses of clients (`CLIENT PAUSE`) on all workers.
//!
//! During a pause no connection is on the fast path, so the fast path has no check. Each other request is checked
//! before it starts. A connection stops reading at the first request that waits for the end of the pause, so it keeps
//! one request, and TCP slows down its peer.

use crate::commands::{PauseMode, Request, Session};
use crate::memcached;
use crate::service::Kv;
use crate::service::conn::{Client, PendingRequest, ProtocolState};
use crate::service::lock;
use linerate_service::Transport;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Pause that lasts until `end`, in milliseconds since 1970.
#[derive(Debug, Default, Clone, Copy)]
pub(in crate::service) struct Pause {
    pub mode: Option<PauseMode>,
    end: u64,
}

/// Pause of all workers.
pub(in crate::service) struct PauseBoard {
    pause: Mutex<Pause>,
    /// Number of changes of the pause.
    version: AtomicU64,
    /// Version that each worker obeys, including the requests that it sent to other workers before.
    obeyed: Vec<AtomicU64>,
    /// Connections whose request waits for the end of the pause.
    held: AtomicU32,
}

impl PauseBoard {
    pub fn new(workers: usize) -> Self {
        PauseBoard {
            pause: Mutex::default(),
            version: AtomicU64::new(0),
            obeyed: (0..workers).map(|_| AtomicU64::new(0)).collect(),
            held: AtomicU32::new(0),
        }
    }

    /// Pauses from `now` to `end`, and returns the version. As in Redis, a pause neither shortens nor weakens an
    /// earlier one.
    pub fn begin(&self, mode: PauseMode, now: u64, end: u64) -> u64 {
        let mut pause = lock(&self.pause);
        let earlier = Some(*pause).filter(|pause| pause.end > now).unwrap_or_default();
        *pause = Pause { mode: earlier.mode.max(Some(mode)), end: earlier.end.max(end) };
        self.version.fetch_add(1, Ordering::AcqRel) + 1
    }

    pub fn end(&self) -> u64 {
        let mut pause = lock(&self.pause);
        *pause = Pause::default();
        self.version.fetch_add(1, Ordering::AcqRel) + 1
    }

    pub fn is_obeyed(&self, version: u64) -> bool {
        self.obeyed.iter().all(|obeyed| obeyed.load(Ordering::Acquire) >= version)
    }

    /// Returns the number of connections whose request waits.
    pub fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed).into()
    }
}

/// Progress of a worker with the current pause.
#[derive(Default)]
pub(in crate::service) struct PauseProgress {
    version: u64,
    /// Batches sent before the change of the pause.
    sent_before: SentBefore,
}

/// Batches sent before a change that have not returned.
#[derive(Default)]
pub(in crate::service) struct SentBefore {
    /// Number of the last one.
    last: u64,
    missing: u64,
}

impl SentBefore {
    /// Creates the record when the last batch sent has the number `last`, and `missing` batches have not returned.
    pub fn new(last: u64, missing: u64) -> Self {
        SentBefore { last, missing }
    }

    /// Counts the returned batch number `number`. Some of its requests will return in `moved` further batches with the
    /// same number.
    #[inline]
    pub fn note_returned(&mut self, number: u64, moved: u64) {
        if number <= self.last && self.missing > 0 {
            self.missing = self.missing + moved - 1;
        }
    }

    pub fn is_empty(&self) -> bool {
        self.missing == 0
    }
}

impl Kv {
    /// Applies a change of the pause that this worker has not applied yet.
    pub(in crate::service) fn refresh_pause(&mut self, net: &mut impl Transport) {
        let board = self.server.hub().pauses();
        let version = board.version.load(Ordering::Acquire);
        if version != self.pauses.version {
            let pause = *lock(&board.pause);
            self.pauses.version = version;
            self.apply_pause(net, pause);
            self.send_batches();
            self.pauses.sent_before = SentBefore::new(self.stats.batches, self.batches_elsewhere);
            self.obey_pause();
        }
        let Pause { mode, end } = self.server.pause;
        if mode.is_some() && end <= self.now {
            self.apply_pause(net, Pause::default());
        }
    }

    /// Reports that this worker obeys the pause, unless requests from before are still on other workers.
    fn obey_pause(&self) {
        if self.pauses.sent_before.is_empty() {
            self.server.hub().pauses().obeyed[self.worker].store(self.pauses.version, Ordering::Release);
        }
    }

    /// Counts the returned batch number `number`, of which `moved` further batches will return.
    #[inline]
    pub(in crate::service) fn note_returned(&mut self, number: u64, moved: u64) {
        if !self.pauses.sent_before.is_empty() {
            self.pauses.sent_before.note_returned(number, moved);
            self.obey_pause();
        }
    }

    #[cold]
    fn apply_pause(&mut self, net: &mut impl Transport, pause: Pause) {
        self.server.pause = pause;
        let is_paused = pause.mode.is_some();
        for slot in 0..self.clients.len() {
            let Some(conn) = self.clients[slot].as_ref().map(|client| client.conn) else { continue };
            self.with_client(net, conn, |kv, net, client| {
                client.ahead = 0..0;
                client.session_mut().into_iter().for_each(|session| session.set_under_pause(is_paused));
                if client.is_held {
                    kv.release(client);
                    // A request that has to wait for the new pause is held again.
                    kv.resume(net, client);
                }
            });
        }
    }

    /// Keeps the pending request of `client` until the pause ends or changes.
    #[cold]
    pub(in crate::service) fn hold(&self, client: &mut Client, pending: PendingRequest) {
        client.pending = Some(pending);
        client.is_held = true;
        self.server.hub().pauses().held.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends the wait of the request of `client`.
    pub(in crate::service) fn release(&self, client: &mut Client) {
        if std::mem::take(&mut client.is_held) {
            self.server.hub().pauses().held.fetch_sub(1, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(in crate::service) fn must_wait(&self, request: &Request<'_>, session: &Session) -> bool {
        self.server.pause.mode.is_some_and(|mode| request.waits_in(mode, session))
    }

    #[inline]
    pub(in crate::service) fn must_text_wait(&self, request: &memcached::Request<'_>) -> bool {
        self.server.pause.mode.is_some_and(|mode| mode == PauseMode::All || request.is_write())
    }

    pub(in crate::service) fn must_pending_wait(&self, client: &Client, pending: &PendingRequest) -> bool {
        if self.server.pause.mode.is_none() {
            return false;
        }
        match (pending, &client.protocol_state) {
            (PendingRequest::Resp(args), ProtocolState::Resp { session, .. }) => {
                self.must_wait(&Request::new(args.args(), session.space(), &self.hasher), session)
            }
            (PendingRequest::Memcached(bytes, _), _) => {
                self.memcached_line(bytes).is_some_and(|request| self.must_text_wait(&request))
            }
            _ => false,
        }
    }
}
