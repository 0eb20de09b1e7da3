//! Deserialisation of values as the command line writes them: `"10.0.0.2/24"`, `"500ms"`, `"64k"`.

use super::RendezvousMin;
use crate::units::{parse_duration_or_none, parse_size};
use linerate_stack::Idle;
use serde::de::{Deserialize, Deserializer, Error, Unexpected};
use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

/// Number, or text such as `64k`.
#[derive(serde::Deserialize)]
#[serde(untagged)]
enum Size {
    Number(usize),
    Text(String),
}

/// Deserialises a value from its text.
pub fn value<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    let text = String::deserialize(from)?;
    text.parse().map_err(|error| D::Error::custom(format_args!("{text}: {error}")))
}

/// Deserialises an optional value from its text.
pub fn option<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(from: D) -> Result<Option<T>, D::Error> {
    value(from).map(Some)
}

/// Deserialises values from a list of texts.
pub fn list<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    let texts = Vec::<String>::deserialize(from)?;
    let parse = |text: &String| text.parse().map_err(|error| D::Error::custom(format_args!("{text}: {error}")));
    texts.iter().map(parse).collect()
}

/// Deserialises a duration such as `500ms`, or `0`.
pub fn duration<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(from)?;
    parse_duration_or_none(&text).map(Some).map_err(|error| D::Error::custom(format_args!("{text}: {error}")))
}

/// Deserialises a number of bytes.
pub fn size<'de, D: Deserializer<'de>>(from: D) -> Result<Option<usize>, D::Error> {
    match Size::deserialize(from)? {
        Size::Number(bytes) => Ok(Some(bytes)),
        Size::Text(text) => parse_size(&text).map(Some).map_err(D::Error::custom),
    }
}

/// Deserialises the behaviour of an idle worker.
pub fn idle<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Idle>, D::Error> {
    match String::deserialize(from)?.as_str() {
        "poll" => Ok(Some(Idle::Poll)),
        "wait" => Ok(Some(Idle::Wait)),
        other => Err(D::Error::invalid_value(Unexpected::Str(other), &"poll or wait")),
    }
}

/// Deserialises the smallest slice offered for READ.
pub fn rendezvous_min<'de, D: Deserializer<'de>>(from: D) -> Result<Option<RendezvousMin>, D::Error> {
    match Size::deserialize(from)? {
        Size::Number(bytes) => Ok(Some(RendezvousMin::Bytes(bytes))),
        Size::Text(text) => text.parse().map(Some).map_err(D::Error::custom),
    }
}

#[cfg(test)]
mod tests {
    use crate::{Idle, NetConfig, Profile, RdmaMode, RendezvousMin, TcpEngine, ThreadingMode};
    use std::time::Duration;

    fn read(text: &str) -> Result<NetConfig, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn values_are_written_as_on_the_command_line() {
        let config = read(
            r#"{
                "via": "tap:lr0", "workers": 2, "cores": "1-2", "threading": "split", "service-cores": "3,4",
                "idle": "wait", "mtu": 9000, "vlan": "5", "ip": ["10.0.0.2/24"], "from": ["10.0.0.2"],
                "gateway": ["10.0.0.1"], "mac": "02:00:00:00:00:02", "engine": "smoltcp", "buffer": "64k",
                "idle-timeout": "5m", "skip-dad": true, "eal": ["-l", "1"],
                "native": {"congestion": "dctcp", "profile": "datacenter", "linger": "0", "keepalive": "90s"},
                "capture": {"file": "frames.pcapng", "filter": "tcp"},
                "rdma": {"mode": "ud", "rendezvous-min": "never", "inline": 0}
            }"#,
        )
        .unwrap();
        assert_eq!((config.via.to_string(), config.workers), ("tap:lr0".to_owned(), Some(2)));
        assert_eq!(config.cores.unwrap().cores(), [1, 2]);
        assert_eq!((config.threading, config.service_cores.unwrap().cores()), (ThreadingMode::Split, &[3, 4][..]));
        assert_eq!((config.idle, config.mtu, config.skip_dad), (Some(Idle::Wait), Some(9000), true));
        assert_eq!(config.ip, ["10.0.0.2/24".parse().unwrap()]);
        assert_eq!((config.from.len(), config.gateway.len(), config.eal.len()), (1, 1, 2));
        assert!(config.vlan == "5".parse().ok() && config.mac == "02:00:00:00:00:02".parse().ok());
        assert_eq!((config.engine, config.buffer), (Some(TcpEngine::Smoltcp), Some(65_536)));
        assert_eq!(config.idle_timeout, Some(Duration::from_secs(300)));
        assert_eq!(config.native.congestion, "dctcp".parse().ok());
        assert_eq!(config.native.profile, Some(Profile::Datacenter));
        assert_eq!((config.native.linger, config.native.keepalive), (Some(Duration::ZERO), "90s".parse_duration()));
        let capture = config.capture.unwrap();
        assert_eq!((capture.filter.as_deref(), capture.size), (Some("tcp"), 1 << 30));
        assert_eq!((config.rdma.mode, config.rdma.inline), (Some(RdmaMode::Ud), Some(0)));
        assert_eq!(config.rdma.rendezvous_min, Some(RendezvousMin::Never));
    }

    trait ParseDuration {
        fn parse_duration(&self) -> Option<Duration>;
    }

    impl ParseDuration for str {
        fn parse_duration(&self) -> Option<Duration> {
            crate::units::parse_duration(self).ok()
        }
    }

    #[test]
    fn missing_fields_have_their_defaults() {
        assert_eq!(format!("{:?}", read("{}").unwrap()), format!("{:?}", NetConfig::default()));
    }

    #[test]
    fn invalid_values_and_unknown_fields_are_refused_by_name() {
        for (text, part) in [
            (r#"{"via": "tape:lr0"}"#, "tape:lr0"),
            (r#"{"vai": "kernel"}"#, "unknown field `vai`"),
            (r#"{"ip": ["10.0.0.2/33"]}"#, "10.0.0.2/33"),
            (r#"{"native": {"linger": "5"}}"#, "5: write a number and us, ms, s or m"),
            (r#"{"buffer": "64x"}"#, "64k"),
            (r#"{"idle": "sleep"}"#, "poll or wait"),
            (r#"{"rdma": {"rendezvous-min": "always"}}"#, "or never"),
            (r#"{"capture": {}}"#, "missing field `file`"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
