//! Bit commands on long values, which run in steps.

use super::net::{Client, TestServer};
use super::{expect_reply, line, lines};
use crate::request;

/// Length of the long values.
const LEN: usize = 6 << 20;

fn set(server: &mut TestServer, client: Client, key: &str, value: &[u8]) {
    assert_eq!(server.call(client, &request(&[b"set", key.as_bytes(), value])), "+OK\r\n");
}

#[test]
fn long_values_have_the_bits_of_their_bytes() {
    // All values may be in one shard.
    for mut server in [1, 2, 5].map(|workers| TestServer::with(workers, |settings| settings.memory = 512 << 20)) {
        let client = server.connect(0);
        set(&mut server, client, "ones", &vec![0xff; LEN]);
        expect_reply(&mut server, client, "setbit ones 40000003 0", ":1\r\n");
        expect_reply(&mut server, client, "getbit ones 40000003", ":0\r\n");
        expect_reply(&mut server, client, "bitcount ones", &format!(":{}\r\n", LEN * 8 - 1));
        expect_reply(&mut server, client, "bitcount ones 39999999 40000010 bit", ":11\r\n");
        expect_reply(&mut server, client, "bitpos ones 0", ":40000003\r\n");
        expect_reply(&mut server, client, "bitpos ones 0 5000001", &format!(":{}\r\n", LEN * 8));
        expect_reply(&mut server, client, "bitop not zeros ones", &format!(":{LEN}\r\n"));
        expect_reply(&mut server, client, "bitpos zeros 1", ":40000003\r\n");
        expect_reply(&mut server, client, "bitcount zeros", ":1\r\n");
        expect_reply(&mut server, client, "bitop xor all zeros ones short", &format!(":{LEN}\r\n"));
        expect_reply(&mut server, client, "bitcount all", &format!(":{}\r\n", LEN * 8));
        expect_reply(&mut server, client, "set short x", "+OK\r\n");
        expect_reply(&mut server, client, "bitop and all short ones", &format!(":{LEN}\r\n"));
        expect_reply(&mut server, client, "getrange all 0 1", "$2\r\nx\0\r\n");
        expect_reply(&mut server, client, "bitfield ones get u9 40000000 set i5 48000000 7", "*2\r\n:479\r\n:-1\r\n");
        expect_reply(&mut server, client, "bitfield ones get u5 48000000 get u1 40000003", "*2\r\n:7\r\n:0\r\n");
        // In a transaction, each command runs in one step.
        let replies = server.call(client, &lines(&["multi", "bitop not all ones", "bitcount ones", "exec"]));
        assert!(replies.ends_with(&format!("*2\r\n:{LEN}\r\n:{}\r\n", LEN * 8 - 3)), "{replies}");
    }
}

#[test]
fn other_clients_run_between_the_steps() {
    let mut server = TestServer::new(1);
    let [client, other, third] = [(); 3].map(|()| server.connect(0));
    set(&mut server, client, "ones", &vec![0xff; LEN]);
    let all = LEN * 8;
    for (command, reply) in [
        ("bitcount ones", format!(":{all}\r\n")),
        ("bitpos ones 0", format!(":{all}\r\n")),
        ("bitop not zeros ones", format!(":{LEN}\r\n")),
    ] {
        server.send(client, &line(command));
        server.turn_of(0);
        assert!(server.received(client).is_empty(), "{command}");
        // The commands use the values at their start.
        server.send(other, &line("setbit ones 9 0"));
        server.send(third, &line("set a other"));
        server.turn_of(0);
        assert_eq!((server.received(other), server.received(third)), (b":1\r\n".to_vec(), b"+OK\r\n".to_vec()));
        assert!(server.received(client).is_empty(), "{command}");
        server.settle();
        assert_eq!(server.received(client), reply.as_bytes(), "{command}");
        expect_reply(&mut server, client, "setbit ones 9 1", ":0\r\n");
    }
    expect_reply(&mut server, client, "bitcount zeros", ":0\r\n");
}

#[test]
fn client_that_leaves_during_a_step_returns_its_memory() {
    for workers in [1, 2] {
        let mut server = TestServer::with(workers, |settings| settings.memory = 40 << 20);
        let client = server.connect(0);
        set(&mut server, client, "ones", &vec![0xff; LEN]);
        for _ in 0..20 {
            let leaving = server.connect(0);
            server.send(leaving, &line("bitop not zeros ones"));
            // One worker has begun now, and two have lent a shard.
            (0..2 * workers - 1).for_each(|_| server.turn());
            server.lose(leaving);
            server.settle();
            server.call(client, &line("del zeros"));
        }
        expect_reply(&mut server, client, "bitop not zeros ones", &format!(":{LEN}\r\n"));
    }
}

#[test]
fn bitfield_runs_operations_as_if_one_after_another() {
    let mut server = TestServer::with(1, |settings| settings.memory = 256 << 20);
    let client = server.connect(0);
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..20 {
        // Around ends of windows, on the same bytes, and far apart, in any order.
        let places = [0, 8 * (256 << 10), 8 * (512 << 10) - 16, 8 * (2 << 20)];
        let mut operations = Vec::new();
        for _ in 0..100 {
            let offset = places[random.usize(..places.len())] + random.usize(..100);
            let (kind, bits) = (random.choice(["u", "i"]).unwrap(), random.usize(1..63));
            operations.push(match random.u8(..3) {
                0 => format!("get {kind}{bits} {offset}"),
                1 => format!("overflow sat set {kind}{bits} {offset} {}", random.u32(..)),
                _ => format!("overflow fail incrby {kind}{bits} {offset} {}", random.u32(..)),
            });
        }
        let mut replies = format!("*{}\r\n", operations.len());
        for operation in &operations {
            replies += server.call(client, &line(&format!("bitfield single {operation}"))).trim_start_matches("*1\r\n");
        }
        expect_reply(&mut server, client, &format!("bitfield many {}", operations.join(" ")), &replies);
        let len = server.call(client, &line("strlen single"));
        expect_reply(&mut server, client, "bitop xor difference single many", &len);
        expect_reply(&mut server, client, "bitcount difference", ":0\r\n");
    }
}
