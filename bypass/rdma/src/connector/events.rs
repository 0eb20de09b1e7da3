//! Asynchronous events of the device, and the connections that they end.

use super::{Connector, Made};
use crate::ConnectorEvent;
use crate::provider::{AsyncEvent, PortState, Provider};
use linerate_service::CloseReason;
use linerate_service::time::Instant;

impl<C: Provider> Connector<C> {
    /// Notifies workers of lost connections.
    pub(super) fn lose(&mut self, reason: CloseReason, is_lost: impl Fn(&Made) -> bool) {
        let lost = self.made.iter().filter(|(_, made)| is_lost(made));
        self.unsent.extend(lost.map(|(number, made)| (made.worker, ConnectorEvent::Lost(*number, reason))));
    }

    pub(super) fn device_event(&mut self, event: AsyncEvent, now: Instant) {
        let provider = self.mr.pd().provider().clone();
        let device = provider.name();
        match event {
            AsyncEvent::PortError(port) => {
                tracing::warn!("{device}: port {port} is down");
                if !self.down_since.iter().any(|(down, _)| *down == port) {
                    self.down_since.push((port, now));
                }
            }
            AsyncEvent::PortActive(port) => {
                tracing::info!("{device}: port {port} is active");
                self.down_since.retain(|(down, _)| *down != port);
            }
            AsyncEvent::GidChange(port) => match provider.gids(port) {
                Ok(gids) => {
                    tracing::info!("{device}: the GID table of port {port} has changed");
                    let is_gone = |raw| gids.iter().all(|gid| gid.raw != raw);
                    self.lose(CloseReason::Reset, |made| made.source.0 == port && is_gone(made.source.1));
                }
                Err(error) => tracing::warn!("{device}: cannot query the GID table of port {port}: {error}"),
            },
            AsyncEvent::QpFatal(qp) | AsyncEvent::QpRequestError(qp) | AsyncEvent::QpAccessError(qp) => {
                tracing::debug!("{device}: {event:?}");
                self.lose(CloseReason::Reset, |made| made.qp == qp);
            }
            AsyncEvent::LastWqeReached(qp) => self.had_last(qp, now),
            AsyncEvent::CqError(queue) | AsyncEvent::SrqError(queue) => self.queue_failed(queue, now),
            AsyncEvent::DeviceFatal => {
                self.lose(CloseReason::Reset, |_| true);
                self.device_failed("it reported a fatal error or its removal");
            }
            event => tracing::debug!("{device}: {event:?}"),
        }
    }

    /// Ends the connections of ports that were down for too long.
    pub(super) fn end_if_down(&mut self, now: Instant) {
        let patience = self.config.retry_time();
        let late: Vec<u8> =
            self.down_since.extract_if(.., |(_, since)| *since + patience <= now).map(|(port, _)| port).collect();
        for port in late {
            let provider = self.mr.pd().provider();
            if provider.port(port).is_ok_and(|port| port.state == PortState::Active) {
                continue;
            }
            tracing::warn!("{}: port {port} is down, and its connections have ended", provider.name());
            self.lose(CloseReason::TimedOut, |made| made.source.0 == port);
        }
    }
}
