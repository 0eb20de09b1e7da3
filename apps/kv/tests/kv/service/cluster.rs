//! Cluster mode: redirections, forwarding between workers, and commands on the keys of one node.

use super::net::{Client, TestServer};
use super::{expect_reply, line, lines};
use crate::request;
use linerate_kv::cluster::{ClusterMap, Node, OwnNodes, key_slot};
use linerate_service::time::Duration;

const PORT: u16 = 7000;
const WORKERS: usize = 3;
/// Interval of the periodic work of a worker.
const TICK: Duration = Duration::from_millis(1);

/// Returns the map of a fleet. Node *n* has the slots of part `parts[n]` of 16. The first `WORKERS` nodes are of this
/// process, the others of another machine.
fn map(parts: [usize; 4]) -> ClusterMap {
    let node = |(index, part): (usize, usize)| {
        let (host, port) = if index < WORKERS { ("10.0.0.2", PORT + index as u16) } else { ("10.0.0.9", 6379) };
        let first = parts[..index].iter().sum::<usize>() * 1024;
        let slots = (part > 0).then(|| first as u16..=(first + part * 1024 - 1) as u16).into_iter().collect();
        Node { host: Some(host.to_owned()), port, tls_port: 0, slots }
    };
    let nodes = parts.into_iter().enumerate().map(node).collect();
    let own = OwnNodes { host: "10.0.0.2".to_owned(), port: PORT, tls_port: 0, workers: WORKERS };
    ClusterMap::of_fleet(nodes, &own).unwrap()
}

fn connect(server: &mut TestServer, worker: usize) -> Client {
    server.connect_to(worker, PORT + worker as u16)
}

/// Lets the workers complete the last change of the map.
fn complete_change(server: &mut TestServer) {
    (0..4).for_each(|_| server.pass(TICK));
}

/// Returns the index of the node of `key` in a map with `parts`.
fn node_of(key: &str, parts: [usize; 4]) -> usize {
    let part = usize::from(key_slot(key.as_bytes())) / 1024;
    (0..4).find(|node| part < parts[..=*node].iter().sum()).unwrap()
}

fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

#[test]
fn keys_of_the_process_are_served_by_every_worker_and_others_are_redirected() {
    let parts = [4, 5, 3, 4];
    let mut server = TestServer::in_cluster(map(parts));
    for worker in 0..WORKERS {
        let client = connect(&mut server, worker);
        let (mut single, mut pipeline, mut replies) = (0, Vec::new(), String::new());
        for n in 0..400 {
            let (key, node) = (format!("key:{n}"), node_of(&format!("key:{n}"), parts));
            let moved = format!("-MOVED {} 10.0.0.9:6379\r\n", key_slot(key.as_bytes()));
            let is_here = node < WORKERS;
            let expected = |reply: &str| if is_here { reply.to_owned() } else { moved.clone() };
            let value = format!("value{worker}");
            expect_reply(&mut server, client, &format!("set {key} {value}"), &expected("+OK\r\n"));
            expect_reply(&mut server, client, &format!("get {key}"), &expected(&bulk(&value)));
            pipeline.extend(lines(&[&format!("get {key}"), &format!("append {key} x"), &format!("strlen {key}")]));
            replies += &expected(&bulk(&value));
            replies += &expected(":7\r\n");
            replies += &expected(":7\r\n");
            single += usize::from(is_here);
        }
        assert!((250..350).contains(&single), "{single}");
        assert_eq!(server.call(client, &pipeline), replies);
    }
}

