//! Connection setup by the connection manager (`rdma_cm(7)`).

use super::{Connector, ListenerKind, Made, RESOLVE_MS};
use crate::connection::ConnCore;
use crate::connection::conn_transport::ConnTransport;
use crate::provider::{CmConnParam, CmEvent, CmEventKind, Handle, PrivateData, Provider};
use crate::verbs::{CmId, Error, Init, Mr, Qp, Rts};
use crate::wire::EndParams;
use crate::{Config, ConnectorEvent};
use linerate_service::time::Instant;
use linerate_service::{CloseReason, ConnectError, Origin};
use std::io::ErrorKind;
use std::net::SocketAddr;

/// Connection being established.
pub(super) struct Pending<C: Provider> {
    worker: usize,
    origin: Origin,
    /// Queue pair number, once the worker has been notified of it.
    number: Option<u64>,
    qp: Option<Qp<C, Init>>,
    ready: Option<Qp<C, Rts>>,
    /// Parameters of the peer that requested the connection.
    peer_params: Option<EndParams>,
    until: Instant,
    id: CmId<C>,
}

/// Next step of a connection being established.
enum Step<C: Provider> {
    Wait,
    Refused(ConnectError),
    Ready(ConnTransport<C>, EndParams),
}

impl<C: Provider> Pending<C> {
    pub(super) fn has_qp_of(&self, worker: usize) -> bool {
        self.worker == worker && self.number.is_some()
    }
}

