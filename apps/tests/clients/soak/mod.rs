//! `kv serve` under memory pressure: with each policy, values of all sizes and lifetimes exceed the memory. No client
//! receives a value of another key, an overwritten value or an expired one, and memory stays bounded.
//!
//! `SOAK_SECONDS` sets the total time [default: 8].

mod churn;

use crate::common::{process_status, run, serve};
use churn::{Churn, Connection};
use linerate_harness::address::unused_address;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Memory of the server, with eviction of all keys and with eviction of expiring keys only.
const MEMORY: [u64; 2] = [128 << 20, 64 << 20];
/// Limit of resident memory, in percent of the configured memory.
const RESIDENT: u64 = 130;
/// Maximum duration of a load, so that sizes change.
const MAX_LOAD_TIME: Duration = Duration::from_secs(5);

/// Policies, and whether they evict all keys or only expiring ones.
const POLICIES: [(&str, bool); 8] = [
    ("lru", true),
    ("lfu", true),
    ("random", true),
    ("ttl", false),
    ("volatile-lru", false),
    ("volatile-lfu", false),
    ("volatile-random", false),
    ("none", false),
];

/// Loads with eviction of all keys, run in sequence.
const LOADS: [&str; 4] = [
    "--keys 400000 --value-size 8-300 --depth 16",
    "--keys 9000 --value-size 8-64k --depth 4 --protocol memcached",
    "--keys 300 --value-size 500k-1000k",
    "--keys 100000 --value-size 8-4000 --depth 16 --zipf 0.6",
];
/// Load with eviction of expiring keys only. Its few keys do not expire.
const FEW: [&str; 1] = ["--keys 1000 --value-size 8-10k --depth 4"];

/// Returns the resident bytes of process `pid`, including hugepages. File pages of libraries and code are excluded:
/// they do not depend on the configured memory.
fn resident(pid: u32) -> u64 {
    // A kernel without hugepages has no such line.
    let kilobytes =
        ["RssAnon:", "RssShmem:", "HugetlbPages:"].map(|name| process_status(pid, name).parse().unwrap_or(0));
    kilobytes.iter().sum::<u64>() << 10
}

/// Monitors the memory of the server until `done`. Returns the maxima of resident and of used memory.
fn watch(server: SocketAddr, pid: u32, memory: u64, done: &AtomicBool) -> (u64, u64) {
    let mut connection = Connection::new(server);
    let (mut max_resident, mut max_used) = (0, 0);
    while !done.load(Ordering::Relaxed) {
        max_resident = max_resident.max(resident(pid));
        let used = connection.info("used_memory");
        assert!(used <= memory, "{used} bytes are used");
        max_used = max_used.max(used);
        thread::sleep(Duration::from_millis(10));
    }
    (max_resident, max_used)
}

/// Tests one policy for this time.
fn soak(number: usize, time: Duration) {
    let (policy, evicts_all) = POLICIES[number];
    let memory = MEMORY[usize::from(!evicts_all)];
    let memcached = unused_address();
    let args = format!("--via kernel --listen 127.0.0.1:0 --memcached {memcached} --memory {memory} --evict {policy}");
    let server = serve("kv", &args);
    let pid = server.pid();
    let words = server.ready.split([' ', ',']);
    let redis = words.filter_map(|word| word.parse().ok()).find(|address| *address != memcached).unwrap();
    let done = AtomicBool::new(false);
    let started = Instant::now();
    let (most, used, seen, evicted) = thread::scope(|scope| {
        let watching = scope.spawn(|| watch(redis, pid, memory, &done));
        let churns = [1, 2, 3].map(|name| {
            let done = &done;
            scope.spawn(move || Churn::new(redis, name, evicts_all).run(done))
        });
        let loads = if evicts_all { &LOADS[..] } else { &FEW[..] };
        // Without eviction, loads would be refused.
        for load in loads.iter().cycle().skip(number).take_while(|_| policy != "none" && started.elapsed() < time) {
            let address = if load.contains("memcached") { memcached } else { redis };
            let duration = (time / 4).min(MAX_LOAD_TIME).as_millis();
            let args = format!("--connect {address} --connections 4 --duration {duration}ms --get-ratio 0.5 {load}");
            let output = run(&format!("kv load --via kernel --verify --json {args}"));
            assert!(output.status.success(), "{policy}: {load}: {output:?}");
        }
        while started.elapsed() < time {
            thread::sleep(Duration::from_millis(10));
        }
        done.store(true, Ordering::Relaxed);
        let seen: u64 = churns.into_iter().map(|churn| churn.join().unwrap()).sum();
        let (most, used) = watching.join().unwrap();
        (most, used, seen, Connection::new(redis).info("evicted_keys"))
    });
    eprintln!(
        "{policy}: {seen} values seen, {evicted} keys evicted, {:.3} of the memory used, {:.3} resident",
        used as f64 / memory as f64,
        most as f64 / memory as f64
    );
    assert!(seen > 0 && most * 100 <= memory * RESIDENT, "{policy}: {most} bytes are resident");
    assert!(server.stop().status.success());
}

#[test]
fn memory_is_bounded_and_values_are_current_under_pressure() {
    let seconds = std::env::var("SOAK_SECONDS").map_or(8, |text| text.parse().unwrap());
    (0..POLICIES.len()).for_each(|number| soak(number, Duration::from_secs(seconds) / POLICIES.len() as u32));
}
