//! Resident memory of a process whose store changes constantly, with values of all sizes, under every policy.
//!
//! Each policy runs for `LINERATE_SOAK_SECONDS`, 0.5 by default.

use linerate_bypass::arena::{Arena, ArenaConfig};
use linerate_harness::rerun::alone;
use linerate_kv::store::{Config, Error, EvictionPolicy, Expiry, Store};
use std::time::{Duration, Instant};

/// Memory limit.
const MEMORY: usize = 64 << 20;
/// Largest values of each phase.
const MAX_LENS: [usize; 6] = [30, 1 << 20, 300, 20_000, 100, 3000];

/// Returns the resident bytes of the process.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/status").expect("proc is mounted");
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<usize>().ok());
    kilobytes.expect("a number of kilobytes") << 10
}

/// Returns a size from 1 to `most`, uniform in its logarithm.
fn size(random: &mut fastrand::Rng, most: usize) -> usize {
    (most as f64).powf(random.f64()) as usize
}

/// Returns the byte that fills the value of `key` in `version`.
fn fill(key: u32, version: u8) -> u8 {
    (key as u8).wrapping_mul(31).wrapping_add(version)
}

fn churn(evict: EvictionPolicy, time: Duration) {
    let arena = Arena::new(ArenaConfig { bytes: MEMORY + (2 << 20), hugepages: false }).expect("memory");
    let mut store = Store::new(&Config { memory: MEMORY, evict, arena, ..Config::new(1 << 20) }, 0);
    let mut random = fastrand::Rng::with_seed(7);
    let buffer = vec![0; 1 << 20];
    let (mut versions, mut most) = (vec![0u8; 1_000_000], 0);
    let (start, mut n, mut refused) = (Instant::now(), 0u64, 0u64);
    let is_full = |store: &Store, refused| refused > 0 || store.counts().evicted > 0;
    while start.elapsed() < time || !is_full(&store, refused) {
        let phase = start.elapsed().as_millis() as usize * MAX_LENS.len() * 3 / (time.as_millis() as usize).max(1);
        for _ in 0..1000 {
            n += 1;
            let now = n / 100;
            let number = random.u32(..versions.len() as u32);
            let name = number.to_le_bytes();
            let key = store.key(0, &name);
            match random.u8(..16) {
                0..9 => {
                    let len = size(&mut random, MAX_LENS[phase % MAX_LENS.len()]);
                    let version = versions[number as usize].wrapping_add(1);
                    let mut value = buffer[..len].to_vec();
                    value.fill(fill(number, version));
                    let expiry = if n % 3 == 0 { Expiry::Never } else { Expiry::At(now + random.u64(1..20_000)) };
                    match store.set(&key, &value[..], expiry, now) {
                        Ok(()) => versions[number as usize] = version,
                        Err(error) => {
                            assert_eq!(error, Error::Full);
                            refused += 1;
                        }
                    }
                }
                9 if refused > 0 => _ = store.remove(&key, now),
                // Hashes have their own keyspace, so that no string is under their keys.
                9 | 10 => {
                    let key = store.key(1, &name[..2]);
                    let len = size(&mut random, 5000);
                    match store.hset(&key, &name, &buffer[..len], now) {
                        Ok(_) | Err(Error::Full) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
                _ => {
                    if let Some(value) = store.get(&key, now).expect("a string") {
                        let fill = fill(number, versions[number as usize]);
                        assert!(value.to_vec().iter().all(|byte| *byte == fill), "{number} has bytes of another key");
                    }
                }
            }
            if n % 64 == 0 {
                store.tick(now, Store::TICK);
            }
        }
        if n % 500_000 == 0 {
            store.flush(1);
        }
        most = most.max(resident());
        assert!(store.used() <= MEMORY, "{evict:?}: {} bytes in use", store.used());
        assert!(most <= MEMORY / 10 * 13, "{evict:?}: {most} bytes resident in phase {phase}, {} in use", store.used());
    }
    let percent = most as f64 / MEMORY as f64 * 100.0;
    println!(
        "{evict:?}: {percent:.0} % of the limit resident at most, {n} calls, {refused} refused, {:?}",
        store.counts()
    );
    assert!(store.counts().expired > 0);
}

#[test]
fn resident_memory_stays_near_limit() {
    let seconds = std::env::var("LINERATE_SOAK_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(0.5);
    // In a process of its own, whose memory no other test uses.
    alone(|| {
        for name in ["none", "lru", "lfu", "ttl", "random", "volatile-lru", "volatile-lfu", "volatile-random"] {
            churn(EvictionPolicy::from_name(name).expect("a policy"), Duration::from_secs_f64(seconds));
        }
    });
}
