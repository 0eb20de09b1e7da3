//! Memory limit, checked after every call.

use super::*;

/// Largest values of each phase.
const MAX_LENS: [usize; 6] = [30, 1 << 20, 300, 20_000, 100, 3000];
const POLICIES: [&str; 8] = ["none", "lru", "lfu", "ttl", "random", "volatile-lru", "volatile-lfu", "volatile-random"];
/// Runs per policy and memory size, and calls per run.
const SEEDS: u64 = 2;
const CALLS: u64 = 60_000;

/// Returns the bytes of each part of a store.
fn parts(store: &Store) -> [(&'static str, usize); 6] {
    let parts = store.heap.arena.used();
    [
        ("parts", parts),
        ("pages", store.heap.used() - parts),
        ("index", store.index.bytes()),
        ("longs", store.longs.bytes()),
        ("tables", store.tables.bytes()),
        ("external", store.external_bytes),
    ]
}

/// Returns a size from 1 to `most`, uniform in its logarithm.
fn size(random: &mut fastrand::Rng, most: usize) -> usize {
    (most as f64).powf(random.f64()) as usize
}

/// Relative frequency of each call.
struct Mix {
    set: u8,
    hset: u8,
    hdel: u8,
    append: u8,
    set_range: u8,
    set_expiry: u8,
    remove: u8,
    tick: u8,
}

/// Mix of all calls, and mix of only sets and hash sets.
const MIXES: [Mix; 2] = [
    Mix { set: 9, hset: 4, hdel: 1, append: 1, set_range: 1, set_expiry: 1, remove: 1, tick: 1 },
    Mix { set: 18, hset: 4, hdel: 0, append: 0, set_range: 0, set_expiry: 0, remove: 0, tick: 0 },
];

/// Makes calls with values of changing sizes and checks the limit after each one.
fn churn(evict: EvictionPolicy, memory: usize, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let key = std::array::from_fn(|_| random.u8(..));
    let mut store = Store::new(&Config { evict, key, ..Config::new(memory) }, 0);
    let buffer = vec![0; 1 << 20];
    let keys = (memory / 64) as u32;
    let phases = random.u64(4..20);
    let mix = &MIXES[seed as usize % MIXES.len()];
    let kinds = [mix.set, mix.hset, mix.hdel, mix.append, mix.set_range, mix.set_expiry, mix.remove, mix.tick];
    let mut refused = 0;
    for n in 0..CALLS {
        let now = n / 100;
        let most = MAX_LENS[(n * phases / CALLS) as usize % MAX_LENS.len()].min(memory / 16);
        let name = random.u32(..keys).to_le_bytes();
        let len = size(&mut random, most);
        let expiry = [Expiry::Never, Expiry::Keep, Expiry::At(now + random.u64(1..20_000))][random.usize(..3)];
        let key = store.key(0, &name);
        // Hashes have their own keyspace, so that no string is under their keys. Some become large.
        let hash = store.key(1, if random.bool() { &name[..2] } else { &name[..1] });
        let mut drawn = random.u8(..kinds.iter().sum::<u8>());
        let value_type = kinds.iter().position(|share| {
            let is_it = drawn < *share;
            drawn = drawn.saturating_sub(*share);
            is_it
        });
        let before = parts(&store);
        let result = match value_type {
            Some(0) => store.set(&key, &buffer[..len], expiry, now),
            Some(1) => store.hset(&hash, &name, &buffer[..len.min(6000)], now).map(drop),
            Some(2) => store.hdel(&hash, &name, now).map(drop),
            Some(3) => store.append(&key, &buffer[..len], now).map(drop),
            Some(4) => store.set_range(&key, random.usize(..most), &buffer[..len], now).map(drop),
            Some(5) => store.set_expiry(&key, random.bool().then_some(now + 1000), now).map(drop),
            Some(6) => {
                store.remove(&key, now);
                Ok(())
            }
            _ => {
                store.tick(now, Store::TICK);
                Ok(())
            }
        };
        assert!(matches!(result, Ok(()) | Err(Error::Full)), "{result:?}");
        refused += u64::from(result.is_err());
        if n % (CALLS / 7) == CALLS / 7 - 1 {
            store.flush(n as u8 % 2);
        }
        assert!(
            store.used() <= memory,
            "{evict:?}, seed {seed}: call {n} of kind {value_type:?} with {len} bytes exceeds the limit by {} bytes ({result:?}):\n{before:?}\n{:?}",
            store.used() - memory,
            parts(&store)
        );
    }
    assert!(refused > 0 || store.counts().evicted > 0);
}

#[test]
fn no_call_exceeds_memory_limit() {
    for name in POLICIES {
        let evict = EvictionPolicy::from_name(name).unwrap();
        for memory in [1 << 20, 3 << 20, 16 << 20] {
            (0..SEEDS).for_each(|seed| churn(evict, memory, seed));
        }
    }
}

/// The first part in a chunk allocates the chunk's administration, which remains after the value is refused.
#[test]
fn refused_long_value_stays_within_memory_limit() {
    let mut refused = 0;
    // The steps are smaller than the administration of a chunk.
    for memory in (1 << 20..(1 << 20) + (80 << 10)).step_by(2 << 10) {
        let mut store = store(memory, EvictionPolicy::None);
        let mut stored = 0u32;
        while store.set(&store.key(0, &stored.to_le_bytes()), &[1; 100], Expiry::Never, 0).is_ok() {
            stored += 1;
        }
        refused += usize::from(store.set(&store.key(1, b"long"), &[2; LONG_THRESHOLD], Expiry::Never, 0).is_err());
        assert!(store.used() <= memory, "{} bytes of {memory}, {:?}", store.used(), parts(&store));
    }
    assert!(refused > 0);
}

#[test]
fn removal_never_increases_memory_in_use() {
    let mut store = store(16 << 20, EvictionPolicy::None);
    let mut stored = 0u32;
    while store.set(&store.key(0, &stored.to_le_bytes()), &[1; 4096], Expiry::Never, 0).is_ok() {
        stored += 1;
    }
    let mut used = store.used();
    assert!(stored > 3000);
    for n in 0..stored {
        assert!(store.remove(&store.key(0, &n.to_le_bytes()), 0));
        assert!(store.used() <= used, "{} bytes after {used}", store.used());
        used = store.used();
    }
}

/// Making room for the shrunk bucket must not evict the hash itself.
#[test]
fn hdel_does_not_evict_its_hash() {
    const HASHES: usize = 40;
    let mut store = store(32 << 20, EvictionPolicy::Random(Evictable::AllKeys));
    let mut random = fastrand::Rng::with_seed(3);
    let mut fields = [0u32; HASHES];
    for n in 0..100_000u32 {
        let which = random.usize(..HASHES);
        let name = [which as u8];
        let key = store.key(0, &name);
        let len = store.hlen(&key, 0).unwrap();
        if len == 0 {
            fields[which] = 0;
        }
        if random.u8(..5) < 3 {
            let field = fields[which].to_le_bytes();
            store.hset(&key, &field, &vec![1; random.usize(..1400)][..], 0).unwrap();
            fields[which] += 1;
        } else if len > 0 {
            // A bucket that lost half its bytes moves to a smaller slot.
            let field = random.u32(..fields[which]).to_le_bytes();
            let was_there = store.hdel(&key, &field, 0).unwrap();
            assert_eq!(store.hlen(&key, 0), Ok(len - usize::from(was_there)), "{n}");
        }
        // Few other items can be evicted.
        let name = random.u32(..2000).to_le_bytes();
        store.set(&store.key(1, &name), &vec![1; random.usize(..100_000)][..], Expiry::Never, 0).unwrap();
        assert!(store.used() <= 32 << 20);
    }
    assert!(store.counts().evicted > 1000);
}
