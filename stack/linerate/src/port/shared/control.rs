//! Thread that passes the kernel's addresses, routes and neighbours on to the workers.

use super::{MOST_ROUTES, SharedHost, ips, network_of};
use crate::config::Listen;
use linerate_bypass::Waker;
use linerate_bypass::dpdk::{Mbuf, SharedInterface};
use linerate_bypass::rtnetlink::{Changes, InterfaceMonitor};
use linerate_stack::{HostControl, HostNetwork, Mailboxes};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Longest sleep of the thread.
const SLEEP: Duration = Duration::from_secs(1);
/// Time after which unsent changes are sent again.
const RETRY: Duration = Duration::from_millis(100);

/// Control plane of a shared interface, until dropped.
pub struct ControlThread {
    stop: Arc<AtomicBool>,
    wake: linerate_service::mailbox::Wake,
    thread: Option<JoinHandle<()>>,
}

struct ControlPlane {
    monitor: InterfaceMonitor,
    listen: Listen,
    interface: String,
    shared: Arc<SharedInterface>,
    workers: HostControl<Mbuf>,
    /// Addresses and routes that not all workers have received.
    unsent: Option<Arc<HostNetwork>>,
    /// True if the last access to the kernel's state failed.
    has_failed: bool,
}

impl ControlThread {
    /// Starts the control plane of the workers of `mailboxes`.
    pub fn start<M: Send>(
        host: SharedHost,
        shared: Arc<SharedInterface>,
        mailboxes: &mut [Mailboxes<Mbuf, M>],
    ) -> io::Result<Self> {
        let waker = Waker::new()?;
        let workers = HostControl::connect(mailboxes, waker.wake());
        let wake = waker.wake();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let SharedHost { monitor, listen, interface, .. } = host;
        let mut plane = ControlPlane { monitor, listen, interface, shared, workers, unsent: None, has_failed: false };
        let thread = std::thread::Builder::new().name("linerate-host".to_owned()).spawn(move || {
            plane.begin();
            while !stopped.load(Ordering::Relaxed) {
                plane.turn();
                if plane.workers.about_to_sleep() {
                    plane.monitor.wait(&waker, if plane.unsent.is_some() { RETRY } else { SLEEP });
                }
                plane.workers.awake();
            }
        })?;
        Ok(ControlThread { stop, wake, thread: Some(thread) })
    }
}

impl Drop for ControlThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        (self.wake)();
        if let Some(thread) = self.thread.take() {
            // A panic has been reported on its thread.
            let _ = thread.join();
        }
    }
}

impl ControlPlane {
    /// Reports the neighbours that the kernel knows.
    fn begin(&mut self) {
        let known = self.monitor.neighbors();
        self.check(known).into_iter().flatten().for_each(|known| self.workers.report(known.ip, known.mac));
    }

    /// Passes the kernel's changes to the workers, and the workers' neighbour requests to the kernel.
    fn turn(&mut self) {
        let changes = self.monitor.poll();
        let Changes { network, neighbors } = self.check(changes).unwrap_or_default();
        neighbors.iter().for_each(|changed| self.workers.report(changed.ip, changed.mac));
        if network {
            self.apply_network();
        }
        self.unsent = self.unsent.take().filter(|network| !self.workers.set_network(network));
        while let Some(ip) = self.workers.requested() {
            let found = self.monitor.resolve(ip);
            if let Some(found) = self.check(found).flatten() {
                self.workers.report(found.ip, found.mac);
            }
        }
    }

    /// Applies a changed Ethernet address, changed IP addresses and routes.
    fn apply_network(&mut self) {
        let network = network_of(self.monitor.network(), &self.listen);
        if network.routes.len() > MOST_ROUTES {
            tracing::warn!("{}: more than {MOST_ROUTES} routes: the changes are ignored", self.interface);
            return;
        }
        let addresses: Vec<_> = network.addresses.iter().map(ToString::to_string).collect();
        tracing::info!("{}: addresses {}, {} routes", self.interface, addresses.join(" "), network.routes.len());
        let network = Arc::new(network);
        self.unsent = Some(network.clone()).filter(|network| !self.workers.set_network(network));
        // The workers have the new addresses when the first frames to them arrive.
        if let Err(error) = self.shared.set_addresses(&ips(&network)) {
            tracing::warn!("{}: the XDP program keeps the old addresses: {error}", self.interface);
        }
    }

    /// Returns the value of a result, and logs the first of several errors.
    fn check<T>(&mut self, result: io::Result<T>) -> Option<T> {
        let has_failed = result.is_err();
        if let Err(error) = &result
            && !self.has_failed
        {
            tracing::warn!("{}: the kernel's addresses, routes and neighbours: {error}", self.interface);
        }
        self.has_failed = has_failed;
        result.ok()
    }
}
