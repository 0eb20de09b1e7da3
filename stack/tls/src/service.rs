//! Service whose connections are encrypted.

use crate::config::TlsConfig;
use crate::counters::Counters;
use crate::handshake::{Handshake, Progress};
use crate::net::TlsNet;
use crate::open_conn::{End, OpenConn, Unsent};
use crate::record::{HEADER, length_of};
use crate::sessions::{Dead, Handshaking, Session, Sessions};
use crate::table::Table;
use linerate_service::inspect::{ServiceMetrics, TlsInfo};
use linerate_service::time::Duration;
use linerate_service::{CloseReason, ConnId, ConnectError, Datagram, OneSidedResult, Origin, Service, Transport};
use rustls::pki_types::ServerName;
use std::collections::VecDeque;
use std::net::SocketAddr;

/// Time limit of a handshake.
pub const HANDSHAKE_TIME: Duration = Duration::from_secs(10);
/// Maximum number of unfinished handshakes of a worker. A further one displaces the oldest.
pub const MAX_HANDSHAKES: usize = 4096;
/// Handshake steps of a worker in one turn. Others wait for the next turn, so that connections with keys do not wait
/// for more than a few signatures.
const STEPS: usize = 4;
/// Maximum length of a record of a handshake, and of the unprocessed records.
const MAX_INPUT: usize = 1 << 17;
/// Rounds of events in one call: a service may consume data, for which more records are opened.
const ROUNDS: usize = 8;

/// Service `S` with TLS on its connections.
///
/// The events of `S` have the order that [`Service`] defines. [`Service::opened`] follows the handshake, and
/// [`Service::peer_closed`] follows close_notify. A peer that finishes without close_notify ends the connection as a
/// reset does, because its data may have been truncated.
pub struct Tls<S: Service> {
    service: S,
    states: Table<S::Conn>,
    sessions: Sessions,
    config: TlsConfig,
    /// Unfinished handshakes from the oldest on, and finished ones among them.
    handshakes: VecDeque<ConnId>,
    unfinished: usize,
    /// Handshakes whose next step waits for the next turn.
    waiting: Vec<ConnId>,
    steps: usize,
    /// Reused buffer.
    readable: Vec<ConnId>,
}

impl<S: Service> Tls<S> {
    /// Creates a service with TLS from one without.
    pub fn new(config: TlsConfig, service: S) -> Self {
        Tls {
            service,
            states: Table::default(),
            sessions: Sessions::default(),
            config,
            handshakes: VecDeque::new(),
            unfinished: 0,
            waiting: Vec::new(),
            steps: STEPS,
            readable: Vec::new(),
        }
    }

    /// Returns the service.
    pub fn service(&self) -> &S {
        &self.service
    }

    #[cfg(test)]
    pub(crate) fn service_mut(&mut self) -> &mut S {
        &mut self.service
    }

    /// Delivers `readable`, for a service that has not read everything before.
    #[cfg(test)]
    pub(crate) fn read_all(&mut self, net: &mut impl Transport, conn: ConnId) {
        if let Some(state) = self.states.get_mut(conn) {
            self.service.readable(&mut TlsNet::new(net, &mut self.sessions), conn, state);
        }
        self.settle(net);
    }

    /// Returns the service without TLS.
    pub fn into_service(self) -> S {
        self.service
    }

    /// Returns the counters.
    pub fn counters(&self) -> &Counters {
        &self.sessions.shared.counters
    }

    /// Replaces sending keys after `records` records, for tests.
    #[doc(hidden)]
    pub fn limit_records(&mut self, records: u64) {
        self.sessions.shared.record_limit = Some(records);
    }

    /// Begins the handshake of a connection, or returns `None` for a plain one.
    fn handshake(
        &self,
        net: &impl Transport,
        conn: ConnId,
        origin: Origin,
    ) -> Option<Result<Handshake, rustls::Error>> {
        match origin {
            Origin::Accepted => {
                let server = self.config.server.as_ref()?;
                let local = net.local_addr(conn).map_or(0, |local| local.port());
                self.config.is_encrypted(local).then(|| Handshake::server(server.config()))
            }
            Origin::Connected(_) => {
                let client = self.config.client.as_ref()?;
                let address = || net.peer_addr(conn).map(|peer| ServerName::from(peer.ip()));
                let name = client.name().or_else(address)?;
                Some(Handshake::client(client.config(), name))
            }
        }
    }

