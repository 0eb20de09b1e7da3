//! State of a connection that the fast path needs: one cache line, whereas the full state is several.

use crate::commands::FastCommand;
use crate::resp::Protocol;
use crate::service::conn::Client;
use linerate_service::ConnId;

/// Fast-path state of the connection in a slot.
#[derive(Clone)]
#[repr(align(64))]
pub(in crate::service) struct ConnFastState {
    conn: Option<ConnId>,
    /// Keyspace of the requests, if the fast path may take them.
    pub space: Option<u8>,
    /// No output is queued, and the peer has not finished.
    pub is_quiet: bool,
    /// Last command, if the fast path ran it.
    last: Option<FastCommand>,
    /// Time of that command.
    last_input: u64,
    /// Burst in which the connection was served last.
    pub served_in: u64,
    /// Memory of the client.
    pub memory: usize,
    /// Protocol of the replies.
    pub protocol: Protocol,
    /// Keyspace of the only request, whose reply is expected from another worker.
    waiting: Option<u8>,
}

impl ConnFastState {
    /// State of an unused slot.
    pub const IDLE: ConnFastState = ConnFastState {
        conn: None,
        space: None,
        is_quiet: false,
        last: None,
        last_input: 0,
        served_in: 0,
        memory: 0,
        protocol: Protocol::Resp2,
        waiting: None,
    };

    /// Returns the state for `client`.
    pub fn of(client: &Client) -> Self {
        let mut fast_state = ConnFastState { conn: Some(client.conn), ..ConnFastState::IDLE };
        fast_state.sync_from(client);
        fast_state
    }

    /// Returns true if the slot belongs to `conn`.
    #[inline(always)]
    pub fn belongs_to(&self, conn: ConnId) -> bool {
        self.conn == Some(conn)
    }

    /// Records a request served at `now`.
    #[inline(always)]
    pub fn note_served(&mut self, request: FastCommand, now: u64) {
        (self.last, self.last_input) = (Some(request), now);
    }

    /// Returns the time of the last request served by the fast path.
    pub fn last_input(&self) -> u64 {
        self.last_input
    }

    /// Takes no further request before the reply to the last one arrives from another worker.
    #[inline(always)]
    pub fn wait(&mut self) {
        self.waiting = self.space.take();
    }

    /// Returns true if `conn` has the slot and [waits](Self::wait).
    #[inline(always)]
    pub fn waits(&self, conn: ConnId) -> bool {
        self.belongs_to(conn) && self.waiting.is_some()
    }

    /// Returns true if the connection [waits](Self::wait).
    pub fn is_waiting(&self) -> bool {
        self.waiting.is_some()
    }

    /// Ends the [wait](Self::wait).
    #[inline(always)]
    pub fn end_wait(&mut self) {
        self.space = self.waiting.take();
    }

    /// Copies the last command and its time, and the expected reply, to `client`.
    pub fn sync_to(&mut self, client: &mut Client) {
        client.last_input = client.last_input.max(self.last_input);
        if self.waiting.take().is_some() {
            client.pending_replies += 1;
        }
        if let (Some(last), Some(session)) = (self.last.take(), client.session_mut()) {
            session.note_command(last, self.last_input);
        }
    }

    /// Updates the state from `client`.
    pub fn sync_from(&mut self, client: &Client) {
        self.space = client.fast_path_space();
        self.is_quiet = client.is_quiet();
        if let Some(session) = client.session() {
            self.protocol = session.protocol();
        }
    }
}
