//! Random commands over few keys.

use super::servers::{Args, now};
use fastrand::Rng;

/// Next step.
#[derive(Debug)]
pub enum Step {
    /// Command of a client.
    Run(usize, Args),
    /// Command whose effect expires before the next step.
    RunBriefly(usize, Args),
    /// All calls of a scan.
    Scan(usize, Args),
}

/// Keys of the commands.
pub const KEYS: [&str; 6] = ["a", "b", "c", "d", "h", "n"];
const FIELDS: [&str; 4] = ["f", "g", "i", ""];
/// Wrong words. None is a time in the near future.
pub const WRONG: [&str; 16] = [
    "",
    "x",
    "-1",
    "0",
    "9223372036854775807",
    "-9223372036854775808",
    "9223372036854775808",
    "1.5",
    " 1",
    "nx",
    "get",
    "keepttl",
    "a\r\nb",
    "persist",
    "ex",
    "16",
];

/// Commands. Words in braces are [filled in](Grammar::word).
const COMMANDS: &[&str] = &[
    "GET {k}",
    "GET {k}",
    "GET {k}",
    "SET {k} {v}",
    "SET {k} {v}",
    "SET {k} {n}",
    "SET {k} {v} {s}",
    "SET {k} {v} {s} {s}",
    "SET {k} {v} {s} {s} {s}",
    "SETNX {k} {v}",
    "SETEX {k} {t} {v}",
    "PSETEX {k} {t}000 {v}",
    "GETSET {k} {v}",
    "GETDEL {k}",
    "GETEX {k}",
    "GETEX {k} EX {t}",
    "GETEX {k} PX {t}000",
    "GETEX {k} PERSIST",
    "GETEX {k} EXAT {at}",
    "GETEX {k} PXAT {at}000",
    "GETEX {k} EX {t} PERSIST",
    "GETEX {k} PXAT 1",
    "PEXPIREAT {k} 1",
    "EXPIREAT {k} {at}",
    "EXPIREAT {k} {at} GT",
    "EXPIREAT {k} {at} LT",
    "MGET {k} {k} {k}",
    "MSET {k} {v} {k} {v} {k} {n}",
    "MSETNX {k} {v} {k} {v}",
    "APPEND {k} {v}",
    "APPEND {k} {n}",
    "STRLEN {k}",
    "INCR {k}",
    "DECR {k}",
    "INCRBY {k} {n}",
    "DECRBY {k} {n}",
    "GETRANGE {k} {o} {o}",
    "SETRANGE {k} {p} {v}",
    "SETBIT {k} {b} 1",
    "SETBIT {k} {b} 0",
    "GETBIT {k} {b}",
    "BITCOUNT {k}",
    "BITCOUNT {k} {o} {o}",
    "BITCOUNT {k} {o} {o} BIT",
    "BITCOUNT {k} {o} {o} byte",
    "BITPOS {k} 1",
    "BITPOS {k} 0",
    "BITPOS {k} 0 {o}",
    "BITPOS {k} 1 {o} {o}",
    "BITPOS {k} 0 {o} {o} BIT",
    "BITPOS {k} 1 {o} {o} BIT",
    "BITOP AND {k} {k} {k}",
    "BITOP or {k} {k} {k} {k}",
    "BITOP XOR {k} {k} {k}",
    "BITOP NOT {k} {k}",
    "BITOP NOT {k} {k} {k}",
    "BITFIELD {k} GET {y} {b} GET u8 #{q}",
    "BITFIELD {k} SET {y} {b} {n}",
    "BITFIELD {k} INCRBY {y} {q} {n} GET {y} {q}",
    "BITFIELD {k} OVERFLOW SAT INCRBY {y} {q} {n} SET {y} {b} {n}",
    "BITFIELD {k} OVERFLOW FAIL INCRBY {y} #{q} {n} SET {y} {q} {n} OVERFLOW WRAP INCRBY {y} {q} {n}",
    "BITFIELD {k} OVERFLOW NOSUCH GET {y} 0",
    "BITFIELD_RO {k} GET {y} {b} GET {y} {q}",
    "BITFIELD_RO {k} SET {y} {b} 1",
    "DEL {k} {k}",
    "UNLINK {k}",
    "EXISTS {k} {k} {k}",
    "TOUCH {k} {k}",
    "TYPE {k}",
    "EXPIRE {k} {t}",
    "EXPIRE {k} {t} NX",
    "PEXPIRE {k} {t}000 XX",
    "EXPIREAT {k} {at}",
    "EXPIREAT {k} {at} {c}",
    "PEXPIREAT {k} {at}000 {c}",
    "PEXPIREAT {k} {at}000 {c} {c}",
    "EXPIRE {k} -5",
    "EXPIRETIME {k}",
    "PEXPIRETIME {k}",
    "TTL {k}",
    "PTTL {k}",
    "PERSIST {k}",
    "KEYS *",
    "KEYS {pat}",
    "RANDOMKEY",
    "RENAME {k} {k}",
    "RENAME {k} {k}",
    "RENAMENX {k} {k}",
    "COPY {k} {k}",
    "COPY {k} {k} REPLACE",
    "COPY {k} {k} DB {db}",
    "COPY {k} {k} DB {db} REPLACE",
    "DBSIZE",
    "FLUSHDB",
    "FLUSHALL ASYNC",
    "FLUSHALL SYNC",
    "OBJECT ENCODING {k}",
    "MEMORY USAGE {k}",
    "MEMORY USAGE {k} SAMPLES 3",
    "HSET {h} {i} {v}",
    "HSET {h} {i} {v} {i} {n}",
    "HSET {h} {many}",
    "HMSET {h} {i} {v} {i} {v}",
    "HGET {h} {i}",
    "HDEL {h} {i} {i}",
    "HDEL {h} {i}",
    "HMGET {h} {i} {i} {i}",
    "HGETALL {h}",
    "HEXISTS {h} {i}",
    "HLEN {h}",
    "HKEYS {h}",
    "HVALS {h}",
    "HINCRBY {h} {i} {n}",
    "HSETNX {h} {i} {v}",
    "HSTRLEN {h} {i}",
    "PING",
    "PING {v}",
    "ECHO {v}",
    "SELECT {db}",
    "SELECT 0",
    "RESET",
    "HELLO 2",
    "HELLO 3",
    "CLIENT SETNAME {pat}",
    "CLIENT GETNAME",
    "MULTI",
    "MULTI",
    "EXEC",
    "EXEC",
    "EXEC",
    "DISCARD",
    "WATCH {k} {k}",
    "WATCH {k}",
    "UNWATCH",
    "NOSUCH {k} {v}",
    "OBJECT NOSUCH {k}",
    "TIME {v}",
    "AUTH default {v}",
    "SCAN 0 NOSUCH 5",
    "COMMAND COUNT {v} {v}",
];

