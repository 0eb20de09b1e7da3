//! What workers are told about their connections.

use crate::connection::credit::LEAST_BUFFERS;
use crate::net::KEPT;
use crate::provider::{DeviceLimits, TransportKind};
use crate::rendezvous::Rendezvous;
use crate::session::DatagramHeader;
use crate::verbs::QpConfig;
use std::time::Duration;

/// Datagrams of a worker that are being sent at a time, and buffers for those that come unless there are connections for more.
const DATAGRAMS: u32 = 4096;
/// Completion queues of a worker at most: it polls them all.
const QUEUES: u32 = 64;

/// The limits of a worker and its connections. All workers of one service share one.
#[derive(Debug, Clone)]
pub struct Config {
    /// Buffers posted for each connection: so many messages may be on their way to it. 3 at least; where they are shared, at most.
    pub buffers: u16,
    /// Bytes of a buffer, and so of a message.
    pub buffer: usize,
    /// How messages come.
    pub mode: Mode,
    /// Buffers that all connections of a worker share, in place of their own; each connection may use as many as there are for it
    /// when there are as many connections as there may be.
    pub srq: Option<u32>,
    /// Requests of a connection that are under way at a time. 8 at least.
    pub sends: u16,
    /// Messages up to this many bytes are copied when they are posted, if the device can.
    pub inline: u32,
    /// A completion is asked for at every so many messages, [so many](Self::most_unsignalled) at most.
    pub signal_every: usize,
    /// Requests posted by one call at most.
    pub list: usize,
    /// Slices from this many bytes on are read by the peer where they lie, if it can.
    pub offer_from: usize,
    /// Bytes that a connection may hold to be sent.
    pub tx_buffer: usize,
    /// Bytes of what was offered that a connection may hold unconsumed.
    pub rx_buffer: usize,
    /// Connections of one worker.
    pub max_connections: usize,
    /// Queue pairs of one worker that are made ahead of the connections that will have them.
    pub pool: usize,
    /// How long such a queue pair rests between two connections by the connection manager, which takes one that asks for another
    /// too early for the old connection's (IBA 12.9.8.4, time wait).
    pub reuse_after: Duration,
    /// Whether workers without work sleep until they are woken, in place of polling on.
    pub rests: bool,
    /// How connections are made; both ends do it the same way.
    pub connect: Connect,
    /// How long a connection may take to be established.
    pub connect_timeout: Duration,
    /// After how long a connection on which nothing came is asked whether its peer is there.
    pub probe_after: Duration,
    /// How long all ports of the device may be down before its connections are over.
    pub down_timeout: Duration,
}

/// How messages come to an end of a connection; each end has its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The peer sends them, and the device puts them into buffers that are posted.
    Send,
    /// The peer writes them to a ring of the connection's own, and tells of each by 32 bits that come with it.
    Write,
    /// All peers send them to one queue pair, as datagrams that may be lost, and each end sees to it that they come all the same.
    Ud,
}

/// How connections are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Connect {
    /// By the connection manager (`rdma_cm(7)`).
    Manager,
    /// Both ends tell each other of their queue pairs over TCP.
    Exchange,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            buffers: 32,
            buffer: 4096,
            mode: Mode::Send,
            srq: None,
            sends: 128,
            inline: 220,
            signal_every: 100,
            list: 16,
            offer_from: 32 << 10,
            tx_buffer: 256 << 10,
            rx_buffer: 256 << 10,
            max_connections: 1024,
            pool: 0,
            reuse_after: Duration::from_secs(5),
            rests: false,
            connect: Connect::Manager,
            connect_timeout: Duration::from_secs(10),
            probe_after: Duration::from_secs(10),
            down_timeout: Duration::from_secs(10),
        }
    }
}

/// What a device cannot do of what was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unsupported {
    /// It has not as much.
    #[error("{asked} {what} are more than it can have: ask for no more than {most}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many were asked for.
        asked: u32,
        /// How many there are.
        most: u32,
    },
    /// Sessions are made by an exchange of what rdma_cm does not carry.
    #[error("datagrams' sessions are made by an exchange over TCP: choose that for how connections are made")]
    SessionsByManager,
    /// iWARP has connections alone.
    #[error("messages cannot be sent as datagrams over iWARP, which has none: have them sent by connections")]
    NoDatagrams,
    /// There is one queue pair, and its buffers are all sessions'.
    #[error("datagrams come by one queue pair, with buffers for all: leave shared buffers and the pool out")]
    DatagramsAlone,
    /// iWARP writes without telling of it.
    #[error("messages cannot be written over iWARP, which has no WRITE with immediate: have them sent")]
    NoImmediate,
    /// A ring that is not bound to a queue pair would be open to all others.
    #[error(
        "messages cannot be written without memory windows of type 2, which a ring is open through to its own peer alone: have them sent"
    )]
    NoWindows,
    /// iWARP's queue pairs are made ready by their connections.
    #[error("queue pairs cannot be prepared over iWARP, whose connections make them ready: leave the pool out")]
    NoPool,
    /// It has none.
    #[error(
        "it does no atomic operations, by which its peers would count: `linerate rdma info` shows which devices do"
    )]
    NoAtomics,
    /// A ring is its connection's alone.
    #[error("messages that are written to rings need no shared buffers: choose one of the two")]
    SharedRings,
}

