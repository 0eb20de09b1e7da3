//! The bound of memory, looked at after every single call.

use super::*;

/// Sizes that values have for a while, as the most of each.
const MOST: [usize; 6] = [30, 1 << 20, 300, 20_000, 100, 3000];
const POLICIES: [&str; 8] = ["none", "lru", "lfu", "ttl", "random", "volatile-lru", "volatile-lfu", "volatile-random"];
/// Runs by each policy and memory, and calls of a run.
const SEEDS: u64 = 2;
const CALLS: u64 = 60_000;

/// What a store's memory is in.
fn parts(store: &Store) -> [(&'static str, usize); 6] {
    let pieces = store.heap.pieces.used();
    [
        ("pieces", pieces),
        ("pages", store.heap.used() - pieces),
        ("index", store.index.bytes()),
        ("longs", store.longs.bytes()),
        ("tables", store.tables.bytes()),
        ("beside", store.beside),
    ]
}

/// From 1 to `most`, as many of each order of magnitude.
fn size(random: &mut fastrand::Rng, most: usize) -> usize {
    (most as f64).powf(random.f64()) as usize
}

/// How often each of the calls is made, among so many.
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

/// Mixes with many kinds of calls, and with little but values and hashes that come.
const MIXES: [Mix; 2] = [
    Mix { set: 9, hset: 4, hdel: 1, append: 1, set_range: 1, set_expiry: 1, remove: 1, tick: 1 },
    Mix { set: 18, hset: 4, hdel: 0, append: 0, set_range: 0, set_expiry: 0, remove: 0, tick: 0 },
];

/// Makes calls in phases of their own sizes, and sees that none takes the store beyond the bound.
fn churn(evict: Evict, memory: usize, seed: u64) {
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
        let most = MOST[(n * phases / CALLS) as usize % MOST.len()].min(memory / 16);
        let name = random.u32(..keys).to_le_bytes();
        let len = size(&mut random, most);
        let expiry = [Expiry::Never, Expiry::Keep, Expiry::At(now + random.u64(1..20_000))][random.usize(..3)];
        let key = store.key(0, &name);
        // A hash in a space of its own, so that nothing else is under its key; some become large.
        let hash = store.key(1, if random.bool() { &name[..2] } else { &name[..1] });
        let mut drawn = random.u8(..kinds.iter().sum::<u8>());
        let kind = kinds.iter().position(|share| {
            let is_it = drawn < *share;
            drawn = drawn.saturating_sub(*share);
            is_it
        });
        let before = parts(&store);
        let result = match kind {
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
            "{evict:?}, seed {seed}: the {n}th call, of kind {kind:?} and {len} bytes, is {} bytes over ({result:?}):\n{before:?}\n{:?}",
            store.used() - memory,
            parts(&store)
        );
    }
    assert!(refused > 0 || store.counts().evicted > 0);
}

#[test]
fn no_call_takes_more_than_the_bound() {
    for name in POLICIES {
        let evict = Evict::named(name).unwrap();
        for memory in [1 << 20, 3 << 20, 16 << 20] {
            (0..SEEDS).for_each(|seed| churn(evict, memory, seed));
        }
    }
}

/// The first piece in a chunk needs that there is something to be known of pieces, which stays when the value is refused.
#[test]
fn a_long_value_that_is_refused_does_not_leave_more_than_the_bound() {
    let mut refused = 0;
    // In steps of less than what is to be known of a chunk's pieces.
    for memory in (1 << 20..(1 << 20) + (80 << 10)).step_by(2 << 10) {
        let mut store = store(memory, Evict::None);
        let mut kept = 0u32;
        while store.set(&store.key(0, &kept.to_le_bytes()), &[1; 100], Expiry::Never, 0).is_ok() {
            kept += 1;
        }
        refused += usize::from(store.set(&store.key(1, b"long"), &[2; LONG], Expiry::Never, 0).is_err());
        assert!(store.used() <= memory, "{} bytes of {memory}, {:?}", store.used(), parts(&store));
    }
    assert!(refused > 0);
}

#[test]
fn values_that_go_take_no_memory_for_that() {
    let mut store = store(16 << 20, Evict::None);
    let mut kept = 0u32;
    while store.set(&store.key(0, &kept.to_le_bytes()), &[1; 4096], Expiry::Never, 0).is_ok() {
        kept += 1;
    }
    let mut used = store.used();
    assert!(kept > 3000);
    for n in 0..kept {
        assert!(store.remove(&store.key(0, &n.to_le_bytes()), 0));
        assert!(store.used() <= used, "{} bytes after {used}", store.used());
        used = store.used();
    }
}

/// What a field is taken out of does not go for the room that its bucket needs meanwhile.
#[test]
fn a_hash_that_loses_fields_is_not_evicted_for_it() {
    const HASHES: usize = 40;
    let mut store = store(32 << 20, Evict::Random(From::All));
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
            // A bucket that has lost half its bytes is put into a smaller place.
            let field = random.u32(..fields[which]).to_le_bytes();
            let was_there = store.hdel(&key, &field, 0).unwrap();
            assert_eq!(store.hlen(&key, 0), Ok(len - usize::from(was_there)), "{n}");
        }
        // Few others are there that may go.
        let name = random.u32(..2000).to_le_bytes();
        store.set(&store.key(1, &name), &vec![1; random.usize(..100_000)][..], Expiry::Never, 0).unwrap();
        assert!(store.used() <= 32 << 20);
    }
    assert!(store.counts().evicted > 1000);
}
