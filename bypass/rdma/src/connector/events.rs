//! What the device says by itself, and which connections are over for that.

use super::{Connector, Made, Seat};
use crate::News;
use crate::calls::{AsyncEvent, Calls, PortState};
use linerate_bypass::CloseReason;
use linerate_bypass::time::Instant;

impl<C: Calls> Connector<C> {
    /// Tells workers of their connections that are lost.
    pub(super) fn lose(&mut self, why: CloseReason, is_lost: impl Fn(&Made) -> bool) {
        let lost = self.made.iter().filter(|(_, made)| is_lost(made));
        self.unsent.extend(lost.map(|(number, made)| (made.worker, News::Lost(*number, why))));
    }

    pub(super) fn device_event(&mut self, event: AsyncEvent, now: Instant) {
        let calls = self.region.domain().calls().clone();
        let device = calls.name();
        match event {
            AsyncEvent::PortDown(port) => {
                tracing::warn!("{device}: port {port} is down");
                self.down_since.get_or_insert(now);
            }
            AsyncEvent::PortActive(port) => {
                tracing::info!("{device}: port {port} is active");
                self.down_since = None;
            }
            AsyncEvent::GidsChanged(port) => match calls.gids(port) {
                Ok(gids) => {
                    tracing::info!("{device}: the addresses of port {port} have changed");
                    let is_left = |ip| gids.iter().any(|gid| gid.ip() == ip);
                    self.lose(CloseReason::Reset, |made| !is_left(made.local));
                }
                Err(error) => tracing::warn!("{device}: query the addresses of port {port}: {error}"),
            },
            AsyncEvent::PairFatal(pair) | AsyncEvent::PairRequest(pair) | AsyncEvent::PairAccess(pair) => {
                tracing::debug!("{device}: {event:?}");
                self.lose(CloseReason::Reset, |made| made.pair == pair);
            }
            AsyncEvent::LastBuffer(pair) => self.had_last(pair, now),
            AsyncEvent::QueueError(queue) => {
                tracing::error!("{device}: a completion queue is out of order, and its connections are over");
                self.lose_of(|seat| seat.queues.iter().any(|it| it.handle() == queue));
            }
            AsyncEvent::SharedError(shared) => {
                tracing::error!("{device}: a shared receive queue is out of order, and its connections are over");
                self.lose_of(|seat| seat.shared.as_ref().is_some_and(|it| it.handle() == shared));
            }
            AsyncEvent::Fatal => {
                tracing::error!("{device} is out of order: all its connections are over");
                self.lose(CloseReason::Reset, |_| true);
            }
            event => tracing::debug!("{device}: {event:?}"),
        }
    }

    /// The connections are lost of the worker whose seat `is_it` says yes to.
    fn lose_of(&mut self, is_it: impl Fn(&Seat<C>) -> bool) {
        let worker = self.workers.iter().position(is_it);
        self.lose(CloseReason::Reset, |made| Some(made.worker) == worker);
    }

    /// A port has been down for too long. It may have been another than all connections'.
    pub(super) fn end_if_down(&mut self) {
        let calls = self.region.domain().calls();
        let is_active = |port| calls.port(port).is_ok_and(|port| port.state == PortState::Active);
        if !(1..=self.ports).any(is_active) {
            tracing::warn!("{}: no port carries packets, and all connections are over", calls.name());
            self.lose(CloseReason::TimedOut, |_| true);
        }
    }
}
