//! What `stats` says.

use super::line::Line;
use super::words::Words;
use super::{Context, Counts, SPACE};
use crate::sink::Sink;
use crate::store::Evict;

/// The server around the worker that runs a request.
pub trait Server {
    /// What is known of it.
    fn facts(&mut self) -> Facts;

    /// What all workers counted is 0 again.
    fn reset(&mut self);

    /// Every worker flushes the keyspace of memcached clients in its shard when it is `at` milliseconds since 1970, before the
    /// next request, or does not. What was said before is forgotten.
    fn flush_at(&mut self, at: Option<u64>);
}

/// What is known of a server.
#[derive(Debug, Default, Clone, Copy)]
pub struct Facts {
    /// When it began, in milliseconds since 1970.
    pub since: u64,
    /// Workers.
    pub workers: u64,
    /// Connections at most.
    pub most_connections: u64,
    /// Connections at present.
    pub connections: u64,
    /// Connections that came.
    pub accepted: u64,
    /// Connections that were refused.
    pub rejected: u64,
    /// Bytes of requests.
    pub input: u64,
    /// Bytes of replies.
    pub output: u64,
    /// Where it listens.
    pub port: u16,
    /// Where it listens for datagrams; 0 is nowhere.
    pub udp: u16,
    /// What all workers counted.
    pub counts: Counts,
}

/// A figure, or a word.
enum Is {
    Number(u64),
    Word(&'static str),
}

pub(super) fn answer(mut words: Words<'_>, cx: &mut Context<'_, '_>, sink: &mut impl Sink) {
    let mut stat = |name: &str, is: Is| {
        let mut line = Line::new(b"STAT ");
        line.put(name.as_bytes()).put(b" ");
        match is {
            Is::Number(number) => line.number(number),
            Is::Word(word) => line.put(word.as_bytes()),
        };
        sink.put(line.put(b"\r\n").bytes());
    };
    match words.next() {
        None => general(cx, &mut stat),
        Some(b"settings") => settings(cx, &mut stat),
        // One class is all there are.
        Some(b"items") => {
            let (number, evicted) = items(cx);
            if number > 0 {
                stat("items:1:number", Is::Number(number));
                stat("items:1:evicted", Is::Number(evicted));
            }
        }
        Some(b"slabs") => {
            stat("active_slabs", Is::Number(1));
            stat("total_malloced", Is::Number(cx.shards.all().map(|store| store.used() as u64).sum()));
        }
        Some(b"sizes") => stat("sizes_status", Is::Word("disabled")),
        Some(b"reset") => {
            cx.server.reset();
            return sink.put(b"RESET\r\n");
        }
        Some(_) => return sink.put(b"ERROR\r\n"),
    }
    sink.put(b"END\r\n");
}

/// Items there are, and how many were evicted.
fn items(cx: &mut Context<'_, '_>) -> (u64, u64) {
    cx.shards
        .all()
        .fold((0, 0), |(number, evicted), store| (number + store.len(SPACE) as u64, evicted + store.counts().evicted))
}

fn general(cx: &mut Context<'_, '_>, stat: &mut impl FnMut(&str, Is)) {
    let facts = cx.server.facts();
    let mut number = |name: &str, value| stat(name, Is::Number(value));
    number("pid", std::process::id().into());
    number("uptime", cx.now.saturating_sub(facts.since) / 1000);
    number("time", cx.now / 1000);
    stat("version", Is::Word(super::VERSION_NUMBER));
    let mut number = |name: &str, value| stat(name, Is::Number(value));
    number("pointer_size", usize::BITS.into());
    number("max_connections", facts.most_connections);
    number("curr_connections", facts.connections);
    number("total_connections", facts.accepted);
    number("rejected_connections", facts.rejected);
    facts.counts.iter().for_each(|(name, count)| number(name, count));
    number("bytes_read", facts.input);
    number("bytes_written", facts.output);
    let (memory, used, expired) = cx.shards.all().fold((0, 0, 0), |(memory, used, expired), store| {
        (memory + store.memory() as u64, used + store.used() as u64, expired + store.counts().expired)
    });
    let (items, evicted) = items(cx);
    number("limit_maxbytes", memory);
    number("threads", facts.workers);
    number("bytes", used);
    number("curr_items", items);
    number("evictions", evicted);
    number("reclaimed", expired);
}

fn settings(cx: &mut Context<'_, '_>, stat: &mut impl FnMut(&str, Is)) {
    let facts = cx.server.facts();
    let memory = cx.shards.all().map(|store| store.memory() as u64).sum();
    let evicts = cx.shards.all().any(|store| store.evict() != Evict::None);
    stat("maxbytes", Is::Number(memory));
    stat("maxconns", Is::Number(facts.most_connections));
    stat("tcpport", Is::Number(facts.port.into()));
    stat("udpport", Is::Number(facts.udp.into()));
    stat("verbosity", Is::Number(0));
    stat("evictions", Is::Word(if evicts { "on" } else { "off" }));
    stat("num_threads", Is::Number(facts.workers));
    stat("cas_enabled", Is::Word("yes"));
    stat("auth_enabled_sasl", Is::Word("no"));
    stat("auth_enabled_ascii", Is::Word("no"));
    stat("item_size_max", Is::Number(cx.limits.item as u64));
    stat("flush_enabled", Is::Word("yes"));
    stat("dump_enabled", Is::Word("no"));
}
