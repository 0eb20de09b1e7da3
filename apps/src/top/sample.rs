//! What a process is asked for at a time, again and again, on a thread of its own: a screen does not wait for it.

use crate::inspect::{AskError, Asked, Connection, Counters, Process};
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Pages of connections that are looked at for one screen, of all workers: one of each at least.
const PAGES: usize = 16;

/// What a process said at one time.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Its counters.
    pub counters: Counters,
    /// Connections, of each worker those in its first slots.
    pub connections: Vec<Connection>,
    /// Whether these are all.
    pub is_all: bool,
}

impl Sample {
    /// Asks `process` for it.
    pub fn take(process: &mut Process) -> Asked<Sample> {
        let counters = process.counters()?;
        let (mut connections, mut is_all) = (Vec::new(), true);
        let pages = (PAGES / counters.workers.len().max(1)).max(1);
        for (worker, _) in counters.workers.iter().enumerate().filter(|(_, told)| told.is_some()) {
            let mut next = Some(0);
            for _ in 0..pages {
                let Some(from) = next else { break };
                let page = process.connections(worker, from)?;
                connections.extend(page.connections);
                next = page.next;
            }
            is_all &= next.is_none();
        }
        Ok(Sample { counters, connections, is_all })
    }
}

/// What a [`Watcher`] brings.
pub enum News {
    /// The next sample.
    Sample(Box<Sample>),
    /// There will be none, and why.
    Over(AskError),
}

/// A thread that asks a process at intervals. It ends when this is dropped.
pub struct Watcher {
    intervals: Sender<Duration>,
    /// What it brings.
    pub news: Receiver<News>,
}

impl Watcher {
    /// Asks `process` each `interval`.
    pub fn start(process: Process, interval: Duration) -> io::Result<Watcher> {
        let (intervals, changes) = channel();
        let (bring, news) = channel();
        thread::Builder::new().name("watcher".to_owned()).spawn(move || watch(process, interval, &changes, &bring))?;
        Ok(Watcher { intervals, news })
    }

    /// From now on it is asked each `interval`.
    pub fn set_interval(&self, interval: Duration) {
        // One that has ended has said why.
        let _ = self.intervals.send(interval);
    }
}

fn watch(mut process: Process, mut interval: Duration, changes: &Receiver<Duration>, bring: &Sender<News>) {
    loop {
        let asked = Instant::now();
        let news = match Sample::take(&mut process) {
            Ok(sample) => News::Sample(Box::new(sample)),
            Err(error) => News::Over(error),
        };
        let is_over = matches!(news, News::Over(_));
        if bring.send(news).is_err() || is_over {
            return;
        }
        loop {
            let left = (asked + interval).saturating_duration_since(Instant::now());
            match changes.recv_timeout(left) {
                Ok(changed) => interval = changed,
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }
}
