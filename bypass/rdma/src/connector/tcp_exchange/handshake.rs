//! What the ends of a connection by exchange say to each other, and what they make of it.

use super::{Connector, ExchangeError, Handshake, Stage};
use crate::connection::ConnCore;
use crate::connection::conn_transport::{ConnTransport, UdPeer};
use crate::connection::wire::EndParams;
use crate::connector::qp_info::{NUMBERS, QpInfo, READY, SessionInfo};
use crate::connector::{RETRIES, Step, sessions};
use crate::provider::{ACK_TIMEOUT, AhAttr, Gid, GidKind, Handle, Provider, Transition};
use crate::session::Session;
use crate::verbs::{Error, Init, Qp, Rts};
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
pub(super) enum Half<C: Provider> {
    Pair(Qp<C, Init>),
    /// As the peer has to know it, and the device's name for its queue pair.
    Session(SessionInfo, Handle),
}

impl<C: Provider> Connector<C> {
    /// What comes next for a connection that is being made.
    pub(super) fn next_step(&mut self, talk: &mut Handshake<C>, key: u64) -> Result<Step<C>, ExchangeError> {
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
                    let transport = self.join(talk.worker, half, &own, &record, &theirs)?;
                    talk.say(&[READY])?;
                    return Ok(Step::Ready(transport, theirs.greeting));
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
                    let transport = self.join(talk.worker, half, &own, &record, &theirs)?;
                    self.expect_of(talk, record.number())?;
                    talk.say(&record.write())?;
                    talk.stage = Stage::Answered(transport, theirs.greeting);
                }
            },
            Stage::Answered(transport, theirs) => match talk.next() {
                Ok(Some([READY])) => return Ok(Step::Ready(transport, theirs)),
                said => {
                    // The connection has it if it is given up, too.
                    talk.stage = Stage::Answered(transport, theirs);
                    if said?.is_some() {
                        return Err(ExchangeError::Malformed);
                    }
                }
            },
            Stage::Over => {}
        }
        Ok(Step::Wait)
    }

    /// A queue pair with its buffers, by the port that the peer is reached by, or a session; and what the peer is told of it.
    fn new_half(&mut self, talk: &Handshake<C>) -> Result<(Half<C>, Gid, QpInfo), ExchangeError> {
        if self.is_full(talk.worker) {
            return Err(ExchangeError::Full);
        }
        let provider = self.mr.pd().provider();
        let own = gid_of(&**provider, talk.stream.local_addr()?.ip())?;
        let port = provider.port(own.port).map_err(Error::of("query the port"))?;
        let (half, qp, session) = match &self.workers[talk.worker].datagrams {
            Some(_) if own.port != sessions::PORT => return Err(ExchangeError::NotOfDevice(own.ip())),
            Some(seat) => {
                let session = SessionInfo { number: sessions::new_number()?, q_key: seat.q_key };
                (Half::Session(session, seat.handle), seat.qp, Some(session))
            }
            None => {
                let qp = self.qp_for(talk.worker, Some(own.port), |qp| qp.init(own.port))?;
                let number = qp.number();
                (Half::Pair(qp), number, None)
            }
        };
        let record = QpInfo {
            greeting: self.greeting,
            qp,
            session,
            psn: fastrand::u32(..NUMBERS),
            gid: own.raw,
            mtu: port.mtu,
            initiator_depth: self.reads.1,
            responder_resources: self.reads.0,
        };
        Ok((half, own, record))
    }

    /// The worker is told of the connection before the peer is.
    fn expect_of(&mut self, talk: &mut Handshake<C>, number: u64) -> Result<(), ExchangeError> {
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
        ours: &QpInfo,
        theirs: &QpInfo,
    ) -> Result<ConnTransport<C>, ExchangeError> {
        match (half, theirs.session) {
            (Half::Pair(qp), None) => Ok(ConnTransport::Rc(join_pair(qp, own, ours, theirs)?)),
            (Half::Session(session, handle), Some(theirs_of_it)) => Ok(ConnTransport::Ud(Box::new(UdPeer {
                session: Session::new(theirs_of_it.number, ours.greeting.credits),
                local_number: session.number,
                ah: self.ways.to(worker, self.mr.pd(), &AhAttr::to(theirs.gid, 0, own))?,
                qp: theirs.qp,
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
        talk: &Handshake<C>,
        transport: ConnTransport<C>,
        theirs: &EndParams,
    ) -> Result<ConnCore<C>, ExchangeError> {
        let canonical = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
        let addresses = [talk.stream.local_addr()?, talk.stream.peer_addr()?].map(canonical);
        if let ConnTransport::Ud(_) = transport {
            // No device notices that a silent peer is gone.
            sockopt::set_tcp_keepidle(&talk.stream, self.config.probe_after.max(ASK_EVERY))?;
            sockopt::set_tcp_keepintvl(&talk.stream, ASK_EVERY)?;
            sockopt::set_tcp_keepcnt(&talk.stream, ASK_TIMES)?;
            sockopt::set_socket_keepalive(&talk.stream, true)?;
        }
        if let Some(exchange) = self.exchange() {
            let name = EventData::new_u64(super::MADE | transport.number());
            epoll::modify(&exchange.epoll, &talk.stream, name, EventFlags::IN | EventFlags::RDHUP)?;
        }
        Ok(ConnCore::new(transport, None, addresses, &self.greeting, theirs))
    }
}

/// What the peer says of itself, which is of itself.
fn read<C: Provider>(bytes: &[u8; QpInfo::LEN], talk: &Handshake<C>) -> Result<QpInfo, ExchangeError> {
    let record = QpInfo::read(bytes).map_err(|_| ExchangeError::Malformed)?;
    let at = IpAddr::from(record.gid).to_canonical();
    if at == talk.stream.peer_addr()?.ip().to_canonical() { Ok(record) } else { Err(ExchangeError::Elsewhere) }
}

/// Makes a queue pair ready to receive from the peer's, and to send to it.
fn join_pair<C: Provider>(qp: Qp<C, Init>, own: &Gid, ours: &QpInfo, theirs: &QpInfo) -> Result<Qp<C, Rts>, Error> {
    let receive = Transition::Rtr {
        mtu: ours.mtu.min(theirs.mtu),
        qp: theirs.qp,
        psn: theirs.psn,
        responder_resources: ours.responder_resources.min(theirs.initiator_depth),
        min_rnr_timer: NOT_READY_TIMER,
        path: AhAttr::to(theirs.gid, 0, own),
    };
    let send = Transition::Rts {
        psn: ours.psn,
        timeout: ACK_TIMEOUT,
        retries: RETRIES,
        // Nobody sends without a buffer at the other end.
        rnr_retries: 0,
        initiator_depth: ours.initiator_depth.min(theirs.responder_resources),
    };
    qp.to_rtr(&receive)?.to_rts(&send)
}

/// The RoCE address of the device for `ip`.
pub(super) fn gid_of(provider: &impl Provider, ip: IpAddr) -> Result<Gid, ExchangeError> {
    let ip = ip.to_canonical();
    let ports = provider.limits().map_err(Error::of("query the device"))?.ports;
    for port in 1..=ports {
        let gids = provider.gids(port).map_err(Error::of("query the port's addresses"))?;
        if let Some(gid) = gids.into_iter().find(|gid| gid.kind == GidKind::RoceV2 && gid.ip() == ip) {
            return Ok(gid);
        }
    }
    Err(ExchangeError::NotOfDevice(ip))
}
