//! Addresses and ephemeral ports of ours for outgoing connections.

use crate::addresses::Addresses;
use crate::demux::steering::{owner, toeplitz};
use crate::tcp::tuple::Tuple;
use linerate_bypass::time::Instant;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

/// All but the well-known ports (RFC 6056 §3.2).
const RANGE: RangeInclusive<u16> = 1024..=65535;

/// Chooses addresses and ports of ours such that the answers reach the worker that connects.
pub(crate) struct EphemeralPorts {
    worker: usize,
    workers: usize,
    next: u16,
    /// The addresses to connect from, in turn; of a family that has none here, the one that is nearest.
    from: Vec<IpAddr>,
    turn: usize,
    /// Peer for which no port was free, and when. Another search of all ports at the same time would find none either.
    exhausted: Option<(SocketAddr, Instant)>,
}

impl EphemeralPorts {
    /// For connections from the addresses `from`, if there are any.
    pub fn new(worker: usize, workers: usize, random: u64, from: &[IpAddr]) -> Self {
        let next = RANGE.start() + (random % RANGE.len() as u64) as u16;
        EphemeralPorts { worker, workers, next, from: from.to_vec(), turn: 0, exhausted: None }
    }

    /// The connection from a free port of ours to `remote`; `None` when all of all addresses that it can be from are `taken`, or there
    /// is none. After a search in vain the answer for that peer stays the same until the clock has gone on from `now`: a service that asks
    /// for many connections at a time costs one search.
    pub fn choose(
        &mut self,
        addresses: &Addresses,
        remote: SocketAddr,
        now: Instant,
        taken: impl Fn(&Tuple) -> bool,
    ) -> Option<Tuple> {
        if self.exhausted == Some((remote, now)) {
            return None;
        }
        let chosen = self.search(addresses, remote, taken);
        if chosen.is_none() {
            self.exhausted = Some((remote, now));
        }
        chosen
    }

    fn search(&mut self, addresses: &Addresses, remote: SocketAddr, taken: impl Fn(&Tuple) -> bool) -> Option<Tuple> {
        let can_be = |ip: &&IpAddr| ip.is_ipv4() == remote.is_ipv4() && addresses.is_ours(**ip);
        let choices = self.from.iter().filter(can_be).count();
        if choices == 0 {
            // Not one that was not asked for, where some were.
            let is_free = self.from.iter().all(|ip| ip.is_ipv4() != remote.is_ipv4());
            let local = addresses.source_for(remote.ip()).filter(|_| is_free)?;
            return self.choose_port(local, remote, taken);
        }
        for _ in 0..choices {
            self.turn = (self.turn + 1) % choices;
            let local = self.from.iter().filter(can_be).nth(self.turn).copied()?;
            if let Some(tuple) = self.choose_port(local, remote, &taken) {
                return Some(tuple);
            }
        }
        None
    }

    fn choose_port(&mut self, local: IpAddr, remote: SocketAddr, taken: impl Fn(&Tuple) -> bool) -> Option<Tuple> {
        for _ in RANGE {
            let port = self.next;
            self.next = if port == *RANGE.end() { *RANGE.start() } else { port + 1 };
            let tuple = Tuple::new(SocketAddr::new(local, port), remote);
            if owner(toeplitz(&tuple), self.workers) == self.worker && !taken(&tuple) {
                return Some(tuple);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_bypass::MacAddr;
    use std::cell::Cell;
    use std::collections::HashSet;

    const NOW: Instant = Instant::from_nanos(1_000_000);

    fn addresses() -> Addresses {
        let own = ["10.0.0.1/24", "10.0.0.3/24", "10.0.0.4/24", "fd00::1/64"].map(|cidr| cidr.parse().unwrap());
        Addresses::new(&own, &[], MacAddr::default())
    }

    #[test]
    fn ports_hash_home_differ_and_run_out() {
        let remote = "10.0.0.2:7".parse().unwrap();
        let mut chosen = HashSet::new();
        for worker in 0..2 {
            let mut ports = EphemeralPorts::new(worker, 2, 12345, &[]);
            let mut taken = HashSet::new();
            while let Some(tuple) = ports.choose(&addresses(), remote, NOW, |tuple| taken.contains(&tuple.local())) {
                assert_eq!(owner(toeplitz(&tuple), 2), worker);
                assert!(taken.insert(tuple.local()));
            }
            chosen.extend(taken);
        }
        assert_eq!(chosen.len(), RANGE.len());
    }

    #[test]
    fn the_addresses_to_connect_from_take_turns_and_one_whose_ports_are_taken_is_passed_over() {
        let from = ["10.0.0.3", "10.0.0.4", "fd00::1", "10.0.0.9"].map(|ip| ip.parse().unwrap());
        let mut ports = EphemeralPorts::new(0, 1, 12345, &from);
        let remote = "10.0.0.2:7".parse().unwrap();
        let local = |ports: &mut EphemeralPorts, taken: &dyn Fn(IpAddr) -> bool| {
            let chosen = ports.choose(&addresses(), remote, NOW, |tuple| taken(tuple.local().ip()));
            chosen.map(|tuple| tuple.local().ip().to_string())
        };
        let chosen: Vec<_> = (0..4).map(|_| local(&mut ports, &|_| false).unwrap()).collect();
        assert_eq!(chosen.iter().filter(|ip| **ip == "10.0.0.3").count(), 2, "{chosen:?}");
        assert_eq!(chosen.iter().filter(|ip| **ip == "10.0.0.4").count(), 2, "{chosen:?}");
        let of_three = |ip: IpAddr| ip == from[0];
        (0..3).for_each(|_| assert_eq!(local(&mut ports, &of_three).unwrap(), "10.0.0.4"));
        assert_eq!(local(&mut ports, &|_| true), None);
        // Of the other family nothing was asked for here.
        let mut ports = EphemeralPorts::new(0, 1, 12345, &from[..2]);
        let six = ports.choose(&addresses(), "[fd00::2]:7".parse().unwrap(), NOW, |_| false);
        assert_eq!(six.map(|tuple| tuple.local().ip()), Some(from[2]));
        // An address that is not ours yet is not replaced by another.
        let mut ports = EphemeralPorts::new(0, 1, 12345, &from[3..]);
        assert_eq!(local(&mut ports, &|_| false), None);
    }

    #[test]
    fn search_in_vain_is_made_once_for_a_peer_at_a_time() {
        let mut ports = EphemeralPorts::new(0, 1, 12345, &[]);
        let tried = Cell::new(0);
        let all_taken = |_: &Tuple| {
            tried.set(tried.get() + 1);
            true
        };
        let [a, b] = ["10.0.0.2:7", "10.0.0.2:8"].map(|remote| remote.parse().unwrap());
        for _ in 0..256 {
            assert_eq!(ports.choose(&addresses(), a, NOW, all_taken), None);
        }
        assert_eq!(tried.get(), RANGE.len());
        assert!(ports.choose(&addresses(), b, NOW, |_| false).is_some(), "other peers have ports of their own");
        let later = Instant::from_nanos(NOW.as_nanos() + 1);
        assert!(ports.choose(&addresses(), a, later, |_| false).is_some());
    }
}
