//! Distribution of connections over workers by the hash of their addresses and ports.

use linerate_benches::distance::median;
use linerate_stack::{Tuple, owner, toeplitz};
use std::net::{Ipv4Addr, SocketAddr};

/// Numbers of workers, and of connections.
pub const WORKERS: [usize; 5] = [2, 8, 32, 96, 128];
const CONNECTIONS: [usize; 4] = [1_000, 10_000, 100_000, 1_000_000];
/// Sets of clients.
const SETS: u64 = 9;

/// Largest share of one worker at a number of connections.
pub struct Row {
    pub connections: usize,
    /// Median connections of the busiest worker, to the mean, for each of [`WORKERS`].
    pub busiest: [f64; WORKERS.len()],
}

/// Returns a row for each number of connections.
pub fn rows() -> Vec<Row> {
    CONNECTIONS
        .map(|connections| Row { connections, busiest: WORKERS.map(|workers| busiest(connections, workers)) })
        .into()
}

/// Returns the connections of the busiest of `workers`, to the mean, for clients with random addresses and ports.
fn busiest(connections: usize, workers: usize) -> f64 {
    let of_set = |seed| {
        let mut random = fastrand::Rng::with_seed(seed);
        let local: SocketAddr = (Ipv4Addr::new(10, 0, 0, 2), 7).into();
        let mut counts = vec![0_u32; workers];
        for _ in 0..connections {
            let remote = (Ipv4Addr::from_bits(random.u32(..)), random.u16(1024..));
            counts[owner(toeplitz(&Tuple::new(local, remote.into())), workers)] += 1;
        }
        let most = counts.iter().max().copied().unwrap_or_default();
        f64::from(most) * workers as f64 / connections as f64
    };
    median((0..SETS).map(of_set)).unwrap_or(f64::NAN)
}
