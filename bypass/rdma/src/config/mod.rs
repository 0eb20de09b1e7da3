//! Configuration of workers and connections.

mod rendezvous;

use crate::provider::{DeviceLimits, Keepalive, PathOptions, QpOptions, Retry, TransportKind};
use crate::session::DatagramHeader;
use crate::verbs::{MAX_SGES, QpConfig};
use crate::wire::LEAST_BUFFERS;
pub use rendezvous::Rendezvous;
use std::time::Duration;

/// Reserved requests of a send queue: two for an offer, one for a credit message.
pub(crate) const KEPT: usize = 3;

/// Maximum UD send requests of a worker, and its receive buffers unless the maximum number of connections needs more.
const DATAGRAMS: u32 = 4096;
/// Fewest UD send requests that are chosen to fit a cache.
const LEAST_DATAGRAMS: u32 = 512;
/// Unit of the local ACK timeout in nanoseconds, and maximum exponent of the timeout (IBA 9.9.2.4.1).
const ACK_UNIT: u128 = 4096;
const MAX_TIMEOUT: u8 = 31;
/// Maximum completion queues of a worker, which polls all of them.
const QUEUES: u32 = 64;
/// Fewest requests of a connection that are chosen to fit a cache.
const LEAST_SENDS: u16 = 16;
/// Sizes in bytes of queue entries of mlx5 devices, assumed for all devices: completion, receive request, unit of a
/// send request, and its control segment, data segment and header of inline data.
const CQE: usize = 64;
const RECV_WQE: usize = 16;
const WQE_UNIT: usize = 64;
const CONTROL: usize = 16;
const SGE: usize = 16;
const INLINE_HEADER: usize = 4;

/// Limits of a worker and its connections. All workers of one service share one configuration.
#[derive(Debug, Clone)]
pub struct Config {
    /// Receive buffers per connection, which limit the messages in flight to it: at least 3. With shared buffers, an
    /// upper bound.
    pub buffers: u16,
    /// Size of a buffer, and so of a message, in bytes.
    pub buffer: usize,
    /// Method by which the peer delivers messages.
    pub mode: Mode,
    /// Buffers shared by all connections of a worker instead of private ones. Each connection may use its share at
    /// the maximum number of connections.
    pub srq: Option<u32>,
    /// Outstanding send requests per connection: at least 8.
    pub sends: u16,
    /// Maximum message size sent inline, within the limit of the device.
    pub inline: u32,
    /// Interval of signalled messages, at most [`most_unsignalled`](Self::most_unsignalled).
    pub signal_every: usize,
    /// Maximum requests per post call.
    pub list: usize,
    /// Bytes of the last-level cache for the queues of a worker. The first completion queue serves the number of
    /// connections whose queues fit the cache, and each further one the sum of all previous ones. With `None`, a worker
    /// has as few completion queues as the device permits.
    pub cache: Option<usize>,
    /// Minimum size in bytes of slices that the peer reads by rendezvous, if it can.
    pub offer_from: usize,
    /// Send queue of a connection in bytes.
    pub tx_buffer: usize,
    /// Maximum unconsumed rendezvous data of a connection in bytes.
    pub rx_buffer: usize,
    /// Maximum connections of one worker.
    pub max_connections: usize,
    /// Queue pairs that one worker creates in advance.
    pub pool: usize,
    /// Idle time of a reused queue pair between two connections of the connection manager, which would otherwise
    /// attribute an early request to the old connection (IBA 12.9.8.4, time-wait).
    pub reuse_after: Duration,
    /// Idle workers sleep until they are woken instead of polling.
    pub rests: bool,
    /// Traffic class, service level and P_Key index of all connections.
    pub path: PathOptions,
    /// Port of all connections. By default, connections use the port of their local address, prepared queue pairs and
    /// datagrams port 1.
    pub port: Option<u8>,
    /// Index of the local GID of all connections. By default, connections use the GID of their local address.
    pub gid_index: Option<u8>,
    /// Method of establishing connections; the same at both ends.
    pub connect: Connect,
    /// Maximum duration of connection setup.
    pub connect_timeout: Duration,
    /// Silence after which a peer is probed.
    pub probe_after: Duration,
    /// Time without an acknowledgement after which a request is sent again, rounded up to 4.096 µs times a power of
    /// two. iWARP has the time-outs of the kernel's TCP.
    pub timeout: Duration,
    /// Number of retries after a time-out, at most 7.
    pub retries: u8,
    /// Number of retries after the peer had no receive buffer, at most 7; 7 is unlimited. Credits ensure that the peer
    /// has posted one, but its device may not have read it yet.
    pub rnr_retries: u8,
}