    /// Aborts the oldest handshakes beyond the limit.
    fn bound_handshakes(&mut self, net: &mut impl Transport) {
        while self.unfinished > MAX_HANDSHAKES || self.handshakes.len() > 2 * MAX_HANDSHAKES {
            let Some(oldest) = self.handshakes.pop_front() else { return };
            if let Some(Session::Handshaking(_)) = self.sessions.table.get(oldest) {
                if self.unfinished <= MAX_HANDSHAKES {
                    self.handshakes.push_back(oldest);
                    continue;
                }
                self.sessions.shared.counters.displaced += 1;
                self.end_handshake(net, oldest, None);
            }
        }
    }

    /// Ends an unfinished handshake: with a reset, or after sending `alert`.
    fn end_handshake(&mut self, net: &mut impl Transport, conn: ConnId, alert: Option<&[u8]>) {
        let Some(Session::Handshaking(handshaking)) = self.sessions.table.get_mut(conn) else { return };
        let origin = handshaking.origin;
        self.unfinished -= 1;
        match alert {
            Some(alert) => {
                handshaking.unsent.send(net, conn, alert, &mut self.sessions.shared.buffers);
                self.sessions.end(net, conn, None);
            }
            None => self.sessions.abort(net, conn, None),
        }
        if let Origin::Connected(token) = origin {
            self.service.failed(&mut TlsNet::new(net, &mut self.sessions), token, ConnectError::Handshake);
        }
    }

    /// Counts and logs a failed handshake.
    fn report(&mut self, net: &impl Transport, conn: ConnId, error: &rustls::Error) {
        let counters = &mut self.sessions.shared.counters;
        counters.failed += 1;
        let peer = net.peer_addr(conn).map(|peer| peer.to_string()).unwrap_or_default();
        // Peers must not be able to fill the log.
        if counters.failed == 1 {
            tracing::warn!("TLS handshake with {peer} failed: {error}");
        } else {
            tracing::debug!("TLS handshake with {peer} failed: {error}");
        }
    }

    /// Continues a handshake with what has been received. Returns whether the connection is open.
    fn step(&mut self, net: &mut impl Transport, conn: ConnId) -> bool {
        let Some(Session::Handshaking(handshaking)) = self.sessions.table.get_mut(conn) else { return false };
        let Handshaking { handshake, origin, input, partial, unsent } = &mut **handshaking;
        let mut output = self.sessions.shared.buffers.take_records();
        let mut progress = Progress::NeedsInput;
        // A client begins.
        let mut is_first = matches!(origin, Origin::Connected(_)) && input.is_empty() && partial.is_empty();
        // One record at a time: records after the last one of the handshake are not for rustls.
        while is_first || read_record(net, conn, partial) {
            is_first = false;
            input.append(partial);
            progress = handshake.advance(input, &mut output);
            if input.len() > MAX_INPUT {
                progress = Progress::Failed(rustls::Error::General("too many records".to_owned()));
            }
            if !matches!(progress, Progress::NeedsInput) {
                break;
            }
        }
        let is_open = match progress {
            Progress::NeedsInput => {
                if !output.is_empty() {
                    unsent.send(net, conn, &output, &mut self.sessions.shared.buffers);
                }
                false
            }
            Progress::Failed(error) => {
                self.report(net, conn, &error);
                self.end_handshake(net, conn, Some(&output));
                false
            }
            Progress::Complete => {
                unsent.send(net, conn, &output, &mut self.sessions.shared.buffers);
                self.complete(net, conn)
            }
        };
        self.sessions.shared.buffers.give_records(output);
        is_open
    }

