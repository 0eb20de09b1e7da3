//! SYN cookies (RFC 4987 §3.6), used while the half-open table is full. The SYN-ACK carries the connection parameters
//! in its sequence number and timestamp; no state is kept.

use crate::tcp::connection::secrets::Secrets;
use crate::wire::tcp::options::MAX_WINDOW_SCALE;
use crate::wire::tcp::seq::Seq;
use crate::wire::tuple::Tuple;
use linerate_service::time::{Duration, Instant};

/// Length of a period. A cookie is valid in the period of its creation and the next one: for 64 to 128 s.
const PERIOD: Duration = Duration::from_secs(64);

/// Lower bits of a cookie: the index of the segment size, and the lowest bit of the period. The other 28 bits are a
/// keyed hash, so that a guess succeeds with probability 2⁻²⁸.
const INDEX: u32 = 7;
const PARITY_SHIFT: u32 = 3;
const HASH: u32 = !0xf;

/// Segment sizes that a cookie can encode, in bytes of payload: the smallest size in use, the default of RFC 9293,
/// common path MTUs behind tunnels, Ethernet and jumbo frames.
const MSS_V4: [u16; 8] = [64, 256, 536, 1200, 1360, 1440, 1460, 8960];
/// The same for IPv6, with its longer header and larger minimum MTU.
const MSS_V6: [u16; 8] = [64, 536, 1220, 1340, 1380, 1420, 1440, 8940];

/// Lower bits of a timestamp that encode options.
const OPTION_BITS: u32 = 6;
const OPTION_MASK: u32 = (1 << OPTION_BITS) - 1;
/// Window scale code for "not negotiated".
const NO_SCALE: u32 = 15;
const SACK_BIT: u32 = 1 << 4;
const ECN_BIT: u32 = 1 << 5;

/// SYN options that a cookie has no room for. The timestamp of the SYN-ACK encodes them. Without timestamps they are
/// lost, and the SYN-ACK must not offer them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct CookieOptions {
    /// Shift of the peer's window field.
    pub window_scale: Option<u8>,
    /// True if the peer permits SACK.
    pub sack: bool,
    /// True if ECN is negotiated.
    pub ecn: bool,
}

/// Returns the initial sequence number that answers a SYN on `tuple` with sequence number `peer_isn` and segment size
/// `mss`.
pub(crate) fn make(secrets: &Secrets, tuple: &Tuple, peer_isn: Seq, mss: u16, now: Instant) -> Seq {
    let sizes = sizes(tuple);
    // The largest size that does not exceed the peer's, or else the smallest size.
    let index = sizes.iter().rposition(|size| *size <= mss).unwrap_or(0);
    cookie(secrets, tuple, peer_isn, period(now), index as u32)
}

/// Returns the segment size of the peer if `isn` is the valid cookie for its SYN with sequence number `peer_isn`. `isn`
/// is SEG.ACK − 1 of the peer's ACK, and `peer_isn` is SEG.SEQ − 1.
pub(crate) fn check(secrets: &Secrets, tuple: &Tuple, isn: Seq, peer_isn: Seq, now: Instant) -> Option<u16> {
    let current = period(now);
    let age = (isn.0 >> PARITY_SHIFT ^ current) & 1;
    let index = isn.0 & INDEX;
    let expected = cookie(secrets, tuple, peer_isn, current.wrapping_sub(age), index);
    (isn == expected).then(|| sizes(tuple)[index as usize])
}

/// Returns the timestamp of a SYN-ACK with a cookie: `value`, the current timestamp, with `options` in the lower bits.
/// The result is at most `value` and less than 64 ms before it, so that later timestamps do not appear older (RFC 7323
/// §5.3).
///
/// An echo of this timestamp yields no valid RTT sample.
pub(crate) fn encode_timestamp(value: u32, options: CookieOptions) -> u32 {
    let scale = options.window_scale.map_or(NO_SCALE, |scale| scale.min(MAX_WINDOW_SCALE).into());
    let sack = if options.sack { SACK_BIT } else { 0 };
    let ecn = if options.ecn { ECN_BIT } else { 0 };
    let carried = scale | sack | ecn;
    let encoded = value & !OPTION_MASK | carried;
    if carried > value & OPTION_MASK { encoded.wrapping_sub(1 << OPTION_BITS) } else { encoded }
}

