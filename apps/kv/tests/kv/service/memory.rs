//! Memory of clients and its limit (`maxmemory-clients`).

use super::net::{Client, TestServer};
use super::{expect_reply, line, lines};
use crate::request;
use linerate_kv::cluster::ClusterMap;
use linerate_service::time::Duration;

/// Limit of all clients.
const LIMIT: u64 = 4 << 20;
/// Each client holds this much and up to twice as much.
const LEAST: u64 = 500_000;
const CLIENTS: usize = 12;

/// Returns the memory of the clients of all workers.
fn held(server: &TestServer, workers: usize) -> u64 {
    (0..workers).map(|worker| server.metric(worker, "client memory", "").unwrap()).sum()
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("{n:0>1000}")).collect()
}

/// Returns a request of `words` and `names`.
fn request_with(words: &[&str], names: &[String]) -> Vec<u8> {
    request(&words.iter().copied().chain(names.iter().map(String::as_str)).collect::<Vec<_>>())
}

/// Sends requests after which `client` holds memory.
type Hold = fn(&mut TestServer, Client);

const HOLDS: [(&str, Hold); 6] = [
    ("incomplete request", |server, client| {
        let whole = request_with(&["mget"], &names(500));
        server.send(client, &whole[..whole.len() - 1]);
    }),
    ("short arguments of an incomplete request", |server, client| {
        let whole = request(&["mget"].into_iter().chain(std::iter::repeat_n("", 30_000)).collect::<Vec<_>>());
        server.send(client, &whole[..whole.len() - 1]);
    }),
    ("transaction", |server, client| {
        server.send(client, &line("multi"));
        server.send(client, &request_with(&["del"], &names(500)));
    }),
    ("watched keys", |server, client| server.send(client, &request_with(&["watch"], &names(500)))),
    ("unread replies", |server, client| {
        server.set_room(client, 0);
        (0..200).for_each(|_| server.send(client, &line("get key")));
    }),
    ("request that waits for the end of a pause", |server, client| {
        server.send(client, &request_with(&["del"], &names(500)));
    }),
];

#[test]
fn clients_are_disconnected_when_all_together_exceed_memory_limit() {
    for workers in [1, 3] {
        for (name, hold) in HOLDS {
            let mut server = TestServer::with(workers, |settings| settings.client_memory = LIMIT);
            let other = server.connect(0);
            expect_reply(&mut server, other, &format!("set key {}", "x".repeat(3000)), "+OK\r\n");
            if name.contains("pause") {
                expect_reply(&mut server, other, "client pause 1000000 write", "+OK\r\n");
            }
            let mut clients = Vec::new();
            for n in 0..CLIENTS {
                let client = server.connect(n % workers);
                clients.push(client);
                let before = held(&server, workers);
                hold(&mut server, client);
                server.settle();
                server.pass(Duration::from_millis(2));
                let now = held(&server, workers);
                let is_first = n < workers;
                assert!(!is_first || (before + LEAST..before + 2 * LEAST).contains(&now), "{name}: {before} to {now}");
                assert!(now <= LIMIT, "{name}: {now} bytes of {n} clients");
            }
            let aborted = clients.iter().filter(|client| server.end(**client).is_aborted).count();
            assert!((4..=8).contains(&aborted), "{name}: {aborted} clients disconnected");
            assert!(!server.end(other).is_aborted);
            let evicted: u64 = (0..workers).map(|worker| server.metric(worker, "evicted clients", "").unwrap()).sum();
            assert_eq!(evicted, aborted as u64);
            server.pass(Duration::from_millis(2));
            let info = server.call(other, &line("info stats"));
            assert!(info.contains(&format!("\r\nevicted_clients:{aborted}\r\n")), "{name}: {info}");
            clients.into_iter().for_each(|client| server.lose(client));
            server.settle();
            assert_eq!(held(&server, workers), 0, "{name}");
        }
    }
}

#[test]
fn client_with_most_memory_is_disconnected_first() {
    let mut server = TestServer::with(1, |settings| settings.client_memory = LIMIT);
    let clients: Vec<Client> = (0..3).map(|_| server.connect(0)).collect();
    for (client, count) in clients.iter().zip([500, 2000, 500]) {
        server.call(*client, &lines(&["multi"]));
        server.call(*client, &request_with(&["del"], &names(count)));
    }
    assert!(held(&server, 1) < LIMIT);
    server.call(clients[0], &request_with(&["del"], &names(1400)));
    assert_eq!(clients.iter().map(|client| server.end(*client).is_aborted).collect::<Vec<_>>(), [false, true, false]);
    assert_eq!(server.call(clients[0], &line("discard")), "+OK\r\n");
}

