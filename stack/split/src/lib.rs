//! Service on a thread of its own, apart from the worker of its data: the arrangement of mTCP (Jeong et al., NSDI
//! 2014, <https://www.usenix.org/node/179774>). A service that computes for long does not delay its connections'
//! segments.
//!
//! ```text
//!  worker's thread                                           service's thread
//!  any Worker ── Relay (a Service) ══ batches of events ══▶ Runner ── the Service
//!                       ▲                                     │ (its Transport)
//!                       ╚══════════ batches of commands ══════╝
//! ```
//!
//! The [`Relay`] is the service of the worker, on any transport: it passes received slices on unchanged, and sends the
//! data of the service's thread. The [`Runner`] runs the service, which sees an ordinary
//! [`Transport`](linerate_service::Transport). Batches travel through mailboxes and are recycled, so that nothing is
//! allocated for them. Received and sent slices pass through uncopied; data written by
//! [`reserve`](linerate_service::Transport::reserve) are in memory that the port can access, and are sent from there.
//!
//! Both directions are bounded for each connection. The relay takes at most [`Config::window`] bytes and some slices
//! that the service has not consumed; beyond that the peer's window closes. A service can send at most `window` bytes
//! that the worker has not taken; beyond that it has no send space.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod flow;
mod net;
mod queues;
mod relay;
mod runner;
mod stream;
mod table;

pub use queues::Commands;
pub use relay::Relay;
pub use runner::{Runner, RunnerSetup};

use linerate_bypass::Arena;
use linerate_service::AppSender;
use linerate_service::mailbox::{mailbox, waking_mailbox};
use queues::{BATCHES, SharedQueues};
use std::sync::Arc;

/// Capacity of a service's mailbox for messages from other threads.
const MESSAGES: usize = 4096;

/// Configuration of both threads.
#[derive(Clone)]
pub struct Config {
    /// Bytes in each direction of a connection that one thread has passed to the other and that are outstanding there.
    pub window: usize,
    /// Memory that the port can access, for data that services write.
    pub arena: Arena,
    /// True if the two threads share a core: each yields it when it has no work.
    pub co_scheduled: bool,
    /// True if the service's thread may sleep without work. Otherwise it polls.
    pub sleeps: bool,
}

/// Creates the two ends for each of `workers` workers, in order of worker number. `M` is the service's message.
pub fn split<M: Send + 'static>(workers: usize, config: &Config) -> Vec<(Relay, RunnerSetup<M>)> {
    let shared: Vec<Arc<SharedQueues>> = (0..workers).map(|_| Arc::default()).collect();
    let wake = |shared: &Arc<SharedQueues>| {
        let shared = shared.clone();
        Box::new(move || shared.wake())
    };
    let (senders, messages): (Vec<_>, Vec<_>) =
        shared.iter().map(|shared| waking_mailbox(MESSAGES, wake(shared))).unzip();
    let app_sender = AppSender::new(senders);
    let ends = shared.into_iter().zip(messages).enumerate().map(|(worker, (shared, messages))| {
        let (events, received) = waking_mailbox(BATCHES, wake(&shared));
        let (events_back, events_empty) = mailbox(BATCHES);
        let (commands_back, commands_empty) = mailbox(BATCHES);
        for _ in 1..BATCHES {
            let _ = (events_back.send(Default::default()), commands_back.send(Default::default()));
        }
        let relay = Relay::new(config, shared.clone(), events, events_empty, commands_back);
        let setup = RunnerSetup {
            worker,
            workers,
            config: config.clone(),
            app_sender: app_sender.clone(),
            messages,
            shared,
            events: received,
            events_back,
            commands_empty,
        };
        (relay, setup)
    });
    ends.collect()
}
