//! Worker loop: wait, gather events, call the service, write.

use crate::bind::{BoundSockets, Sockets};
use crate::net::Net;
use crate::udp::Udp;
use linerate_bypass::CpuTime;
use linerate_service::time::Duration;
use linerate_service::{Drain, Service, ServiceHost, Stop, Summary};
use std::net::SocketAddr;
use std::num::NonZeroU64;

/// Maximum datagrams delivered in one turn.
const DATAGRAMS_PER_TURN: usize = 256;

/// Worker that runs a service over kernel sockets on the current thread.
pub struct Worker<S: Service> {
    host: ServiceHost<Net, S>,
    spin: bool,
}

impl<S: Service> Worker<S> {
    /// Creates a worker. The service starts in the first turn.
    pub fn new(sockets: Sockets<S::Message>, service: S) -> Self {
        let Sockets { bound: BoundSockets { worker, config, poller, listeners, udp, descriptors }, mailbox } = sockets;
        let spin = config.spin;
        let udp = Udp::new(udp, config.memory);
        let net = Net::new(worker, config, poller, listeners, udp, descriptors);
        Worker { host: ServiceHost::new(net, service, mailbox), spin }
    }

    /// Returns the TCP addresses in the order of the configuration, with the actual ports.
    pub fn tcp_addrs(&self) -> Vec<SocketAddr> {
        self.host.net.listen_addrs()
    }

    /// Returns the UDP addresses in the order of the configuration, with the actual ports.
    pub fn udp_addrs(&self) -> Vec<SocketAddr> {
        self.host.net.udp.local_addrs()
    }

    /// Returns the counters so far.
    pub fn summary(&self) -> &Summary {
        &self.host.net.summary
    }

    /// Returns the service.
    pub fn service(&self) -> &S {
        &self.host.service
    }

    /// Runs until `stop`, then resets all connections and returns the service and the counters. While draining, it
    /// reports the number of remaining connections.
    pub fn run(mut self, stop: &Stop) -> (S, Summary) {
        // Sleeps may last this much longer than requested; the default is 50 µs.
        if let Err(error) = rustix::thread::set_current_timer_slack(NonZeroU64::new(1)) {
            tracing::debug!("timers may expire 50 µs late: {error}");
        }
        let longest = stop.wake_by(self.host.net.wake());
        let mut drain = Drain::default();
        while !stop.is_stopped() {
            self.turn_within(longest);
            if stop.is_draining() {
                if drain.is_listening() {
                    self.stop_listening();
                }
                drain.report(stop, self.host.net.table.slots.len());
            }
        }
        self.finish()
    }

    /// Accepts the waiting connections, then closes the listening sockets, so that new connections are refused.
    /// Datagrams are not affected.
    pub fn stop_listening(&mut self) {
        self.host.net.stop_listening();
    }

    /// Runs one turn: waits for events, at most `timeout` and not at all when spinning, delivers them, and writes
    /// pending data.
    pub fn turn(&mut self, timeout: Duration) {
        self.turn_within(Some(timeout));
    }

    fn turn_within(&mut self, longest: Option<Duration>) {
        let host = &mut self.host;
        host.start();
        let rest = host.service.turn(&mut host.net);
        host.net.flush_all();
        let longest = [longest, rest].into_iter().flatten().min();
        let mut timeout = if self.spin { Some(Duration::ZERO) } else { host.net.idle_time(longest) };
        let asleep = timeout != Some(Duration::ZERO);
        if asleep && !host.messages.about_to_sleep() {
            timeout = Some(Duration::ZERO);
        }
        let read = host.net.summary.rx_frames;
        if self.spin {
            host.net.gather_spinning();
        } else {
            host.net.gather_events(timeout);
        }
        if asleep {
            host.messages.awake();
        }
        let mut events = host.deliver();
        self.deliver_datagrams();
        events += self.host.deliver_messages();
        let summary = &mut self.host.net.summary;
        let has_read = summary.rx_frames > read;
        summary.turns += 1;
        summary.busy_turns += u64::from(has_read || events > 0);
        summary.bursts += u64::from(has_read);
        summary.sleeps += u64::from(asleep);
        summary.wakeups += u64::from(asleep && (has_read || events > 0));
    }

    fn deliver_datagrams(&mut self) {
        let ServiceHost { net, service, .. } = &mut self.host;
        for _ in 0..DATAGRAMS_PER_TURN {
            let Some(datagram) = net.udp.receive() else { break };
            // The datagram may be a reply to data sent in this turn, so the clock is read again.
            net.update_time();
            net.summary.rx_frames += 1;
            net.summary.rx_bytes += datagram.payload.len() as u64;
            service.datagram(net, datagram);
            net.flush_all();
        }
        let dropped = std::mem::take(&mut net.udp.dropped);
        net.summary.drop_for("datagram: no memory", dropped);
    }

    fn finish(mut self) -> (S, Summary) {
        let net = &mut self.host.net;
        net.summary.failed += net.table.connecting() as u64;
        let conns = net.table.slots.conn_ids();
        self.host.abort_all(conns);
        self.host.net.summary.cpu_us = CpuTime::of_thread().micros();
        (self.host.service, self.host.net.summary)
    }
}
