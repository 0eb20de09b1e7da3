//! Options of RDMA devices (`--via rdma:DEVICE`).

use super::checks::first_given;
#[cfg(feature = "serde")]
use super::text;
#[cfg(feature = "rdma")]
use super::{Error, checks::check_ranges};
#[cfg(feature = "clap")]
use crate::cli::ranged;
use crate::units::parse_size;
#[cfg(feature = "clap")]
use crate::units::{parse_duration, parse_size_or_none};
use std::str::FromStr;
use std::time::Duration;

/// Queue-pair and connection options. An option that is `None` has the default of the adapter.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(default, rename_all = "kebab-case", deny_unknown_fields)
)]
#[allow(rustdoc::broken_intra_doc_links, reason = "defaults are in brackets, as on the command line")]
#[non_exhaustive]
pub struct RdmaConfig {
    /// Size of a receive queue shared by all connections of a worker (SRQ), in place of one per connection (rdma)
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "N", value_parser = ranged::<u32>(3..=1 << 20), help_heading = "RDMA")
    )]
    pub srq: Option<u32>,
    /// Receive buffers of a connection, which limit the peer's messages in flight (rdma) [default: 32]
    #[cfg_attr(
        feature = "clap",
        arg(
            id = "rdma-buffers",
            long,
            value_name = "N",
            value_parser = ranged::<u16>(3..=16_384),
            help_heading = "RDMA",
        )
    )]
    pub buffers: Option<u16>,
    /// Send-queue depth: outstanding requests of a connection; fewer by default if the last-level cache is too small
    /// for the queues of all connections (rdma) [default: 128]
    #[cfg_attr(
        feature = "clap",
        arg(id = "rdma-sends", long, value_name = "N", value_parser = ranged::<u16>(8..=16_384), help_heading = "RDMA")
    )]
    pub sends: Option<u16>,
    /// Send messages up to this size inline, as far as the device can; 0 disables inline sends (rdma) [default: 220]
    #[cfg_attr(
        feature = "clap",
        arg(id = "rdma-inline", long, value_name = "BYTES", value_parser = parse_size_or_none, help_heading = "RDMA")
    )]
    #[cfg_attr(feature = "serde", serde(deserialize_with = "text::size"))]
    pub inline: Option<usize>,
    /// Request a completion for one in N messages, at most --rdma-sends minus four (rdma) [default: 100]
    #[cfg_attr(
        feature = "clap",
        arg(id = "rdma-signal-every", long, value_name = "N", value_parser = ranged::<u16>(1..), help_heading = "RDMA")
    )]
    pub signal_every: Option<u16>,
    /// Largest number of requests posted by one call (rdma) [default: 16]
    #[cfg_attr(
        feature = "clap",
        arg(
            id = "rdma-post-batch",
            long,
            alias = "rdma-list",
            value_name = "N",
            value_parser = ranged::<u16>(1..=32),
            help_heading = "RDMA",
        )
    )]
    pub post_batch: Option<u16>,
    /// Let the peer READ slices of at least this size in place, if both ends can; or never (rdma) [default: 32k]
    #[cfg_attr(
        feature = "clap",
        arg(id = "rdma-rendezvous-min", long, alias = "rdma-offer-from", value_name = "BYTES", help_heading = "RDMA")
    )]
    #[cfg_attr(feature = "serde", serde(deserialize_with = "text::rendezvous_min"))]
    pub rendezvous_min: Option<RendezvousMin>,
    /// Connections per worker for which memory is registered (rdma) [default: the connections of a load; 1024 for
    /// servers]
    #[cfg_attr(
        feature = "clap",
        arg(
            id = "rdma-connections",
            long,
            value_name = "N",
            value_parser = ranged::<u32>(1..=1 << 20),
            help_heading = "RDMA",
        )
    )]
    pub connections: Option<u32>,
    /// Queue pairs that each worker creates ahead of connections (rdma) [default: none]
    #[cfg_attr(
        feature = "clap",
        arg(id = "rdma-pool", long, value_name = "N", value_parser = ranged::<u32>(..=1 << 20), help_heading = "RDMA")
    )]
    pub pool: Option<u32>,
    /// Transfer of messages: send, SEND into posted buffers; or ud, at both ends, datagrams between one queue pair per
    /// worker (rdma) [default: send]
    #[cfg_attr(feature = "clap", arg(id = "rdma-mode", long, value_name = "HOW", help_heading = "RDMA"))]
    pub mode: Option<RdmaMode>,
    /// Connection establishment, the same at both ends: cm, by rdma_cm; or tcp, by exchanging queue-pair parameters
    /// over TCP (rdma) [default: cm; tcp with --rdma-mode ud]
    #[cfg_attr(feature = "clap", arg(id = "rdma-connect", long, value_name = "HOW", help_heading = "RDMA"))]
    pub connect: Option<RdmaConnect>,
    /// Traffic class of RoCE version 2: DSCP times four (rdma) [default: 0]
    #[cfg_attr(feature = "clap", arg(id = "rdma-traffic-class", long, value_name = "N", help_heading = "RDMA"))]
    pub traffic_class: Option<u8>,
    /// Service level: over Ethernet, the priority (rdma) [default: 0]
    #[cfg_attr(
        feature = "clap",
        arg(
            id = "rdma-service-level",
            long,
            value_name = "N",
            value_parser = ranged::<u8>(..=15),
            help_heading = "RDMA",
        )
    )]
    pub service_level: Option<u8>,
    /// Index in the P_Key table of the port (rdma) [default: 0]
    #[cfg_attr(feature = "clap", arg(id = "rdma-pkey-index", long, value_name = "N", help_heading = "RDMA"))]
    pub pkey_index: Option<u16>,
    /// Index of the local GID in the table of the port (rdma) [default: the index of the local address's GID]
    #[cfg_attr(feature = "clap", arg(id = "rdma-gid-index", long, value_name = "N", help_heading = "RDMA"))]
    pub gid_index: Option<u8>,
    /// Port of the device (rdma) [default: the port with the local address]
    #[cfg_attr(
        feature = "clap",
        arg(id = "rdma-port", long, value_name = "N", value_parser = ranged::<u8>(1..), help_heading = "RDMA")
    )]
    pub port: Option<u8>,
    /// Send a request again after this time without an acknowledgement, rounded up to 4.096 us times a power of two
    /// (rdma) [default: 268ms]
    #[cfg_attr(
        feature = "clap",
        arg(id = "rdma-timeout", long, value_name = "TIME", value_parser = parse_duration, help_heading = "RDMA")
    )]
    #[cfg_attr(feature = "serde", serde(deserialize_with = "text::duration"))]
    pub timeout: Option<Duration>,
    /// Retries after --rdma-timeout, at most 7, before the connection ends (rdma) [default: 7]
    #[cfg_attr(
        feature = "clap",
        arg(id = "rdma-retries", long, value_name = "N", value_parser = ranged::<u8>(..=7), help_heading = "RDMA")
    )]
    pub retries: Option<u8>,
    /// Retries after the peer's device had no receive buffer (RNR), at most 7; 7 is unlimited (rdma) [default: 6]
    #[cfg_attr(
        feature = "clap",
        arg(id = "rdma-rnr-retries", long, value_name = "N", value_parser = ranged::<u8>(..=7), help_heading = "RDMA")
    )]
    pub rnr_retries: Option<u8>,
}