    /// Opens a connection whose handshake is complete. Returns whether it is open.
    fn complete(&mut self, net: &mut impl Transport, conn: ConnId) -> bool {
        let Some(Session::Handshaking(handshaking)) = self.sessions.table.remove(conn) else { return false };
        let Handshaking { handshake, origin, unsent, .. } = *handshaking;
        let established = match handshake.finish() {
            Ok(established) => established,
            Err(_) => {
                // Not reached: the handshake is complete, and its output has been taken.
                self.unfinished -= 1;
                self.sessions.shared.counters.failed += 1;
                self.sessions.table.insert(conn, Session::Dead(Dead::default()));
                net.abort(conn);
                return false;
            }
        };
        self.unfinished -= 1;
        let shared = &mut self.sessions.shared;
        shared.counters.handshakes += 1;
        shared.counters.resumed += u64::from(established.is_resumed);
        net.set_timer(conn, None);
        let open = OpenConn::new(established, unsent, shared);
        self.sessions.table.insert(conn, Session::Open(Box::new(open)));
        let state = self.service.opened(&mut TlsNet::new(net, &mut self.sessions), conn, origin);
        self.states.insert(conn, state);
        self.sessions.is_live(conn)
    }

    /// Handles received bytes. Returns whether there is new plaintext for the service.
    fn receive(&mut self, net: &mut impl Transport, conn: ConnId) -> bool {
        match self.sessions.table.get_mut(conn) {
            Some(Session::Open(open)) => match open.receive(net, conn, &mut self.sessions.shared) {
                Ok(is_new) => is_new,
                Err(failure) => {
                    self.sessions.fail(net, conn, failure);
                    false
                }
            },
            Some(Session::Plain) => true,
            Some(Session::Handshaking(_)) => {
                if self.steps == 0 {
                    if !self.waiting.contains(&conn) {
                        self.waiting.push(conn);
                    }
                    return false;
                }
                self.steps -= 1;
                self.step(net, conn) && self.receive(net, conn)
            }
            Some(Session::Dead(_)) | None => {
                net.consume(conn, usize::MAX);
                false
            }
        }
    }

    /// Delivers new plaintext of the connections in `self.readable`.
    fn deliver(&mut self, net: &mut impl Transport) {
        let mut readable = std::mem::take(&mut self.readable);
        let mut net = TlsNet::new(net, &mut self.sessions);
        // Events of other connections may have ended or read some.
        readable.retain(|conn| net.received(*conn) > 0);
        if !readable.is_empty() {
            let served = self.service.burst(&mut net, &readable);
            for conn in readable.drain(..).skip(served) {
                if net.is_live(conn)
                    && let Some(state) = self.states.get_mut(conn)
                {
                    self.service.readable(&mut net, conn, state);
                }
            }
        }
        readable.clear();
        self.readable = readable;
    }

    /// Completes an event: delivers the events that it caused, and sends what the service has written.
    #[inline]
    fn settle(&mut self, net: &mut impl Transport) {
        for _ in 0..ROUNDS {
            self.sessions.flush_staged(net);
            if self.sessions.shared.resumed.is_empty() && self.sessions.shared.ended.is_empty() {
                return;
            }
            self.deliver_more(net);
        }
        self.sessions.flush_staged(net);
    }

    #[cold]
    fn deliver_more(&mut self, net: &mut impl Transport) {
        while let Some(conn) = self.sessions.shared.resumed.pop() {
            if self.sessions.is_live(conn) && self.receive(net, conn) {
                self.readable.push(conn);
            }
        }
        self.deliver(net);
        for _ in 0..self.sessions.shared.ended.len() {
            let Some(conn) = self.sessions.shared.ended.pop() else { return };
            let Some((open, _)) = self.sessions.open_mut(conn) else { continue };
            if open.end == End::Due && open.received.len() == 0 {
                open.end = End::Reported;
                if let Some(state) = self.states.get_mut(conn) {
                    self.service.peer_closed(&mut TlsNet::new(net, &mut self.sessions), conn, state);
                }
            }
        }
    }

    /// Returns whether events wait for the next turn.
    fn is_unsettled(&self) -> bool {
        !self.waiting.is_empty() || !self.sessions.shared.resumed.is_empty() || !self.sessions.shared.ended.is_empty()
    }
}