/// Decodes the options from the timestamp `echo` of a peer with a cookie. `value` is the current timestamp, as for
/// [`encode_timestamp`]. Returns `None` if `echo` is older than any valid cookie, or in the future: the negotiated
/// options are unknown then.
pub(crate) fn decode_timestamp(echo: u32, value: u32) -> Option<CookieOptions> {
    const OLDEST: u32 = 2 * PERIOD.as_millis() as u32 + (1 << OPTION_BITS);
    if value.wrapping_sub(echo) >= OLDEST {
        return None;
    }
    let scale = echo & NO_SCALE;
    Some(CookieOptions {
        window_scale: (scale != NO_SCALE).then_some(scale as u8),
        sack: echo & SACK_BIT != 0,
        ecn: echo & ECN_BIT != 0,
    })
}

fn sizes(tuple: &Tuple) -> &'static [u16; 8] {
    if tuple.is_ipv4() { &MSS_V4 } else { &MSS_V6 }
}

/// Returns the number of the period that contains `now`.
fn period(now: Instant) -> u32 {
    (now.as_nanos() / PERIOD.as_nanos() as u64) as u32
}

/// Returns the cookie of `period`. The hash covers all encoded values and the peer's initial sequence number, so that a
/// cookie is valid for one SYN only.
fn cookie(secrets: &Secrets, tuple: &Tuple, peer_isn: Seq, period: u32, index: u32) -> Seq {
    let hash = secrets.cookie_hash(tuple, [u64::from(peer_isn.0) << 32 | u64::from(period), index.into()]);
    Seq(hash & HASH | (period & 1) << PARITY_SHIFT | index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;
    use std::net::SocketAddr;

    const PEER_ISN: Seq = Seq(77);
    const NOW: Instant = Instant::from_nanos(10 * 64_000_000_000 + 1);

    fn tuple(port: u16) -> Tuple {
        Tuple::new("10.0.0.1:7".parse().unwrap(), SocketAddr::from(([10, 0, 0, 2], port)))
    }

    fn tuple_v6() -> Tuple {
        Tuple::new("[fd00::1]:7".parse().unwrap(), "[fd00::2]:1".parse().unwrap())
    }

    fn options() -> impl Strategy<Value = CookieOptions> {
        (prop::option::of(0..=MAX_WINDOW_SCALE), any::<bool>(), any::<bool>())
            .prop_map(|(window_scale, sack, ecn)| CookieOptions { window_scale, sack, ecn })
    }

    proptest! {
        /// RFC 9293 §3.7.1, MUST-16: no segment exceeds the size announced by the peer.
        #[test]
        fn cookie_encodes_mss_or_the_next_smaller(seed: u128, port: u16, isn: u32, mss in 64u16.., six: bool) {
            let secrets = Secrets::from_seed(seed);
            let tuple = if six { tuple_v6() } else { tuple(port) };
            let cookie = make(&secrets, &tuple, Seq(isn), mss, NOW);
            let decoded = check(&secrets, &tuple, cookie, Seq(isn), NOW).unwrap();
            prop_assert!(decoded <= mss);
            let next = sizes(&tuple).iter().find(|size| **size > decoded);
            prop_assert!(next.is_none_or(|next| *next > mss));
        }

        #[test]
        fn options_are_restored_within_the_lifetime_of_a_cookie(
            value: u32, options in options(), later in 0u32..2 * 64_000
        ) {
            let sent = encode_timestamp(value, options);
            prop_assert_eq!(decode_timestamp(sent, value.wrapping_add(later)), Some(options));
        }

        /// RFC 7323 §5.3: PAWS would discard later segments with a smaller timestamp.
        #[test]
        fn timestamp_with_options_is_not_ahead_of_the_clock(value: u32, options in options()) {
            let age = value.wrapping_sub(encode_timestamp(value, options));
            prop_assert!(age < 64, "{}", age);
        }

        #[test]
        fn cookie_is_valid_for_one_to_two_periods(start in 0u64..1 << 44, later in 0u64..300_000_000_000) {
            let secrets = Secrets::from_seed(1);
            let made = Instant::from_nanos(start);
            let then = Instant::from_nanos(start + later);
            let cookie = make(&secrets, &tuple(1), PEER_ISN, 1460, made);
            let periods = period(then) - period(made);
            prop_assert_eq!(check(&secrets, &tuple(1), cookie, PEER_ISN, then).is_some(), periods <= 1);
            if later < 64_000_000_000 {
                prop_assert!(periods <= 1);
            }
            if later >= 128_000_000_000 {
                prop_assert!(periods > 1);
            }
        }
    }

    #[test]
    fn mss_of_common_paths_is_exact() {
        let secrets = Secrets::from_seed(2);
        for (tuple, sizes) in [(tuple(1), [536, 1360, 1440, 1460, 8960]), (tuple_v6(), [536, 1220, 1420, 1440, 8940])] {
            for mss in sizes {
                let cookie = make(&secrets, &tuple, PEER_ISN, mss, NOW);
                assert_eq!(check(&secrets, &tuple, cookie, PEER_ISN, NOW), Some(mss));
            }
        }
    }

    #[test]
    fn implausible_mss_becomes_the_smallest() {
        let secrets = Secrets::from_seed(3);
        for mss in [0, 1, 63] {
            let cookie = make(&secrets, &tuple(1), PEER_ISN, mss, NOW);
            assert_eq!(check(&secrets, &tuple(1), cookie, PEER_ISN, NOW), Some(64));
        }
    }

    #[test]
    fn cookie_is_valid_for_its_syn_and_secret_only() {
        let secrets = Secrets::from_seed(4);
        let cookie = make(&secrets, &tuple(1), PEER_ISN, 1460, NOW);
        assert_eq!(check(&secrets, &tuple(1), cookie, PEER_ISN, NOW), Some(1460));
        assert_eq!(check(&secrets, &tuple(2), cookie, PEER_ISN, NOW), None);
        assert_eq!(check(&secrets, &tuple(1).reversed(), cookie, PEER_ISN, NOW), None);
        assert_eq!(check(&secrets, &tuple(1), cookie, PEER_ISN + 1, NOW), None);
        assert_eq!(check(&Secrets::from_seed(5), &tuple(1), cookie, PEER_ISN, NOW), None);
        for bit in 0..32 {
            assert_eq!(check(&secrets, &tuple(1), Seq(cookie.0 ^ 1 << bit), PEER_ISN, NOW), None, "bit {bit}");
        }
    }

    /// At any time sixteen of 2³² numbers are valid, one for each size and period: a guess succeeds with probability
    /// 2⁻²⁸.
    #[test]
    fn guess_succeeds_with_the_expected_probability() {
        let secrets = Secrets::from_seed(6);
        let good: HashSet<_> = [NOW, NOW - PERIOD]
            .iter()
            .flat_map(|made| MSS_V4.map(|mss| make(&secrets, &tuple(1), PEER_ISN, mss, *made).0))
            .collect();
        assert_eq!(good.len(), 16);
        assert!(good.iter().all(|isn| check(&secrets, &tuple(1), Seq(*isn), PEER_ISN, NOW).is_some()));
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..1 << 18 {
            let guess = random.u32(..);
            assert_eq!(check(&secrets, &tuple(1), Seq(guess), PEER_ISN, NOW).is_some(), good.contains(&guess));
        }
        // Each bit of the hash is set in half of the cookies. 2¹⁶ cookies, deviation 128.
        for bit in 4..32 {
            let set =
                (0..=u16::MAX).filter(|port| make(&secrets, &tuple(*port), PEER_ISN, 1460, NOW).0 >> bit & 1 == 1);
            assert!((32_100..33_450).contains(&set.count()), "bit {bit}");
        }
    }

    #[test]
    fn cookie_of_a_future_period_is_invalid() {
        let secrets = Secrets::from_seed(8);
        let cookie = make(&secrets, &tuple(1), PEER_ISN, 1460, Instant::ZERO + PERIOD);
        assert_eq!(check(&secrets, &tuple(1), cookie, PEER_ISN, Instant::ZERO), None);
    }

    /// The oldest valid timestamp is from the beginning of the previous period, less 63 ms.
    #[test]
    fn echo_too_old_or_in_the_future_is_rejected() {
        let options = CookieOptions { window_scale: Some(7), sack: true, ecn: false };
        for value in [22, 1_000_022, u32::MAX - 41] {
            let sent = encode_timestamp(value, options);
            assert_eq!(value.wrapping_sub(sent), 63);
            assert_eq!(decode_timestamp(sent, value.wrapping_add(128_000)), Some(options));
            assert_eq!(decode_timestamp(sent, value.wrapping_add(128_001)), None);
            assert_eq!(decode_timestamp(sent, sent.wrapping_sub(1)), None);
        }
    }

    /// RFC 7323 §2.3.
    #[test]
    fn window_scale_above_14_is_distinct_from_none() {
        let options = CookieOptions { window_scale: Some(15), sack: false, ecn: false };
        let sent = encode_timestamp(1 << 20, options);
        assert_eq!(decode_timestamp(sent, 1 << 20).unwrap().window_scale, Some(14));
    }
}
