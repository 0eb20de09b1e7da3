//! The commands beside those of the real `redis-server`: the same replies, the same state.

mod grammar;
mod reply;
mod servers;

use grammar::{Grammar, Step};
use reply::Value;
use servers::{Args, CLIENTS, Ours, Redis};
use std::time::{Duration, Instant};

/// For how many seconds random commands are compared, unless `LINERATE_SECONDS` says otherwise.
const SECONDS: u64 = 4;
/// Steps of one seed.
const STEPS: usize = 600;
/// How far apart times may be, in milliseconds.
const TOLERANCE: i64 = 20_000;

fn args(line: &str) -> Args {
    line.split(' ').map(|word| if word == "\"\"" { Vec::new() } else { word.as_bytes().to_vec() }).collect()
}

fn shown(args: &Args) -> String {
    let words = args.iter().map(|arg| match arg.len() {
        ..80 => format!("\"{}\"", arg.escape_ascii()),
        len => format!("({len} bytes)"),
    });
    words.collect::<Vec<_>>().join(" ")
}

/// A look at every key that may have expired: until then it counts.
fn look() -> Args {
    let names = ["EXISTS"].iter().chain(&grammar::KEYS).chain(&grammar::WRONG);
    names.map(|name| name.as_bytes().to_vec()).collect()
}

/// `reply` to `command` without what may differ: the order of what has none, times a bit apart, what is random.
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
        // Of all that is told only this: how many keys there are, and how many expire.
        (b"info", Value::Bulk(text) | Value::Verbatim(text)) => {
            let databases = text.split("\\r\\n").filter(|line| line.starts_with("db"));
            Value::Array(databases.map(counts).collect())
        }
        (b"time", Value::Array(parts)) => Value::Integer(parts.len() as i64),
        (b"randomkey", Value::Null | Value::Bulk(_)) => is_found(&reply),
        (b"memory", Value::Null | Value::Integer(_)) => is_found(&reply),
        // The same number may be kept in either way, and a hash, too.
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

/// Whether two replies are the same, but for times.
fn is_alike(command: &Args, ours: &Value, real: &Value) -> bool {
    let is_time = ["ttl", "pttl", "expiretime", "pexpiretime"]
        .iter()
        .any(|name| command[0].eq_ignore_ascii_case(name.as_bytes()));
    match (ours, real) {
        (Value::Integer(ours), Value::Integer(real)) if is_time && *ours > 0 && *real > 0 => {
            (ours - real).abs() <= TOLERANCE
        }
        _ => comparable(command, ours.clone()) == comparable(command, real.clone()),
    }
}

/// Both, with what was run so far.
struct Both {
    ours: Ours,
    real: Redis,
    log: Vec<String>,
    /// Commands that wait for `EXEC`, as far as they were queued.
    queued: Vec<Vec<Args>>,
}

impl Both {
    fn new(shards: usize) -> Self {
        Both {
            ours: Ours::with_shards(shards),
            real: Redis::start(),
            log: Vec::new(),
            queued: vec![Vec::new(); CLIENTS],
        }
    }

    /// Runs `commands` of a client by both.
    fn run(&mut self, client: usize, commands: &[Args], apart: bool) {
        let real = self.real.run(client, commands);
        for (command, real) in commands.iter().zip(real) {
            let ours = self.ours.run(client, command, apart);
            self.log.push(format!("{client}: {}", shown(command)));
            self.compare(client, command, &ours, &real);
            match (&ours, &command[0].to_ascii_lowercase()[..]) {
                (Value::Simple(text), _) if text == "QUEUED" => self.queued[client].push(command.clone()),
                (Value::Error(_), b"exec") if command.len() > 1 => {}
                (Value::Error(_), b"discard" | b"reset" | b"multi" | b"watch") => {}
                (_, b"exec" | b"discard" | b"reset") => self.queued[client].clear(),
                _ => {}
            }
        }
    }

    fn compare(&self, client: usize, command: &Args, ours: &Value, real: &Value) {
        let is_exec = command[0].eq_ignore_ascii_case(b"exec") && ours.parts().len() == real.parts().len();
        let alike = if is_exec && !ours.parts().is_empty() {
            let parts = ours.parts().iter().zip(real.parts());
            self.queued[client].iter().zip(parts).all(|(command, (ours, real))| is_alike(command, ours, real))
        } else {
            is_alike(command, ours, real)
        };
        if !alike {
            let before = self.log.iter().rev().take(60).rev().cloned().collect::<Vec<_>>().join("\n");
            panic!("{before}\n ours: {ours:?}\n real: {real:?}");
        }
    }

