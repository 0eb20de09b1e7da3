//! Asynchronous events of the device, and the connections that they end.

use super::{Connector, Made, WorkerHandle};
use crate::ConnectorEvent;
use crate::provider::{AsyncEvent, PortState, Provider};
use linerate_bypass::CloseReason;
use linerate_bypass::time::Instant;

impl<C: Provider> Connector<C> {
    /// Notifies workers of lost connections.
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
                    tracing::info!("{device}: the GID table of port {port} has changed");
                    let is_left = |ip| gids.iter().any(|gid| gid.ip() == ip);
                    self.lose(CloseReason::Reset, |made| !is_left(made.local));
                }
                Err(error) => tracing::warn!("{device}: cannot query the GID table of port {port}: {error}"),
            },
            AsyncEvent::QpFatal(qp) | AsyncEvent::QpRequestError(qp) | AsyncEvent::QpAccessError(qp) => {
                tracing::debug!("{device}: {event:?}");
                self.lose(CloseReason::Reset, |made| made.qp == qp);
            }
            AsyncEvent::LastWqeReached(qp) => self.had_last(qp, now),
            AsyncEvent::CqError(cq) => {
                tracing::error!("{device}: a completion queue has failed, and its connections have ended");
                self.lose_of(|worker| worker.cqs.iter().any(|it| it.handle() == cq));
            }
            AsyncEvent::SrqError(srq) => {
                tracing::error!("{device}: a shared receive queue has failed, and its connections have ended");
                self.lose_of(|worker| worker.srq.as_ref().is_some_and(|it| it.handle() == srq));
            }
            AsyncEvent::DeviceFatal => {
                tracing::error!("{device} has failed: all its connections have ended");
                self.lose(CloseReason::Reset, |_| true);
            }
            event => tracing::debug!("{device}: {event:?}"),
        }
    }

    /// Ends the connections of the workers that `is_it` selects.
    fn lose_of(&mut self, is_it: impl Fn(&WorkerHandle<C>) -> bool) {
        let worker = self.workers.iter().position(is_it);
        self.lose(CloseReason::Reset, |made| Some(made.worker) == worker);
    }

    /// Ends all connections if no port is active.
    pub(super) fn end_if_down(&mut self) {
        let provider = self.mr.pd().provider();
        let is_active = |port| provider.port(port).is_ok_and(|port| port.state == PortState::Active);
        if !(1..=self.ports).any(is_active) {
            tracing::warn!("{}: no port is active, and all connections have ended", provider.name());
            self.lose(CloseReason::TimedOut, |_| true);
        }
    }
}
