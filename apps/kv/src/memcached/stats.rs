//! `stats` command.

use super::line::Line;
use super::words::{Time, Words};
use super::{Context, Counts};
use crate::value::Sink;

/// Interface of memcached commands to the server.
pub trait Server {
    /// Returns the state of the server. The numbers of bytes and connections of other workers may be some milliseconds
    /// old.
    fn state(&mut self) -> ServerState;

    fn reset(&mut self);

    /// Makes every worker flush the keyspace of memcached clients at `at`, in milliseconds since 1970, before its next
    /// request. `None` cancels the flush. Each call replaces the last one.
    fn flush_at(&mut self, at: Option<u64>);
}

/// State of the server.
#[derive(Debug, Default, Clone, Copy)]
pub struct ServerState {
    /// Start of the server, in milliseconds since 1970.
    pub since: u64,
    pub workers: u64,
    pub most_connections: u64,
    pub connections: u64,
    pub accepted: u64,
    pub rejected: u64,
    pub input: u64,
    pub output: u64,
    pub port: u16,
    /// UDP port, or 0.
    pub udp: u16,
    pub counts: Counts,
    /// Memory limit of the shards in bytes.
    pub memory: u64,
    /// Bytes in use by the shards.
    pub used: u64,
    /// True if items are evicted at the memory limit.
    pub evicts: bool,
    /// Items of memcached clients.
    pub items: u64,
    /// Expired items.
    pub expired: u64,
    /// Evicted items.
    pub evicted: u64,
}

/// Value of a statistic.
enum StatValue {
    Number(u64),
    Word(&'static str),
}

pub(super) fn stats(mut words: Words<'_>, cx: &mut Context<'_, '_>, sink: &mut impl Sink) {
    let mut stat = |name: &str, is: StatValue| {
        let mut line = Line::new(b"STAT ");
        line.put(name.as_bytes()).put(b" ");
        match is {
            StatValue::Number(number) => line.number(number),
            StatValue::Word(word) => line.put(word.as_bytes()),
        };
        sink.put(line.put(b"\r\n").bytes());
    };
    match words.next() {
        None => general(&state(cx), cx.time, &mut stat),
        Some(b"settings") => settings(&state(cx), cx.limits.item, &mut stat),
        // There is one slab class.
        Some(b"items") => {
            let state = state(cx);
            if state.items > 0 {
                stat("items:1:number", StatValue::Number(state.items));
                stat("items:1:evicted", StatValue::Number(state.evicted));
            }
        }
        Some(b"slabs") => {
            stat("active_slabs", StatValue::Number(1));
            stat("total_malloced", StatValue::Number(state(cx).used));
        }
        Some(b"sizes") => stat("sizes_status", StatValue::Word("disabled")),
        Some(b"reset") => {
            cx.server.reset();
            return sink.put(b"RESET\r\n");
        }
        Some(_) => return sink.put(b"ERROR\r\n"),
    }
    sink.put(b"END\r\n");
}

/// Returns the state of the server. The shards present publish their memory first, other workers do so periodically.
fn state(cx: &mut Context<'_, '_>) -> ServerState {
    cx.shards.all().for_each(|store| store.publish_used());
    cx.server.state()
}

fn general(state: &ServerState, time: Time, stat: &mut impl FnMut(&str, StatValue)) {
    let mut number = |name: &str, value| stat(name, StatValue::Number(value));
    number("pid", std::process::id().into());
    number("uptime", time.now.saturating_sub(state.since) / 1000);
    number("time", time.unix_seconds());
    stat("version", StatValue::Word(super::VERSION_NUMBER));
    let mut number = |name: &str, value| stat(name, StatValue::Number(value));
    number("pointer_size", usize::BITS.into());
    number("max_connections", state.most_connections);
    number("curr_connections", state.connections);
    number("total_connections", state.accepted);
    number("rejected_connections", state.rejected);
    state.counts.iter().for_each(|(name, count)| number(name, count));
    number("bytes_read", state.input);
    number("bytes_written", state.output);
    number("limit_maxbytes", state.memory);
    number("threads", state.workers);
    number("bytes", state.used);
    number("curr_items", state.items);
    number("evictions", state.evicted);
    number("reclaimed", state.expired);
}

fn settings(state: &ServerState, item: usize, stat: &mut impl FnMut(&str, StatValue)) {
    stat("maxbytes", StatValue::Number(state.memory));
    stat("maxconns", StatValue::Number(state.most_connections));
    stat("tcpport", StatValue::Number(state.port.into()));
    stat("udpport", StatValue::Number(state.udp.into()));
    stat("verbosity", StatValue::Number(0));
    stat("evictions", StatValue::Word(if state.evicts { "on" } else { "off" }));
    stat("num_threads", StatValue::Number(state.workers));
    stat("cas_enabled", StatValue::Word("yes"));
    stat("auth_enabled_sasl", StatValue::Word("no"));
    stat("auth_enabled_ascii", StatValue::Word("no"));
    stat("item_size_max", StatValue::Number(item as u64));
    stat("flush_enabled", StatValue::Word("yes"));
    stat("dump_enabled", StatValue::Word("no"));
}
