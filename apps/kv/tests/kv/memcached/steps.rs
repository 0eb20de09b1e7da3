//! Random requests from a grammar, over few keys.

use fastrand::Rng;
use proptest::prelude::*;
use std::fmt;

/// Request.
#[derive(Clone)]
pub struct Step {
    /// Key that the reply refers to, if it does not name it.
    pub key: Vec<u8>,
    pub parts: Vec<Part>,
    /// Missing data may consume the bytes that follow.
    pub is_ragged: bool,
}

/// Part of a request.
#[derive(Clone)]
pub enum Part {
    Bytes(Vec<u8>),
    /// CAS value with which the key was seen last or first.
    Cas {
        first: bool,
    },
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = self.parts.iter().map(|part| match part {
            Part::Bytes(bytes) => bytes.escape_ascii().to_string(),
            Part::Cas { first: true } => "<first>".into(),
            Part::Cas { first: false } => "<last>".into(),
        });
        write!(f, "{}", parts.collect::<String>())
    }
}

pub fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(any::<u64>().prop_map(|seed| step(&mut Rng::with_seed(seed))), 1..40)
}

/// Keys, and binary keys with their base64 encoding.
const KEYS: [&str; 4] = ["a", "b", "c", "key"];
const BINARY: [(&[u8], &str); 3] = [(b"foo", "Zm9v"), (b"\x00 \xff", "ACD/"), (b"\t\x01", "CQE=")];

fn pick<'a>(rng: &mut Rng, of: &[&'a str]) -> &'a str {
    of[rng.usize(..of.len())]
}

/// Returns a number. Sums of these never look negative: memcached would then search for a sign beyond the end of the
/// value.
fn number(rng: &mut Rng) -> &'static str {
    pick(rng, &["0", "1", "2", "9", "10", "99", "100", "7", "12345", "4294967295", "1000000000000"])
}

fn strange_number(rng: &mut Rng) -> &'static str {
    pick(rng, &["x", "-1", "1x", "18446744073709551616", "+5", "007", "-0", "", "1.5", "-18446744073709551615"])
}

/// Returns a value so short that both servers compute the same item class.
fn value(rng: &mut Rng) -> &'static str {
    match rng.u8(..4) {
        0 => pick(rng, &["x", "", "abc", "a\r\nb", "VALUE a 0 1", "12x", "-5", "1 2", "+3", "5 "]),
        1 => pick(rng, &["hello world", "0099", "99999999999999999999", "00000000000000000000001", "1\t2", "1\n"]),
        _ => number(rng),
    }
}

/// Returns a time far from the points where the servers' clocks could differ. Negative times only if `may_be_past`.
fn seconds(rng: &mut Rng, may_be_past: bool) -> &'static str {
    match rng.u8(..8) {
        0 if may_be_past => pick(rng, &["-1", "-100", "2592001", "4294967295", "2147483648"]),
        0..4 => "0",
        _ => pick(rng, &["100", "500", "2592000", "4294967396", "2147483647"]),
    }
}

fn flags(rng: &mut Rng) -> &'static str {
    pick(rng, &["0", "0", "0", "5", "4294967295", "4294967296"])
}

fn step(rng: &mut Rng) -> Step {
    match rng.u8(..20) {
        0..5 => text_put(rng),
        5..9 => text_line(rng),
        9..12 => meta_set(rng),
        12..16 => meta_get(rng),
        16 | 17 => meta_count(rng),
        18 => meta_delete(rng),
        _ => odd(rng),
    }
}

/// Request being built.
struct RequestBuilder(Step);

impl RequestBuilder {
    fn new(key: &[u8], line: String) -> Self {
        RequestBuilder(Step { key: key.to_vec(), parts: vec![Part::Bytes(line.into_bytes())], is_ragged: false })
    }

    fn add(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.parts.push(Part::Bytes(bytes.as_ref().to_vec()));
    }

    fn add_cas(&mut self, rng: &mut Rng) {
        match rng.u8(..8) {
            0 => self.add("0"),
            1 => self.add("1000000000000000"),
            n => self.0.parts.push(Part::Cas { first: n < 4 }),
        }
    }

    fn data(&mut self, rng: &mut Rng, value: &str) {
        self.add("\r\n");
        match rng.u8(..40) {
            0 => {
                self.0.is_ragged = true;
                self.add(format!("{value}{}\r\n", pick(rng, &["x", "\r\n", "xyz", "\r", "\n"])));
            }
            // Values of white space only are excluded, because memcached reads beyond their end for a number.
            1 if value.len() > 2 => {
                self.0.is_ragged = true;
                self.add(format!("{}\r\n", &value[..value.len() - rng.usize(1..3)]));
            }
            _ => self.add(format!("{value}\r\n")),
        }
    }
}

