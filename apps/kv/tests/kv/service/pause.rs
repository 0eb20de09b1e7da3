//! `CLIENT PAUSE` on one of several workers.

use super::net::{Client, TestServer};
use super::{expect_reply, line, lines, servers};
use linerate_service::time::Duration;

/// Sends `requests`, none of which is answered yet.
#[track_caller]
fn expect_wait(server: &mut TestServer, client: Client, requests: &[&str]) {
    assert_eq!(server.call(client, &lines(requests)), "", "{requests:?}");
}

#[track_caller]
fn expect_blocked(server: &mut TestServer, client: Client, count: usize) {
    let info = server.call(client, &line("info clients"));
    assert!(info.contains(&format!("blocked_clients:{count}\r\n")), "{info}");
}

/// Returns a client of each worker.
fn client_each(server: &mut TestServer, workers: usize) -> Vec<Client> {
    (0..workers).map(|worker| server.connect(worker)).collect()
}

#[test]
fn pause_of_writes_holds_writes_on_all_workers_until_unpause() {
    for workers in [1, 2, 5] {
        let mut server = TestServer::new(workers);
        let admin = server.connect(0);
        let clients = client_each(&mut server, workers);
        expect_reply(&mut server, admin, "mset a 1 b 2 c 3 d 4", "+OK\r\n");
        expect_reply(&mut server, admin, "client pause 100000 write", "+OK\r\n");
        for client in &clients {
            for key in ["a", "b", "c", "d"] {
                let value = server.call(*client, &line(&format!("get {key}")));
                assert!(value.starts_with("$1\r\n"), "{value}");
            }
            let reads = lines(&["mget a b", "multi", "get a", "exec", "ping"]);
            let replies = "*2\r\n$1\r\n1\r\n$1\r\n2\r\n+OK\r\n+QUEUED\r\n*1\r\n$1\r\n1\r\n+PONG\r\n";
            assert_eq!(server.call(*client, &reads), replies);
        }
        let writes = ["set a x", "del b", "expire c 100", "mset a 1 b 1 c 1 d 1", "flushall"];
        for (client, write) in clients.iter().zip(writes) {
            // The requests after the write wait as well.
            expect_wait(&mut server, *client, &[write, "get a", "ping"]);
        }
        expect_blocked(&mut server, admin, workers);
        expect_reply(&mut server, admin, "mget a b c d", "*4\r\n$1\r\n1\r\n$1\r\n2\r\n$1\r\n3\r\n$1\r\n4\r\n");
        let late = server.connect(workers - 1);
        expect_wait(&mut server, late, &["set e 5"]);
        expect_reply(&mut server, admin, "client unpause", "+OK\r\n");
        for client in clients {
            let replies = String::from_utf8(server.received(client)).unwrap();
            assert!(replies.ends_with("+PONG\r\n"), "{replies}");
            expect_reply(&mut server, client, "set a y", "+OK\r\n");
        }
        assert_eq!(server.received(late), b"+OK\r\n");
        expect_blocked(&mut server, admin, 0);
    }
}

#[test]
fn pause_of_all_commands_ends_by_itself() {
    for workers in [1, 2, 5] {
        let mut server = TestServer::new(workers);
        let admin = server.connect(workers - 1);
        let clients = client_each(&mut server, workers);
        expect_reply(&mut server, admin, "set a 1", "+OK\r\n");
        // The requests after the command wait as well.
        assert_eq!(server.call(admin, &lines(&["client pause 500", "get a"])), "+OK\r\n");
        for client in &clients {
            expect_wait(&mut server, *client, &["get a"]);
            // Nothing is read while a request waits.
            expect_wait(&mut server, *client, &["get a", "get b"]);
            assert!(server.unread(*client) > 0);
        }
        server.pass(Duration::from_millis(490));
        assert_eq!(server.received(clients[0]), b"");
        server.pass(Duration::from_millis(20));
        assert_eq!(server.received(admin), b"$1\r\n1\r\n");
        for client in clients {
            assert_eq!(server.received(client), b"$1\r\n1\r\n$1\r\n1\r\n$-1\r\n");
        }
    }
}

#[test]
fn later_pause_neither_shortens_nor_weakens_the_first() {
    for mut server in servers() {
        let (admin, client) = (server.connect(0), server.connect(0));
        let both = ["multi", "client pause 100", "client pause 10 write", "exec"];
        assert!(server.call(admin, &lines(&both)).ends_with("*2\r\n+OK\r\n+OK\r\n"));
        server.pass(Duration::from_millis(50));
        expect_wait(&mut server, client, &["get a"]);
        server.pass(Duration::from_millis(60));
        assert_eq!(server.received(client), b"$-1\r\n");
        // The pause is over, so it has no effect on the next one.
        expect_reply(&mut server, admin, "client pause 100 write", "+OK\r\n");
        expect_reply(&mut server, client, "get a", "$-1\r\n");
        expect_wait(&mut server, client, &["set a 1"]);
    }
}

