//! Supervision of a port's link, and reconnection when the other end leaves and returns.

use super::dev_args::{PortKind, PortSpec};
use super::ethdev::Ethdev;
use super::interface;
use super::setup;
use super::state::PortFailed;
use super::wakeup::{self, WakeupKind};
use crate::Waker;
use crate::dpdk::eal::peer_memory;
use crate::dpdk::port::{self, SharedPort};
use crate::rtnetlink::{LINK, Socket};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Interval between checks of a port.
const PERIOD: Duration = Duration::from_millis(20);
/// Interval between checks of a port whose link reports its changes. The detachment of an XDP program is no change of
/// the link.
const LONG_PERIOD: Duration = Duration::from_secs(1);
/// Time in which the driver finishes its own work after a link loss has become visible; it needs about a microsecond.
const SETTLE_TIME: Duration = Duration::from_millis(10);

/// Thread that supervises one port until dropped.
#[derive(Debug)]
pub(crate) struct Supervisor {
    stop: Arc<AtomicBool>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

/// Time within which a link must come up. A memif server that is still starting refuses the connection within this
/// time, and the driver does not retry.
const LINK_UP_TIMEOUT: Duration = Duration::from_millis(300);

/// Time within which a peer must reply when the port is closed.
const PEER_REPLY_TIMEOUT: Duration = Duration::from_secs(2);

/// State of a port that connects to the other end of a link.
enum LinkState {
    /// The devices exist; if the link is down, it has been down since this time.
    Open(Instant, LinkEvents),
    /// The other end has left, and the queue pairs are quiescing.
    Closing(Instant),
    /// The devices have been removed, and the other end is awaited.
    Away,
}

/// Source of the events of a link. It spares a process whose workers sleep most checks; next to workers that poll, the
/// checks do not matter.
enum LinkEvents {
    None,
    /// Waker of the supervisor, which the vhost library signals.
    Waker,
    /// Connection of a virtio-user device, which the other end closes. The device keeps the socket open.
    Connection(RawFd),
    /// Notifications of all interfaces in the thread's network namespace.
    Interfaces(Socket),
}

impl LinkEvents {
    fn of(shared: &SharedPort) -> Self {
        let source = match &shared.spec.kind {
            _ if shared.settings.conf.wakeup == WakeupKind::None => None,
            PortKind::Vhost => Some(LinkEvents::Waker),
            PortKind::Client { socket, .. } => wakeup::connected_to(socket).map(LinkEvents::Connection),
            PortKind::AfXdp(_) | PortKind::Tap(_) => Socket::open(LINK).ok().map(LinkEvents::Interfaces),
            PortKind::MemifServer | PortKind::Other => None,
        };
        source.unwrap_or(LinkEvents::None)
    }

