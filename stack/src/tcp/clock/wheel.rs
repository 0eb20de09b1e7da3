//! Hierarchical timing wheel: O(1) to arm, lazily re-armed, without scans.
//!
//! After Varghese and Lauck, "Hashed and Hierarchical Timing Wheels" (1987). A timer is a small dense token. Most
//! network timers are moved much more often than they fire, and mostly to a later time. Such a move only stores the new
//! deadline; the wheel moves the entry when its old slot expires.

use linerate_service::time::Instant;

/// Nanoseconds per tick, as a power of two: 65.5 µs. A timer fires up to one tick late, never early.
pub(crate) const TICK_SHIFT: u32 = 16;
/// Slots per level, as a power of two: one word of occupancy bits a level.
const SLOT_SHIFT: u32 = 6;
const SLOTS: usize = 1 << SLOT_SHIFT;
/// Number of levels: five levels of 64 slots span 19 hours. Later deadlines wait in the last level and are
/// re-evaluated.
const LEVELS: usize = 5;
/// Furthest tick ahead that the last level, used as a ring, can hold.
const HORIZON: u64 = (SLOTS as u64 - 1) << (SLOT_SHIFT * (LEVELS as u32 - 1));
/// Furthest tick ahead that 32 bits distinguish from the past.
const REACH: u64 = i32::MAX as u64;
/// Null link: the end of a slot's list, and the predecessor of an unarmed timer.
const NONE: u32 = u32::MAX;
/// Bit of `previous` that marks the first timer in a slot; the other bits are the slot number.
const FIRST: u32 = 1 << 31;

/// Timer of a connection. Every connection has one, so it is as small as possible.
#[derive(Clone, Copy)]
struct Timer {
    /// Lower half of the tick at which it fires, at most [`REACH`] from the present.
    deadline: u32,
    /// Previous timer in its slot, or its slot (level × 64 + slot) if it is the first, or `NONE` if it is not armed.
    previous: u32,
    next: u32,
}

const _: () = assert!(size_of::<Timer>() == 12);

const IDLE: Timer = Timer { deadline: 0, previous: NONE, next: NONE };

/// Timers identified by small dense tokens below 2³¹.
pub struct Wheel {
    /// All ticks before this one have been processed.
    elapsed: u64,
    occupied: [u64; LEVELS],
    heads: Box<[u32; LEVELS * SLOTS]>,
    timers: Vec<Timer>,
}

impl Wheel {
    /// Size of a timer in bytes.
    pub const TIMER: usize = size_of::<Timer>();

    /// Creates a wheel without timers whose time starts at `now`.
    pub fn new(now: Instant) -> Self {
        Wheel {
            elapsed: now.as_nanos() >> TICK_SHIFT,
            occupied: [0; LEVELS],
            heads: Box::new([NONE; LEVELS * SLOTS]),
            timers: Vec::new(),
        }
    }

    /// Arms the timer `token` for `at`, in place of any earlier time. A timer more than 39 hours ahead fires at that
    /// limit, and the caller arms it again.
    pub fn arm(&mut self, token: u32, at: Instant) {
        // Rounded up, so that it never fires early.
        let at = at.as_nanos().div_ceil(1 << TICK_SHIFT);
        let deadline = at.clamp(self.elapsed, self.elapsed + REACH);
        let index = token as usize;
        if index >= self.timers.len() {
            self.timers.resize(index + 1, IDLE);
        }
        let timer = self.timers[index];
        self.timers[index].deadline = deadline as u32;
        if timer.previous != NONE {
            if deadline >= self.full(timer.deadline) {
                return;
            }
            self.unlink(token);
        }
        self.link(token, deadline);
    }

    /// Prefetches the timer `token`, which is about to be armed.
    #[inline]
    pub fn prefetch(&self, token: u32) {
        if let Some(timer) = self.timers.get(token as usize) {
            linerate_bypass::prefetch(timer);
        }
    }

    /// Disarms the timer `token`.
    pub fn disarm(&mut self, token: u32) {
        if self.timers.get(token as usize).is_some_and(|timer| timer.previous != NONE) {
            self.unlink(token);
        }
    }

