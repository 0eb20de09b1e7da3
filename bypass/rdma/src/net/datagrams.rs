//! Delivery of UD datagrams to sessions, and sending of session datagrams.

use super::{Early, Net};
use crate::connection::conn_transport::ConnTransport;
use crate::provider::Provider;
use crate::session::{DatagramHeader, WINDOW};
use crate::verbs::{Ah, Completion, Error, Message, UdMessage};
use linerate_service::{CloseReason, ConnId, Stage};

/// Drop causes in the summary.
const SENSELESS: &str = "datagram: senseless";
const STRANGE: &str = "datagram: of no session";

impl<C: Provider> Net<C> {
    /// Processes a completion of the UD queue pair.
    pub(super) fn datagram_completed(&mut self, completion: Completion) {
        let Some(datagrams) = &mut self.datagrams else { return };
        let failed = if completion.is_buffer() {
            match datagrams.received(completion) {
                Ok(received) => return self.datagram(received),
                Err(status) => status,
            }
        } else {
            let sent = datagrams.sent(completion);
            if !datagrams.is_errored() {
                while let Some(id) = self.crowded.pop() {
                    self.set_dirty(id);
                }
            }
            match sent {
                Ok(()) => return,
                Err(status) => status,
            }
        };
        self.datagrams_failed(&failed);
        self.rebuild_datagrams();
    }

    /// Ends all sessions after a failure of the UD queue pair, and flushes its requests.
    #[cold]
    fn datagrams_failed(&mut self, reason: &dyn std::fmt::Display) {
        let Some(datagrams) = &mut self.datagrams else { return };
        if self.datagrams_failed_at.is_some() {
            return;
        }
        tracing::error!("UD queue pair {} has failed, and its connections have ended: {reason}", datagrams.number());
        self.datagrams_failed_at = Some(self.now);
        if let Err(error) = datagrams.fail() {
            self.give_up_datagrams(&error);
        }
        for id in self.table.slots.conn_ids() {
            self.end(id, CloseReason::Reset);
        }
    }

    /// Rebuilds the failed UD queue pair once all its requests have completed. Later sessions wait for that.
    #[cold]
    fn rebuild_datagrams(&mut self) {
        let Some(datagrams) = &mut self.datagrams else { return };
        match datagrams.drain().and_then(|is_drained| if is_drained { datagrams.rebuild() } else { Ok(()) }) {
            Ok(()) if datagrams.is_errored() => {}
            Ok(()) => {
                self.datagrams_failed_at = None;
                while let Some(id) = self.crowded.pop() {
                    self.set_dirty(id);
                }
            }
            Err(error) => self.give_up_datagrams(&error),
        }
    }

    /// Gives up the UD queue pair if its requests take too long to complete.
    pub(super) fn expect_datagrams(&mut self) {
        let patience = self.config.connect_timeout;
        if self.datagrams_failed_at.is_some_and(|at| at + patience <= self.now) {
            self.give_up_datagrams(&"the requests of the failed UD queue pair do not complete");
        }
    }

    /// Reports that no further connections are possible.
    #[cold]
    fn give_up_datagrams(&mut self, reason: &dyn std::fmt::Display) {
        self.failure = Some(reason.to_string());
        (self.datagrams, self.datagrams_failed_at) = (None, None);
    }

    /// Passes a datagram to its session, or drops it.
    pub(super) fn datagram(&mut self, received: UdMessage) {
        let Ok(header) = DatagramHeader::read(&received.payload) else {
            return self.summary.drop_for(SENSELESS, 1);
        };
        let Some(id) = self.of_number(header.session) else {
            match self.expected.get_mut(&header.session) {
                // Without an acknowledgement, the peer sends at most one window.
                Some(early) if early.len() < WINDOW as usize => early.push(Early::Datagram(received)),
                _ => self.summary.drop_for(STRANGE, 1),
            }
            return;
        };
        let Some(conn) = self.table.slots.get_mut(id).filter(|conn| conn.life.stage == Stage::Open) else { return };
        let ConnTransport::Ud(peer) = &mut conn.link.transport else { return };
        if received.qp != peer.qp {
            return self.summary.drop_for(STRANGE, 1);
        }
        conn.last_completion = self.now;
        let mut bytes = received.payload;
        bytes.advance(DatagramHeader::LEN);
        if let Err(error) = peer.session.receive(&header, bytes, self.now) {
            return self.refuse(id, &error);
        }
        while let Some(message) = self.next_message(id) {
            self.message(id, Ok(message));
        }
        self.all_may_be_sent(id);
        // The session may have an acknowledgement to send, or new room.
        self.set_dirty(id);
    }

