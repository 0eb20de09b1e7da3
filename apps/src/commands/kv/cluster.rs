//! `--cluster` and `--cluster-map`: the cluster map, from options and a file.

use crate::error::Error;
use linerate_kv::cluster::{ClusterMap, Node, OwnNodes};
use linerate_kv::service::Hub;
use serde::Deserialize;
use signal_hook::consts::SIGHUP;
use signal_hook::iterator::Signals;
use std::fs;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

/// Cluster arguments of `linerate kv serve`.
#[derive(Debug, clap::Args)]
pub struct ClusterArgs {
    /// Redis Cluster mode: each worker is a node that serves a part of the slots on its own port: the port of --listen
    /// plus the number of the worker
    #[arg(long, help_heading = "Cluster")]
    cluster: bool,

    /// TOML file with the nodes of a cluster of several processes: host, port and slots of each. Read again on SIGHUP.
    /// Implies --cluster [default: this process serves all slots]
    #[arg(long, value_name = "FILE", help_heading = "Cluster")]
    cluster_map: Option<PathBuf>,

    /// Address or name of this host for cluster clients and in --cluster-map [default: address of --listen; without
    /// one, the address that a client has connected to]
    #[arg(long, value_name = "HOST", help_heading = "Cluster")]
    cluster_announce: Option<String>,
}

/// Content of a map file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MapFile {
    node: Vec<NodeEntry>,
}

/// Node in a map file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeEntry {
    host: String,
    #[serde(default)]
    port: u16,
    #[serde(default, rename = "tls-port")]
    tls_port: u16,
    #[serde(default)]
    slots: Vec<Slots>,
}

/// One slot, or a range such as `"0-8191"`.
#[derive(Debug, Deserialize)]
#[serde(try_from = "SlotsText")]
struct Slots(RangeInclusive<u16>);

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum SlotsText {
    Slot(u16),
    Range(String),
}

impl TryFrom<SlotsText> for Slots {
    type Error = String;

    fn try_from(text: SlotsText) -> Result<Self, String> {
        let parse = |text: &str| {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
        };
        match text {
            SlotsText::Slot(slot) => Ok(Slots(slot..=slot)),
            SlotsText::Range(text) => {
                parse(&text).map(Slots).ok_or_else(|| format!("'{text}' is no range such as 0-8191"))
            }
        }
    }
}

/// Source of the cluster map: a file or this process alone, and the host and ports of this process in the map.
#[derive(Debug, Clone)]
pub struct MapSource {
    path: Option<PathBuf>,
    host: Option<String>,
    /// First port without TLS, and with TLS.
    ports: (u16, u16),
    workers: usize,
}

impl ClusterArgs {
    /// Returns true in cluster mode.
    pub fn is_cluster(&self) -> bool {
        self.cluster || self.cluster_map.is_some()
    }

    /// Checks the arguments against the addresses for Redis clients without and with TLS.
    pub fn check(&self, plain: &[SocketAddr], tls: &[SocketAddr]) -> Result<(), &'static str> {
        if !self.is_cluster() {
            let announces = self.cluster_announce.is_some();
            return if announces {
                Err("--cluster-announce has an effect only with --cluster: add it")
            } else {
                Ok(())
            };
        }
        let Some(first) = plain.iter().chain(tls).next() else {
            return Err("--cluster: applies to Redis clients only: add --listen");
        };
        if plain.iter().chain(tls).any(|address| address.port() == 0) {
            return Err("--cluster: the workers have consecutive ports: give --listen a port, such as 6379");
        }
        let is_one = |all: &[SocketAddr]| all.iter().all(|address| address.port() == all[0].port());
        if !is_one(plain) || !is_one(tls) {
            return Err("--cluster: each node has one port: give all addresses of --listen the same port");
        }
        if self.cluster_map.is_some() && self.cluster_announce.is_none() && first.ip().is_unspecified() {
            return Err("--cluster-map: name this host in the map by --cluster-announce, or give --listen its address");
        }
        Ok(())
    }

    /// Returns the source of the map of a process that serves Redis clients on `plain` and `tls`; `None` without
    /// cluster mode.
    pub fn source(&self, plain: &[SocketAddr], tls: &[SocketAddr], workers: usize) -> Option<MapSource> {
        let first = plain.iter().chain(tls).next().filter(|_| self.is_cluster())?;
        let port = |all: &[SocketAddr]| all.first().map_or(0, SocketAddr::port);
        let host = self.cluster_announce.clone();
        let host = host.or_else(|| (!first.ip().is_unspecified()).then(|| first.ip().to_string()));
        Some(MapSource { path: self.cluster_map.clone(), host, ports: (port(plain), port(tls)), workers })
    }
}

