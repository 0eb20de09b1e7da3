//! Map from slots to nodes.

use crate::cluster::slot::SLOTS;
use siphasher::sip128::{Hasher128, SipHasher13};
use std::hash::Hasher;
use std::net::IpAddr;
use std::ops::RangeInclusive;

/// Shard of a slot that another machine serves.
pub(crate) const NO_SHARD: u8 = u8::MAX;

/// Node of a cluster: one worker of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Address announced to clients. `None` stands for the address to which the client is connected.
    pub host: Option<String>,
    /// Port announced to clients without TLS, or 0.
    pub port: u16,
    /// Port announced to clients with TLS, or 0.
    pub tls_port: u16,
    pub slots: Vec<RangeInclusive<u16>>,
}

/// Nodes of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnNodes {
    /// Address announced to clients.
    pub host: String,
    /// Port of worker 0 without TLS, or 0. Worker *n* has this port plus *n*.
    pub port: u16,
    /// Likewise with TLS.
    pub tls_port: u16,
    pub workers: usize,
}

/// Map from all slots to nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterMap {
    nodes: Vec<Node>,
    ids: Vec<String>,
    /// Index of the node of each worker.
    own: Vec<usize>,
    /// Index of the node of each slot.
    owners: Vec<u16>,
    /// Worker of each slot, or [`NO_SHARD`].
    workers: Vec<u8>,
}

/// Error in a list of nodes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    #[error("slots {0}-{1} of node {2}: a range is FIRST-LAST with slots from 0 to 16383")]
    Range(u16, u16, String),
    #[error("slot {slot} belongs to node {one} and to node {other}: give it to one of them")]
    Overlap {
        slot: u16,
        /// First node.
        one: String,
        /// Second node.
        other: String,
    },
    #[error("slots {0}-{1} belong to no node: add them to a node")]
    Missing(u16, u16),
    #[error("node {0} is listed twice: remove one entry")]
    Twice(String),
    #[error("no node {node} for worker {worker} of this host: add it, or name this host by --cluster-announce")]
    NotHere {
        /// Address and port of the node.
        node: String,
        worker: usize,
    },
    #[error("{0} nodes: at most 16384, of which at most 255 in one process")]
    TooMany(usize),
}

impl Node {
    /// Returns the port for clients with or without TLS, or the only port.
    pub fn port_for(&self, is_tls: bool) -> u16 {
        if self.port == 0 || is_tls && self.tls_port != 0 { self.tls_port } else { self.port }
    }

    /// Returns the address and port, as in `MOVED`. `own` is the address to which the client is connected.
    pub fn address(&self, own: IpAddr, is_tls: bool) -> String {
        let port = self.port_for(is_tls);
        match &self.host {
            Some(host) => format!("{host}:{port}"),
            None => format!("{own}:{port}"),
        }
    }

    fn name(&self) -> String {
        format!("{}:{}", self.host.as_deref().unwrap_or("*"), self.port_for(false))
    }

    fn ranges(&self) -> impl Iterator<Item = RangeInclusive<u16>> {
        self.slots.iter().cloned()
    }
}

/// Returns the port of `worker`, or 0 if the first worker has none.
fn port_of(first: u16, worker: usize) -> u16 {
    if first == 0 { 0 } else { first.wrapping_add(worker as u16) }
}

/// Returns 40 hexadecimal digits that depend on `parts` only, so that all processes with a map agree.
fn digits(parts: [&[u8]; 3]) -> String {
    let words = [0u64, 1].map(|half| {
        let mut hasher = SipHasher13::new_with_keys(half, 0);
        for part in parts {
            hasher.write(part);
            hasher.write_u8(0);
        }
        hasher.finish128().as_u128()
    });
    format!("{:032x}{:08x}", words[0], words[1] as u32)
}

impl ClusterMap {
    /// Limit of the workers of one process.
    pub const MAX_WORKERS: usize = NO_SHARD as usize;

    /// Creates the map of a process that serves all slots, in equal ranges, from `workers` workers whose ports without
    /// and with TLS start at `ports`. Nodes are announced as `host`, or with the address to which each client is
    /// connected. `seed` is different for each process.
    pub fn of_one_process(host: Option<&str>, ports: (u16, u16), workers: usize, seed: u64) -> Result<Self, MapError> {
        let first = |worker: usize| (SLOTS * worker).div_ceil(workers.max(1));
        let nodes = (0..workers).map(|worker| Node {
            host: host.map(str::to_owned),
            port: port_of(ports.0, worker),
            tls_port: port_of(ports.1, worker),
            slots: vec![first(worker) as u16..=(first(worker + 1) - 1) as u16],
        });
        ClusterMap::build(nodes.collect(), (0..workers).collect(), seed)
    }

