//! Totals over all workers: `DBSIZE`, `INFO` and `stats`, which wait for no shard.

use super::net::{Client, TestServer};
use super::{expect_reply, line, lines, servers};
use crate::request;
use linerate_service::time::Duration;

/// Returns the value `name` in the reply to `INFO` or `stats`.
#[track_caller]
fn total(answer: &str, name: &str) -> u64 {
    let found = answer.lines().find_map(|line| {
        let line = line.strip_prefix("STAT ").unwrap_or(line);
        line.strip_prefix(name)?.strip_prefix([':', ' '])
    });
    found.unwrap_or_else(|| panic!("no {name} in {answer}")).parse().unwrap()
}

#[track_caller]
fn info(server: &mut TestServer, client: Client, name: &str) -> u64 {
    total(&server.call(client, &line("info")), name)
}

/// Returns three workers with nine keys. The shard of worker 1 is on its way to worker 0.
fn server_with_a_lent_shard() -> (TestServer, Client) {
    let mut server = TestServer::new(3);
    let borrower = server.connect(0);
    let keys: Vec<String> = (0..9).map(|n| format!("set key{n} x")).collect();
    server.call(borrower, &lines(&keys));
    server.lend_shard_of_worker_1(borrower, &line("keys *"));
    (server, borrower)
}

#[test]
fn totals_are_reported_at_once_while_a_shard_is_lent() {
    for worker in [1, 2] {
        let (mut server, borrower) = server_with_a_lent_shard();
        let (client, memcached) = (server.connect(worker), server.connect_to_memcached(worker));
        // Without any other worker. On a busy machine a short request can take long, which ends a turn of its client.
        let mut at_once = |client, bytes: &[u8]| {
            server.send(client, bytes);
            (0..16).for_each(|_| server.turn_of(worker));
            String::from_utf8(server.received(client)).unwrap()
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
        assert!(server.received(borrower).is_empty());
        server.settle();
        assert!(server.received(borrower).starts_with(b"*9\r\n"));
    }
}

#[test]
fn dbsize_is_exact_after_each_write_on_any_worker() {
    for workers in [1, 2, 4] {
        let mut server = TestServer::new(workers);
        let clients: Vec<Client> = (0..workers).map(|worker| server.connect(worker)).collect();
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
            // On the same connection in a pipeline, and on any other one after the reply.
            let size = format!(":{}\r\n", keys.len());
            let replies = server.call(one, &[line(&command), line("dbsize")].concat());
            assert!(replies.ends_with(&size), "{step}: {command}: {replies}, not {size}");
            expect_reply(&mut server, other, "dbsize", &size);
        }
        expect_reply(&mut server, clients[0], "flushall", "+OK\r\n");
        expect_reply(&mut server, clients[workers - 1], "info keyspace", "$12\r\n# Keyspace\r\n\r\n");
    }
}

#[test]
fn expired_keys_leave_the_totals() {
    for mut server in servers() {
        let client = server.connect(0);
        for n in 0..30 {
            let expires = if n < 20 { " px 50" } else { "" };
            expect_reply(&mut server, client, &format!("set k{n} x{expires}"), "+OK\r\n");
        }
        assert!(server.call(client, &line("info keyspace")).contains("db0:keys=30,expires=20,"));
        for _ in 0..10 {
            server.pass(Duration::from_millis(20));
        }
        assert!(server.call(client, &line("info keyspace")).contains("db0:keys=10,expires=0,"));
        expect_reply(&mut server, client, "dbsize", ":10\r\n");
        assert_eq!(info(&mut server, client, "expired_keys"), 20);
        let memcached = server.connect_to_memcached(0);
        assert_eq!(total(&server.call(memcached, b"stats\r\n"), "reclaimed"), 20);
        expect_reply(&mut server, client, "config resetstat", "+OK\r\n");
        assert_eq!(info(&mut server, client, "expired_keys"), 0);
    }
}

