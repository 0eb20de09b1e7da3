//! What a worker looks after between bursts: timers, neighbours, the link, and by which addresses it may go.

use super::Worker;
use super::transport::Core;
use crate::engine::Engine;
use crate::ipv6::Outcome;
use linerate_bypass::inspect::ConnState;
use linerate_bypass::time::Duration;
use linerate_bypass::{Nic, Service};

/// How often the link's state is looked at.
const LINK_PERIOD: Duration = Duration::from_millis(100);
/// Connections looked at in one turn for the neighbours that they need.
const SLOTS_PER_TURN: usize = 256;
/// How long a port may take nothing before that is said.
const STUCK: Duration = Duration::from_secs(2);

impl<N: Nic, S: Service, E: Engine<N>> Worker<N, S, E> {
    /// Lets everything do what is due by now: in each turn, and seldom is anything.
    #[inline]
    pub(super) fn keep_time(&mut self) {
        let now = self.core.now;
        let Core { engine, egress, slow, .. } = &mut self.core;
        engine.expire(now);
        if egress.next_deadline().is_some_and(|at| at <= now) {
            egress.tend(now);
            for ip in egress.take_lost() {
                engine.neighbor_unreachable(ip);
                if let Some(six) = slow.six() {
                    six.neighbor_unreachable(ip, now);
                }
                self.ingress.tell_lost(ip);
            }
            self.ingress.tell_resolving(egress.take_resolving());
            self.scan_connections();
        }
        if self.core.slow.next_deadline().is_some_and(|at| at <= now) {
            self.tend_link();
        }
        if now.since(self.link_checked) >= LINK_PERIOD {
            self.look_at_link();
        }
    }

    /// Marks the neighbours that connections need, a bounded number of connections in a turn, if the neighbour table asks for
    /// it.
    #[inline(never)]
    fn scan_connections(&mut self) {
        let Core { engine, egress, .. } = &mut self.core;
        let Some(from) = egress.neighbor_scan() else { return };
        let extent = engine.slot_count();
        let to = extent.min(from + SLOTS_PER_TURN);
        for conn in (from..to).filter_map(|slot| engine.conn_info(slot)) {
            // Half-open connections cost their senders nothing, and those that are over are not sent to.
            if !matches!(conn.state, ConnState::SynReceived | ConnState::TimeWait | ConnState::Closed) {
                egress.mark_in_use(conn.remote.ip());
            }
        }
        egress.scanned(to, to == extent);
    }

    /// Sees whether the link is up.
    #[inline(never)]
    fn look_at_link(&mut self) {
        let now = self.core.now;
        self.link_checked = now;
        self.core.egress.next_link_epoch();
        let up = self.core.egress.nic().link_up();
        if self.link_up != Some(up) {
            self.core.slow.set_link(up, now);
        }
        if self.core.worker == 0 {
            match (self.link_up, up) {
                (Some(true), false) => tracing::warn!("link down"),
                (Some(false), true) => tracing::info!("link up"),
                (None, false) => tracing::info!("link not up yet"),
                _ => {}
            }
        }
        if up && self.link_up == Some(false) {
            // A peer that was started again may have another Ethernet address.
            self.core.egress.doubt_neighbors();
        }
        self.link_up = Some(up);
        self.watch_transmit(up);
    }

    /// Does what is due on the link. What comes about there is so for all workers.
    #[inline(never)]
    fn tend_link(&mut self) {
        let Core { egress, slow, now, .. } = &mut self.core;
        let (lease, Outcome { is_verified, network }) = slow.tend(egress, *now);
        if let Some(lease) = lease {
            self.core.take_lease(&self.config, lease);
            self.ingress.tell_lease(lease);
        }
        if is_verified {
            self.verified();
            self.ingress.tell_verified();
        }
        if let Some(network) = network {
            self.core.take_network(&self.config, network);
            self.ingress.tell_network(&network);
        }
    }

    /// The addresses that were tried are ours from now on.
    pub(super) fn verified(&mut self) {
        self.core.is_verified = true;
        self.ingress.tries_addresses = false;
        self.core.renew_addresses(&self.config);
        let Core { slow, egress, now, .. } = &mut self.core;
        if let Some(six) = slow.six() {
            six.verified(egress.addresses(), *now);
        }
    }

    /// Says once when the port, its link up, takes nothing for long: on a vhost-user link, a queue that the other end has
    /// not enabled.
    fn watch_transmit(&mut self, link_up: bool) {
        let now = self.core.now;
        if !link_up || !self.core.egress.is_stuck() {
            self.stuck_since = None;
            return;
        }
        let since = *self.stuck_since.get_or_insert(now);
        if now.since(since) >= STUCK && !self.stuck_told {
            self.stuck_told = true;
            tracing::warn!(
                "worker {}: the port has taken no frame for {STUCK:?}: has the other end of the link as many workers?",
                self.core.worker
            );
        }
    }
}
