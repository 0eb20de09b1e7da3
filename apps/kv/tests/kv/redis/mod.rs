//! Compares commands with the real `redis-server`: equal replies, equal state.

mod grammar;
pub mod reply;
mod servers;

use grammar::{Grammar, Step};
use reply::Value;
use servers::{Args, CLIENTS, LinerateServer, Redis};
use std::time::{Duration, Instant};

/// Duration of the random comparison in seconds, unless `LINERATE_SECONDS` is set.
const SECONDS: u64 = 4;
/// Steps per seed.
const STEPS: usize = 600;
/// Tolerance of times in milliseconds.
const TOLERANCE: i64 = 20_000;

fn args(line: &str) -> Args {
    line.split(' ').map(|word| if word == "\"\"" { Vec::new() } else { word.as_bytes().to_vec() }).collect()
}

fn display(args: &Args) -> String {
    let words = args.iter().map(|arg| match arg.len() {
        ..80 => format!("\"{}\"", arg.escape_ascii()),
        len => format!("({len} bytes)"),
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Returns a lookup of every key, which removes expired keys. They count until then.
fn lookup_all() -> Args {
    let names = ["EXISTS"].iter().chain(&grammar::KEYS).chain(&grammar::WRONG);
    names.map(|name| name.as_bytes().to_vec()).collect()
}

/// Returns the `reply` to `command` without differences that are allowed: order of unordered elements, times, random
/// values.
fn comparable(command: &Args, reply: Value) -> Value {
    let name = command[0].to_ascii_lowercase();
    let counts = |line: &str| Value::Simple(line.split(",avg_ttl=").take(1).collect());
    let is_found = |value: &Value| Value::Simple(if *value == Value::Null { "none" } else { "some" }.to_owned());
    match (&name[..], &reply) {
        (b"keys" | b"hkeys" | b"hvals", _) => reply.sorted(1),
        (b"hgetall", _) => reply.sorted(2),
        (b"config", Value::Array(_)) => reply.sorted(2),
        (b"ttl" | b"expiretime", Value::Integer(time)) if *time > 0 => Value::Integer(time / (TOLERANCE / 1000) / 2),
        (b"pttl" | b"pexpiretime", Value::Integer(time)) if *time > 0 => Value::Integer(time / TOLERANCE / 2),
        // Only the numbers of keys and of keys with an expiry time.
        (b"info", Value::Bulk(text) | Value::Verbatim(text)) => {
            let databases = text.split("\\r\\n").filter(|line| line.starts_with("db"));
            Value::Array(databases.map(counts).collect())
        }
        (b"time", Value::Array(parts)) => Value::Integer(parts.len() as i64),
        (b"randomkey", Value::Null | Value::Bulk(_)) => is_found(&reply),
        (b"memory", Value::Null | Value::Integer(_)) => is_found(&reply),
        // The encodings of a number and of a hash may differ.
        (b"object", Value::Bulk(text)) if text == "embstr" || text == "raw" => Value::Bulk("int".to_owned()),
        (b"object", Value::Bulk(text)) if text == "hashtable" => Value::Bulk("listpack".to_owned()),
        (b"hello", Value::Array(parts) | Value::Map(parts)) => {
            let mut parts = parts.clone();
            parts[7] = Value::Integer(0);
            if let Value::Map(_) = reply { Value::Map(parts) } else { Value::Array(parts) }
        }
        _ => reply,
    }
}

/// Returns true if two replies are equal except for times.
fn is_alike(command: &Args, linerate: &Value, redis: &Value) -> bool {
    let is_time = ["ttl", "pttl", "expiretime", "pexpiretime"]
        .iter()
        .any(|name| command[0].eq_ignore_ascii_case(name.as_bytes()));
    match (linerate, redis) {
        (Value::Integer(linerate), Value::Integer(redis)) if is_time && *linerate > 0 && *redis > 0 => {
            (linerate - redis).abs() <= TOLERANCE
        }
        _ => comparable(command, linerate.clone()) == comparable(command, redis.clone()),
    }
}

/// Both servers and the commands run so far.
struct ServerPair {
    linerate: LinerateServer,
    redis: Redis,
    log: Vec<String>,
    /// Queued commands of each client.
    queued: Vec<Vec<Args>>,
}

impl ServerPair {
    fn new(workers: usize) -> Self {
        ServerPair {
            linerate: LinerateServer::with_workers(workers),
            redis: Redis::start(),
            log: Vec::new(),
            queued: vec![Vec::new(); CLIENTS],
        }
    }

    /// Runs `commands` of a client on both servers.
    fn run(&mut self, client: usize, commands: &[Args], apart: bool) {
        let redis = self.redis.run(client, commands);
        for (command, redis) in commands.iter().zip(redis) {
            let linerate = self.linerate.run(client, command, apart);
            self.log.push(format!("{client}: {}", display(command)));
            self.compare(client, command, &linerate, &redis);
            match (&linerate, &command[0].to_ascii_lowercase()[..]) {
                (Value::Simple(text), _) if text == "QUEUED" => self.queued[client].push(command.clone()),
                (Value::Error(_), b"exec") if command.len() > 1 => {}
                (Value::Error(_), b"discard" | b"reset" | b"multi" | b"watch") => {}
                (_, b"exec" | b"discard" | b"reset") => self.queued[client].clear(),
                _ => {}
            }
        }
    }

    fn compare(&self, client: usize, command: &Args, linerate: &Value, redis: &Value) {
        let is_exec = command[0].eq_ignore_ascii_case(b"exec") && linerate.parts().len() == redis.parts().len();
        let alike = if is_exec && !linerate.parts().is_empty() {
            let parts = linerate.parts().iter().zip(redis.parts());
            self.queued[client].iter().zip(parts).all(|(command, (linerate, redis))| is_alike(command, linerate, redis))
        } else {
            is_alike(command, linerate, redis)
        };
        if !alike {
            let before = self.log.iter().rev().take(60).rev().cloned().collect::<Vec<_>>().join("\n");
            panic!("{before}\n linerate: {linerate:?}\n redis: {redis:?}");
        }
    }

    /// Compares the results of complete scans.
    fn scan(&mut self, client: usize, command: &Args) {
        self.run(client, &[args("DISCARD")], false);
        let cursor_at = if command[0] == b"HSCAN" { 2 } else { 1 };
        let step = cursor_at;
        let mut found = [Vec::new(), Vec::new()];
        for (number, found) in found.iter_mut().enumerate() {
            let mut command = command.clone();
            loop {
                let reply = if number == 0 {
                    self.linerate.run(client, &command, false)
                } else {
                    self.redis.run(client, std::slice::from_ref(&command)).remove(0)
                };
                if reply.parts().len() != 2 {
                    found.push(vec![reply]);
                    break;
                }
                found.extend(reply.parts()[1].parts().chunks(step).map(<[Value]>::to_vec));
                command[cursor_at] = reply.parts()[0].text().as_bytes().to_vec();
                if command[cursor_at] == b"0" {
                    break;
                }
            }
            found.sort();
            found.dedup();
        }
        self.log.push(format!("{client}: {}, all turns", display(command)));
        assert!(found[0] == found[1], "{}\n linerate: {:?}\n redis: {:?}", self.log.join("\n"), found[0], found[1]);
    }

    /// Compares the complete state.
    fn compare_state(&mut self) {
        self.run(0, &[args("RESET")], false);
        for database in 0..4 {
            self.run(0, &[args(&format!("SELECT {database}")), lookup_all(), args("KEYS *")], false);
            let keys = self.redis.run(0, &[args("KEYS *")]).remove(0);
            for key in keys.parts() {
                // Key names need no escaping, except for those stored by mistake.
                let commands = ["TYPE", "GET", "HGETALL", "PTTL", "STRLEN", "HLEN"];
                let commands: Vec<Args> = commands.iter().map(|name| args(&format!("{name} {}", key.text()))).collect();
                self.run(0, &commands, false);
            }
        }
        // All expired keys have been looked up.
        self.run(0, &[args("INFO keyspace")], false);
    }
}

#[test]
fn random_commands_get_equal_replies() {
    let since = Instant::now();
    let given = std::env::var("LINERATE_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    let long_enough = Duration::from_secs(given.unwrap_or(SECONDS));
    let mut commands = 0;
    for seed in 0.. {
        if since.elapsed() > long_enough {
            break;
        }
        let mut grammar = Grammar::new(seed);
        let mut pair = ServerPair::new(if seed % 2 == 0 { 1 } else { 4 });
        pair.log.push(format!("seed {seed}"));
        // Consecutive commands of one client are sent together.
        let mut batch: Vec<Args> = Vec::new();
        let mut sender = 0;
        for _ in 0..STEPS {
            let step = grammar.step();
            let (Step::Run(client, _) | Step::RunBriefly(client, _) | Step::Scan(client, _)) = step;
            if client != sender || batch.len() > 20 || !matches!(step, Step::Run(..)) {
                commands += batch.len();
                pair.run(sender, &batch, grammar.is(2));
                batch.clear();
                sender = client;
            }
            match step {
                // Expired keys count until they are looked up.
                Step::Run(_, command) if matches!(&command[0][..], b"DBSIZE" | b"MEMORY") => {
                    batch.extend([lookup_all(), command]);
                }
                Step::Run(_, command) => batch.push(command),
                Step::RunBriefly(_, command) => {
                    pair.run(client, &[args("DISCARD"), command], false);
                    std::thread::sleep(Duration::from_millis(20));
                    pair.run(client, &[lookup_all()], false);
                }
                Step::Scan(_, command) => pair.scan(client, &command),
            }
        }
        pair.run(sender, &batch, false);
        pair.compare_state();
    }
    println!("{commands} commands");
    assert!(commands > STEPS / 2, "no time for more than {commands} commands");
}

/// Commands, one per line.
const LINES: &str = include_str!("lines.txt");

#[test]
fn chosen_commands_get_equal_replies() {
    let lines: Vec<Args> = LINES.lines().filter(|line| !line.is_empty()).map(args).collect();
    assert!(lines.len() > 100);
    for workers in [1, 4] {
        let mut pair = ServerPair::new(workers);
        lines.iter().for_each(|line| pair.run(0, std::slice::from_ref(line), false));
    }
}

#[test]
fn scans_of_many_keys_and_fields_find_the_same() {
    let sets: Vec<Args> =
        (0..300).flat_map(|n| [args(&format!("SET key:{n} x")), args(&format!("HSET h f{n} v"))]).collect();
    for workers in [1, 4] {
        let mut pair = ServerPair::new(workers);
        pair.run(0, &sets, false);
        pair.run(0, &["SELECT 1", "SET other x", "SELECT 0", "KEYS key:1?", "KEYS *", "RANDOMKEY"].map(args), false);
        for scan in ["SCAN 0 TYPE string", "SCAN 0 MATCH key:*7 COUNT 1000", "SCAN 0 TYPE hash", "SCAN 0 TYPE list"] {
            pair.scan(0, &args(scan));
        }
        pair.scan(0, &args("HSCAN h 0"));
        pair.scan(0, &args("HSCAN h 0 MATCH f1?"));
        pair.run(0, &["FLUSHDB", "RANDOMKEY", "KEYS *"].map(args), false);
    }
}

/// Returns the reply to `COMMAND INFO` without notes and tips.
fn described(info: &Value) -> Vec<Value> {
    let mut parts = info.parts()[..7].to_vec();
    parts[2] = parts[2].clone().sorted(1);
    parts[6] = parts[6].clone().sorted(1);
    for spec in info.parts()[8].parts() {
        let pairs: Vec<&[Value]> = spec.parts().chunks(2).filter(|pair| pair[0].text() != "notes").collect();
        parts.extend(pairs.concat());
    }
    parts
}

#[test]
fn command_table_equals_that_of_redis() {
    let mut pair = ServerPair::new(1);
    let all = pair.linerate.run(0, &args("COMMAND"), false);
    let parts = all.parts().iter().flat_map(|command| command.parts()[9].parts());
    let commands: Vec<&Value> = all.parts().iter().chain(parts).collect();
    assert!(commands.len() > 80);
    let count = pair.linerate.run(0, &args("COMMAND COUNT"), false);
    assert_eq!(count, Value::Integer(all.parts().len() as i64));
    for command in commands {
        let name = command.parts()[0].text();
        // Linerate's own commands have a prefix, as those of Redis modules do.
        if name.starts_with("linerate.") {
            continue;
        }
        let redis = pair.redis.run(0, &[args(&format!("COMMAND INFO {name}"))]).remove(0);
        let redis = &redis.parts()[0];
        if ["client|setinfo", "client|no-touch", "cluster|myshardid"].contains(&name) {
            assert_eq!(*redis, Value::Null, "it came with Redis 7.2");
            continue;
        }
        assert_eq!(described(command), described(redis), "{name}");
    }
}
