//! Command-line arguments of `--via rdma:DEVICE`.

use crate::config::{RdmaConfig, RdmaConnect, RdmaMode, RendezvousMin};
use crate::units::{parse_duration, parse_size_or_none};
use std::time::Duration;

/// Queue-pair and connection options; the adapter has the defaults.
#[derive(Debug, clap::Args)]
pub struct RdmaArgs {
    /// Size of a receive queue shared by all connections of a worker (SRQ), in place of one per connection (rdma)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(3..=1 << 20), help_heading = "RDMA")]
    pub srq: Option<u32>,

    /// Receive buffers of a connection, which limit the peer's messages in flight (rdma) [default: 32]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(3..=16_384), help_heading = "RDMA")]
    pub rdma_buffers: Option<u16>,

    /// Send-queue depth: outstanding requests of a connection; fewer by default if the last-level cache is too small
    /// for the queues of all connections (rdma) [default: 128]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(8..=16_384), help_heading = "RDMA")]
    pub rdma_sends: Option<u16>,

    /// Send messages up to this size inline, as far as the device can; 0 disables inline sends (rdma) [default: 220]
    #[arg(long, value_name = "BYTES", value_parser = parse_size_or_none, help_heading = "RDMA")]
    pub rdma_inline: Option<usize>,

    /// Request a completion for one in N messages, at most --rdma-sends minus four (rdma) [default: 100]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..), help_heading = "RDMA")]
    pub rdma_signal_every: Option<u16>,

    /// Largest number of requests posted by one call (rdma) [default: 16]
    #[arg(
        long,
        alias = "rdma-list",
        value_name = "N",
        value_parser = clap::value_parser!(u16).range(1..=32),
        help_heading = "RDMA",
    )]
    pub rdma_post_batch: Option<u16>,

    /// Let the peer READ slices of at least this size in place, if both ends can; or never (rdma) [default: 32k]
    #[arg(long, alias = "rdma-offer-from", value_name = "BYTES", help_heading = "RDMA")]
    pub rdma_rendezvous_min: Option<RendezvousMin>,

    /// Connections per worker for which memory is registered (rdma) [default: the connections of a load; 1024 for
    /// servers]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 20), help_heading = "RDMA")]
    pub rdma_connections: Option<u32>,

    /// Queue pairs that each worker creates ahead of connections (rdma) [default: none]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=1 << 20), help_heading = "RDMA")]
    pub rdma_pool: Option<u32>,

    /// Transfer of messages: send, SEND into posted buffers; or ud, at both ends, datagrams between one queue pair per
    /// worker (rdma) [default: send]
    #[arg(long, value_enum, value_name = "HOW", help_heading = "RDMA")]
    pub rdma_mode: Option<RdmaMode>,

    /// Connection establishment, the same at both ends: cm, by rdma_cm; or tcp, by exchanging queue-pair parameters
    /// over TCP (rdma) [default: cm; tcp with --rdma-mode ud]
    #[arg(long, value_enum, value_name = "HOW", help_heading = "RDMA")]
    pub rdma_connect: Option<RdmaConnect>,

    /// Traffic class of RoCE version 2: DSCP times four (rdma) [default: 0]
    #[arg(long, value_name = "N", help_heading = "RDMA")]
    pub rdma_traffic_class: Option<u8>,

    /// Service level: over Ethernet, the priority (rdma) [default: 0]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(..=15), help_heading = "RDMA")]
    pub rdma_service_level: Option<u8>,

    /// Index in the P_Key table of the port (rdma) [default: 0]
    #[arg(long, value_name = "N", help_heading = "RDMA")]
    pub rdma_pkey_index: Option<u16>,

    /// Index of the local GID in the table of the port (rdma) [default: the index of the local address's GID]
    #[arg(long, value_name = "N", help_heading = "RDMA")]
    pub rdma_gid_index: Option<u8>,

    /// Port of the device (rdma) [default: the port with the local address]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..), help_heading = "RDMA")]
    pub rdma_port: Option<u8>,

    /// Send a request again after this time without an acknowledgement, rounded up to 4.096 us times a power of two
    /// (rdma) [default: 268ms]
    #[arg(long, value_name = "TIME", value_parser = parse_duration, help_heading = "RDMA")]
    pub rdma_timeout: Option<Duration>,

    /// Retries after --rdma-timeout, at most 7, before the connection ends (rdma) [default: 7]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(..=7), help_heading = "RDMA")]
    pub rdma_retries: Option<u8>,

    /// Retries after the peer's device had no receive buffer (RNR), at most 7; 7 is unlimited (rdma) [default: 6]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(..=7), help_heading = "RDMA")]
    pub rdma_rnr_retries: Option<u8>,
}

impl From<RdmaArgs> for RdmaConfig {
    fn from(args: RdmaArgs) -> RdmaConfig {
        RdmaConfig {
            srq: args.srq,
            buffers: args.rdma_buffers,
            sends: args.rdma_sends,
            inline: args.rdma_inline,
            signal_every: args.rdma_signal_every,
            post_batch: args.rdma_post_batch,
            rendezvous_min: args.rdma_rendezvous_min,
            connections: args.rdma_connections,
            pool: args.rdma_pool,
            mode: args.rdma_mode,
            connect: args.rdma_connect,
            traffic_class: args.rdma_traffic_class,
            service_level: args.rdma_service_level,
            pkey_index: args.rdma_pkey_index,
            gid_index: args.rdma_gid_index,
            port: args.rdma_port,
            timeout: args.rdma_timeout,
            retries: args.rdma_retries,
            rnr_retries: args.rdma_rnr_retries,
        }
    }
}