#[test]
fn requests_with_several_slots_are_refused() {
    let parts = [4, 5, 3, 4];
    let mut server = TestServer::in_cluster(map(parts));
    let cross = "-CROSSSLOT Keys in request don't hash to the same slot\r\n";
    for (worker, tag) in (0..WORKERS).flat_map(|worker| ["a", "b", "c", "key:5", "key:9"].map(|tag| (worker, tag))) {
        let client = connect(&mut server, worker);
        expect_reply(&mut server, client, "mget a b", cross);
        expect_reply(&mut server, client, "del key:1 key:2 key:3", cross);
        expect_reply(&mut server, client, "mset a 1 b 2", cross);
        expect_reply(&mut server, client, "rename a b", cross);
        expect_reply(&mut server, client, "watch a b", cross);
        if node_of(tag, parts) == 3 {
            let moved = format!("-MOVED {} 10.0.0.9:6379\r\n", key_slot(tag.as_bytes()));
            expect_reply(&mut server, client, &format!("mget {{{tag}}}1 {{{tag}}}2"), &moved);
            continue;
        }
        expect_reply(&mut server, client, &format!("mset {{{tag}}}1 one {{{tag}}}2 two"), "+OK\r\n");
        let values = "*3\r\n$3\r\none\r\n$3\r\ntwo\r\n$-1\r\n";
        expect_reply(&mut server, client, &format!("mget {{{tag}}}1 {{{tag}}}2 {{{tag}}}3"), values);
        expect_reply(&mut server, client, &format!("rename {{{tag}}}1 {{{tag}}}3"), "+OK\r\n");
        expect_reply(&mut server, client, &format!("exists {{{tag}}}1 {{{tag}}}2 {{{tag}}}3"), ":2\r\n");
        expect_reply(&mut server, client, &format!("copy {{{tag}}}2 {{{tag}}}4 replace"), ":1\r\n");
        let other_database = "-ERR Copying to another database is not allowed in cluster mode\r\n";
        expect_reply(&mut server, client, &format!("copy {{{tag}}}2 {{{tag}}}4 db 1"), other_database);
        expect_reply(&mut server, client, &format!("unlink {{{tag}}}2 {{{tag}}}3 {{{tag}}}4"), ":3\r\n");
    }
}

#[test]
fn transactions_run_in_one_slot() {
    let mut server = TestServer::in_cluster(map([16, 0, 0, 0]));
    let client = connect(&mut server, 2);
    let cross = "-CROSSSLOT Keys in request don't hash to the same slot\r\n";
    let replies = server.call(client, &lines(&["multi", "set {t}a 1", "incr {t}a", "get {t}a", "exec"]));
    assert_eq!(replies, "+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*3\r\n+OK\r\n:2\r\n$1\r\n2\r\n");
    let replies = server.call(client, &lines(&["multi", "set a 1", "set b 1", "ping", "exec", "exec"]));
    assert_eq!(replies, format!("+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n{cross}-ERR EXEC without MULTI\r\n"));
    let replies = server.call(client, &lines(&["multi", "mget a b", "exec"]));
    let aborted = "-EXECABORT Transaction discarded because of previous errors.\r\n";
    assert_eq!(replies, format!("+OK\r\n{cross}{aborted}"));
    let replies = server.call(client, &lines(&["multi", "select 1", "set {t}a 3", "exec", "get {t}a"]));
    let no_select = "-ERR SELECT is not allowed in cluster mode\r\n";
    assert_eq!(replies, format!("+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n{no_select}+OK\r\n$1\r\n3\r\n"));
    expect_reply(&mut server, client, "select 0", "+OK\r\n");
    expect_reply(&mut server, client, "select 99", no_select);
    expect_reply(&mut server, client, "select x", "-ERR value is not an integer or out of range\r\n");
}

#[test]
fn transaction_on_keys_of_another_machine_is_aborted() {
    let mut server = TestServer::in_cluster(map([1, 0, 0, 15]));
    let client = connect(&mut server, 0);
    let replies = server.call(client, &lines(&["multi", "set foo 1", "exec", "watch foo"]));
    let moved = "-MOVED 12182 10.0.0.9:6379\r\n";
    let aborted = "-EXECABORT Transaction discarded because of previous errors.\r\n";
    assert_eq!(replies, format!("+OK\r\n{moved}{aborted}{moved}"));
}