fn text_put(rng: &mut Rng) -> Step {
    let key = pick(rng, &["a", "b", "c", "key", "foo"]);
    let verb = pick(rng, &["set", "set", "set", "add", "replace", "append", "prepend", "cas", "cas"]);
    let value = value(rng);
    let mut builder = RequestBuilder::new(
        key.as_bytes(),
        format!("{verb} {key} {} {} {}", flags(rng), seconds(rng, true), value.len()),
    );
    if verb == "cas" {
        builder.add(" ");
        builder.add_cas(rng);
    }
    if rng.u8(..8) == 0 {
        builder.add(" noreply");
    }
    builder.data(rng, value);
    builder.0
}

fn text_line(rng: &mut Rng) -> Step {
    let key = pick(rng, &["a", "b", "c", "key", "foo"]);
    let noreply = if rng.u8(..8) == 0 { " noreply" } else { "" };
    let line = match rng.u8(..12) {
        0 | 1 => format!("get {key}"),
        2 | 3 => format!("gets {}", KEYS.join(" ")),
        4 => format!("{} {} {key} c {key}", pick(rng, &["gat", "gats"]), seconds(rng, true)),
        5 | 6 => format!("incr {key} {}{noreply}", number(rng)),
        7 => format!("decr {key} {}{noreply}", number(rng)),
        8 => format!("touch {key} {}{noreply}", seconds(rng, true)),
        9 => format!("delete {key}{noreply}"),
        10 if rng.u8(..4) == 0 => format!("flush_all{noreply}"),
        _ => format!("me {}", pick(rng, &["a", "b", "c", "nothing"])),
    };
    RequestBuilder::new(key.as_bytes(), line + "\r\n").0
}

/// Returns a key, its encoding, and the flag for the encoding.
fn meta_key(rng: &mut Rng) -> (&'static [u8], &'static str, &'static str) {
    if rng.u8(..4) == 0 {
        let (key, name) = BINARY[rng.usize(..BINARY.len())];
        (key, name, " b")
    } else {
        let key = pick(rng, &["a", "b", "c", "key", "foo"]);
        (key.as_bytes(), key, "")
    }
}

/// Adds each flag with a chance of one in three, in random order.
fn add_some_flags(rng: &mut Rng, builder: &mut RequestBuilder, of: &[&str]) {
    let mut chosen: Vec<&str> = of.iter().copied().filter(|_| rng.u8(..3) == 0).collect();
    rng.shuffle(&mut chosen);
    for flag in chosen {
        builder.add(" ");
        builder.add(flag);
        match flag {
            "C" => builder.add_cas(rng),
            "O" => builder.add(pick(rng, &["", "1", "opaque", "0123456789012345678901234567890"])),
            "D" | "J" => builder.add(number(rng)),
            "F" => builder.add(flags(rng)),
            "T" | "N" | "R" => builder.add(seconds(rng, false)),
            _ => {}
        }
    }
}

fn meta_get(rng: &mut Rng) -> Step {
    let (key, name, b) = meta_key(rng);
    let mut builder = RequestBuilder::new(key, format!("mg {name}{b}"));
    match rng.u8(..8) {
        0 => {
            builder.add(format!(" {}{}", pick(rng, &["T", "N"]), seconds(rng, true)));
            add_some_flags(rng, &mut builder, &["v", "f", "s", "c", "k", "h", "l", "O", "q", "u"]);
        }
        _ => add_some_flags(rng, &mut builder, &["v", "f", "s", "t", "c", "k", "h", "l", "O", "q", "u", "T", "N", "R"]),
    }
    builder.add("\r\n");
    builder.0
}

fn meta_set(rng: &mut Rng) -> Step {
    let (key, name, b) = meta_key(rng);
    let value = value(rng);
    let mut builder = RequestBuilder::new(key, format!("ms {name} {}{b}", value.len()));
    if rng.u8(..2) == 0 {
        builder.add(format!(" M{}", pick(rng, &["S", "E", "R", "A", "P"])));
    }
    add_some_flags(rng, &mut builder, &["c", "C", "F", "I", "k", "O", "q", "T"]);
    builder.data(rng, value);
    builder.0
}