/// Commands that make a key expire soon.
const BRIEF: &[&str] = &["SET {k} {v} PX 15", "PEXPIRE {h} 15", "PSETEX {k} 15 {v}", "GETEX {k} PX 15"];

const SCANS: &[&str] = &[
    "SCAN 0",
    "SCAN 0 COUNT 3",
    "SCAN 0 MATCH {pat} COUNT 100",
    "SCAN 0 TYPE hash",
    "SCAN 0 TYPE string MATCH *",
    "HSCAN {h} 0",
    "HSCAN {h} 0 MATCH f*",
    "HSCAN {h} 0 COUNT 50",
];

/// Generator of steps.
pub struct Grammar {
    random: Rng,
    /// Base of absolute times, in seconds since 1970.
    base: u64,
}

impl Grammar {
    pub fn new(seed: u64) -> Self {
        Grammar { random: Rng::with_seed(seed), base: now() / 1000 + 500 }
    }

    pub fn is(&mut self, one_in: usize) -> bool {
        self.random.usize(..one_in) == 0
    }

    pub fn step(&mut self) -> Step {
        let client = usize::from(self.is(4));
        match self.random.usize(..200) {
            0 => Step::RunBriefly(client, self.fill(BRIEF)),
            1..6 => Step::Scan(client, self.fill(SCANS)),
            _ => Step::Run(client, self.command()),
        }
    }

