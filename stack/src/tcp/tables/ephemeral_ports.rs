//! Local address and ephemeral port selection for outgoing connections.

use crate::config::Config;
use crate::ip::addresses::Addresses;
use crate::wire::steering::Steering;
use crate::wire::tuple::Tuple;
use linerate_service::time::Instant;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

/// Selects local addresses and ports such that replies belong to the connecting worker.
pub(crate) struct EphemeralPorts {
    worker: usize,
    steering: Steering,
    range: RangeInclusive<u16>,
    next: u16,
    /// Configured source addresses, used in turn. A family without any uses source address selection.
    from: Vec<IpAddr>,
    turn: usize,
    /// Peer without a free port, and the time of that search. Another search at the same time would fail too.
    exhausted: Option<(SocketAddr, Instant)>,
}

impl EphemeralPorts {
    /// Creates a selector for the source addresses and ports of `config`.
    pub fn new(worker: usize, workers: usize, random: u64, config: &Config) -> Self {
        let (range, steering) = (config.outgoing_ports.clone(), Steering::new(workers, &config.listen_by_worker));
        let next = range.start() + (random % range.len().max(1) as u64) as u16;
        EphemeralPorts { worker, steering, range, next, from: config.connect_from.clone(), turn: 0, exhausted: None }
    }

    /// Returns a connection to `remote` from a free local port; `None` if all ports of all usable addresses are
    /// `taken`, or there is no address. A failed search for a peer is not repeated at the same `now`, so a service that
    /// opens many connections at a time causes one search.
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
        let can_be = |ip: &&IpAddr| ip.is_ipv4() == remote.is_ipv4() && addresses.is_local(**ip);
        let choices = self.from.iter().filter(can_be).count();
        if choices == 0 {
            // A configured source address is not replaced by another of its family.
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
        for _ in self.range.clone() {
            let port = self.next;
            self.next = if port == *self.range.end() { *self.range.start() } else { port + 1 };
            let tuple = Tuple::new(SocketAddr::new(local, port), remote);
            if self.steering.owner(&tuple) == self.worker && !taken(&tuple) {
                return Some(tuple);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::steering::{owner, toeplitz};
    use linerate_bypass::MacAddr;
    use std::cell::Cell;
    use std::collections::HashSet;

    const NOW: Instant = Instant::from_nanos(1_000_000);

    fn addresses() -> Addresses {
        let own = ["10.0.0.1/24", "10.0.0.3/24", "10.0.0.4/24", "fd00::1/64"].map(|cidr| cidr.parse().unwrap());
        Addresses::new(&own, &[], MacAddr::default())
    }

    fn connecting_from(from: &[IpAddr]) -> Config {
        Config { connect_from: from.to_vec(), ..Config::default() }
    }

    #[test]
    fn ports_are_in_the_configured_range() {
        let remote = "10.0.0.2:7".parse().unwrap();
        #[expect(clippy::reversed_empty_ranges, reason = "no ports")]
        for (range, expected) in [(61_000..=61_002, vec![61_000, 61_001, 61_002]), (1..=0, vec![])] {
            let config = Config { outgoing_ports: range, ..Config::default() };
            let mut ports = EphemeralPorts::new(0, 1, 12345, &config);
            let mut chosen = Vec::new();
            while let Some(tuple) =
                ports.choose(&addresses(), remote, NOW, |tuple| chosen.contains(&tuple.local().port()))
            {
                chosen.push(tuple.local().port());
            }
            chosen.sort_unstable();
            assert_eq!(chosen, expected);
        }
    }

    #[test]
    fn ports_hash_to_their_worker_and_are_unique_until_exhausted() {
        let remote = "10.0.0.2:7".parse().unwrap();
        let mut chosen = HashSet::new();
        for worker in 0..2 {
            let mut ports = EphemeralPorts::new(worker, 2, 12345, &Config::default());
            let mut taken = HashSet::new();
            while let Some(tuple) = ports.choose(&addresses(), remote, NOW, |tuple| taken.contains(&tuple.local())) {
                assert_eq!(owner(toeplitz(&tuple), 2), worker);
                assert!(taken.insert(tuple.local()));
            }
            chosen.extend(taken);
        }
        assert_eq!(chosen.len(), Config::OUTGOING_PORTS.len());
    }

    #[test]
    fn source_addresses_rotate_and_exhausted_ones_are_skipped() {
        let from = ["10.0.0.3", "10.0.0.4", "fd00::1", "10.0.0.9"].map(|ip| ip.parse().unwrap());
        let mut ports = EphemeralPorts::new(0, 1, 12345, &connecting_from(&from));
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
        // A family without a configured source address uses address selection.
        let mut ports = EphemeralPorts::new(0, 1, 12345, &connecting_from(&from[..2]));
        let six = ports.choose(&addresses(), "[fd00::2]:7".parse().unwrap(), NOW, |_| false);
        assert_eq!(six.map(|tuple| tuple.local().ip()), Some(from[2]));
        // A configured address that is not local yet is not replaced.
        let mut ports = EphemeralPorts::new(0, 1, 12345, &connecting_from(&from[3..]));
        assert_eq!(local(&mut ports, &|_| false), None);
    }

    #[test]
    fn failed_search_is_not_repeated_at_the_same_time() {
        let mut ports = EphemeralPorts::new(0, 1, 12345, &Config::default());
        let tried = Cell::new(0);
        let all_taken = |_: &Tuple| {
            tried.set(tried.get() + 1);
            true
        };
        let [a, b] = ["10.0.0.2:7", "10.0.0.2:8"].map(|remote| remote.parse().unwrap());
        for _ in 0..256 {
            assert_eq!(ports.choose(&addresses(), a, NOW, all_taken), None);
        }
        assert_eq!(tried.get(), Config::OUTGOING_PORTS.len());
        assert!(ports.choose(&addresses(), b, NOW, |_| false).is_some(), "ports are per peer");
        let later = Instant::from_nanos(NOW.as_nanos() + 1);
        assert!(ports.choose(&addresses(), a, later, |_| false).is_some());
    }
}
