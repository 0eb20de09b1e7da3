//! Records of all connections: events and actions of the services at both ends, for comparison.

use crate::content::Stream;
use crate::scenario::Scenario;
use linerate_bypass::memory_nic::End;
use linerate_service::time::{Duration, Instant};
use linerate_service::{CloseReason, ConnectError};
use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;

/// Maximum lateness of a service timer: the tick of the timing wheel, and hosts that poll rarely.
const TIMER_SLACK: Duration = Duration::from_millis(20);

/// Event received by the service of one end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeenEvent {
    Opened,
    Failed(ConnectError),
    PeerClosed,
    Ended(CloseReason),
}

/// Record of one end of a connection.
#[derive(Debug, Clone)]
pub struct Record {
    /// Stream that this end sends: its own, or a relayed stream.
    pub outgoing: Stream,
    pub opened: bool,
    /// Bytes accepted by the transport.
    pub sent: u64,
    /// Bytes received by the service.
    pub received: u64,
    pub closed: bool,
    pub aborted: bool,
    pub peer_closed: bool,
    /// Close reason from the transport.
    pub ended: Option<CloseReason>,
    pub failed: Option<ConnectError>,
    /// True if the host was restarted.
    pub lost: bool,
    pub timer: Option<Instant>,
    /// Events other than data and timers.
    pub events: Vec<SeenEvent>,
}

impl Record {
    fn new(outgoing: Stream) -> Self {
        Record {
            outgoing,
            opened: false,
            sent: 0,
            received: 0,
            closed: false,
            aborted: false,
            peer_closed: false,
            ended: None,
            failed: None,
            lost: false,
            timer: None,
            events: Vec::new(),
        }
    }

    /// Returns true if no further event can follow.
    pub fn is_finished(&self) -> bool {
        self.ended.is_some() || self.failed.is_some() || self.lost
    }

    /// Returns true if the connection does not end by both sides closing.
    pub fn is_broken(&self) -> bool {
        self.aborted
            || self.lost
            || self.failed.is_some()
            || self.ended.is_some_and(|reason| reason != CloseReason::Finished)
    }
}

pub struct Ledger {
    pub scenario: Rc<Scenario>,
    records: Vec<[Record; 2]>,
    /// Last connection that a client has opened on these addresses, its own first.
    opened: HashMap<(SocketAddr, SocketAddr), usize>,
    /// Next connection of each host.
    next: [usize; 2],
    /// Number of service events and actions.
    pub progress: u64,
}

impl Ledger {
    pub fn new(scenario: Rc<Scenario>) -> Rc<RefCell<Self>> {
        let record = |n| [End::A, End::B].map(|end| Record::new(Stream::of(n, end)));
        Rc::new(RefCell::new(Ledger {
            records: (0..scenario.connections.len()).map(record).collect(),
            opened: HashMap::new(),
            next: [0; 2],
            progress: 0,
            scenario,
        }))
    }

    pub fn of(&self, n: usize, end: End) -> &Record {
        &self.records[n][end as usize]
    }

    /// Returns the record for an update, which counts as progress.
    pub fn note(&mut self, n: usize, end: End) -> &mut Record {
        self.progress += 1;
        &mut self.records[n][end as usize]
    }

    /// Returns the stream that `end` receives on connection `n`.
    pub fn incoming(&self, n: usize, end: End) -> Stream {
        self.of(n, end.other()).outgoing
    }

    /// Returns the next connection that `end` opens.
    pub fn next(&mut self, end: End) -> Option<usize> {
        let plans = &self.scenario.connections;
        let n = (self.next[end as usize]..plans.len()).find(|n| plans[*n].from == end)?;
        self.next[end as usize] = n + 1;
        Some(n)
    }

    /// Records that a client has opened connection `n` from `local` to `remote`.
    pub fn client_opened(&mut self, n: usize, local: SocketAddr, remote: SocketAddr) {
        self.opened.insert((local, remote), n);
    }

    /// Returns the connection that a server has accepted at `local` from `remote`.
    pub fn accepted(&self, local: SocketAddr, remote: SocketAddr) -> usize {
        *self.opened.get(&(remote, local)).expect("the client's end opens before the server's")
    }

    /// Records that the host at `end` has lost its state.
    pub fn lose(&mut self, end: End) {
        for n in 0..self.records.len() {
            let next = self.next[end as usize];
            let begun = self.of(n, end).opened || self.scenario.connections[n].from == end && n < next;
            if begun && !self.of(n, end).is_finished() {
                let record = self.note(n, end);
                record.lost = true;
                record.timer = None;
            }
        }
    }

    /// Returns true if a connection opened by `from` is not over.
    pub fn has_open_from(&self, from: End) -> bool {
        let own = |n: &usize| self.scenario.connections[*n].from == from;
        (0..self.records.len()).filter(own).any(|n| self.of(n, from).opened && !self.of(n, from).is_finished())
    }

    /// Returns true if every connection was attempted and is over at both ends.
    pub fn is_complete(&self) -> bool {
        (0..self.records.len()).all(|n| {
            let from = self.scenario.connections[n].from;
            let (client, server) = (self.of(n, from), self.of(n, from.other()));
            client.is_finished() && (server.is_finished() || !server.opened)
        })
    }

    /// Checks that no requested timer is overdue.
    pub fn check_timers(&self, now: Instant) {
        for (n, ends) in self.records.iter().enumerate() {
            for (record, host) in ends.iter().zip(&self.scenario.hosts) {
                let slack = TIMER_SLACK + host.period.unwrap_or_default();
                if let Some(at) = record.timer
                    && !record.is_finished()
                {
                    assert!(
                        now <= at + slack,
                        "connection {n}: the timer for {at:?} is missing at {now:?}: {record:?}"
                    );
                }
            }
        }
    }

    /// Describes both ends of connection `n`.
    pub fn describe(&self, n: usize) -> String {
        let plan = &self.scenario.connections[n];
        let end = |end| {
            let engine = self.scenario.host(end).engine;
            format!("  {end:?}, {engine:?}: {:?}\n      by {:?}", self.of(n, end), plan.of(end))
        };
        let profile = self.scenario.profile;
        format!("connection {n} from {:?}, {profile:?}:\n{}\n{}", plan.from, end(End::A), end(End::B))
    }
}
