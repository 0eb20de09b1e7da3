//! What the services of all connections have been told and have done: both ends side by side, so that each can be held
//! against the other.

use crate::content::Stream;
use crate::scenario::Scenario;
use linerate_bypass::memory_nic::End;
use linerate_bypass::time::{Duration, Instant};
use linerate_bypass::{CloseReason, ConnectError};
use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;

/// How late a timer of a service may be: the timing wheel has ticks, and a host may look at them only now and then.
const TIMER_SLACK: Duration = Duration::from_millis(20);

/// An event that the service of one end has received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeenEvent {
    Opened,
    Failed(ConnectError),
    PeerClosed,
    Ended(CloseReason),
}

/// What is known of one end of a connection.
#[derive(Debug, Clone)]
pub struct Record {
    /// The bytes that it sends: its own, or those of the stream that it passes on.
    pub outgoing: Stream,
    pub opened: bool,
    /// Bytes that the transport took.
    pub sent: u64,
    /// Bytes that were delivered and taken.
    pub received: u64,
    /// The service has closed.
    pub closed: bool,
    /// The service has aborted.
    pub aborted: bool,
    /// The peer's end of the stream has been seen.
    pub peer_closed: bool,
    /// The transport has given it up.
    pub ended: Option<CloseReason>,
    pub failed: Option<ConnectError>,
    /// Its host was restarted.
    pub lost: bool,
    /// The service has asked for a timer.
    pub timer: Option<Instant>,
    /// Events but for those of data and timers.
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

    /// Nothing more comes of it.
    pub fn is_over(&self) -> bool {
        self.ended.is_some() || self.failed.is_some() || self.lost
    }

    /// It has not ended, and will not end, by both sides closing.
    pub fn is_broken(&self) -> bool {
        self.aborted || self.lost || self.failed.is_some() || self.ended.is_some_and(|why| why != CloseReason::Finished)
    }
}

/// The records of all connections.
pub struct Ledger {
    pub scenario: Rc<Scenario>,
    records: Vec<[Record; 2]>,
    /// The connection that a client has opened last on these addresses, its own first.
    opened: HashMap<(SocketAddr, SocketAddr), usize>,
    /// The next connection that each host makes.
    next: [usize; 2],
    /// Grows with all that services do and are told.
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

    /// The record, to note something in it.
    pub fn note(&mut self, n: usize, end: End) -> &mut Record {
        self.progress += 1;
        &mut self.records[n][end as usize]
    }

    /// What `end` receives on connection `n`.
    pub fn incoming(&self, n: usize, end: End) -> Stream {
        self.of(n, end.other()).outgoing
    }

    /// The next connection that `end` is to make.
    pub fn next(&mut self, end: End) -> Option<usize> {
        let plans = &self.scenario.connections;
        let n = (self.next[end as usize]..plans.len()).find(|n| plans[*n].from == end)?;
        self.next[end as usize] = n + 1;
        Some(n)
    }

    /// A client has opened connection `n` from `local` to `remote`.
    pub fn client_opened(&mut self, n: usize, local: SocketAddr, remote: SocketAddr) {
        self.opened.insert((local, remote), n);
    }

    /// The connection that a server has accepted at `local` from `remote`.
    pub fn accepted(&self, local: SocketAddr, remote: SocketAddr) -> usize {
        *self.opened.get(&(remote, local)).expect("a server's end opens after the client's")
    }

    /// The host at `end` has lost all it had.
    pub fn lose(&mut self, end: End) {
        for n in 0..self.records.len() {
            let next = self.next[end as usize];
            let begun = self.of(n, end).opened || self.scenario.connections[n].from == end && n < next;
            if begun && !self.of(n, end).is_over() {
                let record = self.note(n, end);
                record.lost = true;
                record.timer = None;
            }
        }
    }

    /// Whether one of the connections that `from` has opened is not over.
    pub fn is_waited_for(&self, from: End) -> bool {
        let own = |n: &usize| self.scenario.connections[*n].from == from;
        (0..self.records.len()).filter(own).any(|n| self.of(n, from).opened && !self.of(n, from).is_over())
    }

    /// Every connection has been made or tried, and is over at both ends.
    pub fn is_complete(&self) -> bool {
        (0..self.records.len()).all(|n| {
            let from = self.scenario.connections[n].from;
            let (client, server) = (self.of(n, from), self.of(n, from.other()));
            client.is_over() && (server.is_over() || !server.opened)
        })
    }

    /// Every timer that was asked for and is due has come.
    pub fn check_timers(&self, now: Instant) {
        for (n, ends) in self.records.iter().enumerate() {
            for (record, host) in ends.iter().zip(&self.scenario.hosts) {
                let slack = TIMER_SLACK + host.period.unwrap_or_default();
                if let Some(at) = record.timer
                    && !record.is_over()
                {
                    assert!(
                        now <= at + slack,
                        "connection {n}: the timer for {at:?} has not come at {now:?}: {record:?}"
                    );
                }
            }
        }
    }

    /// Both ends of connection `n` in one line.
    pub fn describe(&self, n: usize) -> String {
        let plan = &self.scenario.connections[n];
        let end = |end| {
            let engine = self.scenario.host(end).engine;
            format!("  {end:?}, {engine:?}: {:?}\n      by {:?}", self.of(n, end), plan.of(end))
        };
        let weather = self.scenario.weather;
        format!("connection {n} from {:?}, {weather:?}:\n{}\n{}", plan.from, end(End::A), end(End::B))
    }
}
