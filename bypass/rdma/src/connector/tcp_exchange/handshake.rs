//! Handshake of the TCP exchange, independent of its stream.

use super::{Connector, ExchangeError, Handshake, Stage};
use crate::Config;
use crate::connection::ConnCore;
use crate::connection::conn_transport::{ConnTransport, UdPeer};
use crate::connector::Source;
use crate::connector::qp_info::{NUMBERS, QpInfo, READY, SESSIONS, SessionInfo};
use crate::provider::{AhAttr, Gid, GidKind, Handle, Provider, QpOptions, Transition};
use crate::session::Session;
use crate::verbs::{Error, Init, Qp, Rts};
use crate::wire::EndParams;
use linerate_service::Timer;
use linerate_service::time::Instant;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};

/// Local half of a transport, created before the peer's attributes are known.
pub(super) enum Half<C: Provider> {
    Pair(Qp<C, Init>),
    /// Session, with the handle of its UD queue pair.
    Session(SessionInfo, Handle),
}

impl<C: Provider> Handshake<C> {
    pub(super) fn is_connecting(&self) -> bool {
        matches!(self.stage, Stage::Connecting)
    }

    /// Returns the length of the next message in bytes. A new stream needs none.
    pub(super) fn message_len(&self) -> usize {
        match self.stage {
            Stage::Connecting | Stage::Over => 0,
            Stage::Requested { .. } | Stage::Listening => QpInfo::LEN,
            Stage::Answered(..) => 1,
        }
    }

    /// Returns the local and the peer's address.
    fn addresses(&self) -> Result<[SocketAddr; 2], ExchangeError> {
        self.addresses.ok_or_else(|| ExchangeError::Tcp(ErrorKind::NotConnected.into()))
    }
}

impl<C: Provider> Connector<C> {
    /// Processes the next message of a handshake. Appends the bytes to be sent to `reply`, also if there is an error.
    /// Returns the transport and the peer's parameters after the last message.
    pub(super) fn next_step(
        &mut self,
        handshake: &mut Handshake<C>,
        message: &[u8; QpInfo::LEN],
        reply: &mut Vec<u8>,
        now: Instant,
    ) -> Result<Option<(ConnTransport<C>, EndParams)>, ExchangeError> {
        match std::mem::replace(&mut handshake.stage, Stage::Over) {
            Stage::Connecting => {
                let (half, own, record) = self.new_half(handshake)?;
                self.expect_of(handshake, record.number())?;
                reply.extend(record.write());
                handshake.stage = Stage::Requested { half, own, record };
            }
            Stage::Requested { half, own, record } => {
                let remote = read(message, handshake)?;
                let transport = self.join(handshake.worker, half, &own, &record, &remote, now)?;
                reply.push(READY);
                return Ok(Some((transport, remote.greeting)));
            }
            Stage::Listening => {
                let remote = read(message, handshake)?;
                handshake.worker = self.next_worker();
                let (half, own, record) = self.new_half(handshake)?;
                if record.session.is_some() != remote.session.is_some() {
                    // Sent all the same, so that the peer can report an error.
                    reply.extend(record.write());
                    return Err(ExchangeError::OtherMode);
                }
                let transport = self.join(handshake.worker, half, &own, &record, &remote, now)?;
                self.expect_of(handshake, record.number())?;
                reply.extend(record.write());
                handshake.stage = Stage::Answered(transport, remote.greeting);
            }
            Stage::Answered(transport, remote) if message[0] == READY => return Ok(Some((transport, remote))),
            answered @ Stage::Answered(..) => {
                // The handshake keeps the queue pair, so that `give_up` can drain it.
                handshake.stage = answered;
                return Err(ExchangeError::Malformed);
            }
            Stage::Over => return Err(ExchangeError::Malformed),
        }
        Ok(None)
    }