#[test]
fn password_precedes_redirection() {
    let mut server = TestServer::in_cluster(map([1, 0, 0, 15]));
    let client = connect(&mut server, 0);
    expect_reply(&mut server, client, "config set requirepass secret", "+OK\r\n");
    let other = connect(&mut server, 1);
    expect_reply(&mut server, other, "get foo", "-NOAUTH Authentication required.\r\n");
    expect_reply(&mut server, other, "auth secret", "+OK\r\n");
    expect_reply(&mut server, other, "get foo", "-MOVED 12182 10.0.0.9:6379\r\n");
}

#[test]
fn commands_on_all_keys_concern_the_node() {
    let parts = [5, 6, 5, 0];
    let mut server = TestServer::in_cluster(map(parts));
    let clients: Vec<Client> = (0..WORKERS).map(|worker| connect(&mut server, worker)).collect();
    let keys: Vec<String> = (0..300).map(|n| format!("key:{n}")).collect();
    for (n, key) in keys.iter().enumerate() {
        expect_reply(&mut server, clients[n % WORKERS], &format!("set {key} x"), "+OK\r\n");
    }
    for (node, client) in clients.iter().copied().enumerate() {
        let mut own: Vec<&String> = keys.iter().filter(|key| node_of(key, parts) == node).collect();
        own.sort();
        expect_reply(&mut server, client, "dbsize", &format!(":{}\r\n", own.len()));
        let keyspace = server.call(client, &line("info keyspace"));
        assert!(keyspace.contains(&format!("db0:keys={},", own.len())), "{keyspace}");
        for command in ["keys *", "scan 0 count 1000"] {
            let reply = server.call(client, &line(command));
            let mut found: Vec<&str> = reply.lines().filter(|line| line.starts_with("key:")).collect();
            found.sort_unstable();
            assert_eq!(found, own, "{command}");
        }
        let random = server.call(client, &line("randomkey"));
        assert!(own.iter().any(|key| random == bulk(key)), "{random}");
        for key in &own {
            let slot = key_slot(key.as_bytes());
            let same = own.iter().filter(|other| key_slot(other.as_bytes()) == slot).count();
            expect_reply(&mut server, client, &format!("cluster countkeysinslot {slot}"), &format!(":{same}\r\n"));
            let found = server.call(client, &line(&format!("cluster getkeysinslot {slot} 9")));
            assert!(found.starts_with(&format!("*{same}\r\n")) && found.contains(key.as_str()), "{found}");
        }
        // Keys of other nodes are not there.
        let other = keys.iter().find(|key| node_of(key, parts) != node).unwrap();
        let slot = key_slot(other.as_bytes());
        expect_reply(&mut server, client, &format!("cluster countkeysinslot {slot}"), ":0\r\n");
    }
    let slot = key_slot(keys[0].as_bytes());
    expect_reply(&mut server, clients[0], &format!("cluster getkeysinslot {slot} 0"), "*0\r\n");
    let queued = server.call(clients[0], &lines(&["multi", "cluster countkeysinslot 7", "exec"]));
    assert!(queued.starts_with("+OK\r\n+QUEUED\r\n*1\r\n:"), "{queued}");
    expect_reply(&mut server, clients[1], "flushall", "+OK\r\n");
    for (node, client) in clients.iter().enumerate() {
        let left = keys.iter().filter(|key| node != 1 && node_of(key, parts) == node).count();
        expect_reply(&mut server, *client, "dbsize", &format!(":{left}\r\n"));
    }
}