    /// Waits for an event, or until the next check is due. Returns whether a guest has come or gone.
    fn wait(&mut self, waker: &Waker, is_up: bool) -> bool {
        let (fd, event, period) = match &*self {
            LinkEvents::Waker => (waker.as_fd(), PollFlags::IN, LONG_PERIOD),
            LinkEvents::Connection(fd) if is_up => {
                // SAFETY: the device exists in the state `Open`, and keeps the socket open.
                let fd = unsafe { BorrowedFd::borrow_raw(*fd) };
                (fd, PollFlags::RDHUP, LONG_PERIOD)
            }
            LinkEvents::Interfaces(socket) if is_up => (socket.as_fd(), PollFlags::IN, LONG_PERIOD),
            _ => (waker.as_fd(), PollFlags::IN, PERIOD),
        };
        let timeout = Timespec { tv_sec: period.as_secs() as i64, tv_nsec: period.subsec_nanos().into() };
        let mut ready = [PollFd::new(waker, PollFlags::IN), PollFd::from_borrowed_fd(fd, event)];
        let is_ready = poll(&mut ready, Some(&timeout)).is_ok_and(|ready| ready > 0);
        waker.quiet();
        if let LinkEvents::Interfaces(socket) = self {
            while let Ok(Some(_)) = socket.receive() {}
        }
        is_ready && matches!(self, LinkEvents::Waker)
    }
}

impl Supervisor {
    pub fn start(shared: &Arc<SharedPort>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, port) = (stop.clone(), Arc::downgrade(shared));
        // Opened here: `linerate run` keeps programs from closing the descriptors that exist once the port is open.
        let state = LinkState::Open(Instant::now(), LinkEvents::of(shared));
        let watch = move || watch(&port, state, &stopped);
        let thread = std::thread::Builder::new().name("linerate-port".to_owned()).spawn(watch);
        if let Err(error) = &thread {
            tracing::warn!("{}: cannot start the thread that supervises the link: {error}", shared.spec.via);
        }
        Supervisor { stop, waker: shared.waker.clone(), thread: thread.ok() }
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let Some(thread) = self.thread.take() else { return };
        (self.waker.wake())();
        let started = Instant::now();
        while !thread.is_finished() {
            if started.elapsed() > PEER_REPLY_TIMEOUT {
                // The thread waits for a peer that accepted the connection and sends nothing. It is abandoned, and has
                // no devices to close.
                tracing::warn!("the other end of a link does not reply; not waiting for it any longer");
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn watch(port: &Weak<SharedPort>, mut state: LinkState, stop: &AtomicBool) {
    let Some(waker) = port.upgrade().map(|shared| shared.waker.clone()) else { return };
    let mut guest_changed = false;
    let mut replaced = peer_memory::replaced();
    let mut guests = None;
    while !stop.load(Ordering::Relaxed) {
        let is_up = match port.upgrade() {
            Some(shared) => {
                state = step(&shared, state);
                if guest_changed {
                    // A guest that has replaced another does not yet know that the worker sleeps.
                    shared.sleepers.wake();
                }
                let replaced_guests = shared.devices().iter().map(Ethdev::replaced_guests).sum::<u32>();
                if guests.replace(replaced_guests).is_some_and(|before| before != replaced_guests) {
                    tracing::warn!(
                        "{}: another process has connected to the socket and replaced the client, whose connections \
                         are lost",
                        shared.spec.via
                    );
                }
                if replaced != peer_memory::replaced() && setup::maps_peer_memory(&shared.spec) {
                    replaced = peer_memory::replaced();
                    tracing::warn!(
                        "{}: a peer truncated memory that it shares with this process; its packets are lost until it connects again",
                        shared.spec.via
                    );
                }
                shared.state.link_up()
            }
            None => return,
        };
        guest_changed = match &mut state {
            LinkState::Open(_, events) => events.wait(&waker, is_up),
            LinkState::Closing(_) | LinkState::Away => LinkEvents::None.wait(&waker, is_up),
        };
    }
}

fn step(shared: &SharedPort, state: LinkState) -> LinkState {
    let via = &shared.spec.via;
    match state {
        LinkState::Open(since, events) => {
            if let Some(failure) = failure(shared) {
                shared.state.fail(failure);
                return LinkState::Open(since, events);
            }
            let up = is_link_up(&shared.spec, &shared.devices());
            shared.update_guest_features();
            let changed = shared.state.set_link(up);
            match changed {
                true if up => tracing::info!("{via}: the link is up"),
                true => tracing::warn!("{via}: the link is down"),
                false => {}
            }
            let is_lost = !up && (changed || since.elapsed() > LINK_UP_TIMEOUT);
            if is_lost && matches!(shared.spec.kind, PortKind::Client { .. }) {
                shared.quiesce.begin();
                shared.sleepers.wake();
                return LinkState::Closing(Instant::now());
            }
            if changed {
                shared.sleepers.wake();
            }
            LinkState::Open(since, events)
        }
        LinkState::Closing(since) => {
            if since.elapsed() < SETTLE_TIME || !shared.quiesce.is_quiescent() {
                return LinkState::Closing(since);
            }
            shared.devices().clear();
            tracing::info!("{via}: waiting for the other end to reconnect");
            LinkState::Away
        }
        LinkState::Away => match reconnect(shared) {
            true => {
                tracing::info!("{via}: the other end has reconnected");
                LinkState::Open(Instant::now(), LinkEvents::of(shared))
            }
            false => LinkState::Away,
        },
    }
}

/// Creates the devices again, if the peer serves the socket and offers the same capabilities as before.
fn reconnect(shared: &SharedPort) -> bool {
    let PortKind::Client { socket, .. } = &shared.spec.kind else { return false };
    if !socket.exists() {
        return false;
    }
    let reconnected = port::probe(&shared.spec).and_then(|devices| {
        let offers = |device: &Ethdev| device.info().is_ok_and(|info| setup::offers(&info, &shared.settings.conf));
        if !devices.iter().all(offers) {
            tracing::warn!("{}: the other end now offers fewer queues or offloads: not used", shared.spec.via);
            return Ok(None);
        }
        let wakeups = port::start(&shared.spec, &shared.settings, &devices, &shared.pool)?;
        if shared.settings.split_tx && !devices.iter().all(Ethdev::has_split_tx) {
            tracing::warn!(
                "{}: the other end now offers packed instead of split virtqueues: not used",
                shared.spec.via
            );
            return Ok(None);
        }
        Ok(Some((devices, wakeups)))
    });
    match reconnected {
        Ok(Some((made, wakeups))) => {
            shared.set_wakeups(&wakeups);
            shared.quiesce.resume(&port::queue_ids(&shared.spec, &shared.settings, &made));
            *shared.devices() = made;
            shared.sleepers.wake();
            true
        }
        Ok(None) => false,
        Err(error) => {
            tracing::debug!("{error}");
            false
        }
    }
}

/// Returns the failure of a port whose interface is no longer the one that it was opened on.
fn failure(shared: &SharedPort) -> Option<PortFailed> {
    let (PortKind::AfXdp(name) | PortKind::Tap(name)) = &shared.spec.kind else { return None };
    // In this order: the program of a removed interface is detached after the interface has lost its name.
    let is_detached = shared.xdp.as_ref().is_some_and(|xdp| xdp.is_detached());
    if interface::index(name) != shared.interface {
        Some(PortFailed::InterfaceRemoved(name.clone()))
    } else {
        is_detached.then(|| PortFailed::ProgramDetached(name.clone()))
    }
}

pub(crate) fn is_link_up(spec: &PortSpec, devices: &[Ethdev]) -> bool {
    match &spec.kind {
        // These drivers always report the link as up, so the interface's state is queried.
        PortKind::AfXdp(name) | PortKind::Tap(name) => interface::is_running(name),
        _ => !devices.is_empty() && devices.iter().all(Ethdev::link_up),
    }
}