impl Config {
    /// Of each queue pair, but that it sends nothing inline.
    pub(crate) fn qp(&self) -> QpConfig {
        QpConfig {
            sends: self.sends.into(),
            receives: self.buffers.into(),
            inline: 0,
            signal_every: self.signal_every,
            list: self.list,
        }
    }

    /// As much of it as a device with these limits can do; an error for what cannot be less.
    pub(crate) fn within(&self, limits: &DeviceLimits) -> Result<Config, Unsupported> {
        let mut config = self.clone();
        let (sends, buffers) = (u32::from(self.sends), u32::from(self.buffers));
        let no_more_than =
            |what, asked, most| if asked > most { Err(Unsupported::TooMany { what, asked, most }) } else { Ok(()) };
        no_more_than("requests under way", sends, limits.qp_wrs)?;
        if self.mode == Mode::Write {
            if limits.transport == TransportKind::Iwarp {
                return Err(Unsupported::NoImmediate);
            }
            if !limits.mw_type_2 {
                return Err(Unsupported::NoWindows);
            }
            if self.srq.is_some() {
                return Err(Unsupported::SharedRings);
            }
        }
        if self.mode == Mode::Ud {
            if limits.transport == TransportKind::Iwarp {
                return Err(Unsupported::NoDatagrams);
            }
            if self.connect == Connect::Manager {
                return Err(Unsupported::SessionsByManager);
            }
            if self.srq.is_some() || self.pool > 0 {
                return Err(Unsupported::DatagramsAlone);
            }
            // A READ needs a connection of the device's.
            config.offer_from = usize::MAX;
            let most = DATAGRAMS.max(u32::from(LEAST_BUFFERS) * self.max_connections as u32).min(limits.qp_wrs);
            config.share(most);
        }
        if self.pool > 0 && limits.transport == TransportKind::Iwarp {
            return Err(Unsupported::NoPool);
        }
        match self.srq {
            None => no_more_than("buffers of a connection", buffers, limits.qp_wrs)?,
            Some(srq) => {
                no_more_than("shared buffers", srq, limits.srq_wrs)?;
                config.share(srq);
            }
        }
        config.signal_every = config.signal_every.min(self.most_unsignalled());
        let most = config.qps_per_cq(limits) * limits.cqs.min(QUEUES) as usize;
        // A fifth is for those that go.
        let most = if config.srq.is_some() { (most * 4 / 5).max(most.min(1)) } else { most };
        config.max_connections = config.max_connections.min(most);
        if Rendezvous::of(limits, None) == Rendezvous::None {
            config.offer_from = usize::MAX;
        }
        Ok(config)
    }

    /// Has connections use no more than `srq` buffers together: each finds one for whatever it sends, so that nobody is ever told that
    /// there is none.
    fn share(&mut self, srq: u32) {
        let (least, buffers) = (u32::from(LEAST_BUFFERS), u32::from(self.buffers));
        self.max_connections = self.max_connections.min((srq / least) as usize).max(1);
        let each = (srq / self.max_connections as u32).clamp(least, buffers.max(least));
        self.buffers = each as u16;
    }

    /// The most messages at which a completion can be asked for: more would not be under way at a time, and a queue pair that
    /// learns nothing of them would stand still.
    pub fn most_unsignalled(&self) -> usize {
        usize::from(self.sends).saturating_sub(KEPT + 1).max(1)
    }

    /// Queue pairs that a worker has at a time, at most. Where buffers are shared, they outlast their connections for a moment: a
    /// quarter more than these is for those that do, whose places are not their successors'.
    pub(crate) fn qps(&self) -> usize {
        let leaving = if self.srq.is_some() { self.max_connections.div_ceil(4) } else { 0 };
        self.max_connections + leaving
    }

    /// Whether queue pairs are used again. Those that share their buffers are not.
    pub(crate) fn reuses(&self) -> bool {
        self.pool > 0 && self.srq.is_none()
    }

    /// Bytes of a message, with its header.
    pub(crate) fn message(&self) -> usize {
        match self.mode {
            Mode::Send | Mode::Write => self.buffer,
            Mode::Ud => self.buffer.saturating_sub(DatagramHeader::LEN),
        }
    }

