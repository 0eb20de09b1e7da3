//! Requests of a client, and the replies that follow from its own keys.

use super::clients::Reply;
use crate::request;
use std::collections::HashMap;
use std::fmt::Write;

/// Keys of a client, half of them numbers.
const KEYS: usize = 16;

/// Keys of a client with their expected values.
pub struct Model {
    name: String,
    is_redis: bool,
    random: fastrand::Rng,
    values: HashMap<usize, String>,
}

impl Model {
    pub fn new(name: String, is_redis: bool, random: fastrand::Rng) -> Self {
        Model { name, is_redis, random, values: HashMap::new() }
    }

    /// Appends a request to `out`. Returns its expected reply.
    pub fn request(&mut self, out: &mut Vec<u8>) -> Reply {
        let mut expected = String::new();
        if !self.is_redis {
            self.memcached(out, &mut expected);
        } else if self.random.u8(..8) > 0 {
            let kind = self.random.u8(..8);
            match kind {
                0 => self.mget(out, &mut expected),
                1 => {
                    out.extend(request(&["MULTI"]));
                    expected += "+OK\r\n";
                    let count = self.random.usize(1..6);
                    let mut replies = format!("*{count}\r\n");
                    for _ in 0..count {
                        self.single(out, &mut replies);
                        expected += "+QUEUED\r\n";
                    }
                    out.extend(request(&["EXEC"]));
                    expected += &replies;
                }
                _ => self.single(out, &mut expected),
            }
        } else {
            // With several shards, these keys are in different ones.
            for words in [&["MULTI"][..], &["INCR", "both:one"], &["INCR", "both:other"], &["EXEC"]] {
                out.extend(request(words));
            }
            return Reply::Counted;
        }
        Reply::Exactly(expected.into_bytes())
    }

    fn key(&self, n: usize) -> String {
        format!("{}:{n}", self.name)
    }

    /// Returns a value, mostly short.
    fn value(&mut self) -> String {
        let len = match self.random.u8(..20) {
            0 => self.random.usize(4000..20_000),
            1..4 => self.random.usize(..2000),
            _ => self.random.usize(..100),
        };
        let first = self.random.u8(..);
        (0..len).map(|at| char::from(b'a' + (first.wrapping_add((at / 7) as u8)) % 26)).collect()
    }

    /// Increments a number.
    fn count_up(&mut self, n: usize, by: u64) -> u64 {
        let value = self.values.entry(n).or_insert_with(|| "0".to_owned());
        let number = value.parse::<u64>().unwrap() + by;
        *value = number.to_string();
        number
    }

    fn single(&mut self, out: &mut Vec<u8>, expected: &mut String) {
        let n = self.random.usize(..KEYS);
        let key = self.key(n);
        match self.random.u8(..3) {
            0 if n < KEYS / 2 => {
                out.extend(request(&["INCR", &key]));
                write!(expected, ":{}\r\n", self.count_up(n, 1)).unwrap();
            }
            0 | 1 if n >= KEYS / 2 => {
                let value = self.value();
                out.extend(request(&["SET", &key, &value]));
                self.values.insert(n, value);
                *expected += "+OK\r\n";
            }
            _ => {
                out.extend(request(&["GET", &key]));
                self.bulk(n, expected);
            }
        }
    }

    fn mget(&mut self, out: &mut Vec<u8>, expected: &mut String) {
        let all: Vec<usize> = (0..self.random.usize(1..6)).map(|_| self.random.usize(..KEYS)).collect();
        let keys: Vec<String> = all.iter().map(|n| self.key(*n)).collect();
        out.extend(request(&[&["MGET".to_owned()], &keys[..]].concat()));
        write!(expected, "*{}\r\n", all.len()).unwrap();
        all.into_iter().for_each(|n| self.bulk(n, expected));
    }

    fn bulk(&self, n: usize, expected: &mut String) {
        match self.values.get(&n) {
            Some(value) => write!(expected, "${}\r\n{value}\r\n", value.len()).unwrap(),
            None => *expected += "$-1\r\n",
        }
    }

    fn memcached(&mut self, out: &mut Vec<u8>, expected: &mut String) {
        let n = self.random.usize(..KEYS);
        let key = self.key(n);
        let mut line = String::new();
        match self.random.u8(..6) {
            0 | 1 if n >= KEYS / 2 => {
                let value = self.value();
                line = format!("set {key} {n} 0 {}\r\n{value}\r\n", value.len());
                self.values.insert(n, value);
                *expected += "STORED\r\n";
            }
            0 | 1 if self.values.contains_key(&n) => {
                line = format!("incr {key} 3\r\n");
                write!(expected, "{}\r\n", self.count_up(n, 3)).unwrap();
            }
            0 | 1 => {
                line = format!("ms {key} 1 F{n}\r\n0\r\n");
                self.values.insert(n, "0".to_owned());
                *expected += "HD\r\n";
            }
            2 => {
                line += "get";
                for _ in 0..self.random.usize(1..6) {
                    let n = self.random.usize(..KEYS);
                    write!(line, " {}", self.key(n)).unwrap();
                    if let Some(value) = self.values.get(&n) {
                        write!(expected, "VALUE {} {n} {}\r\n{value}\r\n", self.key(n), value.len()).unwrap();
                    }
                }
                line += "\r\n";
                *expected += "END\r\n";
            }
            _ => {
                line = format!("mg {key} v f O{n}\r\n");
                match self.values.get(&n) {
                    Some(value) => write!(expected, "VA {} f{n} O{n}\r\n{value}\r\n", value.len()).unwrap(),
                    None => write!(expected, "EN O{n}\r\n").unwrap(),
                }
            }
        }
        out.extend_from_slice(line.as_bytes());
    }
}