impl MapSource {
    pub fn read(&self) -> Result<ClusterMap, Error> {
        let Some(path) = &self.path else {
            let map = ClusterMap::of_one_process(self.host.as_deref(), self.ports, self.workers, fastrand::u64(..));
            return map.map_err(|error| Error::Usage(format!("--cluster: {error}")));
        };
        let failed = |reason| Error::ClusterMap { path: path.clone(), reason };
        let text = fs::read_to_string(path);
        let text = text.map_err(|error| failed(format!("{error}: name the file of the map")))?;
        let file = parse(&text).map_err(failed)?;
        if let Some(entry) = file.node.iter().find(|entry| entry.port == 0 && entry.tls_port == 0) {
            return Err(failed(format!("node {} has no port: add port, tls-port or both", entry.host)));
        }
        let node = |entry: NodeEntry| Node {
            host: Some(entry.host),
            port: entry.port,
            tls_port: entry.tls_port,
            slots: entry.slots.into_iter().map(|Slots(range)| range).collect(),
        };
        let (port, tls_port) = self.ports;
        let own = OwnNodes { host: self.host.clone().unwrap_or_default(), port, tls_port, workers: self.workers };
        ClusterMap::of_fleet(file.node.into_iter().map(node).collect(), &own).map_err(|error| failed(error.to_string()))
    }

    /// Reads the map file again on each SIGHUP, and passes the map to `hub`. An invalid map is logged, and the previous
    /// map stays in force.
    pub fn reload_on_sighup(self, hub: Arc<Hub>) -> Result<(), Error> {
        let Some(path) = self.path.clone() else { return Ok(()) };
        let mut signals = Signals::new([SIGHUP]).map_err(Error::Signals)?;
        let reload = move || {
            for _ in signals.forever() {
                self.reload(&hub, &path);
            }
        };
        thread::Builder::new().name("cluster-map".to_owned()).spawn(reload).map_err(Error::Signals)?;
        Ok(())
    }

    fn reload(&self, hub: &Hub, path: &Path) {
        match self.read() {
            Ok(map) => {
                let count = map.nodes().len();
                let when = match hub.replace_map(map) {
                    true => "are in force",
                    false => "will be in force once the keys that left with the last map are removed",
                };
                tracing::info!("--cluster-map {}: {count} nodes {when}", path.display());
            }
            Err(error) => tracing::error!("{error}; the previous map stays in force"),
        }
    }
}

/// Parses a map file. The error names the line.
fn parse(text: &str) -> Result<MapFile, String> {
    toml::from_str(text).map_err(|error| {
        let line = error.span().map_or(1, |span| text[..span.start.min(text.len())].matches('\n').count() + 1);
        format!("line {line}: {}", error.message().lines().next().unwrap_or_default())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn map_file_lists_hosts_ports_and_slots() {
        let text =
            "[[node]]\nhost = \"a\"\nport = 1\nslots = [\"0-9\", 12, \"14\"]\n[[node]]\nhost = \"b\"\nport = 2\n";
        let nodes = parse(text).unwrap().node;
        let slots: Vec<_> = nodes[0].slots.iter().map(|Slots(range)| range.clone()).collect();
        assert_eq!((slots, nodes[1].slots.len()), (vec![0..=9, 12..=12, 14..=14], 0));
    }

    #[test]
    fn error_in_a_map_file_names_the_line() {
        for (text, parts) in [
            ("[[node]]\nhost = \"a\"\nport = 1\nslot = []\n", ["line 4", "slot"]),
            ("[[node]]\nhost = \"a\"\nport = 70000\n", ["line 3", "70000"]),
            ("[[node]]\nport = 1\n", ["line 1", "host"]),
            ("[[node]]\nhost = \"a\"\nport = 1\nslots = [\"9-x\"]\n", ["line 4", "9-x"]),
            ("nodes", ["line 1", "key"]),
        ] {
            let error = parse(text).unwrap_err();
            assert!(parts.iter().all(|part| error.contains(part)) && error.lines().count() == 1, "{error}");
        }
    }
}
