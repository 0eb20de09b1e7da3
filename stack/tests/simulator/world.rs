//! Two hosts, the link between them, and the clock.

use crate::ledger::Ledger;
use crate::scenario::{Change, EngineKind, HostPlan, Scenario};
use crate::service::Actor;
use crate::verdict::EndOutcome;
use crate::wire::Wire;
use linerate_bypass::Nic;
use linerate_bypass::memory_nic::{End, Frame, Link, MemoryNic, MemoryPacket};
use linerate_service::Summary;
use linerate_service::time::{Duration, Instant};
use linerate_stack::{Engine, Mailboxes, NativeEngine, Worker};
use std::cell::RefCell;
use std::rc::Rc;

/// Time without progress of any service after which open connections count as hanging.
const STALL_TIMEOUT: Duration = Duration::from_secs(20 * 60);
/// Maximum number of turns before a minimal clock step.
const TURNS_AT_ONCE: usize = 50;
/// Turns without effect before a minimal clock step: a worker that waits for a packet is busy in each turn.
const IDLE_TURNS: usize = 3;
/// Range of the clock step while an overdue event is not handled.
const STEP: std::ops::RangeInclusive<Duration> = Duration::from_micros(1)..=Duration::from_millis(10);
const MAX_FRAMES_WITHOUT_PROGRESS: u64 = 100_000;
/// Time for releasing all state after the end: TIME-WAIT, and unresponsive neighbours.
const SETTLE: Duration = Duration::from_secs(200);

/// Engine with a consistency check.
trait Consistent: Engine<MemoryNic> {
    fn assert_consistent(&self) {}
}

impl Consistent for NativeEngine<MemoryPacket> {
    fn assert_consistent(&self) {
        NativeEngine::assert_consistent(self);
    }
}

#[cfg(feature = "smoltcp-engine")]
impl Consistent for linerate_stack::SmoltcpEngine {}

/// Workers of one host, of either engine.
trait Workers {
    fn turn(&mut self, now: Instant) -> usize;
    /// Returns the times of the next frame arrival and of the next other deadline.
    fn next(&mut self) -> [Option<Instant>; 2];
    fn assert_consistent(&self);
    fn connections(&self) -> usize;
    fn summary(&mut self) -> Summary;
    /// Returns the number of missing packets of each pool.
    fn missing(&mut self) -> Vec<usize>;
    fn into_nics(self: Box<Self>) -> Vec<MemoryNic>;
}

impl<E: Consistent> Workers for Vec<Worker<MemoryNic, Actor, E>> {
    fn turn(&mut self, now: Instant) -> usize {
        self.iter_mut().map(|worker| worker.turn(now)).sum()
    }

    fn next(&mut self) -> [Option<Instant>; 2] {
        let arrival = self.iter_mut().filter_map(|worker| worker.nic().next_arrival()).min();
        let deadline = self.iter_mut().filter_map(|worker| worker.next_deadline()).min();
        [arrival, deadline]
    }

    fn assert_consistent(&self) {
        self.iter().for_each(|worker| worker.engine().assert_consistent());
    }

    fn connections(&self) -> usize {
        self.iter().map(|worker| worker.engine().connections()).sum()
    }

    fn summary(&mut self) -> Summary {
        let mut all = Summary::default();
        self.iter_mut().for_each(|worker| all += &worker.summary());
        all
    }

    fn missing(&mut self) -> Vec<usize> {
        let missing = |nic: &mut MemoryNic| nic.pool_capacity() - nic.pool_available();
        self.iter_mut().map(|worker| missing(worker.nic())).collect()
    }

    fn into_nics(self: Box<Self>) -> Vec<MemoryNic> {
        self.into_iter().map(Worker::into_nic).collect()
    }
}

struct Host {
    end: End,
    plan: HostPlan,
    /// `None` while the host is down.
    workers: Option<Box<dyn Workers>>,
    /// Ports and restart time while the host is down.
    down: Option<(Vec<MemoryNic>, Instant)>,
    /// Time of the next poll.
    looks_at: Instant,
}

impl Host {
    fn new(end: End, plan: &HostPlan, nics: Vec<MemoryNic>, ledger: &Rc<RefCell<Ledger>>, now: Instant) -> Self {
        let workers = Some(start(end, plan, nics, ledger, now));
        Host { end, plan: plan.clone(), workers, down: None, looks_at: now }
    }

    fn turn(&mut self, now: Instant) -> usize {
        match &mut self.workers {
            Some(workers) if self.looks_at <= now => workers.turn(now),
            _ => 0,
        }
    }

    fn end_turns(&mut self, now: Instant) {
        if let Some(period) = self.plan.period
            && self.looks_at <= now
        {
            self.looks_at = now + period;
        }
    }