#[test]
fn new_connection_ends_pause_of_all_commands() {
    let mut server = TestServer::with(2, |settings| settings.password = Some(b"secret".to_vec()));
    let (admin, client) = (server.connect(0), server.connect(1));
    assert_eq!(server.call(admin, &lines(&["auth secret", "client pause 100000"])), "+OK\r\n+OK\r\n");
    expect_reply(&mut server, client, "auth secret", "+OK\r\n");
    expect_wait(&mut server, client, &["ping"]);
    let other = server.connect(1);
    expect_reply(&mut server, other, "client unpause", "-NOAUTH Authentication required.\r\n");
    let requests = lines(&["auth secret", "client setname operator", "client unpause", "ping"]);
    assert_eq!(server.call(other, &requests), "+OK\r\n+OK\r\n+OK\r\n+PONG\r\n");
    assert_eq!(server.received(client), b"+PONG\r\n");
}

#[test]
fn transaction_with_write_waits() {
    for mut server in servers() {
        let (admin, client) = (server.connect(0), server.connect(0));
        server.call(client, &lines(&["multi", "set a 1"]));
        expect_reply(&mut server, admin, "client pause 100000 write", "+OK\r\n");
        expect_wait(&mut server, client, &["exec"]);
        expect_reply(&mut server, admin, "client unpause", "+OK\r\n");
        assert_eq!(server.received(client), b"*1\r\n+OK\r\n");
    }
}

#[test]
fn closed_connection_does_not_count_as_blocked() {
    for mut server in servers() {
        let (admin, client) = (server.connect(0), server.connect(0));
        expect_reply(&mut server, admin, "client pause 100000 write", "+OK\r\n");
        expect_wait(&mut server, client, &["set a 1"]);
        expect_blocked(&mut server, admin, 1);
        server.lose(client);
        expect_blocked(&mut server, admin, 0);
        expect_reply(&mut server, admin, "client unpause", "+OK\r\n");
        expect_reply(&mut server, admin, "get a", "$-1\r\n");
    }
}

#[test]
fn pause_holds_for_memcached_clients() {
    for workers in [1, 3] {
        let mut server = TestServer::new(workers);
        let admin = server.connect(0);
        let clients: Vec<Client> = (0..workers).map(|worker| server.connect_to_memcached(worker)).collect();
        assert_eq!(server.call(clients[0], b"set a 0 0 1\r\n1\r\n"), "STORED\r\n");
        expect_reply(&mut server, admin, "client pause 100000 write", "+OK\r\n");
        let writes: [&[u8]; 3] = [b"set b 0 0 1\r\n2\r\nget b\r\n", b"gat 9 a\r\n", b"mg a v T9\r\n"];
        for (client, write) in clients.iter().zip(writes) {
            assert_eq!(server.call(*client, b"get a\r\n"), "VALUE a 0 1\r\n1\r\nEND\r\n");
            assert_eq!(server.call(*client, write), "", "{}", write.escape_ascii());
        }
        expect_blocked(&mut server, admin, workers);
        expect_reply(&mut server, admin, "client unpause", "+OK\r\n");
        let replies = ["STORED\r\nVALUE b 0 1\r\n2\r\nEND\r\n", "VALUE a 0 1\r\n1\r\nEND\r\n", "VA 1\r\n1\r\n"];
        for (client, reply) in clients.iter().zip(replies) {
            assert_eq!(String::from_utf8(server.received(*client)).unwrap(), reply);
        }
        let long = [b"set c 0 0 9000\r\n".to_vec(), vec![b'x'; 9000], b"\r\nget a\r\n".to_vec()].concat();
        assert_eq!(server.call(admin, &line("client pause 100")), "+OK\r\n");
        assert_eq!(server.call(clients[0], &long), "");
        server.pass(Duration::from_millis(101));
        assert_eq!(String::from_utf8(server.received(clients[0])).unwrap(), "STORED\r\nVALUE a 0 1\r\n1\r\nEND\r\n");
    }
}

#[test]
fn no_write_runs_after_the_reply_to_the_pause() {
    let mut random = fastrand::Rng::with_seed(37);
    let mut server = TestServer::new(3);
    let (admin, clients) = (server.connect(0), client_each(&mut server, 3));
    for round in 0..60 {
        for client in &clients {
            server.send(*client, &lines(&["set a 1", "set b 1", "set c 1", "msetnx a 1 z 1", "set d 1"]));
        }
        (0..random.usize(..8)).for_each(|_| server.turn_of(random.usize(..3)));
        server.send(admin, &line("client pause 100000 write"));
        while server.received(admin).is_empty() {
            server.turn_of(random.usize(..3));
        }
        // A write that has run is answered at once.
        let before: usize = clients.iter().map(|client| server.received(*client).len()).sum();
        server.settle();
        clients.iter().for_each(|client| assert_eq!(server.received(*client), b"", "{round}"));
        expect_reply(&mut server, admin, "client unpause", "+OK\r\n");
        let after: usize = clients.iter().map(|client| server.received(*client).len()).sum();
        assert_eq!(before + after, 3 * "+OK\r\n+OK\r\n+OK\r\n:0\r\n+OK\r\n".len(), "{round}");
    }
}
