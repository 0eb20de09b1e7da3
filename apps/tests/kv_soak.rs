//! `kv serve` under pressure: with each policy, values of all sizes and short lives come and go in more numbers than there is
//! memory for. No client ever gets a value that is another's or was overwritten or is over, and memory has its bound.
//!
//! The environment's `SOAK_SECONDS` says how long it takes in all, if not eight seconds.

#[path = "kv_soak/churn.rs"]
mod churn;
#[allow(dead_code, reason = "other tests use the rest")]
mod common;
#[path = "../../benches/src/unused_address.rs"]
mod unused_address;

use churn::{Churn, Connection};
use common::{Server, run};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use unused_address::unused_address;

/// What the server is given where all keys go, and where only those go that expire.
const MEMORY: [u64; 2] = [128 << 20, 64 << 20];
/// How much more of it may be resident, in hundredths.
const RESIDENT: u64 = 130;
/// The longest load, so that sizes change.
const LOAD: Duration = Duration::from_secs(5);

/// Policies, and whether all keys go, or only those that expire.
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

/// Loads where all keys go, one after the other.
const LOADS: [&str; 4] = [
    "--keys 400000 --value-size 8-300 --depth 16",
    "--keys 9000 --value-size 8-64k --depth 4 --protocol memcached",
    "--keys 300 --value-size 500k-1000k",
    "--keys 100000 --value-size 8-4000 --depth 16 --zipf 0.6",
];
/// The one where only those go that expire, which these do not: they are few.
const FEW: [&str; 1] = ["--keys 1000 --value-size 8-10k --depth 4"];

/// Bytes that are resident of the process `pid`, in hugepages or not. The pages of its files are not among them, libraries and code,
/// which are the same whatever memory it is given.
fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let kilobytes = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        line.split_whitespace().next().map_or(0, |number| number.parse::<u64>().unwrap())
    };
    (kilobytes("RssAnon:") + kilobytes("RssShmem:") + kilobytes("HugetlbPages:")) << 10
}

/// Looks after the server's memory until `done`. Returns the most that was resident, and the most that it said was used.
fn watch(server: SocketAddr, pid: u32, memory: u64, done: &AtomicBool) -> (u64, u64) {
    let mut connection = Connection::new(server);
    let (mut most, mut most_used) = (0, 0);
    while !done.load(Ordering::Relaxed) {
        most = most.max(resident(pid));
        let used = connection.info("used_memory");
        assert!(used <= memory, "{used} bytes are used");
        most_used = most_used.max(used);
        thread::sleep(Duration::from_millis(10));
    }
    (most, most_used)
}

/// One policy, for so long.
fn soak(number: usize, time: Duration) {
    let (policy, all_go) = POLICIES[number];
    let memory = MEMORY[usize::from(!all_go)];
    let memcached = unused_address();
    let args = format!("--via kernel --listen 127.0.0.1:0 --memcached {memcached} --memory {memory} --evict {policy}");
    let mut server = Server::start("kv", &args);
    let pid = server.program.child().id();
    let words = server.ready.split([' ', ',']);
    let redis = words.filter_map(|word| word.parse().ok()).find(|address| *address != memcached).unwrap();
    let done = AtomicBool::new(false);
    let began = Instant::now();
    let (most, used, seen, evicted) = thread::scope(|scope| {
        let watching = scope.spawn(|| watch(redis, pid, memory, &done));
        let churns = [1, 2, 3].map(|name| {
            let done = &done;
            scope.spawn(move || Churn::new(redis, name, all_go).run(done))
        });
        let loads = if all_go { &LOADS[..] } else { &FEW[..] };
        // Where nothing goes, loads would be refused.
        for load in loads.iter().cycle().skip(number).take_while(|_| policy != "none" && began.elapsed() < time) {
            let address = if load.contains("memcached") { memcached } else { redis };
            let duration = (time / 4).min(LOAD).as_millis();
            let args = format!("--connect {address} --connections 4 --duration {duration}ms --get-ratio 0.5 {load}");
            let output = run(&format!("kv load --via kernel --verify --json {args}"));
            assert!(output.status.success(), "{policy}: {load}: {output:?}");
        }
        while began.elapsed() < time {
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
fn under_pressure_memory_has_its_bound_and_no_value_is_stale_or_foreign() {
    let seconds = std::env::var("SOAK_SECONDS").map_or(8, |text| text.parse().unwrap());
    (0..POLICIES.len()).for_each(|number| soak(number, Duration::from_secs(seconds) / POLICIES.len() as u32));
}