    fn next(&mut self, now: Instant) -> [Option<Instant>; 2] {
        match (&mut self.workers, &self.down) {
            (Some(workers), _) => {
                let [arrival, deadline] = workers.next();
                // An overdue event may wait until a packet is free.
                let deadline = deadline.map(|at| if at <= now { now } else { at.max(self.looks_at) });
                [arrival.map(|at| at.max(self.looks_at)), deadline]
            }
            (None, down) => [None, down.as_ref().map(|(_, back)| *back)],
        }
    }

    fn stop(&mut self, back: Instant) {
        if let Some(workers) = self.workers.take() {
            self.down = Some((workers.into_nics(), back));
        }
    }

    fn start_again(&mut self, ledger: &Rc<RefCell<Ledger>>, now: Instant) {
        if let Some((nics, _)) = self.down.take_if(|(_, back)| *back <= now) {
            self.workers = Some(start(self.end, &self.plan, nics, ledger, now));
        }
    }
}

fn start(
    end: End,
    plan: &HostPlan,
    nics: Vec<MemoryNic>,
    ledger: &Rc<RefCell<Ledger>>,
    now: Instant,
) -> Box<dyn Workers> {
    fn of<E: Consistent + 'static>(
        end: End,
        plan: &HostPlan,
        nics: Vec<MemoryNic>,
        ledger: &Rc<RefCell<Ledger>>,
        now: Instant,
    ) -> Box<dyn Workers> {
        let mailboxes = Mailboxes::for_workers(nics.len());
        let worker = |(nic, mailboxes)| {
            Worker::<_, _, E>::new(&plan.config, mailboxes, nic, |_| Actor::new(end, ledger.clone()), now)
        };
        Box::new(nics.into_iter().zip(mailboxes).map(worker).collect::<Vec<_>>())
    }
    match plan.engine {
        EngineKind::Native => of::<NativeEngine<MemoryPacket>>(end, plan, nics, ledger, now),
        #[cfg(feature = "smoltcp-engine")]
        EngineKind::Smoltcp => of::<linerate_stack::SmoltcpEngine>(end, plan, nics, ledger, now),
        // Without the smoltcp engine, the native engine runs in its place.
        #[cfg(not(feature = "smoltcp-engine"))]
        EngineKind::Smoltcp => of::<NativeEngine<MemoryPacket>>(end, plan, nics, ledger, now),
    }
}

/// Outcome of a simulation.
pub struct Outcome {
    /// All frames, on request.
    pub frames: Vec<Frame>,
    pub connections: usize,
    /// Connections closed by both ends.
    pub finished: usize,
    /// Outcomes of each connection at both ends.
    pub ends: Vec<[EndOutcome; 2]>,
}

/// Running simulation.
pub struct World {
    scenario: Rc<Scenario>,
    ledger: Rc<RefCell<Ledger>>,
    link: Link,
    hosts: [Host; 2],
    wire: Wire,
    /// Remaining changes.
    timeline: std::vec::IntoIter<(Duration, Change)>,
    next_change: Option<(Instant, Change)>,
    /// All frames so far, if `keeps`.
    pub frames: Vec<Frame>,
    keeps: bool,
    sent_frames: u64,
}

impl World {
    /// Starts the simulation of `scenario` and keeps its frames if `keeps`.
    pub fn new(scenario: Scenario, keeps: bool) -> Self {
        let (a, b) = Link::with_queues(scenario.link.clone(), scenario.queues);
        let link = a[0].link().clone();
        link.clock().advance_to(scenario.begins);
        link.capture();
        let scenario = Rc::new(scenario);
        let ledger = Ledger::new(scenario.clone());
        let now = scenario.begins;
        let host = |end, nics| Host::new(end, scenario.host(end), nics, &ledger, now);
        let hosts = [host(End::A, a), host(End::B, b)];
        let timeline = scenario.timeline.clone().into_iter();
        let wire = Wire::new(scenario.clone());
        let mut world = World {
            scenario,
            ledger,
            link,
            hosts,
            wire,
            timeline,
            next_change: None,
            frames: Vec::new(),
            keeps,
            sent_frames: 0,
        };
        world.await_change();
        world
    }

    fn now(&self) -> Instant {
        self.link.clock().now()
    }

    fn await_change(&mut self) {
        let begins = self.scenario.begins;
        self.next_change = self.timeline.next().map(|(after, change)| (begins + after, change));
    }

    /// Applies the changes that are due.
    fn change(&mut self) {
        let now = self.now();
        while let Some((_, change)) = self.next_change.take_if(|(at, _)| *at <= now) {
            match change {
                Change::Impair(end, impairments) => self.link.impair(end, impairments),
                Change::Link(up) => self.link.set_up(up),
                Change::Restart(end, silence) => {
                    self.hosts[end as usize].stop(now + silence);
                    self.ledger.borrow_mut().lose(end);
                }
            }
            self.await_change();
        }
        for host in &mut self.hosts {
            host.start_again(&self.ledger, now);
        }
    }

