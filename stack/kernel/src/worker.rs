//! Worker loop: wait, gather events, call the service, write.

use crate::bind::Sockets;
use crate::connection::{Receiving, Sending, Stage};
use crate::net::Net;
use crate::udp::Udp;
use linerate_bypass::inspect::{ConnInfo, ConnState, Gauges, Inspect, Snapshot};
use linerate_bypass::mailbox::Receiver;
use linerate_bypass::time::Duration;
use linerate_bypass::{AppMsg, CloseReason, ConnId, Drain, Service, Stop, Summary, Transport, tcp_info};
use std::net::SocketAddr;
use std::num::NonZeroU64;

/// Interval at which a sleeping worker checks for a stop.
const STOP_CHECK: Duration = Duration::from_millis(20);
/// Maximum datagrams and messages delivered in one turn.
const BUDGET: usize = 256;

/// Worker that runs a service over kernel sockets on the current thread.
pub struct Worker<S: Service> {
    net: Net,
    service: S,
    /// State of each connection, by slot.
    states: Vec<Option<S::Conn>>,
    mailbox: Receiver<AppMsg<S::Message>>,
    spin: bool,
    started: bool,
    /// Reused buffer.
    burst: Vec<ConnId>,
}

impl<S: Service> Worker<S> {
    /// Creates a worker. The service starts in the first turn.
    pub fn new(sockets: Sockets<S::Message>, service: S) -> Self {
        let Sockets { worker, config, poller, mailbox, listeners, udp } = sockets;
        let spin = config.spin;
        let udp = Udp::new(udp, config.memory);
        let net = Net::new(worker, config, poller, listeners, udp);
        Worker { net, service, states: Vec::new(), mailbox, spin, started: false, burst: Vec::new() }
    }

    /// Returns the TCP addresses in the order of the configuration, with the actual ports.
    pub fn tcp_addrs(&self) -> Vec<SocketAddr> {
        self.net.listen_addrs()
    }

    /// Returns the UDP addresses in the order of the configuration, with the actual ports.
    pub fn udp_addrs(&self) -> Vec<SocketAddr> {
        self.net.udp.local_addrs()
    }

    /// Returns the counters so far.
    pub fn summary(&self) -> &Summary {
        &self.net.summary
    }

    /// Returns the service.
    pub fn service(&self) -> &S {
        &self.service
    }

    /// Runs until `stop`, then resets all connections and returns the service and the counters. A sleeping worker
    /// notices `stop` within 20 ms. While draining, it reports the number of remaining connections.
    pub fn run(mut self, stop: &Stop) -> (S, Summary) {
        // Sleeps may last this much longer than requested; the default is 50 µs.
        if let Err(error) = rustix::thread::set_current_timer_slack(NonZeroU64::new(1)) {
            tracing::debug!("timers may expire 50 µs late: {error}");
        }
        let mut longest = None;
        if !self.spin
            && let Err(error) = self.net.tick(STOP_CHECK)
        {
            tracing::warn!("timerfd unavailable; using one timeout per wait: {error}");
            longest = Some(STOP_CHECK);
        }
        let mut drain = Drain::default();
        while !stop.is_stopped() {
            self.turn_within(longest);
            if stop.is_draining() {
                if drain.is_listening() {
                    self.stop_listening();
                }
                drain.report(stop, self.net.slots.len());
            }
        }
        self.finish()
    }

    /// Accepts the waiting connections, then closes the listening sockets, so that new connections are refused.
    /// Datagrams are not affected.
    pub fn stop_listening(&mut self) {
        self.net.stop_listening();
    }

    /// Runs one turn: waits for events, at most `timeout` and not at all when spinning, delivers them, and writes
    /// pending data.
    pub fn turn(&mut self, timeout: Duration) {
        self.turn_within(Some(timeout));
    }