    /// Creates a queue pair with posted buffers on the port that reaches the peer, or a session, and its attributes
    /// for the peer.
    fn new_half(&mut self, handshake: &Handshake<C>) -> Result<(Half<C>, Gid, QpInfo), ExchangeError> {
        if self.is_full(handshake.worker) {
            return Err(ExchangeError::Full);
        }
        let pkey_index = self.config.path.pkey_index;
        let provider = self.mr.pd().provider();
        let own = gid_of(&**provider, handshake.addresses()?[0].ip(), &self.config)?;
        let port = provider.port(own.port).map_err(Error::of("query the port"))?;
        let (half, qp, session) = match &self.workers[handshake.worker].datagrams {
            Some(_) if own.port != self.config.first_port() => return Err(ExchangeError::NotOfDevice(own.ip())),
            Some(handle) => {
                let session = SessionInfo { number: new_session_number()?, q_key: handle.q_key };
                (Half::Session(session, handle.handle), handle.qp, Some(session))
            }
            None => {
                let qp = self.qp_for(handshake.worker, Some(own.port), |qp| qp.init_in(own.port, pkey_index))?;
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
            initiator_depth: self.limits.initiator_depth,
            responder_resources: self.limits.responder_resources,
        };
        Ok((half, own, record))
    }

    /// Notifies the worker of the connection before the peer is informed.
    fn expect_of(&mut self, handshake: &mut Handshake<C>, number: u64) -> Result<(), ExchangeError> {
        self.expect(handshake.worker, number)?;
        handshake.number = Some(number);
        Ok(())
    }

    /// Connects the local half to the peer's queue pair or session.
    fn join(
        &mut self,
        worker: usize,
        half: Half<C>,
        own: &Gid,
        local: &QpInfo,
        remote: &QpInfo,
        now: Instant,
    ) -> Result<ConnTransport<C>, ExchangeError> {
        match (half, remote.session) {
            (Half::Pair(qp), None) => {
                Ok(ConnTransport::Rc(join_pair(qp, own, local, remote, &self.config.qp_options())?))
            }
            (Half::Session(session, handle), Some(their_session)) => {
                let path = AhAttr::to(remote.gid, 0, own).with(&self.config.path);
                let ah = self.ah_cache.to(worker, self.mr.pd(), &path, now)?;
                Ok(ConnTransport::Ud(Box::new(UdPeer {
                    session: Session::new(their_session.number, local.greeting.credits),
                    local_number: session.number,
                    ah,
                    path,
                    qp: remote.qp,
                    q_key: their_session.q_key,
                    handle,
                    timer: Timer::default(),
                })))
            }
            _ => Err(ExchangeError::OtherMode),
        }
    }

    /// Creates the state of the established connection. Also returns the local port and GID.
    pub(super) fn settle(
        &mut self,
        handshake: &Handshake<C>,
        transport: ConnTransport<C>,
        remote: &EndParams,
    ) -> Result<(ConnCore<C>, Source), ExchangeError> {
        let addresses = handshake.addresses()?;
        let keepalive = self.config.keepalive();
        if let (ConnTransport::Ud(_), Some(exchange)) = (&transport, self.exchange()) {
            // The device does not detect a dead peer of a UD queue pair.
            exchange.streams.keep_alive(handshake.stream, &keepalive)?;
        }
        let own = gid_of(&**self.mr.pd().provider(), addresses[0].ip(), &self.config)?;
        Ok((ConnCore::new(transport, None, addresses, &self.greeting, remote), (own.port, own.raw)))
    }
}

/// Parses the peer's attributes and checks that they match its address.
fn read<C: Provider>(bytes: &[u8; QpInfo::LEN], handshake: &Handshake<C>) -> Result<QpInfo, ExchangeError> {
    let record = QpInfo::read(bytes).map_err(|_| ExchangeError::Malformed)?;
    let at = IpAddr::from(record.gid).to_canonical();
    if at == handshake.addresses()?[1].ip() { Ok(record) } else { Err(ExchangeError::Elsewhere) }
}

/// Moves a queue pair to RTS with the peer's attributes.
fn join_pair<C: Provider>(
    qp: Qp<C, Init>,
    own: &Gid,
    local: &QpInfo,
    remote: &QpInfo,
    options: &QpOptions,
) -> Result<Qp<C, Rts>, Error> {
    let QpOptions { retry, path } = options;
    let receive = Transition::Rtr {
        mtu: local.mtu.min(remote.mtu),
        qp: remote.qp,
        psn: remote.psn,
        responder_resources: local.responder_resources.min(remote.initiator_depth),
        min_rnr_timer: retry.min_rnr_timer,
        path: AhAttr::to(remote.gid, 0, own).with(path),
    };
    let send = Transition::Rts {
        psn: local.psn,
        timeout: retry.timeout,
        retries: retry.retries,
        rnr_retries: retry.rnr_retries,
        initiator_depth: local.initiator_depth.min(remote.responder_resources),
    };
    qp.to_rtr(&receive)?.to_rts(&send)
}

/// Returns the RoCE version 2 GID of the device for `ip`, at the port and index of `config` if it has them.
pub(super) fn gid_of(provider: &impl Provider, ip: IpAddr, config: &Config) -> Result<Gid, ExchangeError> {
    let ip = ip.to_canonical();
    let ports = provider.limits().map_err(Error::of("query the device"))?.ports;
    let is_chosen = |gid: &Gid| {
        config.port.is_none_or(|port| port == gid.port) && config.gid_index.is_none_or(|index| index == gid.index)
    };
    let mut is_found = false;
    for port in 1..=ports {
        let gids = provider.gids(port).map_err(Error::of("query the port's addresses"))?;
        for gid in gids.into_iter().filter(|gid| gid.kind == GidKind::RoceV2 && gid.ip() == ip) {
            is_found = true;
            if is_chosen(&gid) {
                return Ok(gid);
            }
        }
    }
    Err(if is_found { ExchangeError::NotChosen(ip) } else { ExchangeError::NotOfDevice(ip) })
}

/// Returns a random session number, which authenticates the datagrams of the session.
fn new_session_number() -> Result<u64, ExchangeError> {
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(ExchangeError::NoRandomness)?;
    Ok(SESSIONS.start + u64::from_ne_bytes(random) % (SESSIONS.end - SESSIONS.start))
}