#[test]
fn evictions_and_memory_are_totals_of_all_shards() {
    for workers in [1, 2, 5] {
        let mut server = TestServer::with(workers, |settings| {
            settings.memory = 8 << 20;
            settings.evict = linerate_kv::store::EvictionPolicy::from_name("lru").unwrap();
        });
        let (client, memcached) = (server.connect(0), server.connect_to_memcached(workers - 1));
        let value = "x".repeat(3000);
        for n in 0..6000 {
            server.send(client, &request(&["set", &format!("k{n}"), &value]));
        }
        server.settle();
        server.pass(Duration::from_millis(20));
        let answer = server.call(client, &line("info"));
        let size: u64 = server.call(client, &line("dbsize"))[1..].trim_end().parse().unwrap();
        assert_eq!(total(&answer, "evicted_keys"), 6000 - size);
        assert!((4 << 20..=8 << 20).contains(&total(&answer, "used_memory")), "{answer}");
        let stats = server.call(memcached, b"stats\r\n");
        let names = ["evictions", "bytes", "curr_items", "limit_maxbytes"];
        let expected = [6000 - size, total(&answer, "used_memory"), 0, 8 << 20];
        assert_eq!(names.map(|name| total(&stats, name)), expected);
        assert_eq!(server.call(memcached, b"set a 0 0 1\r\n1\r\n"), "STORED\r\n");
        assert!(server.call(memcached, b"stats items\r\n").starts_with("STAT items:1:number 1\r\n"));
        assert_eq!(server.call(memcached, b"flush_all\r\n"), "OK\r\n");
        assert_eq!(server.call(memcached, b"stats items\r\n"), "END\r\n");
        assert_eq!(server.call(memcached, b"stats reset\r\n"), "RESET\r\n");
        assert_eq!(total(&server.call(memcached, b"stats\r\n"), "evictions"), 0);
    }
}

#[test]
fn dbsize_under_load_includes_all_earlier_writes_of_its_connection() {
    const ROUNDS: u64 = 12;
    const KEYS: u64 = 20;
    let workers = 3;
    let mut server = TestServer::new(workers);
    let clients: Vec<Client> = (0..workers).map(|worker| server.connect(worker)).collect();
    server.run_on_threads(|worker, call| {
        let client = clients[worker];
        for round in 1..=ROUNDS {
            // The keys are in the shards of all workers.
            let mut requests: Vec<String> = (0..KEYS).map(|n| format!("set {worker}:{round}:{n} x")).collect();
            requests.push("dbsize".to_owned());
            let replies = call(client, &lines(&requests), requests.len());
            let size: u64 = replies.lines().last().unwrap()[1..].parse().unwrap();
            assert!((round * KEYS..=ROUNDS * KEYS * workers as u64).contains(&size), "{size} in round {round}");
            // MGET of keys in two shards borrows them.
            let mget = format!("mget {worker}:{round}:0 {worker}:1:7 {worker}:1:8 none");
            let values = "$1\r\nx\r\n".repeat(3);
            assert_eq!(call(client, &line(&mget), 8), format!("*4\r\n{values}$-1\r\n"));
        }
    });
    let all = ROUNDS * KEYS * workers as u64;
    clients.iter().for_each(|client| expect_reply(&mut server, *client, "dbsize", &format!(":{all}\r\n")));
}

