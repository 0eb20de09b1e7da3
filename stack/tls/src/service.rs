//! Service whose connections are encrypted.

use crate::config::TlsConfig;
use crate::counters::Counters;
use crate::handshake::{Handshake, Progress, alert_of, read_record};
use crate::limits::{HANDSHAKE_TIME, Limits, MAX_HANDSHAKES, source_of};
use crate::net::TlsNet;
use crate::open_conn::{End, Failure, OpenConn, Unsent};
use crate::record::{Alert, alert_of_plain, plain_alert};
use crate::sessions::{Handshaking, Session, Sessions};
use crate::table::Table;
use linerate_service::inspect::{ServiceMetrics, TlsInfo};
use linerate_service::time::Duration;
use linerate_service::{CloseReason, ConnId, ConnectError, Datagram, OneSidedResult, Origin, Service, Transport};
use rustls::pki_types::ServerName;
use std::collections::VecDeque;
use std::net::SocketAddr;

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
    limits: Limits,
    /// Handshakes whose next step waits for a later turn.
    waiting: VecDeque<ConnId>,
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
            limits: Limits::default(),
            waiting: VecDeque::new(),
            readable: Vec::new(),
        }
    }

    /// Returns the service.
    pub fn service(&self) -> &S {
        &self.service
    }

    /// Returns the service, for tests.
    #[doc(hidden)]
    pub fn service_mut(&mut self) -> &mut S {
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
        while self.limits.unfinished() > MAX_HANDSHAKES || self.handshakes.len() > 2 * MAX_HANDSHAKES {
            let Some(oldest) = self.handshakes.pop_front() else { return };
            if let Some(Session::Handshaking(_)) = self.sessions.table.get(oldest) {
                if self.limits.unfinished() <= MAX_HANDSHAKES {
                    self.handshakes.push_back(oldest);
                    continue;
                }
                self.sessions.shared.counters.displaced += 1;
                self.end_handshake(net, oldest, None);
            }
        }
    }

    /// Resets a connection before its handshake.
    fn refuse(&mut self, net: &mut impl Transport, conn: ConnId, origin: Origin) {
        self.sessions.abort(net, conn, None);
        if let Origin::Connected(token) = origin {
            self.service.failed(&mut TlsNet::new(net, &mut self.sessions), token, ConnectError::Handshake);
        }
    }

    /// Ends an unfinished handshake: with a reset, or after sending `alert`.
    fn end_handshake(&mut self, net: &mut impl Transport, conn: ConnId, alert: Option<&[u8]>) {
        let Some(Session::Handshaking(handshaking)) = self.sessions.table.get_mut(conn) else { return };
        let (origin, source) = (handshaking.origin, handshaking.source);
        self.limits.remove(source);
        let Some(Session::Handshaking(handshaking)) = self.sessions.table.get_mut(conn) else { return };
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

    /// Counts and logs a failed handshake, whose last records are `output`.
    fn report(&mut self, net: &impl Transport, conn: ConnId, error: &rustls::Error, output: &[u8]) {
        let counters = &mut self.sessions.shared.counters;
        counters.failed += 1;
        match alert_of(error, output) {
            Some(Failure::Peer(alert)) => *counters.alerts_received.entry(alert).or_default() += 1,
            Some(Failure::Local(alert)) => *counters.alerts_sent.entry(alert).or_default() += 1,
            None => {}
        }
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
        let begun = std::time::Instant::now();
        let Handshaking { handshake, origin, input, partial, has_sent, .. } = &mut **handshaking;
        let has_sent = *has_sent;
        let mut output = self.sessions.shared.buffers.take_records();
        let mut progress = Progress::NeedsInput;
        // A client begins.
        let mut is_first = matches!(origin, Origin::Connected(_)) && input.is_empty() && partial.is_empty();
        // One record at a time: records after the last one of the handshake are not for rustls.
        loop {
            let is_complete = is_first || read_record(net, conn, partial);
            let alert = partial.first_chunk().and_then(|header| alert_of_plain(*header));
            if let Some(alert) = alert
                && output.is_empty()
                && !has_sent
            {
                output.extend(plain_alert(alert));
                progress = Progress::Failed(rustls::Error::General("wrong header of a record".to_owned()));
                break;
            }
            if !is_complete {
                break;
            }
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
        // rustls has no alert for a few errors. Before the first flight it is plain.
        if output.is_empty() && !has_sent {
            match progress {
                Progress::Failed(rustls::Error::InvalidMessage(_)) => output.extend(plain_alert(Alert::DecodeError)),
                Progress::Failed(rustls::Error::PeerMisbehaved(_)) => {
                    output.extend(plain_alert(Alert::UnexpectedMessage));
                }
                _ => {}
            }
        }
        let spent = begun.elapsed();
        handshaking.spent += spent;
        self.limits.spend(spent);
        let unsent = &mut handshaking.unsent;
        let is_open = match progress {
            Progress::NeedsInput => {
                if !output.is_empty() {
                    handshaking.has_sent = true;
                    unsent.send(net, conn, &output, &mut self.sessions.shared.buffers);
                }
                false
            }
            Progress::Failed(error) => {
                self.report(net, conn, &error, &output);
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
        let Handshaking { handshake, origin, unsent, source, spent, .. } = *handshaking;
        self.limits.complete(source, spent);
        let established = match handshake.finish() {
            Ok(established) => established,
            Err(_) => {
                // Not reached: the handshake is complete, and its output has been taken.
                self.sessions.shared.counters.failed += 1;
                self.sessions.table.insert(conn, Session::dead(None, Unsent::default()));
                net.abort(conn);
                return false;
            }
        };
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
                Ok(is_new) => {
                    if is_new {
                        self.limits.serve();
                    }
                    is_new
                }
                Err(failure) => {
                    self.sessions.fail(net, conn, failure);
                    false
                }
            },
            Some(Session::Plain) => {
                self.limits.serve();
                true
            }
            Some(Session::Handshaking(_)) => {
                if !self.limits.may_step() {
                    if let Some(Session::Handshaking(handshaking)) = self.sessions.table.get_mut(conn)
                        && !std::mem::replace(&mut handshaking.is_waiting, true)
                    {
                        self.waiting.push_back(conn);
                    }
                    return false;
                }
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
        self.sessions.plan_rest(net);
        self.settle_turn(net);
    }

    #[inline]
    fn settle_turn(&mut self, net: &mut impl Transport) {
        for _ in 0..ROUNDS {
            self.sessions.flush(net);
            if self.sessions.shared.resumed.is_empty() && self.sessions.shared.ended.is_empty() {
                return;
            }
            self.deliver_more(net);
        }
        self.sessions.flush(net);
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
                self.refuse(net, conn, origin);
            }
            Some(Ok(handshake)) => {
                let source = source_of(net.peer_addr(conn));
                if !self.limits.add(source) {
                    self.sessions.shared.counters.refused += 1;
                    self.refuse(net, conn, origin);
                    return self.settle(net);
                }
                let handshaking = Handshaking::new(handshake, origin, source);
                self.sessions.table.insert(conn, Session::Handshaking(Box::new(handshaking)));
                self.handshakes.push_back(conn);
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
        self.limits.begin_turn(net.now());
        if !self.waiting.is_empty() {
            while self.limits.may_step()
                && let Some(conn) = self.waiting.pop_front()
            {
                if let Some(Session::Handshaking(handshaking)) = self.sessions.table.get_mut(conn) {
                    handshaking.is_waiting = false;
                    if self.receive(net, conn) {
                        self.readable.push(conn);
                    }
                }
            }
            self.deliver(net);
        }
        let rest = self.service.turn(&mut TlsNet::new(net, &mut self.sessions));
        self.settle_turn(net);
        let rest = [rest, self.sessions.rest(net.now())].into_iter().flatten().min();
        if !self.sessions.shared.resumed.is_empty() || !self.sessions.shared.ended.is_empty() {
            return Some(Duration::ZERO);
        }
        if self.waiting.is_empty() {
            return rest;
        }
        let wait = self.limits.wait();
        Some(rest.map_or(wait, |rest| rest.min(wait)))
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
            Some(Session::Dead(dead)) => reason = dead.reason.unwrap_or(reason),
            _ => {}
        }
        if let Some(state) = self.states.remove(conn) {
            self.service.closed(&mut TlsNet::new(net, &mut self.sessions), conn, state, reason);
        }
        self.settle(net);
    }
}