/// Transfer of messages (`--rdma-mode`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(rename_all = "kebab-case"))]
pub enum RdmaMode {
    /// SEND.
    Send,
    /// Unreliable datagrams.
    Ud,
}

#[cfg(feature = "rdma")]
impl RdmaMode {
    fn name(self) -> &'static str {
        match self {
            RdmaMode::Send => "send",
            RdmaMode::Ud => "ud",
        }
    }
}

/// Connection establishment (`--rdma-connect`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(rename_all = "kebab-case"))]
pub enum RdmaConnect {
    /// The connection manager, rdma_cm.
    Cm,
    /// An exchange over TCP.
    Tcp,
}

/// Smallest slice offered for READ (`--rdma-rendezvous-min`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RendezvousMin {
    /// Send all slices.
    Never,
    /// Offer slices of at least this size for READ.
    Bytes(usize),
}

impl FromStr for RendezvousMin {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "never" => Ok(RendezvousMin::Never),
            size => parse_size(size).map(RendezvousMin::Bytes).map_err(|error| format!("{error}; or never")),
        }
    }
}

impl RdmaConfig {
    /// Returns the name of the first setting that is given.
    pub fn given(&self) -> Option<&'static str> {
        first_given!(
            self, "rdma.";
            mode srq connections pool buffers sends inline signal_every post_batch rendezvous_min connect traffic_class
            service_level pkey_index gid_index port timeout retries rnr_retries
        )
    }
}