#[test]
fn search_for_keys_of_a_slot_lets_other_clients_run() {
    let mut server = TestServer::in_cluster(map([16, 0, 0, 0]));
    let [client, other] = [(); 2].map(|()| connect(&mut server, 0));
    for n in 0..100 {
        let pairs: Vec<String> = (0..200).map(|m| format!("{{t}}{n}:{m} x")).collect();
        expect_reply(&mut server, client, &format!("mset {}", pairs.join(" ")), "+OK\r\n");
    }
    let slot = key_slot(b"t");
    server.send(client, &line(&format!("cluster countkeysinslot {slot}")));
    server.turn_of(0);
    assert!(server.received(client).is_empty());
    server.send(other, &line("ping"));
    server.turn_of(0);
    assert_eq!(server.received(other), b"+PONG\r\n");
    server.settle();
    assert_eq!(server.received(client), b":20000\r\n");
    let found = server.call(client, &line(&format!("cluster getkeysinslot {slot} 100000")));
    assert!(found.starts_with("*20000\r\n"));
}

#[test]
fn cluster_commands_describe_the_map() {
    let mut server = TestServer::in_cluster(map([4, 5, 3, 4]));
    let client = connect(&mut server, 1);
    let map = map([4, 5, 3, 4]);
    expect_reply(&mut server, client, "cluster myid", &bulk(map.id(1)));
    expect_reply(&mut server, client, "cluster myshardid", &bulk(&map.shard_id(1)));
    expect_reply(&mut server, client, "cluster keyslot {foo}x", ":12182\r\n");
    expect_reply(&mut server, client, "cluster links", "*0\r\n");
    for command in ["readonly", "readwrite", "asking"] {
        expect_reply(&mut server, client, command, "+OK\r\n");
    }
    let slots = server.call(client, &line("cluster slots"));
    let node = |port: u16, id: &str, ip: &str| format!("*4\r\n{}:{port}\r\n{}*0\r\n", bulk(ip), bulk(id));
    assert!(slots.starts_with(&format!("*4\r\n*3\r\n:0\r\n:4095\r\n{}", node(7000, map.id(0), "10.0.0.2"))), "{slots}");
    assert!(slots.ends_with(&format!("*3\r\n:12288\r\n:16383\r\n{}", node(6379, map.id(3), "10.0.0.9"))), "{slots}");
    let nodes = server.call(client, &line("cluster nodes"));
    assert!(nodes.contains(&format!("{} 10.0.0.2:7001@0 myself,master - 0 0 2 connected 4096-9215\n", map.id(1))));
    assert!(nodes.contains(&format!("{} 10.0.0.9:6379@0 master - 0 0 4 connected 12288-16383\n", map.id(3))));
    let shards = server.call(client, &line("cluster shards"));
    assert!(
        shards.starts_with("*4\r\n*4\r\n$5\r\nslots\r\n*2\r\n:0\r\n:4095\r\n$5\r\nnodes\r\n*1\r\n*14\r\n$2\r\nid\r\n")
    );
    let info = server.call(client, &line("cluster info"));
    assert!(info.contains("cluster_state:ok\r\n") && info.contains("cluster_known_nodes:4\r\n"), "{info}");
    for (words, error) in [
        ("cluster countkeysinslot 16384", "Invalid slot"),
        ("cluster countkeysinslot -1", "Invalid slot"),
        ("cluster getkeysinslot 1 -1", "Invalid slot or number of keys"),
        ("cluster getkeysinslot 16384 1", "Invalid slot or number of keys"),
        ("cluster getkeysinslot 1 x", "value is not an integer or out of range"),
        ("cluster nosuch", "unknown subcommand 'nosuch'. Try CLUSTER HELP."),
        ("cluster slots x", "wrong number of arguments for 'cluster|slots' command"),
    ] {
        expect_reply(&mut server, client, words, &format!("-ERR {error}\r\n"));
    }
    assert!(server.call(client, &line("info cluster")).contains("cluster_enabled:1\r\n"));
    assert!(server.call(client, &line("info server")).contains("redis_mode:cluster\r\n"));
    assert!(server.call(client, &line("config get cluster-enabled")).contains("yes"));
    assert!(server.call(client, &line("hello 3")).contains("$4\r\nmode\r\n$7\r\ncluster\r\n"));
    assert!(server.call(client, &line("cluster slots")).ends_with("%0\r\n"));
}

