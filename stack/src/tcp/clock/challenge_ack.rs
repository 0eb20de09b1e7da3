//! Rate limit of challenge ACKs (RFC 5961 §7): one per connection in half a second.

use linerate_service::time::Instant;

/// Unit of recorded times in nanoseconds, as a power of two: 134 ms.
const SHIFT: u32 = 27;

/// Interval between two challenge ACKs of one connection, in units.
const PERIOD: u8 = 4;

/// Period in units after which a recorded time repeats: 17 s. It may then suppress one challenge ACK; the peer
/// retransmits.
const WRAP: u64 = 127;

/// Returns the value to record, of seven bits, if a challenge ACK may be sent at `now`. `last` is the recorded value,
/// zero before the first challenge ACK.
pub(crate) fn challenge_time(last: u8, now: Instant) -> Option<u8> {
    let time = ((now.as_nanos() >> SHIFT) % WRAP) as u8 + 1;
    let since = if time >= last { time - last } else { WRAP as u8 - (last - time) };
    (last == 0 || since >= PERIOD).then_some(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenge_interval_survives_wrap_of_recorded_time() {
        let at = |time: u64| Instant::from_nanos(time << SHIFT);
        for first in WRAP - 8..WRAP + 8 {
            let recorded = challenge_time(0, at(first)).unwrap();
            assert!(recorded < 1 << 7);
            for later in 0..u64::from(PERIOD) {
                assert_eq!(challenge_time(recorded, at(first + later)), None, "{first} {later}");
            }
            assert!(challenge_time(recorded, at(first + u64::from(PERIOD))).is_some(), "{first}");
        }
    }
}
