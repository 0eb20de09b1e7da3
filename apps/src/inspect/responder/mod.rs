//! Line protocol of the introspection socket: one JSON line per query, one per reply.

use super::StatsClient;
use super::server::Reaction;
use super::wire::{About, Connection, Connections, Counters, Line, Query, Reply, VERSION};
use serde::Deserialize;
use std::time::Instant;

/// Maximum length of a query line in bytes.
const MAX_LINE: usize = 1 << 10;

/// Source of replies to queries.
pub struct Responder {
    about: About,
    stats: StatsClient,
    started: Instant,
}

impl Responder {
    /// Creates a responder for the process `about`, whose workers `stats` reaches.
    pub fn new(about: About, stats: StatsClient) -> Self {
        Responder { about, stats, started: Instant::now() }
    }

    /// Replies to the first line of `received`. An invalid query ends the connection.
    pub fn react(&self, received: &mut Vec<u8>) -> Reaction {
        let line_limit = &received[..received.len().min(MAX_LINE)];
        let Some(end) = line_limit.iter().position(|byte| *byte == b'\n') else {
            return match received.len() < MAX_LINE {
                true => Reaction::Incomplete,
                false => Reaction::FinalReply(error_line(format!("a line is limited to {MAX_LINE} bytes"))),
            };
        };
        let line: Vec<u8> = received.drain(..=end).collect();
        match parse_query(&line) {
            Ok(query) => Reaction::Reply(Line::encode(self.reply(query))),
            Err(error) => Reaction::FinalReply(error_line(error)),
        }
    }

    fn reply(&self, query: Query) -> Reply {
        match query {
            Query::About => Reply::About(self.about.clone()),
            Query::Counters => {
                let snapshots = self.stats.snapshots(self.about.workers);
                Reply::Counters(Counters::new(self.started.elapsed(), &snapshots))
            }
            Query::Connections { worker, .. } if worker >= self.about.workers => Reply::Error(format!(
                "there is no worker {worker}: workers are numbered from 0 to {}",
                self.about.workers.saturating_sub(1)
            )),
            Query::Connections { worker, from } => {
                let page = self.stats.page(worker, from);
                let up = page.is_some();
                let page = page.unwrap_or_default();
                let connections = page.connections.iter().map(Connection::from).collect();
                Reply::Connections(Connections { up, connections, next: page.next })
            }
        }
    }
}

fn error_line(error: String) -> Vec<u8> {
    Line::encode(Reply::Error(error))
}

/// Parses a query line, or returns the reason that it is invalid.
fn parse_query(line: &[u8]) -> Result<Query, String> {
    /// Version field, common to all versions of the protocol.
    #[derive(Deserialize)]
    struct Version {
        version: u32,
    }
    match serde_json::from_slice::<Version>(line) {
        Err(error) => Err(format!("not a line of JSON with a version: {error}")),
        Ok(Version { version }) if version != VERSION => Err(format!("this process uses version {VERSION}")),
        Ok(_) => match serde_json::from_slice::<Line<Query>>(line) {
            Ok(line) => Ok(line.body),
            Err(error) => Err(format!("not a query: {error}")),
        },
    }
}

#[cfg(test)]
mod tests;