/// Moves received bytes of the next record to `partial`. Returns whether the record is complete.
fn read_record(net: &mut impl Transport, conn: ConnId, partial: &mut Vec<u8>) -> bool {
    loop {
        let needed = match partial.first_chunk::<HEADER>() {
            None => HEADER,
            Some(header) => HEADER + length_of(*header),
        };
        // rustls rejects a header with a wrong type or length before the rest has arrived.
        let is_wrong = partial.first_chunk::<HEADER>().is_some_and(|header| !(20..=23).contains(&header[0]));
        if needed > HEADER && partial.len() == needed || is_wrong {
            return true;
        }
        let slice = net.peek(conn);
        let n = slice.len().min(needed - partial.len());
        if n == 0 {
            // An empty record has no more bytes.
            return needed == HEADER && partial.len() == HEADER;
        }
        partial.extend_from_slice(&slice[..n]);
        net.consume(conn, n);
    }
}

impl<S: Service> Service for Tls<S> {
    /// The state of `S` is opened after the handshake, and kept here.
    type Conn = ();
    type Message = S::Message;

    fn start(&mut self, net: &mut impl Transport) {
        self.service.start(&mut TlsNet::new(net, &mut self.sessions));
        self.settle(net);
    }

    fn burst(&mut self, net: &mut impl Transport, readable: &[ConnId]) -> usize {
        for &conn in readable {
            if self.receive(net, conn) {
                self.readable.push(conn);
            }
        }
        self.deliver(net);
        self.settle(net);
        readable.len()
    }

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, origin: Origin) {
        match self.handshake(net, conn, origin) {
            None => {
                self.sessions.table.insert(conn, Session::Plain);
                let state = self.service.opened(&mut TlsNet::new(net, &mut self.sessions), conn, origin);
                self.states.insert(conn, state);
            }
            Some(Err(_)) => {
                self.sessions.shared.counters.failed += 1;
                self.sessions.abort(net, conn, None);
                if let Origin::Connected(token) = origin {
                    self.service.failed(&mut TlsNet::new(net, &mut self.sessions), token, ConnectError::Handshake);
                }
            }
            Some(Ok(handshake)) => {
                let unsent = Unsent::default();
                let handshaking = Handshaking { handshake, origin, input: Vec::new(), partial: Vec::new(), unsent };
                self.sessions.table.insert(conn, Session::Handshaking(Box::new(handshaking)));
                self.handshakes.push_back(conn);
                self.unfinished += 1;
                net.set_timer(conn, Some(HANDSHAKE_TIME));
                if matches!(origin, Origin::Connected(_)) {
                    self.step(net, conn);
                }
                self.bound_handshakes(net);
            }
        }
        self.settle(net);
    }

    fn failed(&mut self, net: &mut impl Transport, token: u64, error: ConnectError) {
        self.service.failed(&mut TlsNet::new(net, &mut self.sessions), token, error);
        self.settle(net);
    }

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, (): &mut ()) {
        // `burst` serves all connections.
        self.burst(net, &[conn]);
    }

    fn writable(&mut self, net: &mut impl Transport, conn: ConnId, (): &mut ()) {
        self.sessions.flush_unsent(net, conn);
        let is_wanted = match self.sessions.table.get_mut(conn) {
            Some(Session::Open(open)) => {
                open.unsent.is_empty() && !open.is_closed && std::mem::take(&mut open.wants_space)
            }
            Some(Session::Plain) => true,
            _ => false,
        };
        if is_wanted && let Some(state) = self.states.get_mut(conn) {
            self.service.writable(&mut TlsNet::new(net, &mut self.sessions), conn, state);
        }
        self.settle(net);
    }

    fn peer_closed(&mut self, net: &mut impl Transport, conn: ConnId, (): &mut ()) {
        match self.sessions.table.get_mut(conn) {
            Some(Session::Plain) => {
                if let Some(state) = self.states.get_mut(conn) {
                    self.service.peer_closed(&mut TlsNet::new(net, &mut self.sessions), conn, state);
                }
            }
            Some(Session::Handshaking(_)) => {
                self.sessions.shared.counters.failed += 1;
                self.end_handshake(net, conn, None);
            }
            Some(Session::Open(open)) if open.end == End::Open => {
                self.sessions.shared.counters.truncated += 1;
                // After the own end nothing is gained by a reset, which could destroy data on its way to the peer.
                if !open.is_closed {
                    self.sessions.abort(net, conn, Some(CloseReason::Reset));
                }
            }
            Some(Session::Open(_) | Session::Dead(_)) | None => {}
        }
        self.settle(net);
    }

    fn timer(&mut self, net: &mut impl Transport, conn: ConnId, (): &mut ()) {
        match self.sessions.table.get(conn) {
            Some(Session::Handshaking(_)) => {
                self.sessions.shared.counters.timed_out += 1;
                self.end_handshake(net, conn, None);
            }
            // Its last records could not be sent in time.
            Some(Session::Dead(_)) => net.abort(conn),
            Some(Session::Open(_) | Session::Plain) => {
                if let Some(state) = self.states.get_mut(conn) {
                    self.service.timer(&mut TlsNet::new(net, &mut self.sessions), conn, state);
                }
            }
            None => {}
        }
        self.settle(net);
    }

    fn conn_message(&mut self, net: &mut impl Transport, conn: ConnId, (): &mut (), message: S::Message) {
        if self.sessions.is_live(conn)
            && let Some(state) = self.states.get_mut(conn)
        {
            self.service.conn_message(&mut TlsNet::new(net, &mut self.sessions), conn, state, message);
        }
        self.settle(net);
    }

    fn message(&mut self, net: &mut impl Transport, message: S::Message) {
        self.service.message(&mut TlsNet::new(net, &mut self.sessions), message);
        self.settle(net);
    }

    fn turn(&mut self, net: &mut impl Transport) -> Option<Duration> {
        self.steps = STEPS;
        if !self.waiting.is_empty() {
            let waiting = std::mem::take(&mut self.waiting);
            for conn in waiting {
                if self.receive(net, conn) {
                    self.readable.push(conn);
                }
            }
            self.deliver(net);
        }
        let rest = self.service.turn(&mut TlsNet::new(net, &mut self.sessions));
        self.settle(net);
        if self.is_unsettled() { Some(Duration::ZERO) } else { rest }
    }

    fn datagram(&mut self, net: &mut impl Transport, datagram: Datagram) {
        self.service.datagram(&mut TlsNet::new(net, &mut self.sessions), datagram);
        self.settle(net);
    }

    fn datagram_refused(&mut self, net: &mut impl Transport, local: SocketAddr, remote: SocketAddr) {
        self.service.datagram_refused(&mut TlsNet::new(net, &mut self.sessions), local, remote);
        self.settle(net);
    }

    fn one_sided_done(
        &mut self,
        net: &mut impl Transport,
        conn: ConnId,
        (): &mut (),
        token: u64,
        outcome: OneSidedResult,
    ) {
        if let Some(state) = self.states.get_mut(conn) {
            self.service.one_sided_done(&mut TlsNet::new(net, &mut self.sessions), conn, state, token, outcome);
        }
        self.settle(net);
    }

    fn metrics(&self) -> ServiceMetrics {
        let mut metrics = self.service.metrics();
        metrics.others.extend(self.counters().metrics());
        metrics
    }

    fn tls_info(&self, conn: ConnId) -> Option<TlsInfo> {
        self.sessions.tls_info(conn)
    }

    fn closed(&mut self, net: &mut impl Transport, conn: ConnId, (): (), reason: CloseReason) {
        if let Some(Session::Handshaking(_)) = self.sessions.table.get(conn) {
            self.sessions.shared.counters.failed += 1;
            self.end_handshake(net, conn, None);
        }
        let mut reason = reason;
        match self.sessions.table.remove(conn) {
            Some(Session::Open(open)) => {
                if reason == CloseReason::Finished && open.end != End::Reported {
                    if open.end == End::Due && open.received.len() == 0 {
                        if let Some(state) = self.states.get_mut(conn) {
                            self.service.peer_closed(&mut TlsNet::new(net, &mut self.sessions), conn, state);
                        }
                    } else {
                        // The peer's data was truncated, or the service has not read all of it.
                        reason = CloseReason::Reset;
                    }
                }
                open.release(&mut self.sessions.shared);
            }
            Some(Session::Dead(Dead { reason: Some(other), .. })) => reason = other,
            _ => {}
        }
        if let Some(state) = self.states.remove(conn) {
            self.service.closed(&mut TlsNet::new(net, &mut self.sessions), conn, state, reason);
        }
        self.settle(net);
    }
}