impl<C: Provider> Connector<C> {
    /// Handles a connect request.
    pub(super) fn request(&mut self, id: CmId<C>, event: &CmEvent, now: Instant) {
        let refusal = |reason: &'static [u8], id: CmId<C>| {
            if let Err(error) = id.reject(reason) {
                tracing::debug!("{error}");
            }
        };
        let Ok(peer_params) = EndParams::read(event.private_data.bytes()) else {
            return refusal(b"this is linerate, and you are not", id);
        };
        if self.refuses {
            return refusal(b"no more connections", id);
        }
        if !id.is_on_device() {
            return refusal(b"not on this device", id);
        }
        if let Err(error) = self.check_choice(&id) {
            tracing::info!("connection not accepted: {error}");
            return refusal(b"not on this port", id);
        }
        let worker = self.next_worker();
        if self.is_full(worker) {
            return refusal(b"too many connections", id);
        }
        match self.accept(id, worker, peer_params, event, now) {
            Ok(()) => {}
            Err(error) => tracing::warn!("connection not accepted: {error}"),
        }
    }

    fn accept(
        &mut self,
        mut id: CmId<C>,
        worker: usize,
        peer_params: EndParams,
        event: &CmEvent,
        now: Instant,
    ) -> Result<(), Error> {
        let options = &self.config.qp_options();
        let qp = self.qp_for(worker, None, |qp| qp.init_by_cm(&id, options))?;
        // A prepared queue pair is set up for neither the port nor the peer's rights.
        let qp = if self.config.pool > 0 { qp.reinit_by_cm(&id, options)? } else { qp };
        let parameters = self.parameters(qp.number(), event.initiator_depth, event.responder_resources);
        let (qp, ready) = if self.is_iwarp {
            (Some(qp), None)
        } else {
            (None, Some(qp.to_rtr_by_cm(&id, options)?.to_rts_by_cm(&id, options)?))
        };
        self.expect(worker, parameters.qp.into())?;
        if let Err(error) = id.accept(&parameters) {
            self.notify(worker, ConnectorEvent::Unexpected(parameters.qp.into()));
            return Err(error);
        }
        let until = now + self.config.connect_timeout;
        let number = Some(parameters.qp.into());
        let pending =
            Pending { worker, origin: Origin::Accepted, number, qp, ready, peer_params: Some(peer_params), until, id };
        self.pending.insert(pending.id.handle(), pending);
        Ok(())
    }

    /// Connects a worker to a peer.
    pub(super) fn connect(&mut self, worker: usize, remote: SocketAddr, token: u64, now: Instant) {
        let ListenerKind::Manager { channel, .. } = &self.listeners.0 else {
            return self.exchange_connect(worker, remote, token, now);
        };
        let begun = channel.id().and_then(|mut id| id.resolve_address(remote, RESOLVE_MS).map(|()| id));
        match begun {
            Ok(id) => {
                let (until, origin) = (now + self.config.connect_timeout, Origin::Connected(token));
                let pending =
                    Pending { worker, origin, number: None, qp: None, ready: None, peer_params: None, until, id };
                self.pending.insert(pending.id.handle(), pending);
            }
            Err(error) => {
                tracing::debug!("{remote}: {error}");
                self.notify(worker, ConnectorEvent::Failed(token, ConnectError::Unreachable));
            }
        }
    }

    /// Handles an event of a local identifier.
    pub(super) fn event(&mut self, event: &CmEvent, now: Instant) {
        use CmEventKind::*;
        let Some(mut pending) = self.pending.remove(&event.id) else {
            if let Disconnected | Removed | TimeWaitExit | AddressChanged = event.kind {
                self.lose(CloseReason::Reset, |made| made.id == Some(event.id));
            }
            return;
        };
        match self.step(&mut pending, event) {
            Ok(Step::Wait) => _ = self.pending.insert(event.id, pending),
            Ok(Step::Refused(reason)) => self.refused(pending, reason, now),
            Ok(Step::Ready(transport, peer_params)) => self.hand_over(pending, transport, peer_params),
            Err(error) => {
                tracing::warn!("connection not established: {error}");
                self.refused(pending, ConnectError::Unreachable, now);
            }
        }
    }

    /// Advances a connection being established.
    fn step(&mut self, pending: &mut Pending<C>, event: &CmEvent) -> Result<Step<C>, Error> {
        use CmEventKind::*;
        let greeting = || EndParams::read(event.private_data.bytes());
        let id = &mut pending.id;
        let options = &self.config.qp_options();
        match event.kind {
            AddressResolved if !id.is_on_device() => {
                tracing::warn!("there is no route to the peer by {}", self.mr.pd().provider().name());
                return Ok(Step::Refused(ConnectError::Unreachable));
            }
            AddressResolved => {
                check_choice(&self.mr, &self.config, id)?;
                id.resolve_route(RESOLVE_MS)?;
            }
            RouteResolved => {
                let qp = self.qp_for(pending.worker, None, |qp| qp.init_by_cm(id, options))?;
                let number = qp.number().into();
                self.expect(pending.worker, number)?;
                pending.number = Some(number);
                let (answered, requested) = (self.limits.responder_resources, self.limits.initiator_depth);
                id.connect(&self.parameters(qp.number(), answered, requested))?;
                pending.qp = Some(qp);
            }
            Response => {
                let (Ok(peer_params), Some(qp)) = (greeting(), pending.qp.take()) else {
                    tracing::warn!("the peer is not a compatible Linerate process");
                    return Ok(Step::Refused(ConnectError::Refused));
                };
                let ready = qp.reinit_by_cm(id, options)?.to_rtr_by_cm(id, options)?.to_rts_by_cm(id, options)?;
                id.establish()?;
                return Ok(Step::Ready(ConnTransport::Rc(ready), peer_params));
            }
            // An accepted connection is established; over iWARP, also a requested one.
            Established => {
                let peer_params = pending.peer_params.map_or_else(greeting, Ok);
                let ready = match (pending.ready.take(), pending.qp.take()) {
                    (Some(ready), _) => Some(ready),
                    (None, Some(qp)) => Some(qp.rts_by_iwarp()),
                    (None, None) => None,
                };
                return Ok(match (ready, peer_params) {
                    (Some(ready), Ok(peer_params)) => Step::Ready(ConnTransport::Rc(ready), peer_params),
                    _ => Step::Refused(ConnectError::Refused),
                });
            }
            Rejected | Failed | Disconnected => {
                note_failure(pending, event);
                return Ok(Step::Refused(ConnectError::Refused));
            }
            AddressFailed | RouteFailed | Unreachable | Removed => {
                note_failure(pending, event);
                return Ok(Step::Refused(ConnectError::Unreachable));
            }
            _ => {}
        }
        Ok(Step::Wait)
    }

    /// Hands a connection to its worker.
    fn hand_over(&mut self, pending: Pending<C>, transport: ConnTransport<C>, peer_params: EndParams) {
        let Pending { id, worker, origin, .. } = pending;
        let Some((local, remote)) = id.addresses() else { return };
        let source = id.source().unwrap_or_else(|error| {
            tracing::debug!("{error}");
            Default::default()
        });
        let made = Made { worker, qp: transport.handle(), id: Some(id.handle()), source, had_last: false };
        self.made.insert(transport.number(), made);
        let link = ConnCore::new(transport, Some(id), [local, remote], &self.greeting, &peer_params);
        self.notify(worker, ConnectorEvent::Made(link, origin));
    }

    /// Gives up connections that took too long. Returns true if there were any.
    pub(super) fn give_up_late(&mut self, now: Instant) -> bool {
        let late: Vec<Handle> =
            self.pending.iter().filter(|(_, pending)| pending.until <= now).map(|(id, _)| *id).collect();
        for id in &late {
            if let Some(pending) = self.pending.remove(id) {
                self.refused(pending, ConnectError::TimedOut, now);
            }
        }
        !late.is_empty()
    }

    pub(super) fn refused(&mut self, pending: Pending<C>, error: ConnectError, now: Instant) {
        let Pending { worker, origin, number, qp, ready, id, .. } = pending;
        self.not_made(worker, number, origin, error);
        if self.config.srq.is_some() {
            // The peer may have established the connection and sent data. An iWARP queue pair is in RTS before that
            // is known.
            drop(id);
            if let Some(ready) = ready {
                self.leave(worker, ready, false, now);
            }
            if let Some(qp) = qp.filter(|_| self.is_iwarp) {
                self.leave(worker, qp, false, now);
            }
        }
    }

    fn check_choice(&self, id: &CmId<C>) -> Result<(), Error> {
        check_choice(&self.mr, &self.config, id)
    }

    fn parameters(&self, qp: u32, requested: u8, answered: u8) -> CmConnParam {
        CmConnParam {
            qp,
            responder_resources: self.limits.responder_resources.min(requested),
            initiator_depth: self.limits.initiator_depth.min(answered),
            retries: self.config.retries,
            rnr_retries: self.config.rnr_retries,
            is_shared: self.config.srq.is_some(),
            private_data: PrivateData::new(&self.greeting.write()),
        }
    }
}