/// Method of delivering messages; the same at both ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The peer sends messages into posted buffers.
    Send,
    /// The peers send datagrams to one UD queue pair; sessions retransmit lost ones.
    Ud,
}

/// Method of establishing connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Connect {
    /// By the connection manager (`rdma_cm(7)`).
    Manager,
    /// By an exchange of queue pair attributes over TCP.
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
            cache: None,
            offer_from: 32 << 10,
            tx_buffer: 256 << 10,
            rx_buffer: 256 << 10,
            max_connections: 1024,
            pool: 0,
            reuse_after: Duration::from_secs(5),
            rests: false,
            path: PathOptions::default(),
            port: None,
            gid_index: None,
            connect: Connect::Manager,
            connect_timeout: Duration::from_secs(10),
            probe_after: Duration::from_secs(10),
            timeout: Duration::from_millis(268),
            retries: 7,
            rnr_retries: 6,
        }
    }
}

/// Setting that a device or another setting does not permit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "messages explain the fields")]
pub enum Unsupported {
    #[error("{requested} {objects} exceed the device's limit: at most {most} are possible")]
    TooMany { objects: &'static str, requested: u32, most: u32 },
    #[error("datagram sessions need the exchange over TCP instead of rdma_cm")]
    SessionsByManager,
    #[error("there is no port {port}: the device has {ports}")]
    NoPort { port: u8, ports: u8 },
    #[error(
        "its transport is {0}, and only InfiniBand, RoCE and iWARP are supported: use another network, such as kernel \
         sockets"
    )]
    Transport(&'static str),
    #[error("iWARP has no datagrams: use another mode")]
    NoDatagrams,
    #[error("datagrams use one queue pair with its own buffers: remove shared buffers and the pool")]
    DatagramsAlone,
    #[error("queue pairs cannot be prepared over iWARP, which readies them when connecting: remove the pool")]
    NoPool,
    #[error("no atomic operations, which remote counters need: `linerate rdma info` shows which devices have them")]
    NoAtomics,
}

impl Config {
    /// Returns the configuration of each queue pair, without inline data.
    pub(crate) fn qp(&self) -> QpConfig {
        QpConfig {
            sends: self.sends.into(),
            receives: self.buffers.into(),
            inline: 0,
            signal_every: self.signal_every,
            list: self.list,
        }
    }

    /// Returns the attributes of queue pairs that the connection manager does not choose.
    pub(crate) fn qp_options(&self) -> QpOptions {
        QpOptions { retry: self.retry(), path: self.path }
    }

    /// Returns the port of prepared queue pairs and of datagrams.
    pub(crate) fn first_port(&self) -> u8 {
        self.port.unwrap_or(1)
    }

    /// Returns the retransmission parameters of queue pairs.
    pub(crate) fn retry(&self) -> Retry {
        let nanos = self.timeout.as_nanos();
        let timeout = (0..MAX_TIMEOUT).find(|power| ACK_UNIT << power >= nanos).unwrap_or(MAX_TIMEOUT);
        Retry { timeout, retries: self.retries, rnr_retries: self.rnr_retries, ..Retry::DEFAULT }
    }

    /// Returns the time after which a peer that does not answer is lost: the time of all attempts. Devices may take up
    /// to four times as long (IBA 9.7.6.1.3). The connections of a port that is down end after the same time.
    pub(crate) fn retry_time(&self) -> Duration {
        let Retry { timeout, retries, .. } = self.retry();
        Duration::from_nanos((ACK_UNIT << timeout) as u64) * (u32::from(retries) + 1)
    }

