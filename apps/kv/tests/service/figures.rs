//! Figures of all workers: `DBSIZE`, `INFO` and `stats`, which wait for no shard.

use super::net::{Client, Host};
use super::{hosts, line, lines, request, says};
use linerate_bypass::time::Duration;

/// The figure `name` in the answer to `INFO` or `stats`.
#[track_caller]
fn figure(answer: &str, name: &str) -> u64 {
    let found = answer.lines().find_map(|line| {
        let line = line.strip_prefix("STAT ").unwrap_or(line);
        line.strip_prefix(name)?.strip_prefix([':', ' '])
    });
    found.unwrap_or_else(|| panic!("no {name} in {answer}")).parse().unwrap()
}

#[track_caller]
fn info(host: &mut Host, client: Client, name: &str) -> u64 {
    figure(&host.ask(client, &line("info")), name)
}

/// Three workers with nine keys. The shard of worker 1 is on its way to worker 0, which does not take it in yet.
fn host_with_a_lent_shard() -> (Host, Client) {
    let mut host = Host::new(3);
    let borrower = host.connect(0);
    let keys: Vec<String> = (0..9).map(|n| format!("set key{n} x")).collect();
    host.ask(borrower, &lines(&keys.iter().map(String::as_str).collect::<Vec<_>>()));
    host.lend_shard_of_worker_1(borrower, &line("keys *"));
    (host, borrower)
}

#[test]
fn figures_are_told_at_once_while_a_shard_is_lent() {
    for worker in [1, 2] {
        let (mut host, borrower) = host_with_a_lent_shard();
        let (client, memcached) = (host.connect(worker), host.connect_to_memcached(worker));
        // In its own turn: no other worker has a part in it.
        let mut at_once = |client, bytes: &[u8]| {
            host.send(client, bytes);
            host.turn_of(worker);
            String::from_utf8(host.received(client)).unwrap()
        };
        assert_eq!(at_once(client, &line("dbsize")), ":9\r\n");
        assert!(at_once(client, &line("info")).contains("\r\ndb0:keys=9,expires=0,avg_ttl=0\r\n"));
        assert_eq!(at_once(client, &line("config set timeout 9")), "+OK\r\n");
        assert_eq!(at_once(client, &line("config resetstat")), "+OK\r\n");
        assert_eq!(at_once(client, &lines(&["multi", "dbsize", "exec"])), "+OK\r\n+QUEUED\r\n*1\r\n:9\r\n");
        for stats in ["stats", "stats items", "stats slabs", "stats settings", "stats reset"] {
            let answer = at_once(memcached, format!("{stats}\r\n").as_bytes());
            assert!(answer.ends_with("END\r\n") || answer == "RESET\r\n", "{stats}: {answer}");
        }
        assert!(host.received(borrower).is_empty());
        host.settle();
        assert!(host.received(borrower).starts_with(b"*9\r\n"));
    }
}

#[test]
fn dbsize_is_exact_after_each_write_on_whatever_worker() {
    for workers in [1, 2, 4] {
        let mut host = Host::new(workers);
        let clients: Vec<Client> = (0..workers).map(|worker| host.connect(worker)).collect();
        let mut random = fastrand::Rng::with_seed(7);
        let mut keys = std::collections::HashSet::new();
        for step in 0..2000 {
            let key = random.u8(..60);
            let [one, other] = [(); 2].map(|()| clients[random.usize(..workers)]);
            let command = match random.u8(..20) {
                0 => {
                    keys.clear();
                    (*random.choice(&["flushall", "flushdb"]).unwrap()).to_owned()
                }
                1..=7 => {
                    keys.remove(&key);
                    format!("del k{key}")
                }
                8 => {
                    keys.insert(key);
                    format!("set k{key} x ex 1000")
                }
                _ => {
                    keys.insert(key);
                    format!("set k{key} x")
                }
            };
            // On the same connection without a wait in between, and on any other behind the reply.
            let size = format!(":{}\r\n", keys.len());
            let replies = host.ask(one, &[line(&command), line("dbsize")].concat());
            assert!(replies.ends_with(&size), "{step}: {command}: {replies}, not {size}");
            says(&mut host, other, "dbsize", &size);
        }
        says(&mut host, clients[0], "flushall", "+OK\r\n");
        says(&mut host, clients[workers - 1], "info keyspace", "$12\r\n# Keyspace\r\n\r\n");
    }
}