    fn next_message(&mut self, id: ConnId) -> Option<linerate_service::Bytes> {
        match &mut self.table.slots.get_mut(id)?.link.transport {
            ConnTransport::Ud(peer) => peer.session.take(),
            ConnTransport::Rc(_) => None,
        }
    }

    /// Handles a session timer: retransmits or acknowledges, unless that has become unnecessary.
    pub(super) fn session_timer_event(&mut self, id: ConnId) {
        let Some(conn) = self.table.slots.get_mut(id) else { return };
        let ConnTransport::Ud(peer) = &mut conn.link.transport else { return };
        if self.session_timers.fired(id, &mut peer.timer, self.now) {
            self.set_dirty(id);
        }
    }

    /// Sends the datagrams of a session that are due.
    pub(super) fn send_datagrams(&mut self, id: ConnId) -> Result<(), Error> {
        let Some(conn) = self.table.slots.get_mut(id) else { return Ok(()) };
        let (ConnTransport::Ud(peer), Some(datagrams)) = (&mut conn.link.transport, &mut self.datagrams) else {
            return Ok(());
        };
        if peer.session.is_given_up() {
            tracing::info!("{}: the peer acknowledges nothing", self.described(id));
            self.end(id, CloseReason::TimedOut);
            return Ok(());
        }
        let (mut has_room, mut has_memory) = (true, true);
        let resent = peer.session.resent();
        peer.session.send(self.now, |header, message| {
            has_room = datagrams.room() > 0;
            if !has_room {
                return false;
            }
            let Some(mut head) = self.buffers.alloc(DatagramHeader::LEN) else {
                has_memory = false;
                return false;
            };
            if let Some(out) = head.first_chunk_mut() {
                header.write(out);
            }
            let mut datagram = Message::new();
            let _ = datagram.push(head.freeze());
            for chunk in message.iter().flat_map(|message| message.chunks()) {
                let _ = datagram.push(chunk.clone());
            }
            datagrams.send(&peer.ah, peer.qp, peer.q_key, &mut datagram, false).is_ok()
        });
        *self.summary.retransmitted.get_or_insert(0) += peer.session.resent() - resent;
        if peer.session.requests_path() {
            self.moved.push((peer.local_number, peer.path));
        }
        let due = peer.session.due();
        self.session_timers.set(id, &mut peer.timer, due.filter(|_| has_room && has_memory));
        if !has_room {
            self.crowded.push(id);
        }
        if !has_memory {
            self.starved.push(id);
        }
        Ok(())
    }

    /// Sends the datagrams of session `number` to a renewed address.
    pub fn readdress(&mut self, number: u64, ah: Ah<C>) {
        let conn = self.of_number(number).and_then(|id| self.table.slots.get_mut(id));
        if let Some(ConnTransport::Ud(peer)) = conn.map(|conn| &mut conn.link.transport) {
            peer.ah = ah;
        }
    }

    /// Acknowledges the received messages once more before the session is dropped. If this datagram is lost, the
    /// closing TCP connection of the exchange informs the peer.
    pub(super) fn acknowledge(&mut self, id: ConnId) {
        let Some(conn) = self.table.slots.get_mut(id) else { return };
        if let ConnTransport::Ud(peer) = &mut conn.link.transport {
            peer.session.acknowledge();
        }
        let _ = self.send_datagrams(id);
    }

    /// Posts queued datagrams, and buffers that replace used ones.
    pub(super) fn flush_datagrams(&mut self) {
        let Some(datagrams) = self.datagrams.as_mut().filter(|datagrams| !datagrams.is_errored()) else { return };
        let (arena, len) = (&self.buffers, datagrams.buffer_len());
        let wanted = datagrams.recv_room();
        let posted = datagrams.post((0..wanted).map_while(|_| arena.alloc(len)));
        self.summary.verbs.buffers += (wanted - datagrams.recv_room()) as u64;
        match posted.and_then(|()| datagrams.flush()) {
            Ok((requests, posts)) => {
                self.summary.verbs.requests += requests;
                self.summary.verbs.posts += posts;
            }
            Err(error) => self.datagrams_failed(&error),
        }
    }
}
