//! Periodic sampling of a process on a separate thread, so that the screen never waits for a reply.

use crate::inspect::{Connection, Counters, Process, QueryError, QueryResult};
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Maximum number of connection pages per sample over all workers, but at least one per worker.
const MAX_PAGES: usize = 16;

/// State of a process at one time.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Counters of the workers.
    pub counters: Counters,
    /// Connections in the first slots of each worker.
    pub connections: Vec<Connection>,
    /// Set if `connections` is complete.
    pub is_complete: bool,
}

impl Sample {
    pub fn take(process: &mut Process) -> QueryResult<Sample> {
        let counters = process.counters()?;
        let (mut connections, mut is_complete) = (Vec::new(), true);
        let pages = (MAX_PAGES / counters.workers.len().max(1)).max(1);
        for (worker, _) in counters.workers.iter().enumerate().filter(|(_, metrics)| metrics.is_some()) {
            let mut next = Some(0);
            for _ in 0..pages {
                let Some(from) = next else { break };
                let page = process.connections(worker, from)?;
                connections.extend(page.connections);
                next = page.next;
            }
            is_complete &= next.is_none();
        }
        Ok(Sample { counters, connections, is_complete })
    }
}

pub enum SamplerEvent {
    /// Next sample.
    Sample(Box<Sample>),
    /// Sampling ended with this error.
    Failed(QueryError),
}

/// Thread that samples a process periodically. Dropping it stops the thread.
pub struct Sampler {
    intervals: Sender<Duration>,
    /// Samples and errors.
    pub events: Receiver<SamplerEvent>,
}

impl Sampler {
    /// Starts sampling `process` every `interval`.
    pub fn start(process: Process, interval: Duration) -> io::Result<Sampler> {
        let (intervals, interval_receiver) = channel();
        let (sender, events) = channel();
        thread::Builder::new()
            .name("sampler".to_owned())
            .spawn(move || sample_periodically(process, interval, &interval_receiver, &sender))?;
        Ok(Sampler { intervals, events })
    }

    /// Changes the interval.
    pub fn set_interval(&self, interval: Duration) {
        // Fails only if the thread has ended, which it reported.
        let _ = self.intervals.send(interval);
    }
}

fn sample_periodically(
    mut process: Process,
    mut interval: Duration,
    intervals: &Receiver<Duration>,
    sender: &Sender<SamplerEvent>,
) {
    loop {
        let started = Instant::now();
        let event = match Sample::take(&mut process) {
            Ok(sample) => SamplerEvent::Sample(Box::new(sample)),
            Err(error) => SamplerEvent::Failed(error),
        };
        let failed = matches!(event, SamplerEvent::Failed(_));
        if sender.send(event).is_err() || failed {
            return;
        }
        loop {
            let left = (started + interval).saturating_duration_since(Instant::now());
            match intervals.recv_timeout(left) {
                Ok(changed) => interval = changed,
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }
}
