//! Compares the replies of memcached and of shards in this process.

use super::client::Client;
use super::real::Real;
use super::steps::{Part, Step, steps};
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use std::cell::RefCell;
use std::collections::HashMap;

/// Reply to the last request.
const LAST: &[u8] = b"VERSION 1.6.18\r\n";

/// CAS values in the order in which they were seen, because each server has its own.
#[derive(Default)]
struct CasValues(HashMap<Vec<u8>, Vec<u64>>);

impl CasValues {
    /// Returns the bytes of `step` with this server's CAS values.
    fn bytes(&self, step: &Step) -> Vec<u8> {
        let mut bytes = Vec::new();
        for part in &step.parts {
            match part {
                Part::Bytes(part) => bytes.extend_from_slice(part),
                Part::Cas { first } => {
                    let seen = self.0.get(&step.key).map_or(&[][..], |seen| seen);
                    let cas = if *first { seen.first() } else { seen.last() };
                    bytes.extend(cas.unwrap_or(&0).to_string().bytes());
                }
            }
        }
        bytes
    }

    fn rename(&mut self, key: &[u8], cas: u64) -> String {
        if cas == 0 {
            return "0".into();
        }
        let seen = self.0.entry(key.to_vec()).or_default();
        let index = seen.iter().position(|known| *known == cas).unwrap_or_else(|| {
            seen.push(cas);
            seen.len() - 1
        });
        format!("#{index}")
    }

    /// Returns `reply` with its CAS values renamed, and without data that depends on memcached's slabs.
    fn renamed(&mut self, step: &Step, reply: &[u8]) -> String {
        let mut text = String::new();
        let mut rest = reply;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let (line, after) = rest.split_at(end + 1);
            rest = after;
            let mut words: Vec<String> =
                line.split(|byte| *byte == b' ').map(|word| word.escape_ascii().to_string()).collect();
            let is_item = matches!(&words[0][..], "VALUE" | "VA");
            let data = if is_item {
                words[if words[0] == "VA" { 1 } else { 3 }].trim_end_matches("\\r\\n").parse().unwrap()
            } else {
                0
            };
            let number = |word: &str| word.trim_end_matches("\\r\\n").parse::<u64>().ok();
            match &words[0][..] {
                "VALUE" if words.len() == 5 => {
                    words[4] = self.rename(words[1].clone().as_bytes(), number(&words[4]).unwrap())
                }
                "VA" | "HD" | "EX" | "NF" | "NS" => {
                    for word in &mut words[1..] {
                        if let Some(cas) = word.strip_prefix('c').and_then(number) {
                            *word = format!("c{}", self.rename(&step.key, cas));
                        }
                    }
                }
                "ME" => {
                    let key = words[1].clone();
                    words.retain(|word| !word.starts_with("cls="));
                    for word in &mut words {
                        if let Some(cas) = word.strip_prefix("cas=").and_then(number) {
                            *word = format!("cas={}", self.rename(key.as_bytes(), cas));
                        }
                    }
                }
                _ => {}
            }
            text += &words.join(" ");
            if is_item {
                let (data, after) = rest.split_at(data + 2);
                text += &data.escape_ascii().to_string();
                rest = after;
            }
        }
        text + &rest.escape_ascii().to_string()
    }
}

/// Returns requests that end the reply to a step: empty lines that complete missing data, and a request with a known
/// reply.
fn end_of(step: &Step) -> (&'static [u8], &'static [u8]) {
    if step.is_ragged { (b"\r\n\r\n\r\n\r\nversion\r\n", LAST) } else { (b"mn\r\n", b"MN\r\n") }
}

/// Returns requests that show everything stored.
fn state() -> Vec<Step> {
    let line = |key: &[u8], line: &str| Step {
        key: key.to_vec(),
        parts: vec![Part::Bytes(line.as_bytes().to_vec())],
        is_ragged: false,
    };
    let plain = ["a", "b", "c", "key", "foo"].map(|key| line(key.as_bytes(), &format!("mg {key} k v t f s h c u\r\n")));
    let binary = [(&b"\x00 \xff"[..], "ACD/"), (b"\t\x01", "CQE=")]
        .map(|(key, name)| line(key, &format!("mg {name} b k v t f s h c u\r\n")));
    plain.into_iter().chain(binary).collect()
}

struct ServerPair {
    real: Real,
    linerate: [Client; 2],
}