#[cfg(feature = "rdma")]
impl RdmaConfig {
    /// Checks the ranges of the settings, and the settings against each other.
    pub fn check(&self) -> Result<(), Error> {
        check_ranges(&[
            ("rdma.srq", self.srq.map(u64::from), 3..=1 << 20),
            ("rdma.buffers", self.buffers.map(u64::from), 3..=16_384),
            ("rdma.sends", self.sends.map(u64::from), 8..=16_384),
            ("rdma.signal_every", self.signal_every.map(u64::from), 1..=u16::MAX.into()),
            ("rdma.post_batch", self.post_batch.map(u64::from), 1..=32),
            ("rdma.connections", self.connections.map(u64::from), 1..=1 << 20),
            ("rdma.pool", self.pool.map(u64::from), 0..=1 << 20),
            ("rdma.service_level", self.service_level.map(u64::from), 0..=15),
            ("rdma.port", self.port.map(u64::from), 1..=255),
            ("rdma.retries", self.retries.map(u64::from), 0..=7),
            ("rdma.rnr_retries", self.rnr_retries.map(u64::from), 0..=7),
        ])?;
        let refused = [
            (self.srq.is_some(), RdmaMode::Ud, "rdma.srq", "all connections share the buffers of one queue pair"),
            (self.pool.is_some(), RdmaMode::Ud, "rdma.pool", "all connections use one queue pair"),
            (self.rendezvous_min.is_some(), RdmaMode::Ud, "rdma.rendezvous_min", "unreliable datagrams have no READ"),
            (self.connect == Some(RdmaConnect::Cm), RdmaMode::Ud, "rdma.connect", "rdma_cm connects no datagrams"),
        ];
        if let Some((_, mode, setting, reason)) =
            refused.iter().find(|(given, mode, ..)| *given && self.mode == Some(*mode))
        {
            return Err(Error::NotInMode { setting, mode: mode.name(), reason });
        }
        let config = self.config();
        let most = config.most_unsignalled();
        match self.signal_every {
            Some(every) if usize::from(every) > most => {
                Err(Error::TooFewSignalled { every, sends: config.sends, most })
            }
            _ => Ok(()),
        }
    }

    /// Returns the adapter's configuration: these options, and defaults for the rest.
    pub fn config(&self) -> linerate_rdma::Config {
        let defaults = linerate_rdma::Config::default();
        linerate_rdma::Config {
            mode: match self.mode {
                None | Some(RdmaMode::Send) => linerate_rdma::Mode::Send,
                Some(RdmaMode::Ud) => linerate_rdma::Mode::Ud,
            },
            srq: self.srq,
            max_connections: self.connections.map_or(defaults.max_connections, |most| most as usize),
            pool: self.pool.map_or(defaults.pool, |pool| pool as usize),
            buffers: self.buffers.unwrap_or(defaults.buffers),
            sends: self.sends.unwrap_or(defaults.sends),
            inline: self.inline.map_or(defaults.inline, |bytes| bytes as u32),
            signal_every: self.signal_every.map_or(defaults.signal_every, usize::from),
            list: self.post_batch.map_or(defaults.list, usize::from),
            offer_from: match self.rendezvous_min {
                None => defaults.offer_from,
                Some(RendezvousMin::Never) => usize::MAX,
                Some(RendezvousMin::Bytes(bytes)) => bytes,
            },
            connect: match (self.connect, self.mode) {
                (Some(RdmaConnect::Tcp), _) | (None, Some(RdmaMode::Ud)) => linerate_rdma::Connect::Exchange,
                (Some(RdmaConnect::Cm), _) | (None, _) => linerate_rdma::Connect::Manager,
            },
            path: linerate_rdma::provider::PathOptions {
                traffic_class: self.traffic_class.unwrap_or_default(),
                service_level: self.service_level.unwrap_or_default(),
                pkey_index: self.pkey_index.unwrap_or_default(),
            },
            gid_index: self.gid_index,
            port: self.port,
            timeout: self.timeout.unwrap_or(defaults.timeout),
            retries: self.retries.unwrap_or(defaults.retries),
            rnr_retries: self.rnr_retries.unwrap_or(defaults.rnr_retries),
            ..defaults
        }
    }
}
