//! A service on a thread of its own, beside the worker that carries its bytes: the arrangement of mTCP (Jeong et al.,
//! NSDI 2014, <https://www.usenix.org/node/179774>), where a service that computes for long does not hold its connections up.
//!
//! ```text
//!  worker's thread                                           service's thread
//!  any Worker ── Relay (a Service) ══ batches of events ══▶ Runner ── the Service
//!                       ▲                                     │ (its Transport)
//!                       ╚══════════ batches of commands ══════╝
//! ```
//!
//! The [`Relay`] is what the worker runs, whatever it is a worker of: it takes received slices as they lie and passes them on,
//! and sends what the service's thread has for it. The [`Runner`] runs the service, which sees a
//! [`Transport`](linerate_bypass::Transport) like any other. Batches of both go through mailboxes; their memory goes round, so that
//! nothing is allocated for them. Received slices and sent ones pass through as they are; what a service writes by
//! [`reserve`](linerate_bypass::Transport::reserve) is written into memory that the port reaches, and sent from there.
//!
//! Both ways are bounded, for each connection: the relay takes no more from a connection than [`Config::window`] bytes and
//! some slices that the service has not consumed, beyond which the peer's window closes; and a service can send no more than
//! `window` bytes that the worker has not taken, beyond which it finds no room.
#![forbid(unsafe_code)]

mod crossing;
mod flow;
mod net;
mod relay;
mod runner;
mod stream;
mod table;

pub use crossing::Commands;
pub use relay::Relay;
pub use runner::{Runner, Station};

use crossing::{BATCHES, Shared};
use linerate_bypass::mailbox::{mailbox, waking_mailbox};
use linerate_bypass::{AppSender, Arena};
use std::sync::Arc;

/// Messages to one service from other threads that it has not read.
const MESSAGES: usize = 4096;

/// What both threads are told.
#[derive(Clone)]
pub struct Config {
    /// Bytes each way of one connection that one thread has passed to the other and that are not done with there.
    pub window: usize,
    /// Memory that the port reaches, where services write what they send.
    pub arena: Arena,
    /// The two threads share a core: each leaves it to the other when it has nothing to do.
    pub co_scheduled: bool,
    /// The service's thread may sleep while there is nothing to do. Else it polls.
    pub sleeps: bool,
}

/// The two ends for each of `workers` workers, in the order of their numbers. `M` is the message of the service.
pub fn split<M: Send + 'static>(workers: usize, config: &Config) -> Vec<(Relay, Station<M>)> {
    let shared: Vec<Arc<Shared>> = (0..workers).map(|_| Arc::default()).collect();
    let wake = |shared: &Arc<Shared>| {
        let shared = shared.clone();
        Box::new(move || shared.wake())
    };
    let (senders, letters): (Vec<_>, Vec<_>) =
        shared.iter().map(|shared| waking_mailbox(MESSAGES, wake(shared))).unzip();
    let app_sender = AppSender::new(senders);
    let ends = shared.into_iter().zip(letters).enumerate().map(|(worker, (shared, letters))| {
        let (events, received) = waking_mailbox(BATCHES, wake(&shared));
        let (events_back, events_empty) = mailbox(BATCHES);
        let (commands_back, commands_empty) = mailbox(BATCHES);
        for _ in 1..BATCHES {
            let _ = (events_back.send(Default::default()), commands_back.send(Default::default()));
        }
        let relay = Relay::new(config, shared.clone(), events, events_empty, commands_back);
        let station = Station {
            worker,
            workers,
            config: config.clone(),
            app_sender: app_sender.clone(),
            letters,
            shared,
            events: received,
            events_back,
            commands_empty,
        };
        (relay, station)
    });
    ends.collect()
}