    fn command(&mut self) -> Args {
        let mut args = self.fill(COMMANDS);
        if self.is(25) && args.len() > 1 {
            let at = self.random.usize(1..args.len());
            let wrong = self.one(&WRONG).as_bytes().to_vec();
            match self.random.usize(..4) {
                0 => drop(args.remove(at)),
                1 => args.insert(at, wrong),
                2 => args.push(wrong),
                _ => args[at] = wrong,
            }
        }
        args
    }

    fn one<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.random.usize(..from.len())]
    }

    fn fill(&mut self, templates: &[&str]) -> Args {
        let template = self.one(templates);
        let mut args = Vec::new();
        for word in template.split(' ') {
            match (word, word.find('}')) {
                ("{many}", _) => {
                    for _ in 0..40 {
                        args.push(format!("f{}", self.random.u32(..900)).into_bytes());
                        args.push(self.word("{v}"));
                    }
                }
                ("{s}", _) => args.extend(self.set_option()),
                (_, Some(end)) => {
                    let mut arg = self.word(&word[..=end]);
                    arg.extend(word[end + 1..].bytes());
                    args.push(arg);
                }
                (_, None) => args.push(word.as_bytes().to_vec()),
            }
        }
        args
    }

    fn set_option(&mut self) -> Vec<Vec<u8>> {
        let option =
            self.one(&["NX", "xx", "GET", "KEEPTTL", "EX {t}", "px {t}000", "EXAT {at}", "PXAT {at}000", "PXAT 1"]);
        option
            .split(' ')
            .map(|word| match word.find('}') {
                Some(end) => [self.word(&word[..=end]), word.as_bytes()[end + 1..].to_vec()].concat(),
                None => word.as_bytes().to_vec(),
            })
            .collect()
    }

    /// Returns a value for a word in braces.
    fn word(&mut self, word: &str) -> Vec<u8> {
        let text = match word {
            "{k}" => self.one(&KEYS).to_owned(),
            // Mostly a hash, at times another type.
            "{h}" if self.is(8) => self.one(&KEYS).to_owned(),
            "{h}" => "h".to_owned(),
            "{i}" => self.one(&FIELDS).to_owned(),
            "{n}" => {
                self.one(&["0", "1", "-1", "5", "-7", "100", "9223372036854775807", "-9223372036854775808"]).to_owned()
            }
            "{o}" => self.one(&["0", "1", "3", "-1", "-2", "-100", "5000", "9223372036854775807"]).to_owned(),
            "{p}" => self.one(&["0", "1", "7", "100", "5000", "-1", "536870912", "9223372036854775807"]).to_owned(),
            "{b}" => self.one(&["0", "1", "7", "8", "100", "40000", "500000", "-1", "4294967296"]).to_owned(),
            "{q}" => self.one(&["0", "1", "3", "13", "30", "-1"]).to_owned(),
            "{y}" => self.one(&["u1", "i1", "u8", "i8", "u5", "i13", "u63", "i64", "u64", "i65", "x"]).to_owned(),
            "{t}" => self.one(&["1000", "2000", "3000"]).to_owned(),
            "{at}" => (self.base + 1000 * self.random.u64(..3)).to_string(),
            "{c}" => self.one(&["NX", "XX", "gt", "lt", "GT"]).to_owned(),
            "{db}" => self.one(&["0", "0", "1", "2"]).to_owned(),
            "{pat}" => self.one(&["?", "[a-c]", "[^a]", "a*", "*", "**", "\\a", "", "[a", "x*y*z"]).to_owned(),
            _ => return self.value(),
        };
        text.into_bytes()
    }

    fn value(&mut self) -> Vec<u8> {
        let len = match self.random.usize(..40) {
            0 => self.random.usize(4000..5000),
            1 => self.random.usize(..70_000),
            2..6 => self.random.usize(..100),
            6..12 => return self.random.i64(-50..50).to_string().into_bytes(),
            15 => 0,
            _ => self.random.usize(1..8),
        };
        let first = self.random.u8(..);
        (0..len).map(|at| first.wrapping_add((at % 7) as u8)).collect()
    }
}
