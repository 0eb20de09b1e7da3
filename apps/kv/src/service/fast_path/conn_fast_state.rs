//! What is to be known of a client while it asks for nothing but what the fast path recognises: a cache line, where the client
//! itself is many.

use crate::commands::FastCommand;
use crate::service::conn::Client;
use linerate_bypass::ConnId;

/// The client in a slot, for the fast path.
#[derive(Clone)]
#[repr(align(64))]
pub(in crate::service) struct Lane {
    conn: Option<ConnId>,
    /// The keyspace in which its requests are recognised, if they may be.
    pub space: Option<u8>,
    /// No reply to it waits, and it has not finished.
    pub is_quiet: bool,
    /// What was its last request, if that was answered here.
    last: Option<FastCommand>,
    /// When that was.
    heard: u64,
    /// The last burst in which it was served.
    pub served_in: u64,
}

impl Lane {
    /// Nobody's.
    pub const IDLE: Lane = Lane { conn: None, space: None, is_quiet: false, last: None, heard: 0, served_in: 0 };

    /// That of `client`.
    pub fn of(client: &Client) -> Self {
        let mut lane = Lane { conn: Some(client.conn), ..Lane::IDLE };
        lane.follow(client);
        lane
    }

    /// Whether it is that of the client of `conn`.
    #[inline(always)]
    pub fn is_of(&self, conn: ConnId) -> bool {
        self.conn == Some(conn)
    }

    /// A request of it was answered here, at `now`.
    #[inline(always)]
    pub fn answered(&mut self, request: FastCommand, now: u64) {
        (self.last, self.heard) = (Some(request), now);
    }

    /// When it said something last that was answered here.
    pub fn heard(&self) -> u64 {
        self.heard
    }

    /// Tells `client` what it has been answered here.
    pub fn tell(&mut self, client: &mut Client) {
        client.heard = client.heard.max(self.heard);
        if let (Some(last), Some(session)) = (self.last.take(), client.session_mut()) {
            session.note_command(last, self.heard);
        }
    }

    /// Is as `client` says from now on.
    pub fn follow(&mut self, client: &Client) {
        self.space = client.recognised_in();
        self.is_quiet = client.is_quiet();
    }
}
