//! What the ends of a connection by exchange say to each other, and what they make of it.

use super::{Connector, ExchangeError, Stage, Talk};
use crate::calls::{ACK_TIMEOUT, Calls, Gid, GidKind, Handle, Path, Transition};
use crate::carrier::{Carrier, Peer};
use crate::connection::Link;
use crate::connector::record::{NUMBERS, READY, Record, SessionRecord};
use crate::connector::{RETRIES, Step, sessions};
use crate::session::Session;
use crate::verbs::{Error, Init, QueuePair, ReadyToSend};
use crate::wire::Greeting;
use linerate_bypass::Timer;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::net::sockopt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// What a peer that has no buffer posted would be told to wait, which none is: 0.64 ms (IBA table 45).
const NOT_READY_TIMER: u8 = 12;
/// How often, and how many times, the kernel asks a silent peer whether it is there.
const ASK_EVERY: Duration = Duration::from_secs(1);
const ASK_TIMES: u32 = 5;

/// What is to carry a connection, as far as it can be made before the peer is known.
pub(super) enum Half<C: Calls> {
    Pair(QueuePair<C, Init>),
    /// As the peer has to know it, and the device's name for its queue pair.
    Session(SessionRecord, Handle),
}

impl<C: Calls> Connector<C> {
    /// What comes next for a connection that is being made.
    pub(super) fn next_step(&mut self, talk: &mut Talk<C>, key: u64) -> Result<Step<C>, ExchangeError> {
        match std::mem::replace(&mut talk.stage, Stage::Over) {
            Stage::Connecting => {
                if let Some(error) = talk.stream.take_error()? {
                    return Err(error.into());
                }
                let (half, own, record) = self.new_half(talk)?;
                self.expect_of(talk, record.number())?;
                talk.say(&record.write())?;
                if let Some(exchange) = self.exchange() {
                    epoll::modify(&exchange.epoll, &talk.stream, EventData::new_u64(key), EventFlags::IN)?;
                }
                talk.stage = Stage::Asking { half, own, record };
            }
            Stage::Asking { half, own, record } => match talk.next()? {
                None => talk.stage = Stage::Asking { half, own, record },
                Some(bytes) => {
                    let theirs = read(&bytes, talk)?;
                    let carrier = self.join(talk.worker, half, &own, &record, &theirs)?;
                    talk.say(&[READY])?;
                    return Ok(Step::Ready(carrier, theirs.greeting));
                }
            },
            Stage::Listening => match talk.next()? {
                None => talk.stage = Stage::Listening,
                Some(bytes) => {
                    let theirs = read(&bytes, talk)?;
                    talk.worker = self.next;
                    self.next = (self.next + 1) % self.workers.len();
                    let (half, own, record) = self.new_half(talk)?;
                    if record.session.is_some() != theirs.session.is_some() {
                        // So that the peer can say why.
                        talk.say(&record.write())?;
                        return Err(ExchangeError::OtherMode);
                    }
                    let carrier = self.join(talk.worker, half, &own, &record, &theirs)?;
                    self.expect_of(talk, record.number())?;
                    talk.say(&record.write())?;
                    talk.stage = Stage::Answered(carrier, theirs.greeting);
                }
            },
            Stage::Answered(carrier, theirs) => match talk.next() {
                Ok(Some([READY])) => return Ok(Step::Ready(carrier, theirs)),
                said => {
                    // The connection has it if it is given up, too.
                    talk.stage = Stage::Answered(carrier, theirs);
                    if said?.is_some() {
                        return Err(ExchangeError::Senseless);
                    }
                }
            },
            Stage::Over => {}
        }
        Ok(Step::Wait)
    }

    /// A queue pair with its buffers, by the port that the peer is reached by, or a session; and what the peer is told of it.
    fn new_half(&mut self, talk: &Talk<C>) -> Result<(Half<C>, Gid, Record), ExchangeError> {
        if self.is_full(talk.worker) {
            return Err(ExchangeError::Full);
        }
        let calls = self.region.domain().calls();
        let own = gid_of(&**calls, talk.stream.local_addr()?.ip())?;
        let port = calls.port(own.port).map_err(Error::of("query the port"))?;
        let (half, pair, session) = match &self.workers[talk.worker].datagrams {
            Some(_) if own.port != sessions::PORT => return Err(ExchangeError::NotOfDevice(own.ip())),
            Some(seat) => {
                let session = SessionRecord { number: sessions::new_number()?, q_key: seat.q_key };
                (Half::Session(session, seat.handle), seat.pair, Some(session))
            }
            None => {
                let pair = self.pair_for(talk.worker, Some(own.port), |pair| pair.init(own.port))?;
                let number = pair.number();
                (Half::Pair(pair), number, None)
            }
        };
        let record = Record {
            greeting: self.greeting,
            pair,
            session,
            first_packet: fastrand::u32(..NUMBERS),
            gid: own.raw,
            mtu: port.mtu,
            reads_asked: self.reads.1,
            reads_answered: self.reads.0,
        };
        Ok((half, own, record))
    }