#[test]
fn keys_that_expire_leave_the_figures() {
    for mut host in hosts() {
        let client = host.connect(0);
        for n in 0..30 {
            let expires = if n < 20 { " px 50" } else { "" };
            says(&mut host, client, &format!("set k{n} x{expires}"), "+OK\r\n");
        }
        assert!(host.ask(client, &line("info keyspace")).contains("db0:keys=30,expires=20,"));
        for _ in 0..10 {
            host.pass(Duration::from_millis(20));
        }
        assert!(host.ask(client, &line("info keyspace")).contains("db0:keys=10,expires=0,"));
        says(&mut host, client, "dbsize", ":10\r\n");
        assert_eq!(info(&mut host, client, "expired_keys"), 20);
        let memcached = host.connect_to_memcached(0);
        assert_eq!(figure(&host.ask(memcached, b"stats\r\n"), "reclaimed"), 20);
        says(&mut host, client, "config resetstat", "+OK\r\n");
        assert_eq!(info(&mut host, client, "expired_keys"), 0);
    }
}

#[test]
fn evicted_keys_and_used_memory_are_those_of_all_shards() {
    for workers in [1, 2, 5] {
        let mut host = Host::with(workers, |settings| {
            settings.memory = 8 << 20;
            settings.evict = linerate_kv::store::EvictionPolicy::from_name("lru").unwrap();
        });
        let (client, memcached) = (host.connect(0), host.connect_to_memcached(workers - 1));
        let value = "x".repeat(3000);
        for n in 0..6000 {
            host.send(client, &request(&["set", &format!("k{n}"), &value]));
        }
        host.settle();
        host.pass(Duration::from_millis(20));
        let answer = host.ask(client, &line("info"));
        let size: u64 = host.ask(client, &line("dbsize"))[1..].trim_end().parse().unwrap();
        assert_eq!(figure(&answer, "evicted_keys"), 6000 - size);
        assert!((4 << 20..=8 << 20).contains(&figure(&answer, "used_memory")), "{answer}");
        let stats = host.ask(memcached, b"stats\r\n");
        let names = ["evictions", "bytes", "curr_items", "limit_maxbytes"];
        let expected = [6000 - size, figure(&answer, "used_memory"), 0, 8 << 20];
        assert_eq!(names.map(|name| figure(&stats, name)), expected);
        assert_eq!(host.ask(memcached, b"set a 0 0 1\r\n1\r\n"), "STORED\r\n");
        assert!(host.ask(memcached, b"stats items\r\n").starts_with("STAT items:1:number 1\r\n"));
        assert_eq!(host.ask(memcached, b"flush_all\r\n"), "OK\r\n");
        assert_eq!(host.ask(memcached, b"stats items\r\n"), "END\r\n");
        assert_eq!(host.ask(memcached, b"stats reset\r\n"), "RESET\r\n");
        assert_eq!(figure(&host.ask(memcached, b"stats\r\n"), "evictions"), 0);
    }
}