    fn turn_within(&mut self, longest: Option<Duration>) {
        if !self.started {
            self.started = true;
            self.service.start(&mut self.net);
            self.net.flush_all();
        }
        let rest = self.service.poll(&mut self.net);
        self.net.flush_all();
        let longest = [longest, rest].into_iter().flatten().min();
        let mut timeout = if self.spin { Some(Duration::ZERO) } else { self.net.idle_time(longest) };
        let asleep = timeout != Some(Duration::ZERO);
        if asleep && !self.mailbox.about_to_sleep() {
            timeout = Some(Duration::ZERO);
        }
        let read = self.net.summary.rx_frames;
        if self.spin {
            self.net.gather_spinning();
        } else {
            self.net.gather_events(timeout);
        }
        if asleep {
            self.mailbox.awake();
        }
        let events = self.net.opened.len() + self.net.failed.len() + self.net.ready.len();
        self.deliver_outcomes();
        self.deliver_ready();
        self.deliver_datagrams();
        let messages = self.deliver_messages();
        let summary = &mut self.net.summary;
        let has_read = summary.rx_frames > read;
        summary.turns += 1;
        summary.busy_turns += u64::from(has_read || events + messages > 0);
        summary.bursts += u64::from(has_read);
    }

    /// Delivers `opened` and `failed`.
    fn deliver_outcomes(&mut self) {
        while let Some((id, origin)) = self.net.opened.pop_front() {
            let state = self.service.opened(&mut self.net, id, origin);
            if self.states.len() <= id.slot() {
                self.states.resize_with(id.slot() + 1, || None);
            }
            self.states[id.slot()] = Some(state);
            self.net.flush_all();
        }
        // Only the present ones: the service may retry at once and fail again.
        for _ in 0..self.net.failed.len() {
            let Some((token, error)) = self.net.failed.pop_front() else { break };
            self.net.summary.failed += 1;
            self.service.failed(&mut self.net, token, error);
            self.net.flush_all();
        }
    }

    /// Delivers the events of connections. Events that occur meanwhile wait for the next turn, so that sockets and
    /// timers get their share.
    fn deliver_ready(&mut self) {
        let count = self.net.ready.len();
        self.burst.clear();
        let readable = |id: &ConnId| self.net.slots.get(*id).is_some_and(|conn| conn.pending.readable);
        self.burst.extend(self.net.ready.iter().copied().filter(readable));
        if !self.burst.is_empty() {
            let served = self.service.burst(&mut self.net, &self.burst);
            for id in self.burst.iter().take(served) {
                if let Some(conn) = self.net.slots.get_mut(*id) {
                    conn.pending.readable = false;
                }
            }
        }
        for _ in 0..count {
            let Some(id) = self.net.ready.pop_front() else { break };
            self.deliver(id);
            self.net.flush_all();
        }
    }

    fn deliver(&mut self, id: ConnId) {
        let Worker { net, service, states, .. } = self;
        let Some(conn) = net.slots.get_mut(id) else { return };
        let Some(state) = states.get_mut(id.slot()) else { return };
        conn.listed = false;
        if let Some(state) = state {
            // Each step checks again: the service may have ended or changed the connection in the previous one.
            if net.slots.get_mut(id).is_some_and(|conn| std::mem::take(&mut conn.pending.readable)) {
                service.readable(net, id, state);
            }
            if net.slots.get_mut(id).is_some_and(|conn| std::mem::take(&mut conn.pending.writable)) {
                service.writable(net, id, state);
            }
            if let Some(conn) = net.slots.get_mut(id)
                && conn.peer_closed_is_due()
            {
                conn.receiving = Receiving::Reported;
                service.peer_closed(net, id, state);
                if net.slots.get(id).is_some_and(|conn| conn.is_finished()) {
                    net.end(id, CloseReason::Finished);
                }
            }
            if net.slots.get_mut(id).is_some_and(|conn| std::mem::take(&mut conn.pending.timer)) {
                service.timer(net, id, state);
            }
        }
        if let Some(conn) = net.slots.get(id)
            && let Stage::Ended(reason) = conn.stage
        {
            net.remove(id);
            if let Some(state) = state.take() {
                self.closed(id, state, reason);
            }
        }
    }

