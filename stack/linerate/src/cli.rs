//! Parsers of command-line arguments, which are the fields of configurations.

use clap::builder::{PossibleValue, PossibleValuesParser, RangedI64ValueParser, TypedValueParser, ValueParserFactory};
use linerate_stack::Idle;
use std::ops::RangeBounds;

/// Returns a parser of integers in `range`.
pub fn ranged<T>(range: impl RangeBounds<i64>) -> RangedI64ValueParser<T>
where
    T: ValueParserFactory<Parser = RangedI64ValueParser<T>> + TryFrom<i64> + Clone + Send + Sync,
{
    T::value_parser().range(range)
}

/// Returns the parser of `--idle`.
pub fn idle() -> impl TypedValueParser<Value = Idle> {
    PossibleValuesParser::new([
        PossibleValue::new("poll").help("Keep polling"),
        PossibleValue::new("wait").help("Sleep until a packet arrives"),
    ])
    .map(|name| if name == "wait" { Idle::Wait } else { Idle::Poll })
}

/// Parses a positive number.
pub fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|n| *n > 0).ok_or_else(|| "write a number of at least 1".to_owned())
}

#[cfg(test)]
mod tests {
    use crate::config::{Listen, NetConfig};
    use clap::Parser;
    use std::time::Duration;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        net: NetConfig,
    }

    fn parse(text: &str) -> Result<NetConfig, clap::Error> {
        Cli::try_parse_from(std::iter::once("linerate").chain(text.split_whitespace())).map(|cli| cli.net)
    }

    fn config(text: &str) -> NetConfig {
        parse(text).unwrap()
    }

    fn check(text: &str, listen: &[&str]) -> String {
        let tcp = listen.iter().map(|address| address.parse().unwrap()).collect();
        config(text)
            .check(&Listen { tcp, ..Listen::default() })
            .map_or_else(|error| error.to_string(), |()| String::new())
    }

    #[test]
    fn consistent_arguments_are_accepted() {
        assert_eq!(check("--via kernel --spin --workers 2", &["127.0.0.1:0"]), "");
        let stack = "--via tap:lr0 --ip 10.0.0.2/24 --ip fd00::2/64 --gateway 10.0.0.1 --gateway fd00::1 -- -l 1";
        assert_eq!(check(stack, &["10.0.0.2:7", "[fd00::2]:7", "0.0.0.0:8", "[::]:8"]), "");
        assert_eq!(config(stack).eal, ["-l", "1"]);
        let several = "--via tap:lr0 --ip 10.0.0.2/24 --ip 10.0.0.3/24 --from 10.0.0.3 --from 10.0.0.2";
        assert_eq!(check(several, &["10.0.0.2:7", "10.0.0.3:7"]), "");
        for addresses in [
            // RFC 3021.
            "--ip 10.0.0.2/31 --gateway 10.0.0.3",
            "--ip 10.0.0.3/31 --gateway 10.0.0.2",
            "--ip 10.0.0.2/32 --gateway 10.9.0.1",
            "--ip 10.0.0.2/32 --ip 10.1.0.2/24 --gateway 10.1.0.1",
            "--ip fd00::2/128 --gateway fd01::1",
            "--ip fd00::2/64 --gateway fe80::1",
            "--ip 10.0.0.2/24 --dhcp --gateway 10.9.0.1",
            "--ip fd00::2/64 --slaac --gateway fd01::1",
            "--ip 10.0.1.0/23",
        ] {
            assert_eq!(check(&format!("--via tap:lr0 {addresses}"), &["0.0.0.0:7"]), "", "{addresses}");
        }
        if cfg!(feature = "rdma") {
            for exchange in ["--rdma-mode ud", "--rdma-connect tcp"] {
                assert_eq!(check(&format!("--via roce:tap:lr0 --ip 10.0.0.2/24 {exchange}"), &["10.0.0.2:7"]), "");
            }
        }
        assert_eq!(check("--via tap:lr0 --dhcp", &["10.0.0.2:7"]), "");
        assert_eq!(check("--via tap:lr0 --slaac", &["[2001:db8::2]:7", "[::]:8"]), "");
        assert_eq!(check("--via tap:lr0 --slaac --dhcp --ip 10.0.0.2/24 --ip fd00::2/64", &["[::]:8"]), "");
        for text in ["--via kernel", "--via tap:lr0 --ip 10.0.0.2/24 --fin-timeout 0"] {
            assert_eq!(check(&format!("{text} --idle-timeout 5m"), &["10.0.0.2:7"]), "");
        }
        if cfg!(feature = "rdma") {
            assert_eq!(
                check("--via roce:tap:lr0 --ip 10.0.0.2/24 --ecn --rdma-traffic-class 104", &["10.0.0.2:7"]),
                ""
            );
        }
        for (text, time) in [("0", Duration::ZERO), ("2s", Duration::from_secs(2))] {
            let lingering = format!("--via tap:lr0 --ip 10.0.0.2/24 --linger {text}");
            assert_eq!(check(&lingering, &["10.0.0.2:7"]), "");
            assert_eq!(config(&lingering).native.linger, Some(time));
        }
    }

    #[test]
    fn inconsistent_arguments_are_refused_with_the_remedy() {
        for (text, listen, part) in [
            ("--via kernel --ip 10.0.0.2/24", "10.0.0.2:7", "`ip` has no effect with `via` kernel: leave it out"),
            ("--via kernel -- --no-huge", "10.0.0.2:7", "`eal`"),
            ("--via tap:lr0", "10.0.0.2:7", "give `ip`"),
            ("--via tap:lr0 --ip 10.0.0.2/24 --spin", "10.0.0.2:7", "`spin`"),
            ("--via tap:lr0 --ip 10.0.0.2/24", "10.0.0.3:7", "10.0.0.3:7: not a local address"),
            ("--via tap:lr0 --ip 10.0.0.2/24 --dhcp", "[fd00::3]:7", "not a local address"),
            ("--via tap:lr0 --ip 10.0.0.2/24", "10.0.0.2:0", "port"),
            ("--via tap:lr0 --ip 10.0.0.2/24", "127.0.0.1:7007", "give `listen` 10.0.0.2:7007"),
            ("--via tap:lr0 --dhcp", "127.0.0.1:7007", "give `listen` ADDRESS:PORT"),
            (
                "--ip 10.0.0.2/24",
                "127.0.0.1:7007",
                "`ip` has no effect with `via` kernel: leave it out, or choose another",
            ),
            ("--via tap:lr0 --dhcp --gateway 10.0.0.1 --gateway 10.0.0.9", "10.0.0.2:7", "10.0.0.9"),
            ("--via tap:lr0 --ip 127.0.0.1/8", "0.0.0.0:7", "`ip` 127.0.0.1/8: a loopback address"),
            ("--via tap:lr0 --ip ::1/128", "[::]:7", "`ip` ::1/128: a loopback address"),
            ("--via tap:lr0 --ip 10.0.0.0/24", "0.0.0.0:7", "`ip` 10.0.0.0/24: the address of the network itself"),
            ("--via tap:lr0 --ip 10.0.0.255/24", "0.0.0.0:7", "`ip` 10.0.0.255/24: the broadcast address"),
            ("--via tap:lr0 --ip 240.0.0.1/24", "0.0.0.0:7", "`ip` 240.0.0.1/24: a reserved address"),
            ("--via tap:lr0 --ip ::ffff:10.0.0.2/96", "[::]:7", "an IPv4-mapped address"),
            (
                "--via tap:lr0 --ip 10.0.0.2/24 --gateway 10.0.1.1",
                "0.0.0.0:7",
                "`gateway` 10.0.1.1: not on the link of a local address (10.0.0.2/24): give a router within",
            ),
            ("--via tap:lr0 --ip 10.0.0.2/24 --gateway fe80::1", "0.0.0.0:7", "`gateway` fe80::1: not on the link"),
            ("--via tap:lr0 --ip fd00::2/64 --gateway fd01::1", "[::]:7", "needs `ip` ADDRESS/128"),
            ("--via tap:lr0 --ip 10.0.0.2/24 --gateway 10.0.0.2", "0.0.0.0:7", "10.0.0.2: an address of this host"),
            ("--via tap:lr0 --ip 10.0.0.2/24 --gateway 10.0.0.255", "0.0.0.0:7", "the broadcast address"),
            ("--via tap:lr0 --dhcp --gateway 127.0.0.1", "0.0.0.0:7", "`gateway` 127.0.0.1: a loopback address"),
            ("--via tap:lr0 --dhcp --gateway 0.0.0.0", "0.0.0.0:7", "`gateway` 0.0.0.0: not a unicast address"),
            ("--via af_xdp:lo --ip 10.0.0.2/24", "0.0.0.0:7", "`via` af_xdp:lo: the loopback interface"),
            ("--via tap:lr0 --ip 10.0.0.2/24 --engine smoltcp --ecn", "10.0.0.2:7", "`native.ecn`"),
            (
                "--via kernel --threading inline --service-cores 1",
                "10.0.0.2:7",
                "`service_cores` has an effect only with `threading` split",
            ),
            ("--via kernel --engine native", "10.0.0.2:7", "`engine`"),
            ("--via kernel --no-multi-segment", "10.0.0.2:7", "`single_segment`"),
            ("--via kernel --vlan 5", "10.0.0.2:7", "`vlan` has no effect with `via` kernel"),
            ("--via kernel --max-connections 5", "10.0.0.2:7", "`max_connections` has no effect"),
            ("--via tap:lr0 --ip 10.0.0.2/24 --max-connections 16777217", "10.0.0.2:7", "`max_connections` 16777217"),
            ("--via kernel --max-connections-per-source 5", "10.0.0.2:7", "`max_connections_per_source` has no effect"),
            ("--via kernel --from 10.0.0.2", "10.0.0.2:7", "`from` has no effect with `via` kernel"),
            ("--via tap:lr0 --ip 10.0.0.2/24 --from 10.0.0.3", "10.0.0.2:7", "`from` 10.0.0.3: not a local address"),
            (
                "--via tap:lr0 --ip 10.0.0.2/24 --ip 10.0.0.3/24 --ip 10.0.0.4/24 --ip 10.0.0.5/24 --ip 10.0.0.6/24 \
                 --ip 10.0.0.7/24 --ip 10.0.0.8/24 --ip fd00::2/64",
                "10.0.0.2:7",
                "`ip`: 9 addresses",
            ),
            ("--via kernel --slaac", "10.0.0.2:7", "`slaac` has no effect with `via` kernel"),
            ("--via tap:lr0 --slaac", "10.0.0.2:7", "10.0.0.2:7: not a local address"),
            (
                "--via tap:lr0 --slaac --dhcp --ip 10.0.0.2/24 --ip fd00::2/64 --ip fd00::3/64",
                "10.0.0.2:7",
                "`ip`: 9 addresses",
            ),
            ("--via kernel --no-dad", "10.0.0.2:7", "`skip_dad` has no effect with `via` kernel"),
            ("--via kernel --fragments", "10.0.0.2:7", "`fragments` has no effect with `via` kernel"),
            ("--via kernel --pacing", "10.0.0.2:7", "`native.pacing`"),
            ("--via kernel --linger 2s", "10.0.0.2:7", "`native.linger`"),
            ("--via tap:lr0 --ip 10.0.0.2/24 --engine smoltcp --linger 0", "10.0.0.2:7", "`native.linger`"),
            ("--via kernel --fin-timeout 5s", "10.0.0.2:7", "`native.fin_timeout` has no effect with `via` kernel"),
            ("--via kernel --stall-timeout 5s", "10.0.0.2:7", "`native.stall_timeout` has no effect with `via` kernel"),
            ("--via kernel --keepalive 5s", "10.0.0.2:7", "`native.keepalive` has no effect with `via` kernel"),
            (
                "--via rdma:rxe0 --idle-timeout 5s",
                "10.0.0.2:7",
                if cfg!(feature = "rdma") { "`idle_timeout`" } else { "" },
            ),
            ("--via roce:tap:lr0", "10.0.0.2:7", if cfg!(feature = "rdma") { "`ip` is required" } else { "" }),
            (
                "--via roce:tap:lr0 --ip 10.0.0.2/24 --workers 2",
                "10.0.0.2:7",
                if cfg!(feature = "rdma") { "one worker" } else { "" },
            ),
            (
                "--via roce:tap:lr0 --ip 10.0.0.2/24 --ecn --pacing",
                "10.0.0.2:7",
                if cfg!(feature = "rdma") { "`native.pacing` has no effect" } else { "" },
            ),
            (
                "--via roce:tap:lr0 --ip 10.0.0.2/24 --dhcp",
                "10.0.0.2:7",
                if cfg!(feature = "rdma") { "`dhcp` has no effect" } else { "" },
            ),
            (
                "--via tap:lr0 --ip 10.0.0.2/24 --engine smoltcp --idle-timeout 5s",
                "10.0.0.2:7",
                "`idle_timeout` has an effect only with `engine` native",
            ),
            ("--via kernel --max-packets 100", "10.0.0.2:7", "`native.max_packets`"),
            ("--via kernel --idle poll", "10.0.0.2:7", "`idle`"),
            (
                "--via kernel --srq 64",
                "10.0.0.2:7",
                "`rdma.srq` has an effect only with `via` rdma:DEVICE or roce:NETWORK: leave it out",
            ),
            ("--via tap:lr0 --ip 10.0.0.2/24 --rdma-inline 0", "10.0.0.2:7", "`rdma.inline`"),
            (
                "--via tap:lr0 --ip 10.0.0.2/24 --engine smoltcp --max-packets-per-connection 100",
                "10.0.0.2:7",
                "native",
            ),
        ] {
            let error = check(text, &[listen]);
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn peer_needs_a_local_address_of_its_family() {
        let remote = |text: &str| text.parse::<std::net::SocketAddr>().unwrap();
        let net = config("--via tap:lr0 --ip 10.0.0.2/24");
        assert!(net.check_remote(remote("192.0.2.1:7")).is_ok());
        for text in ["[fd00::1]:7", "10.0.0.1:0", "0.0.0.0:7", "224.0.0.1:7", "127.0.0.1:7007"] {
            assert!(net.check_remote(remote(text)).is_err(), "{text}");
        }
        let net = config("--via tap:lr0 --slaac");
        assert!(net.check_remote(remote("[fd00::1]:7")).is_ok() && net.check_remote(remote("10.0.0.1:7")).is_err());
    }

    #[cfg(feature = "rdma")]
    mod rdma {
        use crate::config::RdmaConfig;
        use linerate_rdma::{Config, Connect, Mode};

        fn parse(text: &str) -> Result<RdmaConfig, String> {
            super::parse(text).map(|net| net.rdma).map_err(|error| error.to_string())
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
                let option = text.split(' ').next().unwrap().trim_start_matches("--").trim_start_matches("rdma-");
                assert_eq!(args.given().unwrap(), format!("rdma.{}", option.replace('-', "_")));
                assert!(args.check().is_ok(), "{text}");
                assert_eq!(reads(args.config()), expected, "{text}");
            }
        }

        #[test]
        fn help_states_the_adapters_defaults() {
            use clap::CommandFactory;
            let help = super::Cli::command().render_long_help().to_string();
            let Config { buffers, sends, inline, signal_every, list, .. } = Config::default();
            let told =
                [buffers.into(), sends.into(), inline as usize, signal_every, list].map(|n| format!("[default: {n}]"));
            let after = help.split("--rdma-").skip(1).filter_map(|part| part.split_once("[default: "));
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
                assert!(error.starts_with("`rdma.") && error.ends_with("leave one of the two out"), "{error}");
            }
            let error = parse("--rdma-sends 8 --rdma-signal-every 5").unwrap().check().unwrap_err();
            assert!(error.is_usage());
            assert!(error.to_string().contains("give 4 or less, or more requests with `rdma.sends`"), "{error}");
        }
    }
}
