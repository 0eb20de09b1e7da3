//! What a GET costs beside the network: nanoseconds by which keys are asked for, and what is fetched ahead.
//!
//! `cargo run --release -p linerate-kv --example store_gets -- [thousands of keys] [bytes of values] [hugepages]`

use linerate_bypass::arena::{Arena, ArenaConfig};
use linerate_kv::store::{Config, Evict, Expiry, From, Seen, Store, Str};
use std::hint::black_box;
use std::time::Instant;

/// Keys that are asked for together.
const BATCH: usize = 16;
/// Keys that are asked for in one measurement.
const ASKED: usize = 1 << 20;
const ROUNDS: usize = 7;

fn key(n: u32) -> [u8; 16] {
    let mut key = *b"key:000000000000";
    let mut rest = n;
    for digit in key.iter_mut().rev() {
        if rest == 0 {
            break;
        }
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    key
}

/// Keys of `count` by Zipf's law with the exponent `skew`, none of which has a neighbour that is as popular; 0 is all alike.
fn asked(count: usize, skew: f64) -> Vec<[u8; 16]> {
    let mut random = fastrand::Rng::with_seed(1);
    let mut sum = 0.0;
    let sums: Vec<f64> = (1..=count)
        .map(|rank| {
            sum += (rank as f64).powf(-skew);
            sum
        })
        .collect();
    let mut numbers: Vec<u32> = (0..count as u32).collect();
    random.shuffle(&mut numbers);
    let mut draw = || {
        let drawn = random.f64() * sum;
        numbers[sums.partition_point(|to| *to < drawn).min(count - 1)]
    };
    (0..ASKED).map(|_| key(draw())).collect()
}

#[derive(Clone, Copy)]
enum Ahead {
    Nothing,
    Index,
    Items,
}

/// Nanoseconds for each of `asked`.
#[inline(never)]
fn round(store: &mut Store, asked: &[[u8; 16]], ahead: Ahead, reply: &mut Vec<u8>) -> f64 {
    let start = Instant::now();
    let mut found = 0;
    for batch in asked.chunks_exact(BATCH) {
        let mut hashes = [0; BATCH];
        let mut seen = [Seen::default(); BATCH];
        for (hash, key) in hashes.iter_mut().zip(batch) {
            *hash = store.key(0, key).hash();
            if !matches!(ahead, Ahead::Nothing) {
                store.prefetch_index(*hash);
            }
        }
        if matches!(ahead, Ahead::Items) {
            hashes.iter().zip(&mut seen).for_each(|(hash, seen)| *seen = store.prefetch_item(*hash));
        }
        reply.clear();
        for ((hash, key), seen) in hashes.iter().zip(batch).zip(&seen) {
            let key = store.keys().known(0, key, *hash);
            if let Ok(Some(Str::Short(value))) = store.get_seen(&key, *seen, 10_000) {
                reply.extend_from_slice(value);
                found += 1;
            }
        }
        black_box(&reply);
    }
    assert!(found > asked.len() / 2, "{found} found");
    start.elapsed().as_nanos() as f64 / asked.len() as f64
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut number = |usual: usize| arguments.next().and_then(|it| it.parse().ok()).unwrap_or(usual);
    let (thousands, value) = (number(1000), number(64));
    let hugepages = arguments.next().is_some();
    let count = thousands * 1000;
    let memory = (count * (value + 64)).next_multiple_of(1 << 20);
    let arena = Arena::new(ArenaConfig { bytes: memory + (2 << 20), hugepages }).expect("memory");
    println!("{count} keys of 16 bytes, values of {value}, in {}", arena.backing());
    for evict in [Evict::Lru(From::All), Evict::Lfu(From::All)] {
        let config = Config { memory, evict, arena: arena.clone(), ..Config::new(1 << 20) };
        let mut store = Store::new(&config, 0);
        for n in 0..count as u32 {
            store.set(&store.key(0, &key(n)), &vec![7; value][..], Expiry::Never, 0).expect("room");
        }
        for (name, skew) in [("all alike", 0.0), ("zipf 0.99", 0.99)] {
            let asked = asked(count, skew);
            let mut reply = Vec::with_capacity(BATCH * value);
            let ways = [Ahead::Nothing, Ahead::Index, Ahead::Items];
            let mut best = ways.map(|_| f64::INFINITY);
            for _ in 0..ROUNDS {
                for (best, way) in best.iter_mut().zip(ways) {
                    *best = best.min(round(&mut store, &asked, way, &mut reply));
                }
            }
            let [nothing, index, items] = best;
            println!(
                "{evict:?}, {name}: ns a GET {nothing:6.1} with nothing fetched ahead, {index:6.1} with the index, {items:6.1} with items"
            );
        }
    }
}