/// Logs the failure of a connection being established, with its peer and queue pair.
fn note_failure<C: Provider>(pending: &Pending<C>, event: &CmEvent) {
    let peer = pending.id.addresses().map(|(_, remote)| remote.to_string());
    let (peer, reason) = (peer.unwrap_or_else(|| "a peer".to_owned()), event.reason());
    match pending.number {
        Some(number) => tracing::info!("no connection with {peer} by queue pair {number}: {:?}: {reason}", event.kind),
        None => tracing::info!("no connection with {peer}: {:?}: {reason}", event.kind),
    }
}

/// Checks that a connection uses the port and the GID of `config`: the connection manager chooses them by the address.
fn check_choice<C: Provider>(mr: &Mr<C>, config: &Config, id: &CmId<C>) -> Result<(), Error> {
    if config.port.is_none() && config.gid_index.is_none() {
        return Ok(());
    }
    let (port, raw) = id.source()?;
    let gids = mr.pd().provider().gids(port).map_err(Error::of("query the port's addresses"))?;
    let is_gid = |index| gids.iter().any(|gid| gid.index == index && gid.raw == raw);
    if config.port.is_none_or(|chosen| chosen == port) && config.gid_index.is_none_or(is_gid) {
        return Ok(());
    }
    Err(Error { operation: "connect by the chosen port and GID index", error: ErrorKind::AddrNotAvailable.into() })
}