#[test]
fn limit_of_zero_and_later_changes_apply() {
    let mut server = TestServer::with(1, |settings| settings.client_memory = 0);
    let [client, operator] = [(); 2].map(|()| server.connect(0));
    server.send(client, &line("multi"));
    (0..3).for_each(|_| server.send(client, &request_with(&["del"], &names(2000))));
    server.settle();
    assert!(held(&server, 1) > LIMIT);
    expect_reply(&mut server, operator, "config set maxmemory-clients 4mb", "+OK\r\n");
    server.pass(Duration::from_millis(2));
    // The next turn of any client applies the limit.
    expect_reply(&mut server, operator, "ping", "+PONG\r\n");
    assert!(server.end(client).is_aborted);
    assert_eq!(held(&server, 1), 0);
}

#[test]
fn requests_to_other_workers_count_until_they_return() {
    let mut server = TestServer::new(2);
    let client = server.connect(0);
    // Some of the keys belong to the other worker.
    for key in 'a'..'q' {
        let fields: Vec<String> = std::iter::once(key.to_string()).chain(names(200)).collect();
        server.send(client, &request_with(&["hmget"], &fields));
    }
    let mut most = 0;
    for _ in 0..200 {
        server.turn_of(0);
        most = most.max(held(&server, 1));
        server.turn_of(1);
    }
    server.settle();
    assert!(most > 200_000, "{most}");
    assert_eq!(held(&server, 1), 0);
    // The list of clients, too.
    (0..100).for_each(|_| _ = server.connect(0));
    server.send(client, &line("client list"));
    server.turn_of(0);
    assert!(held(&server, 1) > 10_000);
    server.settle();
    assert_eq!(held(&server, 1), 0);
}

/// Commands that run in steps, and the least memory that they take meanwhile.
const IN_STEPS: [(&str, u64); 9] = [
    ("keys *", 400_000),
    ("hgetall h", 400_000),
    ("hkeys h", 400_000),
    ("hvals h", 300_000),
    ("bitop or to zeros {short}", 150_000),
    ("bitcount zeros", 4_096),
    ("bitpos zeros 1", 4_096),
    ("watch {short}", 1_200_000),
    ("cluster getkeysinslot 11694 1000000", 400_000),
];

/// Returns a server with 20 000 keys, a hash with as many fields, and a long value.
fn server_with_keys(map: Option<ClusterMap>) -> (TestServer, Client) {
    let mut server = map.map_or_else(|| TestServer::new(1), TestServer::in_cluster);
    let client = server.connect(0);
    assert_eq!(server.call(client, &request(&["set", "zeros", &"\0".repeat(6 << 20)])), "+OK\r\n");
    for first in (0..20_000).step_by(1000) {
        let numbers = first..first + 1000;
        let keys: Vec<String> = numbers.clone().flat_map(|n| [format!("{{h}}{n:0>60}"), "x".to_owned()]).collect();
        assert_eq!(server.call(client, &request_with(&["mset"], &keys)), "+OK\r\n");
        let fields: Vec<String> = numbers.flat_map(|n| [format!("{n:0>30}"), format!("{n:0>30}")]).collect();
        assert_eq!(server.call(client, &request_with(&["hset", "h"], &fields)), ":1000\r\n");
    }
    (server, client)
}

/// Runs `command` in steps with the limit `client_memory`. Returns the largest memory of its client, and whether it was
/// disconnected.
fn run_in_steps(server: &mut TestServer, other: Client, command: &str, client_memory: u64) -> (u64, bool) {
    expect_reply(server, other, &format!("config set maxmemory-clients {client_memory}"), "+OK\r\n");
    server.pass(Duration::from_millis(2));
    let client = server.connect(0);
    let short: Vec<String> = (0..8000).map(|n| format!("s{n}")).collect();
    server.send(client, &line(&command.replace("{short}", &short.join(" "))));
    let mut most = 0;
    while server.received(client).is_empty() && !server.end(client).is_aborted {
        server.turn_of(0);
        most = most.max(held(server, 1));
    }
    expect_reply(server, other, "ping", "+PONG\r\n");
    let is_aborted = server.end(client).is_aborted;
    server.lose(client);
    server.settle();
    assert_eq!(held(server, 1), 0, "{command}");
    (most, is_aborted)
}

#[test]
fn commands_in_steps_are_within_memory_limit() {
    for map in [None, Some(ClusterMap::of_one_process(None, (6379, 0), 1, 0).unwrap())] {
        let is_cluster = map.is_some();
        let (mut server, other) = server_with_keys(map);
        for (command, least) in IN_STEPS.into_iter().filter(|(command, _)| command.starts_with("cluster") == is_cluster)
        {
            let (most, is_aborted) = run_in_steps(&mut server, other, command, 0);
            assert!(most >= least && !is_aborted, "{command}: {most}");
            if most > 1 << 20 {
                let (bounded, is_aborted) = run_in_steps(&mut server, other, command, 1 << 20);
                assert!(is_aborted && bounded <= 1 << 20, "{command}: {bounded}");
            }
        }
    }
}