    /// Creates the map of a cluster with `nodes`, of which this process serves `own`.
    pub fn of_fleet(nodes: Vec<Node>, own: &OwnNodes) -> Result<Self, MapError> {
        let position = |worker: usize| {
            let (port, tls_port) = (port_of(own.port, worker), port_of(own.tls_port, worker));
            let is_own = |node: &Node| {
                let are_ports =
                    [(port, node.port), (tls_port, node.tls_port)].iter().all(|(own, of)| *own == 0 || own == of);
                node.host.as_deref() == Some(&own.host) && are_ports
            };
            let node = || match (port, tls_port) {
                (port, 0) => format!("{}:{port}", own.host),
                (0, tls) => format!("{} with TLS port {tls}", own.host),
                (port, tls) => format!("{}:{port} with TLS port {tls}", own.host),
            };
            nodes.iter().position(is_own).ok_or_else(|| MapError::NotHere { node: node(), worker })
        };
        let positions = (0..own.workers).map(position).collect::<Result<_, _>>()?;
        ClusterMap::build(nodes, positions, 0)
    }

    fn build(nodes: Vec<Node>, own: Vec<usize>, seed: u64) -> Result<Self, MapError> {
        /// Mark of a slot without a node.
        const NOBODY: u16 = u16::MAX;
        if nodes.len() > SLOTS || own.len() > Self::MAX_WORKERS {
            return Err(MapError::TooMany(nodes.len()));
        }
        let mut owners = vec![NOBODY; SLOTS];
        for (at, node) in nodes.iter().enumerate() {
            if nodes[..at].iter().any(|other| other.name() == node.name()) {
                return Err(MapError::Twice(node.name()));
            }
            for range in node.ranges() {
                if range.is_empty() || usize::from(*range.end()) >= SLOTS {
                    return Err(MapError::Range(*range.start(), *range.end(), node.name()));
                }
                for slot in range {
                    let owner = &mut owners[usize::from(slot)];
                    if *owner != NOBODY {
                        let (one, other) = (nodes[usize::from(*owner)].name(), node.name());
                        return Err(MapError::Overlap { slot, one, other });
                    }
                    *owner = at as u16;
                }
            }
        }
        if let Some(first) = owners.iter().position(|owner| *owner == NOBODY) {
            let len = owners[first..].iter().take_while(|owner| **owner == NOBODY).count();
            return Err(MapError::Missing(first as u16, (first + len - 1) as u16));
        }
        let id =
            |node: &Node| digits([node.name().as_bytes(), &node.port_for(false).to_be_bytes(), &seed.to_be_bytes()]);
        let ids = nodes.iter().map(id).collect();
        let worker_of = |owner: &u16| own.iter().position(|node| *node == usize::from(*owner));
        let workers = owners.iter().map(|owner| worker_of(owner).map_or(NO_SHARD, |worker| worker as u8)).collect();
        Ok(ClusterMap { nodes, ids, own, owners, workers })
    }

    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Returns the id of the node at `index`, 40 hexadecimal digits.
    pub fn id(&self, index: usize) -> &str {
        &self.ids[index]
    }

    /// Returns the id of the shard of the node at `index`. Each node has a shard of its own.
    pub fn shard_id(&self, index: usize) -> String {
        digits([self.ids[index].as_bytes(), b"shard", b""])
    }

    pub fn workers(&self) -> usize {
        self.own.len()
    }

    /// Returns the index of the node of `worker`.
    pub fn own(&self, worker: usize) -> usize {
        self.own[worker]
    }

    /// Returns the node of `slot`, which is below [`SLOTS`].
    pub fn owner(&self, slot: u16) -> &Node {
        &self.nodes[usize::from(self.owners[usize::from(slot)])]
    }

    /// Returns true if a worker of this process serves `slot`.
    #[inline]
    pub fn is_here(&self, slot: u16) -> bool {
        self.workers[usize::from(slot)] != NO_SHARD
    }

    /// Returns the ranges of consecutive slots with the same node, and its index, in order.
    pub fn ranges(&self) -> impl Iterator<Item = (RangeInclusive<u16>, usize)> {
        let mut first = 0;
        std::iter::from_fn(move || {
            let owner = *self.owners.get(first)?;
            let len = self.owners[first..].iter().take_while(|other| **other == owner).count();
            let range = first as u16..=(first + len - 1) as u16;
            first += len;
            Some((range, owner.into()))
        })
    }

