//! The watch over a port: its link, and the other end of a link that goes away and comes back.

use super::dev_args::{Kind, Plan};
use super::ethdev::Ethdev;
use super::interface;
use super::setup;
use crate::dpdk::eal::peer_memory;
use crate::dpdk::port::{self, Shared};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

/// How often a port is looked after.
const PERIOD: Duration = Duration::from_millis(20);
/// The driver does something of its own after a link loss was seen, within a microsecond or so.
const SETTLED: Duration = Duration::from_millis(10);

/// A thread that looks after one port until this is dropped.
#[derive(Debug)]
pub(crate) struct Supervisor {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// How long a link may take to come up: a memif server that was still starting has refused by then, and the driver does
/// not ask again.
const PATIENCE: Duration = Duration::from_millis(300);

/// How long a peer may take to answer when the port is being closed.
const SILENCE: Duration = Duration::from_secs(2);

/// Where a port is that connects to the other end of a link.
enum State {
    /// Its devices exist, and the link has been down since then, if it is.
    Open(Instant),
    /// The other end has gone; the queue pairs are being told.
    Closing(Instant),
    /// Its devices have gone, and the other end is being waited for.
    Away,
}

impl Supervisor {
    /// Begins to look after the port.
    pub fn start(shared: &Arc<Shared>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, port) = (stop.clone(), Arc::downgrade(shared));
        let thread = std::thread::Builder::new().name("linerate-port".to_owned()).spawn(move || watch(&port, &stopped));
        if let Err(error) = &thread {
            tracing::warn!("{}: no thread to look after the link: {error}", shared.plan.via);
        }
        Supervisor { stop, thread: thread.ok() }
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let Some(thread) = self.thread.take() else { return };
        Thread::unpark(thread.thread());
        let asked = Instant::now();
        while !thread.is_finished() {
            if asked.elapsed() > SILENCE {
                // It is left with a peer that was reached and says nothing; it has no devices to close.
                tracing::warn!("the other end of a link does not answer, and is not waited for");
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn watch(port: &Weak<Shared>, stop: &AtomicBool) {
    let mut state = State::Open(Instant::now());
    let mut replaced = peer_memory::replaced();
    while !stop.load(Ordering::Relaxed) {
        match port.upgrade() {
            Some(shared) => {
                state = tend(&shared, state);
                if replaced != peer_memory::replaced() && setup::maps_peer_memory(&shared.plan) {
                    replaced = peer_memory::replaced();
                    tracing::warn!(
                        "{}: a peer truncated memory that it shares with this process; its packets are lost until it connects again",
                        shared.plan.via
                    );
                }
            }
            None => return,
        }
        std::thread::park_timeout(PERIOD);
    }
}

fn tend(shared: &Shared, state: State) -> State {
    let via = &shared.plan.via;
    match state {
        State::Open(since) => {
            let up = is_link_up(&shared.plan, &shared.devices());
            shared.note_peer();
            let changed = shared.set_link(up);
            if changed {
                tracing::info!("{via}: the link is {}", if up { "up" } else { "down" });
            }
            let is_lost = !up && (changed || since.elapsed() > PATIENCE);
            if is_lost && matches!(shared.plan.kind, Kind::Client { .. }) {
                shared.gate.close();
                return State::Closing(Instant::now());
            }
            State::Open(since)
        }
        State::Closing(since) => {
            if since.elapsed() < SETTLED || !shared.gate.is_quiet() {
                return State::Closing(since);
            }
            shared.devices().clear();
            tracing::info!("{via}: waiting for the other end to come back");
            State::Away
        }
        State::Away => match connect(shared) {
            true => {
                tracing::info!("{via}: the other end is back");
                State::Open(Instant::now())
            }
            false => State::Away,
        },
    }
}

/// Makes the devices again if the other end is there and offers what it did.
fn connect(shared: &Shared) -> bool {
    let Kind::Client { socket, .. } = &shared.plan.kind else { return false };
    if !socket.exists() {
        return false;
    }
    let connected = port::probe(&shared.plan).and_then(|devices| {
        let offers = |device: &Ethdev| device.info().is_ok_and(|info| setup::offers(&info, &shared.choice.setup));
        if !devices.iter().all(offers) {
            tracing::warn!("{}: the other end is back and offers less than before: not used", shared.plan.via);
            return Ok(None);
        }
        port::start(&shared.plan, &shared.choice, &devices, &shared.pool)?;
        if shared.choice.split_tx && !devices.iter().all(Ethdev::has_split_tx) {
            tracing::warn!(
                "{}: the other end is back with packed virtqueues in place of split ones: not used",
                shared.plan.via
            );
            return Ok(None);
        }
        Ok(Some(devices))
    });
    match connected {
        Ok(Some(made)) => {
            shared.gate.open(&port::places(&shared.plan, &shared.choice, &made));
            *shared.devices() = made;
            true
        }
        Ok(None) => false,
        Err(error) => {
            tracing::debug!("{error}");
            false
        }
    }
}

/// Whether the link is up: of every device, if there are several.
pub(crate) fn is_link_up(plan: &Plan, devices: &[Ethdev]) -> bool {
    match &plan.kind {
        // These drivers say yes whatever the interface's state.
        Kind::AfXdp(name) | Kind::Tap(name) => interface::is_running(name),
        _ => !devices.is_empty() && devices.iter().all(Ethdev::link_up),
    }
}
