//! What is answered to those who look in from another process, a line to a line.

use super::Way;
use super::answering::Reaction;
use super::wire::{About, Answer, Ask, Connection, Connections, Counters, Line, VERSION};
use serde::Deserialize;
use std::time::Instant;

/// Bytes of a line at most.
const LONGEST: usize = 1 << 10;

/// What there is to be told.
pub struct Told {
    about: About,
    way: Way,
    began: Instant,
}

impl Told {
    /// Of the process `about`, whose workers `way` leads to.
    pub fn new(about: About, way: Way) -> Self {
        Told { about, way, began: Instant::now() }
    }

    /// What is made of what a client has said: the answer to its first line. It may say more afterwards, unless it said nonsense.
    pub fn react(&self, heard: &mut Vec<u8>) -> Reaction {
        let within = &heard[..heard.len().min(LONGEST)];
        let Some(end) = within.iter().position(|byte| *byte == b'\n') else {
            return match heard.len() < LONGEST {
                true => Reaction::Wait,
                false => Reaction::Last(refusal(format!("a line has {LONGEST} bytes at most"))),
            };
        };
        let line: Vec<u8> = heard.drain(..=end).collect();
        match asked(&line) {
            Ok(ask) => Reaction::Answer(Line::of(self.answer(ask))),
            Err(said) => Reaction::Last(refusal(said)),
        }
    }

    fn answer(&self, ask: Ask) -> Answer {
        match ask {
            Ask::About => Answer::About(self.about.clone()),
            Ask::Counters => {
                let told = self.way.snapshots(self.about.workers);
                Answer::Counters(Counters::of(self.began.elapsed(), &told))
            }
            Ask::Connections { worker, .. } if worker >= self.about.workers => Answer::Error(format!(
                "there is no worker {worker}: they are counted from 0 to {}",
                self.about.workers.saturating_sub(1)
            )),
            Ask::Connections { worker, from } => {
                let page = self.way.page(worker, from);
                let up = page.is_some();
                let page = page.unwrap_or_default();
                let connections = page.connections.iter().map(Connection::from).collect();
                Answer::Connections(Connections { up, connections, next: page.next })
            }
        }
    }
}

fn refusal(said: String) -> Vec<u8> {
    Line::of(Answer::Error(said))
}

/// What a line asks, or what is wrong with it.
fn asked(line: &[u8]) -> Result<Ask, String> {
    /// Of whatever version.
    #[derive(Deserialize)]
    struct Version {
        version: u32,
    }
    match serde_json::from_slice::<Version>(line) {
        Err(error) => Err(format!("this is no line of JSON with a version: {error}")),
        Ok(Version { version }) if version != VERSION => Err(format!("version {VERSION} is spoken here")),
        Ok(_) => match serde_json::from_slice::<Line<Ask>>(line) {
            Ok(line) => Ok(line.said),
            Err(error) => Err(format!("this is no question: {error}")),
        },
    }
}

#[cfg(test)]
mod tests;