#[test]
fn dbsize_counts_no_less_than_its_connection_wrote_under_load() {
    const ROUNDS: u64 = 12;
    const KEYS: u64 = 20;
    let workers = 3;
    let mut host = Host::new(workers);
    let clients: Vec<Client> = (0..workers).map(|worker| host.connect(worker)).collect();
    host.run_on_threads(|worker, ask| {
        let client = clients[worker];
        for round in 1..=ROUNDS {
            // The keys are in the shards of all workers.
            let mut requests: Vec<String> = (0..KEYS).map(|n| format!("set {worker}:{round}:{n} x")).collect();
            requests.push("dbsize".to_owned());
            let requests: Vec<&str> = requests.iter().map(String::as_str).collect();
            let replies = ask(client, &lines(&requests), requests.len());
            let size: u64 = replies.lines().last().unwrap()[1..].parse().unwrap();
            assert!((round * KEYS..=ROUNDS * KEYS * workers as u64).contains(&size), "{size} in round {round}");
            // Borrows shards.
            let mget = format!("mget {worker}:{round}:0 {worker}:1:7 {worker}:1:8 none");
            let values = "$1\r\nx\r\n".repeat(3);
            assert_eq!(ask(client, &line(&mget), 8), format!("*4\r\n{values}$-1\r\n"));
        }
    });
    let all = ROUNDS * KEYS * workers as u64;
    clients.iter().for_each(|client| says(&mut host, *client, "dbsize", &format!(":{all}\r\n")));
}

#[test]
fn figures_count_from_0_at_once_after_a_reset_and_metrics_never_decrease() {
    for mut host in hosts() {
        let (client, memcached) = (host.connect(0), host.connect_to_memcached(0));
        let gets: Vec<u8> = (0..40).flat_map(|n| line(&format!("get k{n}"))).collect();
        host.ask(client, &gets);
        host.ask(memcached, b"get a b c\r\n");
        host.pass(Duration::from_millis(20));
        assert_eq!(info(&mut host, client, "keyspace_misses"), 40);
        // One that no worker has told yet.
        host.ask(client, &gets);
        let before = host.requests(0);
        says(&mut host, client, "config resetstat", "+OK\r\n");
        assert!(host.requests(0) > before);
        let after = host.ask(client, &line("info"));
        assert_eq!(figure(&after, "total_commands_processed"), 1);
        let names = ["keyspace_misses", "keyspace_hits", "total_error_replies", "total_connections_received"];
        assert_eq!(names.map(|name| figure(&after, name)), [0; 4]);
        assert!(figure(&after, "total_net_input_bytes") < 100, "{after}");
        host.ask(client, &line("get none"));
        host.ask(client, &line("nosuch"));
        host.pass(Duration::from_millis(20));
        let after = host.ask(client, &line("info"));
        assert_eq!(names.map(|name| figure(&after, name)), [1, 0, 1, 0]);
        // memcached's counts are reset with the others, and by themselves.
        assert_eq!(figure(&host.ask(memcached, b"stats\r\n"), "get_misses"), 0);
        host.ask(memcached, b"get a b\r\n");
        host.pass(Duration::from_millis(20));
        assert_eq!(figure(&host.ask(memcached, b"stats\r\n"), "get_misses"), 2);
        let before = host.requests(0);
        assert_eq!(host.ask(memcached, b"stats reset\r\n"), "RESET\r\n");
        assert_eq!(figure(&host.ask(memcached, b"stats\r\n"), "get_misses"), 0);
        assert_eq!(host.requests(0), before);
    }
}

#[test]
fn figures_of_another_worker_count_from_0_after_a_reset() {
    let mut host = Host::new(2);
    let clients = [host.connect(0), host.connect(1)];
    for round in 1..20 {
        // Some of these have not been told by the worker that counts them when the reset comes.
        clients.iter().for_each(|client| _ = host.ask(*client, &line("get none")));
        says(&mut host, clients[round % 2], "config resetstat", "+OK\r\n");
        host.pass(Duration::from_millis(20));
        assert_eq!(info(&mut host, clients[0], "keyspace_misses"), 0);
        clients.iter().for_each(|client| _ = host.ask(*client, &line("get none")));
        host.pass(Duration::from_millis(20));
        assert_eq!(info(&mut host, clients[1], "keyspace_misses"), 2);
    }
}