    /// All that a scan returns, of both, until each has come to its end.
    fn scan(&mut self, client: usize, command: &Args) {
        self.run(client, &[args("DISCARD")], false);
        let place = if command[0] == b"HSCAN" { 2 } else { 1 };
        let step = place;
        let mut found = [Vec::new(), Vec::new()];
        for (number, found) in found.iter_mut().enumerate() {
            let mut command = command.clone();
            loop {
                let reply = if number == 0 {
                    self.ours.run(client, &command, false)
                } else {
                    self.real.run(client, std::slice::from_ref(&command)).remove(0)
                };
                if reply.parts().len() != 2 {
                    found.push(vec![reply]);
                    break;
                }
                found.extend(reply.parts()[1].parts().chunks(step).map(<[Value]>::to_vec));
                command[place] = reply.parts()[0].text().as_bytes().to_vec();
                if command[place] == b"0" {
                    break;
                }
            }
            found.sort();
            found.dedup();
        }
        self.log.push(format!("{client}: {}, all turns", shown(command)));
        assert!(found[0] == found[1], "{}\n ours: {:?}\n real: {:?}", self.log.join("\n"), found[0], found[1]);
    }

    /// Everything that is there is the same.
    fn compare_state(&mut self) {
        self.run(0, &[args("RESET")], false);
        for database in 0..4 {
            self.run(0, &[args(&format!("SELECT {database}")), look(), args("KEYS *")], false);
            let keys = self.real.run(0, &[args("KEYS *")]).remove(0);
            for key in keys.parts() {
                // Names of keys are not escaped but for those that were put in by mistake.
                let commands = ["TYPE", "GET", "HGETALL", "PTTL", "STRLEN", "HLEN"];
                let commands: Vec<Args> = commands.iter().map(|name| args(&format!("{name} {}", key.text()))).collect();
                self.run(0, &commands, false);
            }
        }
        // All has been looked at that may have expired.
        self.run(0, &[args("INFO keyspace")], false);
    }
}

#[test]
fn random_commands_are_replied_to_alike() {
    let since = Instant::now();
    let asked = std::env::var("LINERATE_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    let long_enough = Duration::from_secs(asked.unwrap_or(SECONDS));
    let mut commands = 0;
    for seed in 0.. {
        if since.elapsed() > long_enough {
            break;
        }
        let mut grammar = Grammar::new(seed);
        let mut both = Both::new(if seed % 2 == 0 { 1 } else { 4 });
        both.log.push(format!("seed {seed}"));
        // What one client sends until the other does goes together.
        let mut batch: Vec<Args> = Vec::new();
        let mut sender = 0;
        for _ in 0..STEPS {
            let step = grammar.step();
            let (Step::Run(client, _) | Step::RunBriefly(client, _) | Step::Scan(client, _)) = step;
            if client != sender || batch.len() > 20 || !matches!(step, Step::Run(..)) {
                commands += batch.len();
                both.run(sender, &batch, grammar.is(2));
                batch.clear();
                sender = client;
                both.ours.tick();
            }
            match step {
                // What has expired counts until somebody has looked.
                Step::Run(_, command) if matches!(&command[0][..], b"DBSIZE" | b"MEMORY") => {
                    batch.extend([look(), command]);
                }
                Step::Run(_, command) => batch.push(command),
                Step::RunBriefly(_, command) => {
                    both.run(client, &[args("DISCARD"), command], false);
                    std::thread::sleep(Duration::from_millis(20));
                    both.run(client, &[look()], false);
                }
                Step::Scan(_, command) => both.scan(client, &command),
            }
        }
        both.run(sender, &batch, false);
        both.compare_state();
    }
    println!("{commands} commands");
    assert!(commands > STEPS / 2, "no time for more than {commands} commands");
}

/// Lines of words, each of which is replied to by both.
const LINES: &str = include_str!("lines.txt");

#[test]
fn chosen_commands_are_replied_to_alike() {
    let mut both = Both::new(4);
    let lines: Vec<Args> = LINES.lines().filter(|line| !line.is_empty()).map(args).collect();
    assert!(lines.len() > 100);
    for line in &lines {
        both.run(0, std::slice::from_ref(line), false);
    }
}

/// What `COMMAND INFO` says, but for notes and tips.
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
fn the_table_of_commands_says_what_that_of_redis_says() {
    let mut both = Both::new(1);
    let all = both.ours.run(0, &args("COMMAND"), false);
    let parts = all.parts().iter().flat_map(|command| command.parts()[9].parts());
    let commands: Vec<&Value> = all.parts().iter().chain(parts).collect();
    assert!(commands.len() > 80);
    for command in commands {
        let name = command.parts()[0].text();
        // Those of our own, which are called after whose they are, as those of Redis' modules.
        if name.starts_with("linerate.") {
            continue;
        }
        let real = both.real.run(0, &[args(&format!("COMMAND INFO {name}"))]).remove(0);
        let real = &real.parts()[0];
        if name == "client|setinfo" {
            assert_eq!(*real, Value::Null, "it came with Redis 7.2");
            continue;
        }
        assert_eq!(described(command), described(real), "{name}");
    }
}