    /// Returns the shard of each slot at the start: its worker, and workers in turn for the slots of other processes,
    /// which memcached clients use.
    pub(crate) fn shards(&self) -> Box<[u8]> {
        let count = self.own.len().max(1);
        let spread = |slot: usize| (slot * count / SLOTS) as u8;
        let shard = |(slot, worker): (usize, &u8)| if *worker == NO_SHARD { spread(slot) } else { *worker };
        self.workers.iter().enumerate().map(shard).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(port: u16, slots: &[RangeInclusive<u16>]) -> Node {
        Node { host: Some("10.0.0.2".to_owned()), port, tls_port: 0, slots: slots.to_vec() }
    }

    fn own(port: u16, workers: usize) -> OwnNodes {
        OwnNodes { host: "10.0.0.2".to_owned(), port, tls_port: 0, workers }
    }

    fn fleet() -> Vec<Node> {
        vec![node(7000, &[0..=99, 16000..=16383]), node(7001, &[100..=8191]), node(8000, &[8192..=15999])]
    }

    #[test]
    fn one_process_serves_all_slots_in_equal_ranges() {
        for workers in [1, 2, 3, 5, 255] {
            let map = ClusterMap::of_one_process(None, (7000, 0), workers, 1).unwrap();
            let ranges: Vec<_> = map.ranges().collect();
            assert_eq!(ranges.len(), workers);
            for (at, (range, owner)) in ranges.iter().enumerate() {
                assert_eq!((map.nodes()[at].port, *owner, map.own(at)), (7000 + at as u16, at, at));
                assert!(range.len().abs_diff(SLOTS / workers) <= 1, "{range:?}");
            }
            assert!((0..SLOTS as u16).all(|slot| map.is_here(slot)));
            assert_eq!(map.shards()[SLOTS - 1], workers as u8 - 1);
        }
        assert_eq!(ClusterMap::of_one_process(None, (1, 0), 256, 1), Err(MapError::TooMany(256)));
    }

    #[test]
    fn processes_with_the_same_map_agree_on_owners_and_ids() {
        let [one, other] = [own(7000, 2), own(8000, 1)].map(|own| ClusterMap::of_fleet(fleet(), &own).unwrap());
        for slot in 0..SLOTS as u16 {
            assert_eq!(one.owner(slot), other.owner(slot));
            assert!(one.is_here(slot) != other.is_here(slot));
        }
        let ids: Vec<_> = (0..3).map(|at| one.id(at)).collect();
        assert_eq!(ids, [0, 1, 2].map(|at| other.id(at)));
        assert!(ids[0] != ids[1] && ids[1] != ids[2] && ids.iter().all(|id| id.len() == 40));
        assert_ne!(one.shard_id(0), one.id(0));
        assert_eq!((one.own(1), other.own(0)), (1, 2));
        assert_eq!(one.ranges().map(|(_, owner)| owner).collect::<Vec<_>>(), [0, 1, 2, 0]);
        assert_eq!((one.shards()[50], one.shards()[100], one.shards()[8192]), (0, 1, 1));
        assert!(other.shards().iter().all(|shard| *shard == 0));
    }

    #[test]
    fn wrong_maps_have_one_clear_error() {
        let error = |nodes: Vec<Node>, own: OwnNodes| ClusterMap::of_fleet(nodes, &own).unwrap_err().to_string();
        let with = |change: &dyn Fn(&mut Vec<Node>)| {
            let mut nodes = fleet();
            change(&mut nodes);
            error(nodes, own(7000, 2))
        };
        assert_eq!(
            with(&|nodes| nodes[0].slots[1] = 16000..=16384),
            "slots 16000-16384 of node 10.0.0.2:7000: a range is FIRST-LAST with slots from 0 to 16383"
        );
        assert!(with(&|nodes| nodes[0].slots[0] = RangeInclusive::new(9, 3)).starts_with("slots 9-3 of node"));
        assert_eq!(
            with(&|nodes| nodes[2].slots[0] = 8000..=15999),
            "slot 8000 belongs to node 10.0.0.2:7001 and to node 10.0.0.2:8000: give it to one of them"
        );
        assert_eq!(
            with(&|nodes| nodes[1].slots[0] = 100..=8000),
            "slots 8001-8191 belong to no node: add them to a node"
        );
        assert_eq!(with(&|nodes| nodes[2].port = 7001), "node 10.0.0.2:7001 is listed twice: remove one entry");
        assert_eq!(
            error(fleet(), own(7000, 3)),
            "no node 10.0.0.2:7002 for worker 2 of this host: add it, or name this host by --cluster-announce"
        );
        let with_tls = OwnNodes { tls_port: 7100, ..own(7000, 2) };
        let error = error(fleet(), with_tls.clone());
        assert!(error.starts_with("no node 10.0.0.2:7000 with TLS port 7100 for worker 0"), "{error}");
        let mut nodes = fleet();
        (nodes[0].tls_port, nodes[1].tls_port) = (7100, 7101);
        assert!(ClusterMap::of_fleet(nodes, &with_tls).is_ok());
    }

    #[test]
    fn client_sees_the_address_to_which_it_is_connected_unless_one_is_announced() {
        let own = IpAddr::from([192, 0, 2, 1]);
        let map = ClusterMap::of_one_process(None, (7000, 0), 2, 1).unwrap();
        assert_eq!(map.owner(16383).address(own, true), "192.0.2.1:7001");
        let map = ClusterMap::of_one_process(Some("cache.example"), (7000, 7100), 2, 1).unwrap();
        let of_clients = [false, true].map(|is_tls| map.owner(16383).address(own, is_tls));
        assert_eq!(of_clients, ["cache.example:7001", "cache.example:7101"]);
        let tls_only = Node { host: None, port: 0, tls_port: 7100, slots: Vec::new() };
        assert_eq!([false, true].map(|is_tls| tls_only.port_for(is_tls)), [7100; 2]);
    }
}
