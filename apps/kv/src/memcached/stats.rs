//! What `stats` says.

use super::line::Line;
use super::words::Words;
use super::{Context, Counts};
use crate::sink::Sink;

/// The server around the worker that runs a request.
pub trait Server {
    /// Returns what is known of it. `counts` are the current ones of this worker; those of others may be some milliseconds old.
    fn facts(&mut self, counts: &Counts) -> Facts;

    /// Lets the counts of all workers start from 0. `counts` are the current ones of this worker, and stay as they are.
    fn reset(&mut self, counts: &Counts);

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
    /// Bytes that the shards may take.
    pub memory: u64,
    /// Bytes that the shards take.
    pub used: u64,
    /// Whether items are evicted when memory is full.
    pub evicts: bool,
    /// Items of memcached clients.
    pub items: u64,
    /// Items that expired.
    pub expired: u64,
    /// Items that were evicted.
    pub evicted: u64,
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
        None => general(&facts(cx), cx.now, &mut stat),
        Some(b"settings") => settings(&facts(cx), cx.limits.item, &mut stat),
        // One class is all there are.
        Some(b"items") => {
            let facts = facts(cx);
            if facts.items > 0 {
                stat("items:1:number", Is::Number(facts.items));
                stat("items:1:evicted", Is::Number(facts.evicted));
            }
        }
        Some(b"slabs") => {
            stat("active_slabs", Is::Number(1));
            stat("total_malloced", Is::Number(facts(cx).used));
        }
        Some(b"sizes") => stat("sizes_status", Is::Word("disabled")),
        Some(b"reset") => {
            cx.server.reset(cx.counts);
            return sink.put(b"RESET\r\n");
        }
        Some(_) => return sink.put(b"ERROR\r\n"),
    }
    sink.put(b"END\r\n");
}

/// Returns what is known of the server. The shards that are there store how much they take before; others have.
fn facts(cx: &mut Context<'_, '_>) -> Facts {
    cx.shards.all().for_each(|store| store.publish_used());
    cx.server.facts(cx.counts)
}

fn general(facts: &Facts, now: u64, stat: &mut impl FnMut(&str, Is)) {
    let mut number = |name: &str, value| stat(name, Is::Number(value));
    number("pid", std::process::id().into());
    number("uptime", now.saturating_sub(facts.since) / 1000);
    number("time", now / 1000);
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
    number("limit_maxbytes", facts.memory);
    number("threads", facts.workers);
    number("bytes", facts.used);
    number("curr_items", facts.items);
    number("evictions", facts.evicted);
    number("reclaimed", facts.expired);
}

fn settings(facts: &Facts, item: usize, stat: &mut impl FnMut(&str, Is)) {
    stat("maxbytes", Is::Number(facts.memory));
    stat("maxconns", Is::Number(facts.most_connections));
    stat("tcpport", Is::Number(facts.port.into()));
    stat("udpport", Is::Number(facts.udp.into()));
    stat("verbosity", Is::Number(0));
    stat("evictions", Is::Word(if facts.evicts { "on" } else { "off" }));
    stat("num_threads", Is::Number(facts.workers));
    stat("cas_enabled", Is::Word("yes"));
    stat("auth_enabled_sasl", Is::Word("no"));
    stat("auth_enabled_ascii", Is::Word("no"));
    stat("item_size_max", Is::Number(item as u64));
    stat("flush_enabled", Is::Word("yes"));
    stat("dump_enabled", Is::Word("no"));
}