    fn closed(&mut self, id: ConnId, state: S::Conn, reason: CloseReason) {
        match reason {
            CloseReason::Finished => self.net.summary.finished += 1,
            _ => self.net.summary.broken += 1,
        }
        self.service.closed(&mut self.net, id, state, reason);
    }

    fn deliver_datagrams(&mut self) {
        for _ in 0..BUDGET {
            let Some(datagram) = self.net.udp.receive() else { break };
            // The timer may reply to data sent in an event of this turn.
            self.net.update_time();
            self.net.summary.rx_frames += 1;
            self.net.summary.rx_bytes += datagram.payload.len() as u64;
            self.service.datagram(&mut self.net, datagram);
            self.net.flush_all();
        }
        let dropped = std::mem::take(&mut self.net.udp.dropped);
        self.net.summary.drop_for("datagram: no memory", dropped);
    }

    fn deliver_messages(&mut self) -> usize {
        let mut delivered = 0;
        while delivered < BUDGET
            && let Some(letter) = self.mailbox.receive()
        {
            delivered += 1;
            let (to, message) = match letter {
                AppMsg::Message { to, message } => (to, message),
                AppMsg::Query(look) => {
                    look.answer(self);
                    continue;
                }
            };
            let Some(id) = to else {
                self.service.on_message(&mut self.net, message);
                continue;
            };
            if self.net.slots.get(id).is_some_and(|conn| conn.stage == Stage::Open && !conn.is_lingering())
                && let Some(Some(state)) = self.states.get_mut(id.slot())
            {
                self.service.on_conn_message(&mut self.net, id, state, message);
            }
        }
        self.net.flush_all();
        delivered
    }

    fn finish(mut self) -> (S, Summary) {
        for id in self.net.slots.conn_ids() {
            self.net.abort_now(id);
            let Some(conn) = self.net.remove(id) else { continue };
            let Some(state) = self.states.get_mut(id.slot()).and_then(Option::take) else {
                self.net.summary.failed += 1;
                continue;
            };
            if let Stage::Ended(reason) = conn.stage {
                self.closed(id, state, reason);
            }
        }
        (self.service, self.net.summary)
    }
}

impl<S: Service> Inspect for Worker<S> {
    /// Slots per query, each of which takes a system call.
    const SLOTS_PER_QUERY: usize = 64;

    fn snapshot(&mut self) -> Snapshot {
        let gauges = Gauges { connections: self.net.slots.len() as u64, ..Gauges::default() };
        Snapshot {
            worker: self.net.worker(),
            summary: self.net.summary.clone(),
            gauges,
            shortages: None,
            requests: self.service.requests(),
            slow_requests: self.service.slow_requests(),
        }
    }

    fn slots(&self) -> usize {
        self.net.slots.slot_count()
    }

    fn connection(&self, slot: usize) -> Option<ConnInfo> {
        let conn = self.net.slots.conn_id(slot)?;
        let connection = self.net.slots.get(conn)?;
        let state = match connection.stage {
            Stage::Connecting(_) => ConnState::SynSent,
            Stage::Open => {
                let peer_finished = matches!(connection.receiving, Receiving::Ended | Receiving::Reported);
                ConnState::of_ends(peer_finished, connection.sending == Sending::Finished)
            }
            Stage::Ended(_) => ConnState::Closed,
        };
        Some(ConnInfo {
            conn,
            local: self.net.local_addr(conn),
            remote: connection.remote,
            state,
            unread: connection.rx.len() as u64,
            unsent: connection.tx.len() as u64,
            // A socket just closed has no kernel state.
            tcp: connection.stream.as_ref().and_then(|stream| tcp_info(stream).ok()).unwrap_or_default(),
        })
    }
}