    /// The worker is told of the connection before the peer is.
    fn expect_of(&mut self, talk: &mut Talk<C>, number: u64) -> Result<(), ExchangeError> {
        self.expect(talk.worker, number)?;
        talk.number = Some(number);
        Ok(())
    }

    /// Makes a queue pair ready to receive from the peer's, and to send to it; or a session with the peer's.
    fn join(
        &mut self,
        worker: usize,
        half: Half<C>,
        own: &Gid,
        ours: &Record,
        theirs: &Record,
    ) -> Result<Carrier<C>, ExchangeError> {
        match (half, theirs.session) {
            (Half::Pair(pair), None) => Ok(Carrier::Pair(join_pair(pair, own, ours, theirs)?)),
            (Half::Session(session, handle), Some(theirs_of_it)) => Ok(Carrier::Session(Box::new(Peer {
                session: Session::new(theirs_of_it.number, ours.greeting.credits),
                ours: session.number,
                to: self.ways.to(worker, self.region.domain(), &Path::to(theirs.gid, 0, own))?,
                pair: theirs.pair,
                q_key: theirs_of_it.q_key,
                handle,
                timer: Timer::default(),
            }))),
            _ => Err(ExchangeError::OtherMode),
        }
    }

    /// The link of a connection that has been made, whose end will be heard of.
    pub(super) fn settle(
        &mut self,
        talk: &Talk<C>,
        carrier: Carrier<C>,
        theirs: &Greeting,
    ) -> Result<Link<C>, ExchangeError> {
        let canonical = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
        let addresses = [talk.stream.local_addr()?, talk.stream.peer_addr()?].map(canonical);
        if let Carrier::Session(_) = carrier {
            // No device notices that a silent peer is gone.
            sockopt::set_tcp_keepidle(&talk.stream, self.config.probe_after.max(ASK_EVERY))?;
            sockopt::set_tcp_keepintvl(&talk.stream, ASK_EVERY)?;
            sockopt::set_tcp_keepcnt(&talk.stream, ASK_TIMES)?;
            sockopt::set_socket_keepalive(&talk.stream, true)?;
        }
        if let Some(exchange) = self.exchange() {
            let name = EventData::new_u64(super::MADE | carrier.number());
            epoll::modify(&exchange.epoll, &talk.stream, name, EventFlags::IN | EventFlags::RDHUP)?;
        }
        Ok(Link::new(carrier, None, addresses, &self.greeting, theirs))
    }
}

/// What the peer says of itself, which is of itself.
fn read<C: Calls>(bytes: &[u8; Record::LEN], talk: &Talk<C>) -> Result<Record, ExchangeError> {
    let record = Record::read(bytes).map_err(|_| ExchangeError::Senseless)?;
    let at = IpAddr::from(record.gid).to_canonical();
    if at == talk.stream.peer_addr()?.ip().to_canonical() { Ok(record) } else { Err(ExchangeError::Elsewhere) }
}

/// Makes a queue pair ready to receive from the peer's, and to send to it.
fn join_pair<C: Calls>(
    pair: QueuePair<C, Init>,
    own: &Gid,
    ours: &Record,
    theirs: &Record,
) -> Result<QueuePair<C, ReadyToSend>, Error> {
    let receive = Transition::ReadyToReceive {
        mtu: ours.mtu.min(theirs.mtu),
        pair: theirs.pair,
        first_packet: theirs.first_packet,
        reads_answered: ours.reads_answered.min(theirs.reads_asked),
        not_ready_timer: NOT_READY_TIMER,
        path: Path::to(theirs.gid, 0, own),
    };
    let send = Transition::ReadyToSend {
        first_packet: ours.first_packet,
        timeout: ACK_TIMEOUT,
        retries: RETRIES,
        // Nobody sends without a buffer at the other end.
        not_ready_retries: 0,
        reads_asked: ours.reads_asked.min(theirs.reads_answered),
    };
    pair.ready_to_receive(&receive)?.ready_to_send(&send)
}

/// The RoCE address of the device for `ip`.
pub(super) fn gid_of(calls: &impl Calls, ip: IpAddr) -> Result<Gid, ExchangeError> {
    let ip = ip.to_canonical();
    let ports = calls.limits().map_err(Error::of("query the device"))?.ports;
    for port in 1..=ports {
        let gids = calls.gids(port).map_err(Error::of("query the port's addresses"))?;
        if let Some(gid) = gids.into_iter().find(|gid| gid.kind == GidKind::RoceV2 && gid.ip() == ip) {
            return Ok(gid);
        }
    }
    Err(ExchangeError::NotOfDevice(ip))
}
