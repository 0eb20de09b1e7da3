//! What lets a port's devices be taken away from under its queue pairs, and given back.
//!
//! A device on one end of a link is made anew when the other end has gone and come back, while worker threads go on
//! calling their queue pairs. The gate has an epoch: even, the devices are there; odd, they are not to be used. A queue
//! pair compares it, one load per burst, with the epoch that it saw last; when it differs, the queue pair acknowledges
//! the new one before it does anything else. When all have acknowledged a closed gate, none is within a burst, and
//! none will begin one.

use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// The place of one queue pair in DPDK: a port, and a queue of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub port: u16,
    pub queue: u16,
}

/// The gate of a port, shared by its queue pairs and its supervisor.
#[derive(Debug)]
pub(crate) struct Gate {
    epoch: AtomicU64,
    seats: Box<[Seat]>,
}

/// What one queue pair and the supervisor tell each other; on a cache line of its own.
#[derive(Debug)]
#[repr(align(64))]
struct Seat {
    /// The last epoch that the queue pair has acknowledged.
    seen: AtomicU64,
    /// Its [`Place`] as of the last even epoch.
    place: AtomicU32,
}

/// The acknowledgement of a queue pair that does not exist.
const NOBODY: u64 = u64::MAX;

impl Gate {
    /// An open gate for queue pairs at `places`, none of which exists yet.
    pub fn new(places: &[Place]) -> Self {
        let seat = |place: &Place| Seat { seen: AtomicU64::new(NOBODY), place: AtomicU32::new(pack(*place)) };
        Gate { epoch: AtomicU64::new(0), seats: places.iter().map(seat).collect() }
    }

    /// Closes the gate. No queue pair uses the devices once [`is_quiet`](Self::is_quiet) says so.
    pub fn close(&self) {
        debug_assert!(self.epoch.load(Ordering::Relaxed).is_multiple_of(2));
        self.epoch.fetch_add(1, Ordering::Release);
    }

    /// Whether every queue pair has seen that the gate is closed.
    pub fn is_quiet(&self) -> bool {
        let epoch = self.epoch.load(Ordering::Relaxed);
        // Pairs with the fence of `enter`.
        fence(Ordering::SeqCst);
        // Acquire: what the queue pairs did with the devices happens before what the supervisor does to them.
        self.seats.iter().all(|seat| seat.seen.load(Ordering::Acquire) >= epoch)
    }

    /// Opens the closed gate, the queue pairs now being at `places`.
    pub fn open(&self, places: &[Place]) {
        for (seat, place) in self.seats.iter().zip(places) {
            seat.place.store(pack(*place), Ordering::Relaxed);
        }
        // Publishes the places, and whatever was done to the devices.
        self.epoch.fetch_add(1, Ordering::Release);
    }

    /// The pass of queue pair `index`, which begins to exist.
    pub fn enter(&self, index: usize) -> Pass {
        let seat = &self.seats[index];
        // From here the supervisor waits for this queue pair; or it closed before, and then the load sees it.
        seat.seen.store(0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let epoch = self.epoch.load(Ordering::Acquire);
        let mut pass = Pass { seen: epoch, place: None };
        self.acknowledge(index, epoch, &mut pass);
        pass
    }

    /// Queue pair `index` exists no longer.
    pub fn leave(&self, index: usize) {
        self.seats[index].seen.store(NOBODY, Ordering::Release);
    }

    /// Where queue pair `index` may receive and send now, if anywhere.
    #[inline]
    pub fn check(&self, index: usize, pass: &mut Pass) -> Option<Place> {
        let epoch = self.epoch.load(Ordering::Acquire);
        if epoch != pass.seen {
            self.acknowledge(index, epoch, pass);
        }
        pass.place
    }

    #[cold]
    fn acknowledge(&self, index: usize, epoch: u64, pass: &mut Pass) {
        let seat = &self.seats[index];
        let is_open = epoch.is_multiple_of(2);
        pass.place = is_open.then(|| unpack(seat.place.load(Ordering::Relaxed)));
        pass.seen = epoch;
        // What this queue pair did with the devices happens before what the supervisor does to them.
        seat.seen.store(epoch, Ordering::Release);
    }
}

/// What a queue pair knows of the gate.
#[derive(Debug)]
pub(crate) struct Pass {
    seen: u64,
    place: Option<Place>,
}

fn pack(place: Place) -> u32 {
    u32::from(place.port) << 16 | u32::from(place.queue)
}

fn unpack(place: u32) -> Place {
    Place { port: (place >> 16) as u16, queue: place as u16 }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    const HERE: Place = Place { port: 1, queue: 2 };
    const THERE: Place = Place { port: 3, queue: 4 };

    #[test]
    fn a_closed_gate_is_quiet_once_every_queue_pair_has_seen_it() {
        let gate = Gate::new(&[HERE, HERE]);
        let (mut first, mut second) = (gate.enter(0), gate.enter(1));
        assert_eq!(gate.check(0, &mut first), Some(HERE));
        gate.close();
        assert!(!gate.is_quiet());
        assert_eq!(gate.check(0, &mut first), None);
        assert!(!gate.is_quiet());
        assert_eq!(gate.check(1, &mut second), None);
        assert!(gate.is_quiet());
        gate.open(&[THERE, HERE]);
        assert_eq!((gate.check(0, &mut first), gate.check(1, &mut second)), (Some(THERE), Some(HERE)));
    }

    #[test]
    fn queue_pairs_that_do_not_exist_are_not_waited_for() {
        let gate = Gate::new(&[HERE, HERE]);
        gate.enter(0);
        gate.leave(0);
        gate.close();
        assert!(gate.is_quiet());
        let mut late = gate.enter(1);
        assert!(gate.is_quiet());
        assert_eq!(gate.check(1, &mut late), None);
    }

    #[test]
    fn nobody_is_inside_while_the_gate_is_closed_and_quiet() {
        const ROUNDS: usize = 200;
        let gate = Gate::new(&[HERE; 2]);
        let inside = AtomicUsize::new(0);
        let rounds = AtomicUsize::new(0);
        thread::scope(|scope| {
            for index in 0..2 {
                let (gate, inside, rounds) = (&gate, &inside, &rounds);
                scope.spawn(move || {
                    let mut pass = gate.enter(index);
                    while rounds.load(Ordering::Relaxed) < ROUNDS {
                        if gate.check(index, &mut pass).is_some() {
                            inside.fetch_add(1, Ordering::Relaxed);
                            std::hint::spin_loop();
                            inside.fetch_sub(1, Ordering::Relaxed);
                        }
                    }
                    gate.leave(index);
                });
            }
            for _ in 0..ROUNDS {
                gate.close();
                while !gate.is_quiet() {
                    thread::yield_now();
                }
                for _ in 0..100 {
                    assert_eq!(inside.load(Ordering::Relaxed), 0);
                }
                gate.open(&[HERE; 2]);
                rounds.fetch_add(1, Ordering::Relaxed);
                thread::yield_now();
            }
        });
    }
}
