//! Ephemeral ports for outgoing connections.

use crate::steering::{owner, toeplitz};
use crate::tuple::Tuple;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

/// All but the well-known ports (RFC 6056 §3.2).
const RANGE: RangeInclusive<u16> = 1024..=65535;

/// Chooses source ports such that the answers reach the worker that connects.
pub(crate) struct Ports {
    worker: usize,
    workers: usize,
    next: u16,
}

impl Ports {
    pub fn new(worker: usize, workers: usize, random: u64) -> Self {
        let next = RANGE.start() + (random % RANGE.len() as u64) as u16;
        Ports { worker, workers, next }
    }

    /// The connection from a free port of `local` to `remote`; `None` when all are `taken`.
    pub fn choose(&mut self, local: IpAddr, remote: SocketAddr, taken: impl Fn(&Tuple) -> bool) -> Option<Tuple> {
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
    use std::collections::HashSet;

    #[test]
    fn ports_hash_home_differ_and_run_out() {
        let local = IpAddr::from([10, 0, 0, 1]);
        let remote = "10.0.0.2:7".parse().unwrap();
        let mut chosen = HashSet::new();
        for worker in 0..2 {
            let mut ports = Ports::new(worker, 2, 12345);
            let mut taken = HashSet::new();
            while let Some(tuple) = ports.choose(local, remote, |tuple| taken.contains(&tuple.local())) {
                assert_eq!(owner(toeplitz(&tuple), 2), worker);
                assert!(taken.insert(tuple.local()));
            }
            chosen.extend(taken);
        }
        assert_eq!(chosen.len(), RANGE.len());
    }
}