    /// Returns the probes of the TCP exchange to the peers of datagram sessions.
    pub fn keepalive(&self) -> Keepalive {
        let interval = Duration::from_secs(1);
        Keepalive { idle: self.probe_after.max(interval), interval, probes: 5 }
    }

    /// Returns the configuration reduced to the device's limits, or an error for a setting that cannot be reduced.
    pub(crate) fn within(&self, limits: &DeviceLimits) -> Result<Config, Unsupported> {
        let mut config = self.clone();
        let (sends, buffers) = (u32::from(self.sends), u32::from(self.buffers));
        let no_more_than = |objects, requested, most| {
            if requested > most { Err(Unsupported::TooMany { objects, requested, most }) } else { Ok(()) }
        };
        match limits.transport {
            TransportKind::InfiniBand | TransportKind::Iwarp => {}
            TransportKind::Usnic => return Err(Unsupported::Transport("Cisco usNIC")),
            TransportKind::Unspecified => return Err(Unsupported::Transport("unspecified, as with Amazon EFA")),
            TransportKind::Other => return Err(Unsupported::Transport("unknown")),
        }
        if let Some(port) = self.port.filter(|port| !(1..=limits.ports).contains(port)) {
            return Err(Unsupported::NoPort { port, ports: limits.ports });
        }
        no_more_than("outstanding requests", sends, limits.qp_wrs)?;
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
            // UD queue pairs support no READs.
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
                // All shared buffers may complete in one queue, together with the requests of a connection.
                no_more_than("shared buffers", srq, limits.srq_wrs.min(limits.cqes.saturating_sub(sends)))?;
                config.share(srq);
            }
        }
        config.signal_every = config.signal_every.min(self.most_unsignalled());
        let most = config.qps_per_cq(limits) * limits.cqs.min(QUEUES) as usize;
        // A fifth is reserved for queue pairs of ended connections.
        let most = if config.srq.is_some() { (most * 4 / 5).max(most.min(1)) } else { most };
        config.max_connections = config.max_connections.min(most);
        if Rendezvous::of(limits, None) == Rendezvous::None {
            config.offer_from = usize::MAX;
        }
        Ok(config)
    }

    /// Limits the connections to `srq` buffers in total, so that every message finds a buffer and receiver-not-ready
    /// never occurs.
    fn share(&mut self, srq: u32) {
        let (least, buffers) = (u32::from(LEAST_BUFFERS), u32::from(self.buffers));
        self.max_connections = self.max_connections.min((srq / least) as usize).max(1);
        let each = (srq / self.max_connections as u32).clamp(least, buffers.max(least));
        self.buffers = each as u16;
    }

    /// Returns the maximum interval of signalled messages. A longer interval could fill the send queue with
    /// unsignalled requests, which never complete.
    pub fn most_unsignalled(&self) -> usize {
        usize::from(self.sends).saturating_sub(KEPT + 1).max(1)
    }

    /// Returns the maximum number of queue pairs of a worker. With shared buffers, queue pairs outlast their
    /// connections briefly, and a quarter more is reserved for them.
    pub(crate) fn qps(&self) -> usize {
        let leaving = if self.srq.is_some() { self.max_connections.div_ceil(4) } else { 0 };
        self.max_connections + leaving
    }

    /// Returns true if queue pairs are reused. Queue pairs with shared buffers are not.
    pub(crate) fn reuses(&self) -> bool {
        self.pool > 0 && self.srq.is_none()
    }

    /// Returns the message size in bytes, including the header.
    pub(crate) fn message(&self) -> usize {
        match self.mode {
            Mode::Send => self.buffer,
            Mode::Ud => self.buffer.saturating_sub(DatagramHeader::LEN),
        }
    }

    /// Returns the numbers of UD send requests and receive buffers of a worker: enough for all connections, within the
    /// limits of the cache and the device.
    pub(crate) fn datagrams(&self, limits: &DeviceLimits) -> (u32, u32) {
        let connections = u32::try_from(self.max_connections).unwrap_or(u32::MAX);
        let of = |each: u16| connections.saturating_mul(each.into()).min(limits.qp_wrs);
        let fitting = self.cache.map_or(DATAGRAMS, |cache| (cache / (self.wqe() + CQE)) as u32);
        let sends = fitting.clamp(LEAST_DATAGRAMS, DATAGRAMS);
        (of(self.sends).min(sends), of(self.buffers))
    }

    /// Returns the maximum number of completions of a connection at once.
    pub(crate) fn completions(&self) -> u32 {
        u32::from(self.sends) + u32::from(self.buffers)
    }

    /// Returns the number of queue pairs per completion queue. An overflow destroys the queue, and when a link goes
    /// down all requests of all its queue pairs may complete at once.
    pub(crate) fn qps_per_cq(&self, limits: &DeviceLimits) -> usize {
        let qps = match self.srq {
            Some(srq) => limits.cqes.saturating_sub(srq) / u32::from(self.sends),
            None => limits.cqes / self.completions(),
        };
        qps as usize
    }

    /// Returns the maximum number of queue pairs of each completion queue of a worker, which are filled in this order.
    pub(crate) fn qps_of_cqs(&self, limits: &DeviceLimits) -> Vec<usize> {
        let total = self.qps().max(1);
        let most = self.qps_per_cq(limits).clamp(1, total);
        let mut cqs = Vec::new();
        let (mut first, mut sum) = (self.cache.map_or(most, |cache| self.fitting_qps(cache)), 0);
        while sum < total {
            let next = first.max(sum).min(most).min(total - sum);
            cqs.push(next);
            (first, sum) = (next, sum + next);
        }
        if cqs.len() > limits.cqs.min(QUEUES) as usize {
            return vec![most; total.div_ceil(most)];
        }
        cqs
    }

    /// Returns the number of connections whose queues fit `cache` bytes, at least one.
    fn fitting_qps(&self, cache: usize) -> usize {
        let shared = self.srq.map_or(0, |srq| srq as usize * (CQE + RECV_WQE));
        (cache.saturating_sub(shared) / self.queue_bytes(self.sends)).max(1)
    }

    /// Returns the bytes of a request in a send queue.
    fn wqe(&self) -> usize {
        let data = (self.inline as usize + INLINE_HEADER).max(MAX_SGES * SGE);
        (CONTROL + data).next_multiple_of(WQE_UNIT)
    }

    /// Returns the bytes of queue entries that a connection with `sends` requests uses in turn.
    fn queue_bytes(&self, sends: u16) -> usize {
        let receives = if self.srq.is_some() { 0 } else { usize::from(self.buffers) };
        usize::from(sends) * (self.wqe() + CQE) + receives * (RECV_WQE + CQE)
    }

    /// Adapts the queues of a worker to `cache` bytes. With `sends`, halves the send requests of a connection until the
    /// queues of all connections fit, but not below twice its receive buffers: the peer's credits permit one message in
    /// flight per buffer, and the same number of messages can await a completion.
    pub fn fit(&mut self, cache: usize, sends: bool) {
        self.cache = Some(cache);
        let least = LEAST_SENDS.max(self.buffers.saturating_mul(2));
        while sends
            && self.sends / 2 >= least
            && self.max_connections.saturating_mul(self.queue_bytes(self.sends)) > cache
        {
            self.sends /= 2;
            self.signal_every = self.signal_every.min(usize::from(self.sends) / 2);
        }
    }

    /// Returns the entries of a completion queue for `qps` queue pairs: all requests, and all buffers that may complete
    /// there. A peer that ignores its credits can use every shared buffer, and so can queue pairs that have ended.
    pub(crate) fn cq_entries(&self, qps: usize) -> u32 {
        let qps = u32::try_from(qps).unwrap_or(u32::MAX);
        match self.srq {
            Some(srq) => qps.saturating_mul(self.sends.into()).saturating_add(srq),
            None => qps.saturating_mul(self.completions()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_roce::testing::DeviceConfig;

    fn limits() -> DeviceLimits {
        DeviceConfig::roce([10, 0, 0, 1].into()).limits
    }

    #[test]
    fn each_connection_has_a_share_of_the_buffers() {
        for (srq, requested, connections, buffers, each) in [
            (4096, 32, 1024, 1024, 4),
            (4096, 32, 64, 64, 32),
            (4096, 10, 64, 64, 10),
            (30, 32, 64, 10, 3),
            (3, 3, 64, 1, 3),
        ] {
            let requested =
                Config { srq: Some(srq), buffers: requested, max_connections: connections, ..Config::default() };
            let config = requested.within(&limits()).unwrap();
            assert_eq!((config.max_connections, config.buffers), (buffers, each), "{srq}");
            assert!(config.max_connections as u32 * u32::from(config.buffers) <= srq);
        }
    }

    #[test]
    fn completion_queue_holds_all_completions() {
        let limits = DeviceLimits { cqes: 1000, cqs: 2, ..limits() };
        let config = Config { sends: 20, buffers: 30, ..Config::default() }.within(&limits).unwrap();
        assert_eq!((config.max_connections, config.qps_per_cq(&limits)), (40, 20));
        assert_eq!(config.cq_entries(20), 1000);
        // There is room for draining queue pairs as well, and for all shared buffers at any number of connections.
        for requested in 1..50 {
            let srq = Config { srq: Some(300), buffers: 3, sends: 20, max_connections: requested, ..Config::default() };
            let config = srq.within(&limits).unwrap();
            assert!(
                config.qps() > config.max_connections && config.max_connections == requested.min(56),
                "{requested}"
            );
            assert!(config.qps() <= 2 * config.qps_per_cq(&limits), "{requested}");
            let entries = config.cq_entries(config.qps().min(config.qps_per_cq(&limits)));
            assert!((320..=1000).contains(&entries), "{requested}: {entries}");
        }
    }

    #[test]
    fn first_completion_queue_fits_the_cache_and_further_ones_double() {
        let limits = DeviceLimits { cqes: 1 << 20, cqs: 1024, ..limits() };
        let cqs = |cache: Option<usize>, most: usize, srq: Option<u32>| {
            let config = Config { cache, max_connections: most, srq, ..Config::default() };
            let config = config.within(&limits).unwrap();
            let cqs = config.qps_of_cqs(&limits);
            assert_eq!(cqs.iter().sum::<usize>(), config.qps());
            // Everything that completes in a queue has an entry, however small the cache is.
            for qps in &cqs {
                let receives = srq.unwrap_or(*qps as u32 * u32::from(config.buffers));
                assert_eq!(config.cq_entries(*qps), *qps as u32 * u32::from(config.sends) + receives);
            }
            cqs
        };
        // 128 requests of 256 bytes and 32 buffers of 16, with a completion of 64 bytes for each.
        let each = 128 * 320 + 32 * 80;
        assert_eq!(cqs(None, 1024, None), [1024]);
        assert_eq!(cqs(Some(24 * each), 1024, None), [24, 24, 48, 96, 192, 384, 256]);
        assert_eq!(cqs(Some(24 * each), 30, None), [24, 6]);
        assert_eq!(cqs(Some(24 * each), 16, None), [16]);
        assert_eq!(cqs(Some(0), 5, None), [1, 1, 2, 1]);
        assert_eq!(cqs(Some(4096 * 80 + 10 * 128 * 320), 64, Some(4096)), [10, 10, 20, 40]);
        assert_eq!(cqs(Some(100), 4, Some(4096)), [1, 1, 2, 1]);
        // The limits of a device with few or short queues take precedence.
        let few = DeviceLimits { cqs: 2, ..limits.clone() };
        let config = Config { cache: Some(0), ..Config::default() };
        assert_eq!(config.within(&few).unwrap().qps_of_cqs(&few), [1024]);
        let short = DeviceLimits { cqes: 1600, ..limits.clone() };
        let config = Config { cache: Some(4 * each), max_connections: 30, ..config }.within(&short).unwrap();
        assert_eq!(config.qps_of_cqs(&short), [4, 4, 8, 10, 4]);
    }

    #[test]
    fn requests_fit_the_cache_but_exceed_the_credits() {
        let fit = |config: Config, cache, sends| {
            let mut config = config;
            config.fit(cache, sends);
            (config.sends, config.signal_every)
        };
        let of = |max_connections, buffers| Config { max_connections, buffers, ..Config::default() };
        assert_eq!(fit(of(16, 32), 1 << 20, true), (128, 100));
        assert_eq!(fit(of(1024, 32), 1 << 20, true), (64, 32));
        assert_eq!(fit(of(1024, 3), 1 << 20, true), (16, 8));
        assert_eq!(fit(of(1024, 100), 0, true), (128, 100));
        assert_eq!(fit(of(usize::MAX, u16::MAX), 0, true), (128, 100));
        assert_eq!(fit(of(1024, 3), 0, false), (128, 100));
        let datagrams = Config { mode: Mode::Ud, connect: Connect::Exchange, ..Config::default() };
        let sends = |cache| {
            let config = Config { cache, ..datagrams.clone() }.within(&limits()).unwrap();
            config.datagrams(&limits()).0
        };
        assert_eq!([None, Some(1 << 20), Some(0)].map(sends), [4096, (1 << 20) / 320, 512]);
    }

    #[test]
    fn excessive_limits_are_refused() {
        let limits = DeviceLimits { qp_wrs: 100, srq_wrs: 200, ..limits() };
        let most = |config: Config| match config.within(&limits) {
            Err(Unsupported::TooMany { most, .. }) => most,
            other => panic!("{other:?}"),
        };
        assert_eq!(most(Config { sends: 101, ..Config::default() }), 100);
        assert_eq!(most(Config { sends: 100, buffers: 101, ..Config::default() }), 100);
        assert_eq!(most(Config { sends: 100, srq: Some(201), ..Config::default() }), 200);
        let few = DeviceLimits { cqes: 250, ..limits.clone() };
        let error = Config { sends: 100, srq: Some(151), ..Config::default() }.within(&few).unwrap_err();
        assert!(matches!(error, Unsupported::TooMany { most: 150, .. }), "{error}");
        assert!(Config { sends: 100, buffers: 101, srq: Some(200), ..Config::default() }.within(&limits).is_ok());
    }

    #[test]
    fn unsupported_combinations_are_refused() {
        let iwarp = DeviceConfig::iwarp([10, 0, 0, 1].into()).limits;
        let prepares = Config { pool: 1, ..Config::default() };
        assert_eq!(prepares.within(&iwarp).unwrap_err(), Unsupported::NoPool);
        let datagrams = Config { mode: Mode::Ud, connect: Connect::Exchange, ..Config::default() };
        assert_eq!(datagrams.within(&iwarp).unwrap_err(), Unsupported::NoDatagrams);
        assert!(datagrams.within(&limits()).is_ok());
        let srq = Config { srq: Some(64), ..datagrams };
        assert_eq!(srq.within(&limits()).unwrap_err(), Unsupported::DatagramsAlone);
    }

    #[test]
    fn time_outs_are_powers_of_two_and_end_connections_after_all_retries() {
        for (micros, power) in [(0, 0), (4, 0), (5, 1), (8, 1), (9, 2), (268_000, 16), (10_000_000_000, 31)] {
            let timeout = Duration::from_micros(micros);
            assert_eq!(Config { timeout, ..Config::default() }.retry().timeout, power, "{micros}");
        }
        let config = Config { timeout: Duration::from_micros(4), retries: 2, ..Config::default() };
        assert_eq!(config.retry_time(), Duration::from_nanos(3 * 4096));
        assert_eq!(Config::default().retry(), Retry::DEFAULT);
    }

    #[test]
    fn unsupported_transports_are_refused_by_name() {
        for (transport, name) in [
            (TransportKind::Usnic, "usNIC"),
            (TransportKind::Unspecified, "Amazon EFA"),
            (TransportKind::Other, "unknown"),
        ] {
            let error = Config::default().within(&DeviceLimits { transport, ..limits() }).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("kernel sockets"), "{error}");
        }
    }

    #[test]
    fn rendezvous_is_disabled_without_support() {
        let iwarp = DeviceConfig::iwarp([10, 0, 0, 1].into()).limits;
        assert_eq!(Config::default().within(&iwarp).unwrap().offer_from, usize::MAX);
        assert_eq!(Config::default().within(&limits()).unwrap().offer_from, Config::default().offer_from);
    }
}