impl ServerPair {
    /// Compares the replies to `steps`. Returns `None` if memcached's clock advanced in between.
    fn compare(&mut self, steps: &[Step]) -> Option<Result<(), String>> {
        self.real.call(b"flush_all\r\n", b"OK\r\n");
        let now = self.real.time() * 1000;
        for linerate in &mut self.linerate {
            linerate.now = now;
            linerate.call(b"flush_all\r\n");
        }
        let mut seen: [CasValues; 3] = Default::default();
        let mut wrong = None;
        for step in steps {
            let (more, end) = end_of(step);
            let real = self.real.call(&[&seen[2].bytes(step)[..], more].concat(), end);
            let real = seen[2].renamed(step, &real);
            for (linerate, seen) in self.linerate.iter_mut().zip(&mut seen) {
                let bytes = [&seen.bytes(step)[..], more].concat();
                let reply = linerate.call(&bytes);
                assert!(reply.ends_with(end), "reply to {} is {}", bytes.escape_ascii(), reply.escape_ascii());
                let reply = seen.renamed(step, &reply);
                if reply != real && wrong.is_none() {
                    wrong = Some(format!("to {step:?}\nmemcached: {real}\nlinerate:  {reply}"));
                }
            }
            if wrong.is_some() {
                break;
            }
        }
        (self.real.time() * 1000 == now).then_some(wrong.map_or(Ok(()), Err))
    }
}

#[test]
fn replies_equal_those_of_memcached() {
    // One server receives whole requests, the other single bytes, with most values as long values.
    let mut linerate = Client::each();
    linerate[1].is_cut = true;
    let pair = RefCell::new(ServerPair { real: Real::start(), linerate });
    let mut runner = TestRunner::new(Config {
        cases: 1000.max(Config::default().cases),
        max_shrink_iters: 20_000,
        failure_persistence: None,
        ..Config::default()
    });
    let result = runner.run(&steps(), |mut steps| {
        steps.extend(state());
        let mut pair = pair.borrow_mut();
        pair.linerate[1].limits.long = 1 + steps.len() % 20;
        let compared = loop {
            if let Some(compared) = pair.compare(&steps) {
                break compared;
            }
        };
        compared.map_err(TestCaseError::fail)
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

#[test]
fn large_items_are_handled_as_in_memcached() {
    let mut pair = ServerPair { real: Real::start(), linerate: [1, 4].map(|shards| Client::new(shards, 64 << 20)) };
    let mut requests: Vec<String> = Vec::new();
    let put = |line: String, len: usize| format!("{line} {len}\r\n{}\r\n", "x".repeat(len));
    let long = "k".repeat(250);
    // Longest value that fits with a key and flags.
    for (key, flags, most) in [("a", 0, 1_048_516), ("a", 5, 1_048_512), (&long[..], 0, 1_048_267)] {
        for len in [4095, 4096, 65_536, 500_000, most, most + 1, 1_048_576, 3_000_000] {
            for verb in ["set", "add", "replace", "append", "prepend"] {
                requests.push(format!("set {key} 7 0 3\r\nold\r\n"));
                requests.push(put(format!("{verb} {key} {flags} 0"), len));
                requests.push(format!("get {key}\r\n"));
            }
            requests.push(put(format!("ms {key}"), len).replacen("\r\n", &format!(" F{flags} k c\r\n"), 1));
            requests.push(format!("mg {key} v s c\r\n"));
            requests.push(format!("append {key} 0 0 1\r\nx\r\n"));
            requests.push(format!("mg {key} v s f h\r\n"));
            requests.push(format!("delete {key}\r\n"));
        }
    }
    let keys: Vec<String> = (0..100).map(|n| format!("{n}{}", "k".repeat(200))).collect();
    requests.extend(keys.iter().map(|key| format!("set {key} 0 0 1\r\nx\r\n")));
    requests.push(format!("get {}\r\n", keys.join(" ")));
    requests.push(format!("gats 100 {}\r\n", keys[..5].join(" ")));
    requests.extend(keys.iter().map(|key| format!("delete {key} noreply\r\n")));
    let steps: Vec<Step> = requests
        .into_iter()
        .map(|request| Step { key: b"a".to_vec(), parts: vec![Part::Bytes(request.into_bytes())], is_ragged: false })
        .collect();
    // In parts that each end before memcached's clock advances.
    for steps in steps.chunks(20) {
        let compared = loop {
            if let Some(compared) = pair.compare(steps) {
                break compared;
            }
        };
        compared.unwrap_or_else(|wrong| panic!("{:.500}", wrong));
    }
}
