//! Arbitrary acknowledgements at arbitrary times.

use proptest::prelude::*;

use super::super::{Acknowledgement, Duration, Expired, Flight, FlightConfig, Limits, Path, RttEstimator, Seq};
use super::network::{MSS, Reno, ack_at};
use super::*;
use crate::tcp::recovery::Instant;

#[derive(Debug, Clone)]
enum Step {
    Send(u32),
    Retransmit(u32),
    Acknowledge {
        /// Sixteenths of the data in flight, from slightly below SND.UNA to slightly above SND.NXT.
        ack: u32,
        sack: Vec<(u32, u32)>,
        echo: Option<u32>,
        ece: bool,
        duplicate: bool,
        unsent: bool,
        exactly: bool,
    },
    Wait(u32),
    Expire(bool),
    Shrink(u16),
}

fn step() -> impl Strategy<Value = Step> {
    let block = (0..40u32, 0..40u32);
    let acknowledge = (
        prop_oneof![3 => Just(4u32), 2 => 0..24u32],
        prop::collection::vec(block, 0..5),
        any::<Option<u32>>(),
        prop::bool::weighted(0.1),
        any::<bool>(),
        any::<bool>(),
        prop::bool::weighted(0.8),
    );
    prop_oneof![
        4 => prop_oneof![1..3 * MSS, Just(MSS), Just(64_000u32)].prop_map(Step::Send),
        3 => (1..5 * MSS).prop_map(Step::Retransmit),
        6 => acknowledge.prop_map(|(ack, sack, echo, ece, duplicate, unsent, exactly)| {
            Step::Acknowledge { ack, sack, echo, ece, duplicate, unsent, exactly }
        }),
        2 => (0..50_000u32).prop_map(Step::Wait),
        3 => any::<bool>().prop_map(Step::Expire),
        1 => (1..1500u16).prop_map(Step::Shrink),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn scoreboard_is_consistent_after_any_events(
        first in any::<u32>(),
        sack in prop::bool::weighted(0.8),
        exact_ecn in prop::bool::weighted(0.2),
        steps in prop::collection::vec(step(), 1..150),
    ) {
        let config = FlightConfig { mss: MSS as u16, sack, exact_ecn };
        let mut flight = Flight::new(Seq(first), config);
        let (mut rtt, mut path, mut cc) = (RttEstimator::default(), Path::default(), Reno::new(20 * MSS));
        let limits = Limits::default();
        let mut now = Instant::ZERO;
        for step in steps {
            match step {
                Step::Send(len) => {
                    let before = flight.next();
                    flight.sent(len, now, cc.window);
                    prop_assert_eq!(flight.next(), before + len);
                }
                Step::Retransmit(max) => {
                    if let Some((seq, len)) = flight.retransmission(flight.allowance(cc.window).min(max)) {
                        prop_assert!(!seq.before(flight.una()) && !(seq + len).after(flight.next()) && len <= max);
                        let before = flight.in_flight();
                        flight.retransmitted(seq, len, now, now.as_micros() as u32);
                        prop_assert!(flight.in_flight() >= before);
                    }
                }
                Step::Acknowledge { ack, sack, echo, ece, duplicate, unsent, exactly } => {
                    let outstanding = flight.next() - flight.una();
                    // Positions at segment boundaries, or anywhere.
                    let seq_at = |sixteenths: u32| {
                        let offset = (u64::from(outstanding) * u64::from(sixteenths) / 16) as u32;
                        let offset = if exactly { offset - offset % MSS } else { offset };
                        flight.una() + offset - if exactly { outstanding / 4 / MSS * MSS } else { outstanding / 4 }
                    };
                    let sack: Vec<_> = sack.iter().map(|&(start, end)| (seq_at(start), seq_at(end))).collect();
                    let (una, next, ack) = (flight.una(), flight.next(), seq_at(ack));
                    let acknowledgement = Acknowledgement {
                        ack,
                        sack: &sack,
                        echoed_timestamp: echo.map(|echo| if echo % 2 == 0 { now.as_micros() as u32 } else { echo }),
                        ece,
                        duplicate_candidate: duplicate,
                        pure: duplicate,
                        unsent,
                        now,
                    };
                    let outcome = flight.acknowledge(&acknowledgement, &mut rtt, &mut path, &mut cc, &limits);
                    let acceptable = ack.after(una) && !ack.after(next);
                    prop_assert_eq!(flight.una(), if acceptable { ack } else { una });
                    prop_assert_eq!(outcome.acknowledged, flight.una() - una);
                    prop_assert_eq!(flight.next(), next);
                }
                Step::Wait(micros) => now += Duration::from_micros(u64::from(micros)),
                Step::Expire(unsent) => {
                    if let Some(at) = flight.deadline(&rtt, &path, &limits) {
                        now = now.max(at);
                        let expired = flight.expire(now, unsent, &mut rtt, &mut path, &mut cc, &limits);
                        match expired {
                            Expired::Probe(Some((seq, len))) => {
                                prop_assert!(!seq.before(flight.una()) && seq + len == flight.next());
                                flight.retransmitted(seq, len, now, now.as_micros() as u32);
                            }
                            Expired::Timeout { .. } => prop_assert!(flight.retransmission(u32::MAX).is_some()),
                            _ => {}
                        }
                    } else {
                        prop_assert!(flight.is_settled());
                    }
                }
                Step::Shrink(mss) => flight.set_mss(mss),
            }
            flight.check();
        }
        // After any sequence of events, a valid acknowledgement of all data empties the flight.
        let acknowledgement = Acknowledgement { duplicate_candidate: false, ..ack_at(flight.next(), &[], now) };
        flight.acknowledge(&acknowledgement, &mut rtt, &mut path, &mut cc, &limits);
        prop_assert!(flight.is_empty() && flight.in_flight() == 0 && flight.records() == 0);
        flight.check();
    }

    #[test]
    fn data_is_retransmitted_until_acknowledged(
        sack in prop::bool::weighted(0.7),
        timestamps in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let mut random = fastrand::Rng::with_seed(seed);
        let burst = [1, 5, 60][random.usize(..3)] * MSS;
        let mut network = Network::new(Options { sack, timestamps, burst, ..Options::default() });
        let loss = random.u8(..40);
        let mut fates = random.fork();
        network.fate = Box::new(move |_, _| match fates.u8(..100) {
            share if share < loss => Fate::Drop,
            share if share < loss + 10 => Fate::Late(Duration::from_micros(fates.u64(..30_000))),
            _ => Fate::Deliver,
        });
        network.transfer(60 * MSS);
    }
}