    /// Datagrams that a worker may be sending at a time, and buffers that it has for those that come, as many as all its connections
    /// may use.
    pub(crate) fn datagrams(&self, limits: &DeviceLimits) -> (u32, u32) {
        let connections = u32::try_from(self.max_connections).unwrap_or(u32::MAX);
        let of = |each: u16| connections.saturating_mul(each.into()).min(limits.qp_wrs);
        (of(self.sends).min(DATAGRAMS), of(self.buffers))
    }

    /// Completions that a connection may have at once.
    pub(crate) fn completions(&self) -> u32 {
        u32::from(self.sends) + u32::from(self.buffers)
    }

    /// Queue pairs whose completions go to one queue: a queue that overflows is lost, and each may have everything completed at
    /// once, as when a link goes down.
    pub(crate) fn qps_per_cq(&self, limits: &DeviceLimits) -> usize {
        (limits.cqes / self.completions()) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_rdma_sim::DeviceConfig;

    fn limits() -> DeviceLimits {
        DeviceConfig::roce([10, 0, 0, 1].into()).limits
    }

    #[test]
    fn connections_that_share_buffers_have_some_for_each_of_them() {
        for (srq, asked, connections, buffers, each) in [
            (4096, 32, 1024, 1024, 4),
            (4096, 32, 64, 64, 32),
            (4096, 10, 64, 64, 10),
            (30, 32, 64, 10, 3),
            (3, 3, 64, 1, 3),
        ] {
            let asked = Config { srq: Some(srq), buffers: asked, max_connections: connections, ..Config::default() };
            let config = asked.within(&limits()).unwrap();
            assert_eq!((config.max_connections, config.buffers), (buffers, each), "{srq}");
            assert!(config.max_connections as u32 * u32::from(config.buffers) <= srq);
        }
    }

    #[test]
    fn a_queue_has_room_for_all_completions_that_there_may_be() {
        let limits = DeviceLimits { cqes: 1000, cqs: 2, ..limits() };
        let config = Config { sends: 20, buffers: 30, ..Config::default() }.within(&limits).unwrap();
        assert_eq!((config.max_connections, config.qps_per_cq(&limits)), (40, 20));
        // Those that go have room there, too.
        for asked in 1..50 {
            let srq = Config { srq: Some(1000), buffers: 3, sends: 20, max_connections: asked, ..Config::default() };
            let config = srq.within(&limits).unwrap();
            assert!(config.qps() > config.max_connections && config.max_connections == asked.min(68), "{asked}");
            assert!(config.qps() <= 2 * config.qps_per_cq(&limits), "{asked}");
        }
    }

    #[test]
    fn what_the_device_cannot_have_is_refused() {
        let limits = DeviceLimits { qp_wrs: 100, srq_wrs: 200, ..limits() };
        let most = |config: Config| match config.within(&limits) {
            Err(Unsupported::TooMany { most, .. }) => most,
            other => panic!("{other:?}"),
        };
        assert_eq!(most(Config { sends: 101, ..Config::default() }), 100);
        assert_eq!(most(Config { sends: 100, buffers: 101, ..Config::default() }), 100);
        assert_eq!(most(Config { sends: 100, srq: Some(201), ..Config::default() }), 200);
        assert!(Config { sends: 100, buffers: 101, srq: Some(200), ..Config::default() }.within(&limits).is_ok());
    }

    #[test]
    fn what_cannot_be_done_by_a_device_or_together_is_refused() {
        let writes = Config { mode: Mode::Write, ..Config::default() };
        let iwarp = DeviceConfig::iwarp([10, 0, 0, 1].into()).limits;
        assert!(writes.within(&limits()).is_ok());
        assert_eq!(writes.within(&iwarp).unwrap_err(), Unsupported::NoImmediate);
        let without = DeviceLimits { mw_type_2: false, ..limits() };
        assert_eq!(writes.within(&without).unwrap_err(), Unsupported::NoWindows);
        let prepares = Config { pool: 1, ..Config::default() };
        assert_eq!(prepares.within(&iwarp).unwrap_err(), Unsupported::NoPool);
        let srq = Config { srq: Some(64), ..writes };
        assert_eq!(srq.within(&limits()).unwrap_err(), Unsupported::SharedRings);
    }

    #[test]
    fn nothing_is_offered_where_it_cannot_be_read() {
        let iwarp = DeviceConfig::iwarp([10, 0, 0, 1].into()).limits;
        assert_eq!(Config::default().within(&iwarp).unwrap().offer_from, usize::MAX);
        assert_eq!(Config::default().within(&limits()).unwrap().offer_from, Config::default().offer_from);
    }
}
