//! `CLIENT REPLY`.

use super::{expect_reply, lines, servers};
use crate::request;

#[test]
fn replies_are_off_until_they_are_on_again() {
    for mut server in servers() {
        let (client, other) = (server.connect(0), server.connect(0));
        let long = "x".repeat(9000);
        let sets: Vec<String> = (0..20).flat_map(|n| [format!("set k{n} {n}"), format!("get k{n}")]).collect();
        let mut requests = lines(&["ping", "client reply off"]);
        requests.extend(lines(&sets));
        requests.extend(request(&["set", "long", &long]));
        requests.extend(lines(&["get long", "nothing", "get", "mget k1 k2 k3 k4", "mset k1 a k2 b k3 c", "incr n"]));
        requests.extend(lines(&["exists k1 k2 k3", "client list", "client reply skip", "client reply x"]));
        requests.extend(lines(&["multi", "incr n", "incr m", "exec", "client reply on", "get n", "get k3"]));
        let replies = "+PONG\r\n+OK\r\n$1\r\n2\r\n$1\r\nc\r\n";
        assert_eq!(server.call(client, &requests), replies);
        expect_reply(&mut server, client, "get k19", "$2\r\n19\r\n");
        // In any parts, and without effect on other clients.
        expect_reply(&mut server, other, "del n", ":1\r\n");
        requests.chunks(11).for_each(|part| server.send(client, part));
        expect_reply(&mut server, other, "ping", "+PONG\r\n");
        assert_eq!(server.received(client), replies.as_bytes());
        assert_eq!(server.call(client, &lines(&["client reply off", "reset", "ping"])), "+RESET\r\n+PONG\r\n");
    }
}

#[test]
fn one_reply_is_skipped() {
    for mut server in servers() {
        let client = server.connect(0);
        for n in 0..20 {
            let (set, get) = (format!("set k{n} {n}"), format!("get k{n}"));
            let requests = lines(&["client reply skip", &set, &get, "client reply skip", &get, "ping"]);
            let value = n.to_string();
            assert_eq!(server.call(client, &requests), format!("${}\r\n{value}\r\n+PONG\r\n", value.len()));
            // Alone, so that a parser for single requests sees it.
            expect_reply(&mut server, client, "client reply skip", "");
            expect_reply(&mut server, client, &get, "");
            expect_reply(&mut server, client, &get, &format!("${}\r\n{value}\r\n", value.len()));
        }
        let on = lines(&["client reply skip", "client reply on", "client reply skip", "nothing", "ping"]);
        assert_eq!(server.call(client, &on), "+OK\r\n+PONG\r\n");
        expect_reply(&mut server, client, "client reply x", "-ERR syntax error\r\n");
        let twice = lines(&["client reply skip", "client reply skip", "ping", "echo a"]);
        assert_eq!(server.call(client, &twice), "$1\r\na\r\n");
    }
}
