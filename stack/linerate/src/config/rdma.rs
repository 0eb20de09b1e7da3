//! Options of RDMA devices (`--via rdma:DEVICE`).

use super::first_given;
#[cfg(feature = "serde")]
use super::text;
#[cfg(feature = "rdma")]
use super::{Error, check_ranges};
use crate::units::parse_size;
use std::str::FromStr;
use std::time::Duration;

/// Queue-pair and connection options. An option that is `None` has the default of the adapter.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(default, rename_all = "kebab-case", deny_unknown_fields)
)]
#[non_exhaustive]
pub struct RdmaConfig {
    /// Size of a receive queue shared by all connections of a worker (SRQ), from 3 to 2²⁰ buffers. `None` gives each
    /// connection its own.
    pub srq: Option<u32>,
    /// Receive buffers of a connection, from 3 to 16384, which limit the peer's messages in flight.
    pub buffers: Option<u16>,
    /// Send-queue depth, from 8 to 16384.
    pub sends: Option<u16>,
    /// Largest message in bytes that is sent inline, as far as the device can; 0 disables inline sends.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "text::size"))]
    pub inline: Option<usize>,
    /// Messages per requested completion, at most `sends` minus four.
    pub signal_every: Option<u16>,
    /// Largest number of requests posted by one call, from 1 to 32.
    pub post_batch: Option<u16>,
    /// Smallest slice that the peer READs in place, if both ends can.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "text::rendezvous_min"))]
    pub rendezvous_min: Option<RendezvousMin>,
    /// Connections per worker for which memory is registered, from 1 to 2²⁰.
    pub connections: Option<u32>,
    /// Queue pairs that each worker creates ahead of connections, at most 2²⁰.
    pub pool: Option<u32>,
    /// Transfer of messages; [`RdmaMode::Send`] if `None`.
    pub mode: Option<RdmaMode>,
    /// Time without an acknowledgement after which a request is sent again, rounded up to 4.096 µs times a power of
    /// two.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "text::duration"))]
    pub timeout: Option<Duration>,
    /// Retries without an acknowledgement before the connection ends, at most 7.
    pub retries: Option<u8>,
    /// Retries after the peer's device had no receive buffer, at most 7; 7 is unlimited.
    pub rnr_retries: Option<u8>,
    /// Traffic class of RoCE version 2, with DSCP in the upper six bits.
    pub traffic_class: Option<u8>,
    /// Service level, from 0 to 15: over Ethernet, the priority.
    pub service_level: Option<u8>,
    /// Index of the P_Key in the table of the port.
    pub pkey_index: Option<u16>,
    /// Index of the local GID in the table of the port.
    pub gid_index: Option<u8>,
    /// Port of the device, from 1.
    pub port: Option<u8>,
    /// Connection establishment, the same at both ends; rdma_cm if `None`, and TCP with [`RdmaMode::Ud`].
    pub connect: Option<RdmaConnect>,
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
    /// Returns the name of the first option that is given.
    pub fn given(&self) -> Option<&'static str> {
        first_given(&[
            ("--rdma-mode", self.mode.is_some()),
            ("--srq", self.srq.is_some()),
            ("--rdma-connections", self.connections.is_some()),
            ("--rdma-pool", self.pool.is_some()),
            ("--rdma-buffers", self.buffers.is_some()),
            ("--rdma-sends", self.sends.is_some()),
            ("--rdma-inline", self.inline.is_some()),
            ("--rdma-signal-every", self.signal_every.is_some()),
            ("--rdma-post-batch", self.post_batch.is_some()),
            ("--rdma-rendezvous-min", self.rendezvous_min.is_some()),
            ("--rdma-connect", self.connect.is_some()),
            ("--rdma-traffic-class", self.traffic_class.is_some()),
            ("--rdma-service-level", self.service_level.is_some()),
            ("--rdma-pkey-index", self.pkey_index.is_some()),
            ("--rdma-gid-index", self.gid_index.is_some()),
            ("--rdma-port", self.port.is_some()),
            ("--rdma-timeout", self.timeout.is_some()),
            ("--rdma-retries", self.retries.is_some()),
            ("--rdma-rnr-retries", self.rnr_retries.is_some()),
        ])
    }
}

#[cfg(feature = "rdma")]
impl RdmaConfig {
    /// Checks the ranges of the options, and the options against each other.
    pub fn check(&self) -> Result<(), Error> {
        check_ranges(&[
            ("--srq", self.srq.map(u64::from), 3..=1 << 20),
            ("--rdma-buffers", self.buffers.map(u64::from), 3..=16_384),
            ("--rdma-sends", self.sends.map(u64::from), 8..=16_384),
            ("--rdma-signal-every", self.signal_every.map(u64::from), 1..=u16::MAX.into()),
            ("--rdma-post-batch", self.post_batch.map(u64::from), 1..=32),
            ("--rdma-connections", self.connections.map(u64::from), 1..=1 << 20),
            ("--rdma-pool", self.pool.map(u64::from), 0..=1 << 20),
            ("--rdma-service-level", self.service_level.map(u64::from), 0..=15),
            ("--rdma-port", self.port.map(u64::from), 1..=255),
            ("--rdma-retries", self.retries.map(u64::from), 0..=7),
            ("--rdma-rnr-retries", self.rnr_retries.map(u64::from), 0..=7),
        ])?;
        let refused = [
            (self.srq.is_some(), RdmaMode::Ud, "--srq", "all connections share the buffers of one queue pair"),
            (self.pool.is_some(), RdmaMode::Ud, "--rdma-pool", "all connections use one queue pair"),
            (self.rendezvous_min.is_some(), RdmaMode::Ud, "--rdma-rendezvous-min", "unreliable datagrams have no READ"),
            (self.connect == Some(RdmaConnect::Cm), RdmaMode::Ud, "--rdma-connect cm", "rdma_cm connects no datagrams"),
        ];
        if let Some((_, mode, option, reason)) =
            refused.iter().find(|(given, mode, ..)| *given && self.mode == Some(*mode))
        {
            return Err(Error::NotInMode { option, mode: mode.name(), reason });
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