#[cfg(all(test, feature = "rdma"))]
mod tests {
    use super::*;
    use clap::Parser;
    use linerate_rdma::{Config, Connect, Mode};

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        rdma: RdmaArgs,
    }

    fn parse(text: &str) -> Result<RdmaConfig, String> {
        let parsed = Cli::try_parse_from(std::iter::once("linerate").chain(text.split_whitespace()));
        parsed.map(|cli| cli.rdma.into()).map_err(|error| error.to_string())
    }

    #[test]
    fn options_reach_the_adapter_and_others_keep_its_defaults() {
        let defaults = format!("{:?}", Config::default());
        assert_eq!(format!("{:?}", parse("").unwrap().config()), defaults);
        assert_eq!(parse("").unwrap().given(), None);
        assert_eq!(
            parse("--rdma-list 1 --rdma-offer-from 4k"),
            parse("--rdma-post-batch 1 --rdma-rendezvous-min 4k"),
            "former names"
        );
        for (text, reads, expected) in [
            ("--rdma-mode send", (|config| config.mode as usize) as fn(Config) -> usize, Mode::Send as usize),
            ("--rdma-mode ud", |config| config.mode as usize, Mode::Ud as usize),
            ("--rdma-mode ud", |config| config.connect as usize, Connect::Exchange as usize),
            ("--rdma-mode ud --rdma-connect tcp", |config| config.connect as usize, Connect::Exchange as usize),
            ("--srq 64", |config| config.srq.unwrap() as usize, 64),
            ("--rdma-connections 7", |config| config.max_connections, 7),
            ("--rdma-pool 5", |config| config.pool, 5),
            ("--rdma-buffers 3", |config| config.buffers.into(), 3),
            ("--rdma-sends 64", |config| config.sends.into(), 64),
            ("--rdma-inline 0", |config| config.inline as usize, 0),
            ("--rdma-signal-every 1", |config| config.signal_every, 1),
            ("--rdma-signal-every 124", |config| config.signal_every, 124),
            ("--rdma-post-batch 1", |config| config.list, 1),
            ("--rdma-rendezvous-min 4k", |config| config.offer_from, 4096),
            ("--rdma-rendezvous-min never", |config| config.offer_from, usize::MAX),
            ("--rdma-connect cm", |config| config.connect as usize, Connect::Manager as usize),
            ("--rdma-connect tcp", |config| config.connect as usize, Connect::Exchange as usize),
            ("--rdma-traffic-class 104", |config| config.path.traffic_class.into(), 104),
            ("--rdma-service-level 3", |config| config.path.service_level.into(), 3),
            ("--rdma-pkey-index 1", |config| config.path.pkey_index.into(), 1),
            ("--rdma-gid-index 5", |config| config.gid_index.unwrap().into(), 5),
            ("--rdma-port 2", |config| config.port.unwrap().into(), 2),
            ("--rdma-timeout 3ms", |config| config.timeout.as_micros() as usize, 3000),
            ("--rdma-retries 0", |config| config.retries.into(), 0),
            ("--rdma-rnr-retries 7", |config| config.rnr_retries.into(), 7),
        ] {
            let args = parse(text).unwrap();
            assert_eq!(args.given(), text.split(' ').next());
            assert!(args.check().is_ok(), "{text}");
            assert_eq!(reads(args.config()), expected, "{text}");
        }
    }

    #[test]
    fn help_states_the_adapters_defaults() {
        use clap::CommandFactory;
        let help = Cli::command().render_long_help().to_string();
        let Config { buffers, sends, inline, signal_every, list, .. } = Config::default();
        let told =
            [buffers.into(), sends.into(), inline as usize, signal_every, list].map(|n| format!("[default: {n}]"));
        let after = help.split("--rdma-").filter_map(|part| part.split_once("[default: "));
        let found: Vec<String> =
            after.map(|(_, rest)| format!("[default: {}]", rest.split(']').next().unwrap())).collect();
        assert_eq!(found[..5], told);
    }

    #[test]
    fn invalid_options_are_refused_with_the_valid_ones() {
        for (text, part) in [
            ("--rdma-mode write", "send, ud"),
            ("--srq 2", "3.."),
            ("--rdma-connections 0", "1..=1048576"),
            ("--rdma-buffers 2", "3..=16384"),
            ("--rdma-sends 7", "8..=16384"),
            ("--rdma-signal-every 0", "1.."),
            ("--rdma-post-batch 33", "1..=32"),
            ("--rdma-connect udp", "cm, tcp"),
            ("--rdma-timeout 3", "3ms".trim_start_matches('3')),
            ("--rdma-service-level 16", "0..=15"),
            ("--rdma-port 0", "1.."),
            ("--rdma-retries 8", "0..=7"),
            ("--rdma-rnr-retries 8", "0..=7"),
            ("--rdma-rendezvous-min 0", "or never"),
            ("--rdma-rendezvous-min always", "or never"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
        for (option, mode) in [
            ("--srq 64", "ud"),
            ("--rdma-pool 3", "ud"),
            ("--rdma-rendezvous-min never", "ud"),
            ("--rdma-connect cm", "ud"),
        ] {
            let error = parse(&format!("{option} --rdma-mode {mode}")).unwrap().check().unwrap_err();
            assert!(error.is_usage(), "{error}");
            let error = error.to_string();
            let name = option.split_whitespace().next().unwrap();
            assert!(error.starts_with(name) && error.ends_with("leave one of the two out"), "{error}");
        }
        let error = parse("--rdma-sends 8 --rdma-signal-every 5").unwrap().check().unwrap_err();
        assert!(error.is_usage());
        assert!(error.to_string().contains("give 4 or less, or more requests with --rdma-sends"), "{error}");
    }
}