    /// Runs all workers until idle.
    fn turns(&mut self) -> u64 {
        let now = self.now();
        let before = self.sent_frames;
        let mut in_vain = 0;
        for _ in 0..TURNS_AT_ONCE {
            let (frames, progress) = (self.sent_frames, self.ledger.borrow().progress);
            let work: usize = self.hosts.iter_mut().map(|host| host.turn(now)).sum();
            self.check_frames();
            let moved = self.sent_frames > frames || self.ledger.borrow().progress > progress;
            in_vain = if moved { 0 } else { in_vain + 1 };
            if work == 0 || in_vain == IDLE_TURNS {
                break;
            }
        }
        self.hosts.iter_mut().for_each(|host| host.end_turns(now));
        self.sent_frames - before
    }

    /// Checks the frames that have been sent.
    fn check_frames(&mut self) {
        for frame in self.link.captured() {
            self.sent_frames += 1;
            self.wire.frame(&frame);
            if self.keeps {
                self.frames.push(frame);
            }
        }
    }

    /// Lets time pass until `done`, until no service makes progress for [`STALL_TIMEOUT`], or for at most `limit`.
    fn run(&mut self, limit: Option<Duration>, done: impl Fn(&Self) -> bool) -> bool {
        let until = limit.map(|limit| self.now() + limit);
        let mut progress = (self.ledger.borrow().progress, self.now(), self.sent_frames);
        let mut step = *STEP.start();
        for round in 0u64.. {
            self.change();
            let frames = self.turns();
            self.ledger.borrow().check_timers(self.now());
            if frames > 0 && round % 16 == 0 {
                self.assert_consistent();
            }
            if done(self) {
                return true;
            }
            let now = self.now();
            let made = self.ledger.borrow().progress;
            if made != progress.0 {
                progress = (made, now, self.sent_frames);
            }
            assert!(
                self.sent_frames - progress.2 < MAX_FRAMES_WITHOUT_PROGRESS,
                "frames are exchanged without progress"
            );
            let change = self.next_change.as_ref().map(|(at, _)| *at);
            let next = self.hosts.iter_mut().flat_map(|host| host.next(now)).chain([change, until]);
            let next: Vec<Instant> = next.flatten().collect();
            let Some(first) = next.iter().min() else { return false };
            if until.is_some_and(|until| now >= until) || limit.is_none() && now.since(progress.1) > STALL_TIMEOUT {
                return false;
            }
            step = if *first > now || frames > 0 { *STEP.start() } else { (step * 2).min(*STEP.end()) };
            // An overdue event that is not handled gets a minimal clock step, which skips no other event.
            let later = next.iter().filter(|next| **next > now).min();
            let soon = if *first > now { *first } else { now + step };
            self.link.clock().advance_to(later.map_or(soon, |later| soon.min(*later)));
        }
        unreachable!("the loop returns")
    }

    fn assert_consistent(&self) {
        self.hosts.iter().filter_map(|host| host.workers.as_ref()).for_each(|workers| workers.assert_consistent());
    }

    /// Runs to the end, checks the invariants, and returns the outcome.
    pub fn finish(&mut self) -> Outcome {
        let complete = self.run(None, |world| world.ledger.borrow().is_complete());
        self.assert_consistent();
        let finished = crate::verdict::check(&self.ledger.borrow(), complete);
        let ends = crate::verdict::outcomes(&self.ledger.borrow());
        self.run(Some(SETTLE), |_| false);
        // Frames to a host that is down stay at its port until its restart.
        while self.hosts.iter().any(|host| host.down.is_some()) {
            self.run(Some(SETTLE), |_| false);
        }
        self.assert_consistent();
        let clean = self.scenario.is_clean() && complete;
        for host in &mut self.hosts {
            let end = host.end;
            let Some(workers) = &mut host.workers else { continue };
            if complete {
                assert_eq!(workers.connections(), 0, "end {end:?} keeps closed connections");
                let missing = workers.missing();
                assert!(missing.iter().all(|n| *n == 0), "end {end:?} holds packets: {missing:?}");
            }
            let drops = workers.summary().drops;
            assert!(!clean || drops.is_empty(), "end {end:?} dropped: {drops:?}");
        }
        self.end();
        let connections = self.scenario.connections.len();
        Outcome { frames: std::mem::take(&mut self.frames), connections, finished, ends }
    }

    /// Drops the hosts and checks that every packet is in its pool.
    fn end(&mut self) {
        let mut nics = Vec::new();
        for host in &mut self.hosts {
            match (host.workers.take(), host.down.take()) {
                (Some(workers), _) => nics.extend(workers.into_nics()),
                (None, Some((own, _))) => nics.extend(own),
                (None, None) => {}
            }
        }
        self.link.clock().advance(Duration::from_secs(3600));
        let mut frames = Vec::with_capacity(32);
        for nic in &mut nics {
            while nic.rx_burst(&mut frames) > 0 {
                frames.clear();
            }
        }
        for nic in &nics {
            let (free, all) = (nic.pool_available(), nic.pool_capacity());
            assert_eq!(free, all, "packets of end {:?} are missing", nic.end());
        }
    }
}
