//! Lookup of counters' addresses by the server, and of their values by the device.

use super::super::protocol::{NumbersReply, parse_numbers};
use super::name;
use linerate_service::{
    CloseReason, ConnId, ConnectError, OneSidedError, OneSidedOp, OneSidedResult, Origin, RemoteAddr, Service,
    Transport,
};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Maximum number of outstanding name queries, and of outstanding reads.
const ASKED: usize = 32;
const LOOKED_AT: usize = 8;

/// Reason why counters could not be looked up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CounterLookupError {
    /// The connection failed or ended.
    Connection(Option<ConnectError>),
    /// The server answered with an error instead of the address of the counter with this number.
    Refused(usize, String),
    /// The transport has no atomic operations.
    Unsupported,
}

/// Looks up counters by name and reads their values. Values are read by atomic additions of 0, because a processor's
/// view of a counter may lag behind the device's.
#[derive(Debug)]
pub struct CounterLookup {
    remote: SocketAddr,
    count: usize,
    is_over: Arc<AtomicBool>,
    addrs: Vec<RemoteAddr>,
    /// Number of names queried.
    requested: usize,
    answer: Vec<u8>,
    values: Vec<u64>,
    /// Number of counters whose value has been requested.
    looked_at: usize,
    known: usize,
    failed: Option<CounterLookupError>,
}

impl CounterLookup {
    /// Creates a lookup of `count` counters of the server at `remote`. `addrs` contains the addresses of all counters,
    /// or is empty if they are unknown. Sets `is_over` at the end.
    pub fn new(remote: SocketAddr, count: usize, addrs: Vec<RemoteAddr>, is_over: Arc<AtomicBool>) -> Self {
        CounterLookup {
            remote,
            count,
            is_over,
            requested: addrs.len(),
            addrs,
            answer: Vec::new(),
            values: vec![0; count],
            looked_at: 0,
            known: 0,
            failed: None,
        }
    }

    /// Returns the addresses and the values.
    pub fn outcome(self) -> Result<(Vec<RemoteAddr>, Vec<u64>), CounterLookupError> {
        match self.failed {
            None if self.known == self.count => Ok((self.addrs, self.values)),
            None => Err(CounterLookupError::Connection(None)),
            Some(reason) => Err(reason),
        }
    }

    fn fail(&mut self, net: &mut impl Transport, conn: ConnId, reason: CounterLookupError) {
        self.failed.get_or_insert(reason);
        net.close(conn);
    }

    /// Sends the next queries or operations.
    fn go_on(&mut self, net: &mut impl Transport, conn: ConnId) {
        if self.addrs.len() < self.requested {
            return;
        }
        let names = self.requested..self.count.min(self.requested + ASKED);
        if !names.is_empty() {
            let mut requests = b"".to_vec();
            for number in names.clone() {
                let name = name(number as u64);
                requests.extend_from_slice(format!("*2\r\n$16\r\nLINERATE.COUNTER\r\n${}\r\n", name.len()).as_bytes());
                requests.extend_from_slice(&[&name[..], b"\r\n"].concat());
            }
            self.requested = names.end;
            net.write(conn, &requests);
            return;
        }
        while self.looked_at < self.count && self.looked_at < self.known + LOOKED_AT {
            let RemoteAddr { address, key } = self.addrs[self.looked_at];
            match net.post_one_sided(conn, OneSidedOp::FetchAdd { address, key, add: 0 }, self.looked_at as u64) {
                Ok(()) => self.looked_at += 1,
                Err(OneSidedError::NoRoom) if self.looked_at > self.known => return,
                Err(_) => return self.fail(net, conn, CounterLookupError::Unsupported),
            }
        }
        if self.known == self.count {
            net.close(conn);
        }
    }

    /// Processes received answers.
    fn take(&mut self) -> Result<(), CounterLookupError> {
        let number = self.addrs.len();
        let wrong = |reply: &str| CounterLookupError::Refused(number, reply.to_owned());
        let mut used = 0;
        while self.addrs.len() < self.requested {
            let rest = &self.answer[used..];
            let Some((reply, len)) = parse_numbers::<2>(rest).map_err(|_| wrong("unexpected reply"))? else { break };
            used += len;
            let [address, key] = match reply {
                NumbersReply::Numbers(numbers) => numbers,
                NumbersReply::Null => return Err(wrong("null reply")),
                NumbersReply::Error(error) => return Err(CounterLookupError::Refused(self.addrs.len(), error)),
            };
            let key = u32::try_from(key).ok().filter(|_| address % 8 == 0).ok_or_else(|| wrong("invalid address"))?;
            self.addrs.push(RemoteAddr { address, key });
        }
        self.answer.drain(..used);
        Ok(())
    }
}

impl Service for CounterLookup {
    type Conn = ();
    type Message = Infallible;

    fn start(&mut self, net: &mut impl Transport) {
        net.connect(self.remote, 0);
    }

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, _: Origin) {
        self.go_on(net, conn);
    }

    fn failed(&mut self, _: &mut impl Transport, _: u64, error: ConnectError) {
        self.failed = Some(CounterLookupError::Connection(Some(error)));
        self.is_over.store(true, Ordering::Release);
    }

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, (): &mut ()) {
        while net.received(conn) > 0 {
            let bytes = net.peek(conn);
            let n = bytes.len();
            self.answer.extend_from_slice(bytes);
            net.consume(conn, n);
            if let Err(reason) = self.take() {
                return self.fail(net, conn, reason);
            }
        }
        self.go_on(net, conn);
    }

    fn one_sided_done(
        &mut self,
        net: &mut impl Transport,
        conn: ConnId,
        (): &mut (),
        token: u64,
        outcome: OneSidedResult,
    ) {
        if let (OneSidedResult::Previous(was), Some(value)) = (outcome, self.values.get_mut(token as usize)) {
            *value = was;
            self.known += 1;
        }
        self.go_on(net, conn);
    }

    fn closed(&mut self, _: &mut impl Transport, _: ConnId, (): (), _: CloseReason) {
        self.is_over.store(true, Ordering::Release);
    }
}