#[test]
fn cluster_commands_are_refused_without_cluster_mode() {
    let mut server = TestServer::new(2);
    let client = server.connect(1);
    let none = "-ERR This instance has cluster support disabled\r\n";
    for words in ["cluster slots", "cluster countkeysinslot 1", "cluster getkeysinslot 1 1", "readonly", "asking"] {
        expect_reply(&mut server, client, words, none);
    }
    assert!(server.call(client, &line("info cluster")).contains("cluster_enabled:0\r\n"));
    assert!(server.call(client, &line("config get cluster-enabled")).contains("no"));
}

#[test]
fn new_map_redirects_at_once_and_removes_the_keys_that_left() {
    let (before, after) = ([4, 6, 6, 0], [6, 2, 4, 4]);
    let mut server = TestServer::in_cluster(map(before));
    let client = connect(&mut server, 0);
    let keys: Vec<String> = (0..600).map(|n| format!("key:{n}")).collect();
    for key in &keys {
        expect_reply(&mut server, client, &format!("set {key} old"), "+OK\r\n");
    }
    complete_change(&mut server);
    server.replace_map(map(after));
    server.pass(TICK);
    let left = keys.iter().filter(|key| node_of(key, after) < 3).count();
    for key in &keys {
        let is_here = node_of(key, after) < 3;
        let moved = format!("-MOVED {} 10.0.0.9:6379\r\n", key_slot(key.as_bytes()));
        // Slots that went from one worker to another stay readable.
        expect_reply(&mut server, client, &format!("get {key}"), if is_here { "$3\r\nold\r\n" } else { &moved });
    }
    complete_change(&mut server);
    server.replace_map(map(before));
    complete_change(&mut server);
    let kept = keys.iter().filter(|key| server.call(client, &line(&format!("get {key}"))) == "$3\r\nold\r\n").count();
    assert_eq!(kept, left);
    // The slots that returned are served again.
    for key in &keys {
        expect_reply(&mut server, client, &format!("set {key} new"), "+OK\r\n");
        expect_reply(&mut server, client, &format!("get {key}"), "$3\r\nnew\r\n");
    }
}

/// Returns the requests `set {key} {value}` for `keys`.
fn sets(keys: &[&String], value: &str) -> Vec<u8> {
    keys.iter().flat_map(|key| line(&format!("set {key} {value}"))).collect()
}

#[test]
fn slots_that_return_at_once_keep_acknowledged_writes_and_show_no_old_value() {
    let (before, after) = ([4, 6, 6, 0], [6, 2, 4, 4]);
    let mut server = TestServer::in_cluster(map(before));
    let client = connect(&mut server, 0);
    let keys: Vec<String> = (0..20_000).map(|n| format!("key:{n}")).collect();
    server.call(client, &sets(&keys.iter().collect::<Vec<_>>(), "old"));
    complete_change(&mut server);
    server.replace_map(map(after));
    server.advance(TICK);
    server.turn();
    server.replace_map(map(before));
    server.advance(TICK);
    server.turn();
    let left: Vec<&String> = keys.iter().filter(|key| node_of(key, after) == 3).collect();
    let (written, unwritten) = left.split_at(left.len() / 2);
    let mut acknowledged = vec![false; written.len()];
    for _ in 0..100 {
        let replies = server.call(client, &sets(written, "new"));
        assert_eq!(replies.lines().count(), written.len());
        acknowledged.iter_mut().zip(replies.lines()).for_each(|(is_set, reply)| *is_set |= reply == "+OK");
        server.advance(TICK);
        if acknowledged[0] {
            break;
        }
    }
    assert!(acknowledged.iter().all(|is_set| *is_set));
    complete_change(&mut server);
    for (keys, value) in [(written, "$3\r\nnew\r\n"), (unwritten, "$-1\r\n")] {
        let gets: Vec<u8> = keys.iter().flat_map(|key| line(&format!("get {key}"))).collect();
        assert!(server.call(client, &gets) == value.repeat(keys.len()), "not all are {value}");
    }
}