fn meta_count(rng: &mut Rng) -> Step {
    let (key, name, b) = meta_key(rng);
    let mut builder = RequestBuilder::new(key, format!("ma {name}{b}"));
    match rng.u8(..4) {
        // memcached loses a new time to live when the number gets longer.
        0 => {
            builder.add(pick(rng, &[" D0", " MD", " M-"]));
            add_some_flags(rng, &mut builder, &["T", "t", "c", "k", "O", "q", "v", "N", "J"]);
        }
        _ => {
            builder.add(pick(rng, &["", "", " MI", " M+", " MD"]));
            add_some_flags(rng, &mut builder, &["D", "C", "t", "c", "k", "O", "q", "v", "N", "J"]);
        }
    }
    builder.add("\r\n");
    builder.0
}

fn meta_delete(rng: &mut Rng) -> Step {
    let (key, name, b) = meta_key(rng);
    let mut builder = RequestBuilder::new(key, format!("md {name}{b}"));
    add_some_flags(rng, &mut builder, &["C", "I", "k", "O", "q", "T"]);
    builder.add("\r\n");
    builder.0
}

/// Returns an invalid or rare request.
fn odd(rng: &mut Rng) -> Step {
    let long = "l".repeat(251);
    let (a, b) = (strange_number(rng), number(rng));
    let word = pick(rng, &["", "noreply", "x", "0", "0 2", "noreply noreply"]);
    let line = match rng.u8(..30) {
        0 => format!("set a {a} 0 1 {word}"),
        1 => format!("set a 0 {a} x {word}"),
        2 => format!("add a 0 0 {word}"),
        3 => format!("cas a 0 0 x {a} {word}"),
        4 => format!("incr a {a} {word}"),
        5 => format!("decr {long} {b} {word}"),
        6 => format!("touch a {a} {word}"),
        7 => format!("touch a {word}"),
        8 => format!("delete a {word}"),
        9 => format!("delete {long} {word}"),
        10 => format!("verbosity {} {word}", pick(rng, &["0", "x", "-1", "1x"])),
        11 => format!("verbosity {word}"),
        12 => format!("gat {a} a"),
        13 => format!("gats {word}"),
        14 => format!("get {long}"),
        15 => format!("{}  a   b ", pick(rng, &[" get", "gets", "mg", "md"])),
        16 => "gets".into(),
        17 => pick(
            rng,
            &[
                "", " ", "GET a", "mgx a", "mn x", "foo", "get\ta", "\0", "get a\0b", "set", "mn\r", "mg", "ms a",
                "md", "ma", "me",
            ],
        )
        .into(),
        18 => format!(
            "mg a {}",
            pick(rng, &["v v", "x", "T", "Tx", "vk", "M", "MSS", "F", "Fx Tx", "Tx Fx", "D", "J", "E", "S", "\x7f"])
        ),
        19 => format!("md a {}", pick(rng, &["x", "q q", "Cx", "T", "M", "b", "S"])),
        20 => format!("ma a {}", pick(rng, &["Mx", "MS", "M", "MDD", "Dx", "Jx", "N", "q q", "b"])),
        21 => format!(
            "ms a 2 {}\r\nhi",
            pick(rng, &["Mx", "M", "v v", "x", "Cx", "T", "F", "b", "S2", "Mx b", "b x", "Fx", "Mx x"])
        ),
        22 => format!("ms a {}", pick(rng, &["x", "-1", "1x", "18446744073709551616", "", "1.5"])),
        23 => format!("ms {long} 2"),
        24 => format!("{} {long}", pick(rng, &["mg", "md", "ma", "me"])),
        25 => format!("mg nothing O{}", "o".repeat(rng.usize(30..34))),
        26 => format!(
            "{} a v t c f k s h l q u O1 P L N1 R1 T1 I C1{}",
            pick(rng, &["mg", "md", "ma", "ms"]),
            " x".repeat(rng.usize(..4))
        ),
        27 => format!("mg {} b", pick(rng, &["!!!!", "Zm9", "====", "Zm9v====", "Z===", "Zm9="])),
        28 => format!("flush_all {}", pick(rng, &["x", "noreply x", "noreply noreply", "0 0 0", "x noreply"])),
        _ => format!("stats {}", pick(rng, &["x", "noreply", "a b c"])),
    };
    let mut builder = RequestBuilder::new(b"a", line + "\r\n");
    builder.0.is_ragged = true;
    builder.0
}
