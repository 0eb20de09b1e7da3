//! What the device says by itself, and which connections are over for that.

use super::{Connector, Made, WorkerHandle};
use crate::ConnectorEvent;
use crate::provider::{AsyncEvent, PortState, Provider};
use linerate_bypass::CloseReason;
use linerate_bypass::time::Instant;

impl<C: Provider> Connector<C> {
    /// Tells workers of their connections that are lost.
    pub(super) fn lose(&mut self, why: CloseReason, is_lost: impl Fn(&Made) -> bool) {
        let lost = self.made.iter().filter(|(_, made)| is_lost(made));
        self.unsent.extend(lost.map(|(number, made)| (made.worker, ConnectorEvent::Lost(*number, why))));
    }

    pub(super) fn device_event(&mut self, event: AsyncEvent, now: Instant) {
        let provider = self.mr.pd().provider().clone();
        let device = provider.name();
        match event {
            AsyncEvent::PortError(port) => {
                tracing::warn!("{device}: port {port} is down");
                self.down_since.get_or_insert(now);
            }
            AsyncEvent::PortActive(port) => {
                tracing::info!("{device}: port {port} is active");
                self.down_since = None;
            }
            AsyncEvent::GidChange(port) => match provider.gids(port) {
                Ok(gids) => {
                    tracing::info!("{device}: the addresses of port {port} have changed");
                    let is_left = |ip| gids.iter().any(|gid| gid.ip() == ip);
                    self.lose(CloseReason::Reset, |made| !is_left(made.local));
                }
                Err(error) => tracing::warn!("{device}: query the addresses of port {port}: {error}"),
            },
            AsyncEvent::QpFatal(qp) | AsyncEvent::QpRequestError(qp) | AsyncEvent::QpAccessError(qp) => {
                tracing::debug!("{device}: {event:?}");
                self.lose(CloseReason::Reset, |made| made.qp == qp);
            }
            AsyncEvent::LastWqeReached(qp) => self.had_last(qp, now),
            AsyncEvent::CqError(cq) => {
                tracing::error!("{device}: a completion queue is out of order, and its connections are over");
                self.lose_of(|seat| seat.cqs.iter().any(|it| it.handle() == cq));
            }
            AsyncEvent::SrqError(srq) => {
                tracing::error!("{device}: a shared receive queue is out of order, and its connections are over");
                self.lose_of(|seat| seat.srq.as_ref().is_some_and(|it| it.handle() == srq));
            }
            AsyncEvent::DeviceFatal => {
                tracing::error!("{device} is out of order: all its connections are over");
                self.lose(CloseReason::Reset, |_| true);
            }
            event => tracing::debug!("{device}: {event:?}"),
        }
    }

    /// The connections are lost of the worker whose seat `is_it` says yes to.
    fn lose_of(&mut self, is_it: impl Fn(&WorkerHandle<C>) -> bool) {
        let worker = self.workers.iter().position(is_it);
        self.lose(CloseReason::Reset, |made| Some(made.worker) == worker);
    }

    /// A port has been down for too long. It may have been another than all connections'.
    pub(super) fn end_if_down(&mut self) {
        let provider = self.mr.pd().provider();
        let is_active = |port| provider.port(port).is_ok_and(|port| port.state == PortState::Active);
        if !(1..=self.ports).any(is_active) {
            tracing::warn!("{}: no port carries packets, and all connections are over", provider.name());
            self.lose(CloseReason::TimedOut, |_| true);
        }
    }
}