#[test]
fn totals_restart_at_0_after_reset_and_metrics_never_decrease() {
    for mut server in servers() {
        let (client, memcached) = (server.connect(0), server.connect_to_memcached(0));
        let gets: Vec<u8> = (0..40).flat_map(|n| line(&format!("get k{n}"))).collect();
        server.call(client, &gets);
        server.call(memcached, b"get a b c\r\n");
        server.pass(Duration::from_millis(20));
        assert_eq!(info(&mut server, client, "keyspace_misses"), 40);
        // Counts that are not published yet.
        server.call(client, &gets);
        let before = server.requests(0);
        expect_reply(&mut server, client, "config resetstat", "+OK\r\n");
        assert!(server.requests(0) > before);
        let after = server.call(client, &line("info"));
        assert_eq!(total(&after, "total_commands_processed"), 1);
        let names = ["keyspace_misses", "keyspace_hits", "total_error_replies", "total_connections_received"];
        assert_eq!(names.map(|name| total(&after, name)), [0; 4]);
        assert!(total(&after, "total_net_input_bytes") < 100, "{after}");
        server.call(client, &line("get none"));
        server.call(client, &line("nosuch"));
        server.pass(Duration::from_millis(20));
        let after = server.call(client, &line("info"));
        assert_eq!(names.map(|name| total(&after, name)), [1, 0, 1, 0]);
        // The counters of memcached are reset together with the others, or alone.
        assert_eq!(total(&server.call(memcached, b"stats\r\n"), "get_misses"), 0);
        server.call(memcached, b"get a b\r\n");
        server.pass(Duration::from_millis(20));
        assert_eq!(total(&server.call(memcached, b"stats\r\n"), "get_misses"), 2);
        let before = server.requests(0);
        assert_eq!(server.call(memcached, b"stats reset\r\n"), "RESET\r\n");
        assert_eq!(total(&server.call(memcached, b"stats\r\n"), "get_misses"), 0);
        assert_eq!(server.requests(0), before);
    }
}

#[test]
fn stats_count_each_earlier_command_of_any_worker() {
    for workers in [1, 2, 3] {
        let mut server = TestServer::new(workers);
        let clients: Vec<Client> = (0..workers).map(|worker| server.connect_to_memcached(worker)).collect();
        for round in 1..=20u64 {
            // The key may belong to any worker.
            let key = format!("key{round}");
            let client = clients[round as usize % workers];
            assert_eq!(server.call(client, format!("set {key} 0 0 1\r\nx\r\n").as_bytes()), "STORED\r\n");
            assert!(server.call(client, format!("get {key}\r\n").as_bytes()).starts_with("VALUE"));
            for other in &clients {
                let stats = server.call(*other, b"stats\r\n");
                assert_eq!(["cmd_set", "get_hits"].map(|name| total(&stats, name)), [round; 2], "{workers} workers");
            }
        }
    }
}

#[test]
fn totals_of_other_worker_restart_at_0_after_reset() {
    let mut server = TestServer::new(2);
    let clients = [server.connect(0), server.connect(1)];
    for round in 1..20 {
        // Some of these counts are not published when the reset comes.
        clients.iter().for_each(|client| _ = server.call(*client, &line("get none")));
        expect_reply(&mut server, clients[round % 2], "config resetstat", "+OK\r\n");
        server.pass(Duration::from_millis(20));
        assert_eq!(info(&mut server, clients[0], "keyspace_misses"), 0);
        clients.iter().for_each(|client| _ = server.call(*client, &line("get none")));
        server.pass(Duration::from_millis(20));
        assert_eq!(info(&mut server, clients[1], "keyspace_misses"), 2);
    }
}

#[test]
fn latency_of_one_burst_in_sixteen_is_counted() {
    for workers in [1, 2] {
        let mut server = TestServer::new(workers);
        let client = server.connect(0);
        let keys = (0..9).map(|n| format!("incr key{n}")).collect::<Vec<_>>();
        let requests = lines(&keys);
        let count = |server: &TestServer| server.metric(0, "latency", "+Inf").unwrap();
        assert_eq!((count(&server), server.metric(0, "latency sum", "")), (0, Some(0)));
        // Also the requests for another worker, which reply after the burst.
        (0..32).for_each(|_| _ = server.call(client, &requests));
        assert_eq!(count(&server), 2 * 9, "{workers}");
        assert!(server.metric(0, "latency sum", "").unwrap() > 0);
        assert!(server.metric(0, "latency", "5.12e-07").unwrap() <= count(&server));
    }
}