#[test]
fn write_of_a_worker_with_the_previous_map_does_not_reappear() {
    let (before, after) = ([4, 4, 8, 0], [4, 4, 0, 8]);
    let mut server = TestServer::in_cluster(map(before));
    let client = connect(&mut server, 1);
    let key = (0..).map(|n| format!("key:{n}")).find(|key| node_of(key, before) == 2).unwrap();
    complete_change(&mut server);
    server.replace_map(map(after));
    // Worker 2, which has the shard, notices the map and has time to remove its keys before worker 1 notices it.
    (0..5000).for_each(|_| server.turn_of(2));
    assert_eq!(server.call(client, &line(&format!("set {key} value"))), "+OK\r\n");
    complete_change(&mut server);
    server.replace_map(map(before));
    complete_change(&mut server);
    assert_eq!(server.call(client, &line(&format!("get {key}"))), "$-1\r\n");
}

#[test]
fn request_that_waited_during_a_change_of_the_map_is_redirected() {
    let (before, after) = ([4, 4, 8, 0], [4, 4, 0, 8]);
    let mut server = TestServer::in_cluster(map(before));
    let [admin, client, other] = [0, 2, 1].map(|worker| connect(&mut server, worker));
    let key = (0..).map(|n| format!("key:{n}")).find(|key| node_of(key, before) == 2).unwrap();
    let moved = format!("-MOVED {} 10.0.0.9:6379\r\n", key_slot(key.as_bytes()));
    let set = line(&format!("set {key} value"));
    assert_eq!(server.call(other, &[line("multi"), set.clone()].concat()), "+OK\r\n+QUEUED\r\n");
    expect_reply(&mut server, admin, "client pause 100000 write", "+OK\r\n");
    assert_eq!(server.call(client, &set), "");
    server.replace_map(map(after));
    complete_change(&mut server);
    expect_reply(&mut server, admin, "client unpause", "+OK\r\n");
    assert_eq!(server.received(client), moved.as_bytes());
    assert_eq!(server.call(other, &lines(&["exec", "exec"])), format!("{moved}-ERR EXEC without MULTI\r\n"));
}

#[test]
fn long_values_and_memcached_work_in_cluster_mode() {
    let mut server = TestServer::in_cluster(map([4, 4, 4, 4]));
    let client = connect(&mut server, 0);
    let value = "v".repeat(20_000);
    for n in 0..60 {
        let key = format!("key:{n}");
        let is_here = node_of(&key, [4, 4, 4, 4]) < 3;
        let moved = format!("-MOVED {} 10.0.0.9:6379\r\n", key_slot(key.as_bytes()));
        let [set, get] = if is_here { ["+OK\r\n".to_owned(), bulk(&value)] } else { [moved.clone(), moved] };
        assert_eq!(server.call(client, &request(&["set", &key, &value])), set);
        assert_eq!(server.call(client, &request(&["get", &key])), get);
        assert_eq!(server.call(client, &line("ping")), "+PONG\r\n");
    }
    // The memcached protocol has no redirections: every worker serves every key.
    for worker in 0..WORKERS {
        let client = server.connect_to_memcached(worker);
        for n in 0..60 {
            assert_eq!(server.call(client, format!("set key{n} 0 0 1\r\n{worker}\r\n").as_bytes()), "STORED\r\n");
        }
        assert_eq!(server.call(client, b"get key1\r\n"), format!("VALUE key1 0 1\r\n{worker}\r\nEND\r\n"));
    }
}
