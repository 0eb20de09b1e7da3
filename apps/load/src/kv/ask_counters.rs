//! Asks a server where counters are, and the device what they are.

use super::count::name;
use super::numbers::{Said, parse};
use linerate_bypass::{
    CloseReason, ConnId, ConnectError, OneSidedError, OneSidedOp, OneSidedResult, Origin, RemoteAddr, Service,
    Transport,
};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Names that are asked for together, and counters that are looked at together.
const ASKED: usize = 32;
const LOOKED_AT: usize = 8;

/// Why counters are not known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoCounters {
    /// There was no connection, or it ended.
    Connection(Option<ConnectError>),
    /// The server said this instead of where the counter of this number is.
    Refused(usize, String),
    /// There are no atomic operations here.
    Unsupported,
}

/// Finds so many counters by their names, and what they are. That is asked of the device by adding 0: what a processor
/// sees there may be late.
#[derive(Debug)]
pub struct AskCounters {
    remote: SocketAddr,
    count: usize,
    is_over: Arc<AtomicBool>,
    places: Vec<RemoteAddr>,
    /// Names that have been asked for.
    asked: usize,
    answer: Vec<u8>,
    values: Vec<u64>,
    /// Counters that have been looked at, or are being.
    looked_at: usize,
    known: usize,
    failed: Option<NoCounters>,
}

impl AskCounters {
    /// `count` counters of the server at `remote`, of which `places` are known: all or none. `is_over` becomes true when they are
    /// known, or will not be.
    pub fn new(remote: SocketAddr, count: usize, places: Vec<RemoteAddr>, is_over: Arc<AtomicBool>) -> Self {
        AskCounters {
            remote,
            count,
            is_over,
            asked: places.len(),
            places,
            answer: Vec::new(),
            values: vec![0; count],
            looked_at: 0,
            known: 0,
            failed: None,
        }
    }

    /// Where they are, and what they were.
    pub fn outcome(self) -> Result<(Vec<RemoteAddr>, Vec<u64>), NoCounters> {
        match self.failed {
            None if self.known == self.count => Ok((self.places, self.values)),
            None => Err(NoCounters::Connection(None)),
            Some(why) => Err(why),
        }
    }

    fn fail(&mut self, net: &mut impl Transport, conn: ConnId, why: NoCounters) {
        self.failed.get_or_insert(why);
        net.close(conn);
    }

    /// Asks for what is next.
    fn go_on(&mut self, net: &mut impl Transport, conn: ConnId) {
        if self.places.len() < self.asked {
            return;
        }
        let names = self.asked..self.count.min(self.asked + ASKED);
        if !names.is_empty() {
            let mut requests = b"".to_vec();
            for number in names.clone() {
                let name = name(number as u64);
                requests.extend_from_slice(format!("*2\r\n$16\r\nLINERATE.COUNTER\r\n${}\r\n", name.len()).as_bytes());
                requests.extend_from_slice(&[&name[..], b"\r\n"].concat());
            }
            self.asked = names.end;
            net.write(conn, &requests);
            return;
        }
        while self.looked_at < self.count && self.looked_at < self.known + LOOKED_AT {
            let RemoteAddr { address, key } = self.places[self.looked_at];
            match net.post_one_sided(conn, OneSidedOp::FetchAdd { address, key, add: 0 }, self.looked_at as u64) {
                Ok(()) => self.looked_at += 1,
                Err(OneSidedError::NoRoom) if self.looked_at > self.known => return,
                Err(_) => return self.fail(net, conn, NoCounters::Unsupported),
            }
        }
        if self.known == self.count {
            net.close(conn);
        }
    }

    /// Takes in what has been answered.
    fn take(&mut self) -> Result<(), NoCounters> {
        let number = self.places.len();
        let wrong = |said: &str| NoCounters::Refused(number, said.to_owned());
        let mut used = 0;
        while self.places.len() < self.asked {
            let rest = &self.answer[used..];
            let Some((said, len)) = parse::<2>(rest).map_err(|_| wrong("something else"))? else { break };
            used += len;
            let [address, key] = match said {
                Said::Numbers(numbers) => numbers,
                Said::Nothing => return Err(wrong("nothing")),
                Said::Error(error) => return Err(NoCounters::Refused(self.places.len(), error)),
            };
            let key = u32::try_from(key).ok().filter(|_| address % 8 == 0).ok_or_else(|| wrong("no address"))?;
            self.places.push(RemoteAddr { address, key });
        }
        self.answer.drain(..used);
        Ok(())
    }
}

impl Service for AskCounters {
    type Conn = ();
    type Message = Infallible;

    fn start(&mut self, net: &mut impl Transport) {
        net.connect(self.remote, 0);
    }

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, _: Origin) {
        self.go_on(net, conn);
    }

    fn failed(&mut self, _: &mut impl Transport, _: u64, error: ConnectError) {
        self.failed = Some(NoCounters::Connection(Some(error)));
        self.is_over.store(true, Ordering::Release);
    }

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, (): &mut ()) {
        while net.received(conn) > 0 {
            let bytes = net.peek(conn);
            let n = bytes.len();
            self.answer.extend_from_slice(bytes);
            net.consume(conn, n);
            if let Err(why) = self.take() {
                return self.fail(net, conn, why);
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