    /// Appends the tokens of all timers that are due at `now` to `fired` and disarms them.
    pub fn expire(&mut self, now: Instant, fired: &mut Vec<u32>) {
        let now = now.as_nanos() >> TICK_SHIFT;
        // Armed timers are due after `elapsed`.
        if now <= self.elapsed {
            return;
        }
        while let Some((level, slot, at)) = self.next_slot().filter(|&(.., at)| at <= now) {
            self.elapsed = self.elapsed.max(at);
            let index = level * SLOTS + slot;
            let mut token = std::mem::replace(&mut self.heads[index], NONE);
            self.occupied[level] &= !(1 << slot);
            while token != NONE {
                let timer = &mut self.timers[token as usize];
                let next = timer.next;
                timer.previous = NONE;
                let deadline = timer.deadline;
                let deadline = self.full(deadline);
                if deadline <= now {
                    fired.push(token);
                } else {
                    self.link(token, deadline);
                }
                token = next;
            }
        }
        self.elapsed = now;
    }

    /// Returns the time of the next [`expire`](Self::expire). No timer is due earlier; none may be due then.
    pub fn next_expiry(&self) -> Option<Instant> {
        self.next_slot().map(|(.., at)| Instant::from_nanos(at << TICK_SHIFT))
    }

    /// Returns the tick near the present with the lower half `deadline`.
    fn full(&self, deadline: u32) -> u64 {
        self.elapsed.saturating_add_signed(i64::from(deadline.wrapping_sub(self.elapsed as u32) as i32))
    }

    /// Returns the first occupied slot and its starting tick.
    fn next_slot(&self) -> Option<(usize, usize, u64)> {
        for level in 0..LEVELS {
            if self.occupied[level] == 0 {
                continue;
            }
            let shift = SLOT_SHIFT * level as u32;
            let current = (self.elapsed >> shift) as u32 % SLOTS as u32;
            let ahead = self.occupied[level].rotate_right(current).trailing_zeros();
            let slot = (current + ahead) as usize % SLOTS;
            let at = ((self.elapsed >> shift) + u64::from(ahead)) << shift;
            return Some((level, slot, at.max(self.elapsed)));
        }
        None
    }

    /// Inserts a timer into the slot of its deadline, at the lowest level at which deadline and present differ only in
    /// the digits up to that level.
    fn link(&mut self, token: u32, deadline: u64) {
        // An overdue timer gets the next tick; a timer beyond the horizon gets the latest one.
        let at = deadline.clamp(self.elapsed + 1, self.elapsed + HORIZON);
        let differ = (self.elapsed ^ at) | (SLOTS as u64 - 1);
        let level = ((63 - differ.leading_zeros()) / SLOT_SHIFT).min(LEVELS as u32 - 1) as usize;
        let slot = (at >> (SLOT_SHIFT * level as u32)) as usize % SLOTS;
        let index = level * SLOTS + slot;
        let next = std::mem::replace(&mut self.heads[index], token);
        if next != NONE {
            self.timers[next as usize].previous = token;
        }
        self.occupied[level] |= 1 << slot;
        let timer = &mut self.timers[token as usize];
        timer.previous = FIRST | index as u32;
        timer.next = next;
    }

