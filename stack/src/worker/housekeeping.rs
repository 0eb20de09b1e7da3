//! Periodic work of a worker: timers, neighbours, link state, local addresses.

use super::Worker;
use super::transport::Core;
use crate::engine::Engine;
use crate::ip::v6::Ipv6Changes;
use linerate_bypass::Nic;
use linerate_service::inspect::ConnState;
use linerate_service::time::Duration;
use linerate_service::{Service, ServiceHost};

/// Interval between checks of the link state.
pub(super) const LINK_PERIOD: Duration = Duration::from_millis(100);
/// Connections per turn that the scan for unused neighbours covers.
const SLOTS_PER_TURN: usize = 256;
/// Time without transmission after which a warning is logged.
const STUCK: Duration = Duration::from_secs(2);

impl<N: Nic, S: Service, E: Engine<N>> Worker<N, S, E> {
    /// Runs everything that is due. Called each turn; usually nothing is due.
    #[inline]
    pub(super) fn run_due(&mut self) {
        let Core { now, engine, egress, ingress, slow, .. } = &mut self.host.net;
        let now = *now;
        engine.expire(now);
        if egress.next_deadline().is_some_and(|at| at <= now) {
            egress.poll_neighbors(now);
            for ip in egress.take_lost() {
                engine.neighbor_unreachable(ip);
                if let Some(ipv6) = slow.ipv6() {
                    ipv6.neighbor_unreachable(ip, now);
                }
                ingress.report_unreachable(ip);
            }
            ingress.announce_resolving(egress.take_resolving());
            self.scan_connections();
        }
        if self.host.net.slow.next_deadline().is_some_and(|at| at <= now) {
            self.poll_slow_path();
        }
        if now.since(self.link_checked) >= LINK_PERIOD {
            self.check_link();
        }
    }

    /// Marks the neighbours that connections use, [`SLOTS_PER_TURN`] connections per turn, while the neighbour table
    /// scans.
    #[inline(never)]
    fn scan_connections(&mut self) {
        let Core { engine, egress, .. } = &mut self.host.net;
        let Some(from) = egress.neighbor_scan() else { return };
        let extent = engine.slot_count();
        let to = extent.min(from + SLOTS_PER_TURN);
        for conn in (from..to).filter_map(|slot| engine.conn_info(slot)) {
            // A half-open connection costs an attacker nothing, and ended ones need no neighbour.
            if !matches!(conn.state, ConnState::SynReceived | ConnState::TimeWait | ConnState::Closed) {
                egress.mark_in_use(conn.remote.ip());
            }
        }
        egress.scanned(to, to == extent);
    }

    #[inline(never)]
    fn check_link(&mut self) {
        let now = self.host.net.now;
        self.link_checked = now;
        self.host.net.egress.next_link_epoch();
        let up = self.host.net.egress.nic().link_up();
        if self.link_up != Some(up) {
            self.host.net.slow.set_link(up, now);
        }
        if up && self.link_up == Some(false) {
            // A restarted peer may have another Ethernet address.
            self.host.net.egress.reconfirm_neighbors();
        }
        self.link_up = Some(up);
        self.watch_transmit(up);
    }

    /// Runs the slow path and passes address changes to all workers.
    #[inline(never)]
    fn poll_slow_path(&mut self) {
        let Core { egress, slow, now, .. } = &mut self.host.net;
        let (lease, Ipv6Changes { is_verified, network }) = slow.poll(egress, *now);
        if let Some(lease) = lease {
            self.host.net.ingress.share_lease(&lease);
            self.host.net.set_lease(&self.config, lease);
        }
        if is_verified {
            self.verified();
            self.host.net.ingress.share_verified();
        }
        if let Some(network) = network {
            self.host.net.set_router_info(&self.config, network);
            self.host.net.ingress.share_router_info(&network);
        }
        let ServiceHost { net, service, .. } = &mut self.host;
        for (local, remote) in net.slow.take_refusals() {
            service.datagram_refused(net, local, remote);
        }
    }

    /// Starts using the addresses that passed DAD.
    pub(super) fn verified(&mut self) {
        self.host.net.is_verified = true;
        self.host.net.ingress.dad_running = false;
        self.host.net.update_addresses(&self.config);
        let Core { slow, egress, now, .. } = &mut self.host.net;
        if let Some(ipv6) = slow.ipv6() {
            ipv6.verified(egress.addresses(), *now);
        }
    }

    /// Logs one warning if the port takes no frames for long although its link is up. On vhost-user, this is a queue
    /// that the other end has not enabled.
    fn watch_transmit(&mut self, link_up: bool) {
        let now = self.host.net.now;
        if !link_up || !self.host.net.egress.is_stuck() {
            self.stuck_since = None;
            return;
        }
        let since = *self.stuck_since.get_or_insert(now);
        if now.since(since) >= STUCK && !self.stuck_logged {
            self.stuck_logged = true;
            tracing::warn!(
                "worker {}: the port has sent no frame for {STUCK:?}; check that the other end of the link does not \
                 have fewer workers",
                self.host.net.worker
            );
        }
    }
}