    fn unlink(&mut self, token: u32) {
        let Timer { previous, next, .. } = self.timers[token as usize];
        if next != NONE {
            self.timers[next as usize].previous = previous;
        }
        if previous & FIRST == 0 {
            self.timers[previous as usize].next = next;
        } else {
            let index = (previous & !FIRST) as usize;
            self.heads[index] = next;
            if next == NONE {
                self.occupied[index / SLOTS] &= !(1 << (index % SLOTS));
            }
        }
        self.timers[token as usize].previous = NONE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_service::time::Duration;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const TICK: Duration = Duration::from_nanos(1 << TICK_SHIFT);

    fn expire(wheel: &mut Wheel, now: Instant) -> Vec<u32> {
        let mut fired = Vec::new();
        wheel.expire(now, &mut fired);
        fired.sort_unstable();
        fired
    }

    #[test]
    fn timer_fires_once_and_never_early() {
        let mut wheel = Wheel::new(Instant::ZERO);
        let at = Instant::ZERO + Duration::from_millis(200);
        wheel.arm(3, at);
        assert_eq!(expire(&mut wheel, at - Duration::from_nanos(1)), []);
        assert_eq!(expire(&mut wheel, at + TICK), [3]);
        assert_eq!(expire(&mut wheel, at + Duration::from_secs(3600)), []);
        assert_eq!(wheel.next_expiry(), None);
    }

    #[test]
    fn timer_moves_to_earlier_and_later_times() {
        let mut wheel = Wheel::new(Instant::ZERO);
        let second = |n| Instant::ZERO + Duration::from_secs(n);
        wheel.arm(0, second(10));
        wheel.arm(1, second(10));
        wheel.arm(0, second(20));
        wheel.arm(1, second(5));
        assert_eq!(expire(&mut wheel, second(6)), [1]);
        assert_eq!(expire(&mut wheel, second(19)), []);
        assert_eq!(expire(&mut wheel, second(21)), [0]);
    }

    #[test]
    fn disarmed_timer_does_not_fire_and_can_be_rearmed() {
        let mut wheel = Wheel::new(Instant::ZERO);
        wheel.arm(0, Instant::ZERO + TICK * 5);
        wheel.disarm(0);
        wheel.disarm(77);
        wheel.arm(1, Instant::ZERO + TICK * 5);
        wheel.disarm(1);
        wheel.arm(1, Instant::ZERO + TICK * 9);
        assert_eq!(expire(&mut wheel, Instant::ZERO + TICK * 6), []);
        assert_eq!(expire(&mut wheel, Instant::ZERO + TICK * 10), [1]);
    }

    #[test]
    fn timer_beyond_the_horizon_fires() {
        let mut wheel = Wheel::new(Instant::ZERO);
        let far = Instant::ZERO + Duration::from_secs(39 * 3600);
        wheel.arm(0, far);
        assert_eq!(expire(&mut wheel, far - Duration::from_secs(1)), []);
        assert_eq!(expire(&mut wheel, far + TICK), [0]);
    }

    #[test]
    fn timer_beyond_the_reach_fires_at_the_limit() {
        let start = Instant::ZERO + Duration::from_secs(1_000_000);
        let mut wheel = Wheel::new(start);
        wheel.arm(0, Instant::from_nanos(u64::MAX));
        assert_eq!(expire(&mut wheel, start + Duration::from_secs(39 * 3600)), []);
        assert_eq!(expire(&mut wheel, start + Duration::from_secs(40 * 3600)), [0]);
    }

    #[derive(Debug, Clone)]
    enum Step {
        Arm(u32, u64),
        Disarm(u32),
        Advance(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let span = prop_oneof![0..200u64, 0..10_000u64, 0..1_000_000u64, 0..(REACH - 2)];
        let step = prop_oneof![
            4 => (0..20u32, span.clone()).prop_map(|(token, ticks)| Step::Arm(token, ticks)),
            1 => (0..20u32).prop_map(Step::Disarm),
            3 => span.prop_map(Step::Advance),
        ];
        prop::collection::vec(step, 1..200)
    }

    proptest! {
        #[test]
        fn wheel_expires_timers_as_a_sorted_map_does(steps in steps()) {
            let mut now = Instant::from_nanos(12_345);
            let mut wheel = Wheel::new(now);
            let mut model = BTreeMap::new();
            for step in steps {
                match step {
                    Step::Arm(token, ticks) => {
                        let at = now + Duration::from_nanos(ticks.saturating_mul(1 << TICK_SHIFT) + 1);
                        wheel.arm(token, at);
                        model.insert(token, at);
                    }
                    Step::Disarm(token) => {
                        wheel.disarm(token);
                        model.remove(&token);
                    }
                    Step::Advance(ticks) => {
                        now += Duration::from_nanos(ticks.saturating_mul(1 << TICK_SHIFT));
                        if let (Some(next), Some(first)) = (wheel.next_expiry(), model.values().min()) {
                            prop_assert!(next <= *first + TICK);
                        }
                        let fired = expire(&mut wheel, now);
                        for token in &fired {
                            let at = model.remove(token);
                            prop_assert!(at.is_some_and(|at| at <= now), "{} fired early", token);
                        }
                        for (token, at) in &model {
                            prop_assert!(*at + TICK > now, "{} is late", token);
                        }
                    }
                }
            }
        }
    }
}
