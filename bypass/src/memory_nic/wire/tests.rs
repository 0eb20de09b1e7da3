//! Tests of impairments: effect, probability and reproducibility.

use crate::memory_nic::{DropIf, End, ImpairmentStats, Impairments, Link, LinkConfig, MemoryNic, Rate, Reordering};
use crate::{BURST, Nic, Packet};
use linerate_service::Bytes;
use linerate_service::time::{Duration, Instant};
use proptest::prelude::*;

/// Link whose first end sends numbered frames to the second.
struct Bed {
    a: MemoryNic,
    b: MemoryNic,
    link: Link,
    next: u32,
}

fn bed(impairments: Impairments) -> Bed {
    let (a, b) = Link::pair(LinkConfig { impairments, ..LinkConfig::default() });
    Bed { link: a.link().clone(), a, b, next: 0 }
}

impl Bed {
    /// Sends a frame of `len` bytes, at least 4, that starts with its number.
    fn send(&mut self, len: usize) {
        let mut frame = self.a.allocate().unwrap();
        let data = frame.append(len).unwrap();
        data.fill(0);
        data[..4].copy_from_slice(&self.next.to_be_bytes());
        self.next += 1;
        assert_eq!(self.a.tx_burst(&mut vec![frame]), 1);
    }

    /// Returns the frames that have arrived by now.
    fn received(&mut self) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        let mut burst = Vec::with_capacity(BURST);
        while self.b.rx_burst(&mut burst) > 0 {
            all.extend(burst.drain(..).map(|frame| frame.segments().collect::<Vec<_>>().concat()));
        }
        all
    }

    /// Returns the numbers of the frames that have arrived by now.
    fn numbers(&mut self) -> Vec<u32> {
        self.received().iter().map(|frame| u32::from_be_bytes(frame[..4].try_into().unwrap())).collect()
    }

    /// Returns all frames in flight, with their arrival times.
    fn arrivals(&mut self) -> Vec<(Instant, Vec<u8>)> {
        let mut all = Vec::new();
        while let Some(arrival) = self.b.next_arrival() {
            self.link.clock().advance_to(arrival);
            let frames = self.received();
            assert!(!frames.is_empty(), "nothing arrived at {arrival:?}");
            all.extend(frames.into_iter().map(|frame| (arrival, frame)));
        }
        all
    }

    fn stats(&self) -> ImpairmentStats {
        self.link.impaired(End::A)
    }
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn at_ms(n: u64) -> Instant {
    Instant::ZERO + ms(n)
}

/// Returns all impairments together.
fn awful(seed: u64) -> Impairments {
    Impairments {
        seed,
        loss: 0.1,
        duplication: 0.1,
        reordering: Reordering { chance: 0.1, ..Reordering::default() },
        delay: ms(3),
        jitter: ms(2),
        corruption: 0.1,
        truncation: 0.1,
        rate: Some(Rate { bits_per_second: 10_000_000, queue_bytes: 20_000 }),
        path_mtu: Some(1000),
        drop_if: None,
    }
}

#[test]
fn frame_arrives_after_the_delay() {
    let mut bed = bed(Impairments { delay: ms(5), ..Impairments::default() });
    assert_eq!(bed.b.next_arrival(), None);
    bed.send(60);
    assert_eq!((bed.numbers(), bed.b.next_arrival()), (vec![], Some(at_ms(5))));
    bed.link.clock().advance(ms(4));
    bed.send(60);
    assert_eq!(bed.numbers(), []);
    bed.link.clock().advance(ms(1));
    assert_eq!((bed.numbers(), bed.b.next_arrival()), (vec![0], Some(at_ms(9))));
    bed.link.clock().advance(ms(4));
    assert_eq!((bed.numbers(), bed.b.next_arrival()), (vec![1], None));
}

#[test]
fn jitter_spreads_arrivals_and_keeps_the_order() {
    let mut bed = bed(Impairments { delay: ms(5), jitter: ms(10), ..Impairments::default() });
    for _ in 0..100 {
        bed.send(60);
        bed.link.clock().advance(ms(20));
        bed.send(60);
    }
    let arrivals = bed.arrivals();
    let numbers: Vec<_> = arrivals.iter().map(|(_, frame)| frame[3]).collect();
    assert_eq!(numbers, (0..200).collect::<Vec<_>>());
}

#[test]
fn jitter_lies_within_its_bounds() {
    let mut bed = bed(Impairments { delay: ms(5), jitter: ms(10), ..Impairments::default() });
    let mut delays = Vec::new();
    for _ in 0..200 {
        let sent = bed.link.clock().now();
        bed.send(60);
        delays.extend(bed.arrivals().iter().map(|(arrival, _)| arrival.since(sent)));
    }
    let (shortest, longest) = (delays.iter().min().unwrap(), delays.iter().max().unwrap());
    assert!((ms(5)..ms(6)).contains(shortest) && (ms(14)..=ms(15)).contains(longest), "{shortest:?} {longest:?}");
}

#[test]
#[cfg_attr(miri, ignore = "Miri takes too long for the number of frames that the bounds require")]
fn impaired_fraction_matches_its_probability() {
    type Fate = fn(&ImpairmentStats) -> u64;
    let none = Impairments::default();
    let reordering = Reordering { chance: 0.2, ..Reordering::default() };
    let cases: [(Impairments, Fate); 5] = [
        (Impairments { loss: 0.2, ..none.clone() }, |stats| stats.lost),
        (Impairments { duplication: 0.2, ..none.clone() }, |stats| stats.duplicated),
        (Impairments { reordering, ..none.clone() }, |stats| stats.reordered),
        (Impairments { corruption: 0.2, ..none.clone() }, |stats| stats.corrupted),
        (Impairments { truncation: 0.2, ..none.clone() }, |stats| stats.truncated),
    ];
    for (impairments, fate) in cases {
        let mut bed = bed(impairments.clone());
        let mut arrived = 0;
        for _ in 0..10_000 {
            bed.send(100);
            arrived += bed.received().len() as u64;
        }
        arrived += bed.arrivals().len() as u64;
        let stats = bed.stats();
        // Five standard deviations of 10 000 draws: 5 × √(10 000 × 0.2 × 0.8).
        assert!((1_800..=2_200).contains(&fate(&stats)), "{impairments:?}: {stats:?}");
        assert_eq!((stats.frames, arrived), (10_000, 10_000 - stats.lost + stats.duplicated));
        assert_eq!(bed.a.pool_available(), bed.a.pool_capacity());
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri takes too long for the number of frames that the bounds require")]
fn corruption_inverts_one_bit_of_headers_or_payload() {
    let mut bed = bed(Impairments { corruption: 1.0, ..Impairments::default() });
    let mut bytes = Vec::new();
    for n in 0..1_000u32 {
        bed.send(1_000);
        let frame = bed.received().remove(0);
        let sent = [&n.to_be_bytes()[..], &[0; 996]].concat();
        let flipped: Vec<_> = (0..1_000).filter(|at| frame[*at] != sent[*at]).collect();
        assert_eq!(flipped.len(), 1);
        assert_eq!((frame[flipped[0]] ^ sent[flipped[0]]).count_ones(), 1);
        bytes.push(flipped[0]);
    }
    let headers = bytes.iter().filter(|at| **at < 64).count();
    assert!((430..=630).contains(&headers), "{headers}");
    assert!(bytes.iter().any(|at| *at > 900));
}

#[test]
fn corruption_does_not_reach_other_holders_of_the_frame() {
    let mut bed = bed(Impairments { corruption: 1.0, ..Impairments::default() });
    // Attached bytes and a clone of the headers, as a sender keeps them until they are acknowledged; the payload
    // is longer than a packet.
    let payload = Bytes::from(vec![0; 4_000]);
    for _ in 0..100 {
        let mut frame = bed.a.allocate().unwrap();
        frame.append(54).unwrap().fill(0);
        for part in [payload.slice(..700), payload.slice(700..1400)] {
            frame.chain(bed.a.attach(part).unwrap()).unwrap();
        }
        let kept = frame.try_clone().unwrap();
        bed.a.tx_burst(&mut vec![frame]);
        let received = bed.received().remove(0);
        assert_eq!((received.len(), received.iter().map(|byte| byte.count_ones()).sum::<u32>()), (1_454, 1));
        assert!(kept.segments().flatten().all(|byte| *byte == 0));
    }
    assert!(payload.iter().all(|byte| *byte == 0));
}

#[test]
fn truncated_frame_is_a_prefix() {
    let mut bed = bed(Impairments { truncation: 1.0, ..Impairments::default() });
    let mut lengths = Vec::new();
    for n in 0..500u32 {
        bed.send(100);
        let frame = bed.received().remove(0);
        assert!([&n.to_be_bytes()[..], &[0; 96]].concat().starts_with(&frame));
        lengths.push(frame.len());
    }
    assert!(*lengths.iter().min().unwrap() < 10 && (90..100).contains(lengths.iter().max().unwrap()));
}

#[test]
fn held_frame_arrives_after_the_frames_that_overtake_it() {
    let mut bed = bed(Impairments { delay: ms(1), ..Impairments::default() });
    let hold = Reordering { chance: 1.0, frames: 2, within: ms(50) };
    bed.link.impair(End::A, Impairments { reordering: hold, ..Impairments::default() });
    bed.send(60);
    assert_eq!(bed.numbers(), []);
    bed.link.impair(End::A, Impairments { delay: ms(1), ..Impairments::default() });
    bed.send(60);
    assert_eq!(bed.numbers(), []);
    bed.send(60);
    bed.send(60);
    bed.link.clock().advance(ms(1));
    assert_eq!(bed.numbers(), [1, 2, 0, 3]);
}

#[test]
fn held_frame_that_nothing_overtakes_arrives() {
    let reordering = Reordering { chance: 1.0, frames: 1, within: ms(50) };
    let mut bed = bed(Impairments { reordering, delay: ms(1), ..Impairments::default() });
    bed.send(60);
    assert_eq!((bed.numbers(), bed.b.next_arrival()), (vec![], Some(at_ms(51))));
    bed.link.clock().advance_to(at_ms(51));
    assert_eq!(bed.numbers(), [0]);
}

#[test]
fn frames_leave_at_the_rate_and_the_queue_is_bounded() {
    // 1 000 bytes take a millisecond.
    let rate = Some(Rate { bits_per_second: 8_000_000, queue_bytes: 3_000 });
    let mut bed = bed(Impairments { rate, delay: ms(10), ..Impairments::default() });
    for _ in 0..5 {
        bed.send(1_000);
    }
    let times = |bed: &mut Bed| bed.arrivals().into_iter().map(|(at, frame)| (at, frame[3])).collect::<Vec<_>>();
    assert_eq!(times(&mut bed), [(at_ms(11), 0), (at_ms(12), 1), (at_ms(13), 2)]);
    assert_eq!(bed.stats().queue_full, 2);
    // The queue is empty by now, and the idle time does not raise the rate of later frames.
    bed.send(1_000);
    bed.send(500);
    assert_eq!(times(&mut bed), [(at_ms(24), 5), (at_ms(24) + Duration::from_micros(500), 6)]);
}

#[test]
fn frames_beyond_the_path_mtu_are_lost() {
    let mut bed = bed(Impairments { path_mtu: Some(1_280), ..Impairments::default() });
    bed.send(14 + 1_280);
    bed.send(14 + 1_281);
    bed.send(60);
    assert_eq!((bed.numbers(), bed.stats().too_long), (vec![0, 2], 1));
}

#[test]
fn drop_if_drops_chosen_frames() {
    let drop_if = Some(DropIf::new(|frame| frame[3] % 2 == 1));
    let mut bed = bed(Impairments { drop_if, ..Impairments::default() });
    (0..6).for_each(|_| bed.send(60));
    assert_eq!((bed.numbers(), bed.stats().chosen), (vec![0, 2, 4], 3));
}

#[test]
fn each_direction_and_queue_has_its_own_random_stream() {
    let config =
        || LinkConfig { impairments: Impairments { loss: 0.5, ..Impairments::default() }, ..LinkConfig::default() };
    let (mut a, mut b) = Link::with_queues(config(), 2);
    let mut fates = Vec::new();
    for (from, to) in a.iter_mut().zip(&mut b) {
        let mut fate = |from: &mut MemoryNic, to: &mut MemoryNic| {
            fates.push((0..64).fold(0u64, |fate, _| {
                let mut frame = from.allocate().unwrap();
                frame.append(60).unwrap();
                from.tx_burst(&mut vec![frame]);
                fate << 1 | to.rx_burst(&mut Vec::with_capacity(1)) as u64
            }));
        };
        fate(from, to);
        fate(to, from);
    }
    fates.sort_unstable();
    fates.dedup();
    assert_eq!(fates.len(), 4);
}

#[test]
fn frames_in_flight_arrive_after_impairments_end() {
    let mut bed = bed(Impairments { delay: ms(5), ..Impairments::default() });
    bed.send(60);
    assert_eq!(bed.numbers(), []);
    bed.link.impair(End::A, Impairments::default());
    bed.link.clock().advance(ms(5));
    assert_eq!(bed.numbers(), [0]);
    bed.send(60);
    assert_eq!((bed.numbers(), bed.stats().frames), (vec![1], 1));
}

#[test]
fn copy_without_a_free_packet_is_counted() {
    let impairments = Impairments { duplication: 1.0, ..Impairments::default() };
    let (a, b) = Link::pair(LinkConfig { impairments, pool: 2, ..LinkConfig::default() });
    let mut bed = Bed { link: a.link().clone(), a, b, next: 0 };
    let other = bed.a.allocate().unwrap();
    bed.send(60);
    assert_eq!((bed.numbers(), bed.stats().no_packet), (vec![0], 1));
    bed.link.impair(End::A, Impairments { corruption: 1.0, ..Impairments::default() });
    drop(other);
    let mut frame = bed.a.allocate().unwrap();
    frame.append(60).unwrap();
    let kept = frame.try_clone().unwrap();
    bed.a.tx_burst(&mut vec![frame]);
    assert_eq!((bed.numbers(), bed.stats().no_packet), (vec![], 2));
    drop(kept);
    assert_eq!(bed.a.pool_available(), 2);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 1 } else { 50 }))]

    #[test]
    fn the_same_seed_gives_the_same_arrivals_however_often_the_receiver_polls(
        seed in any::<u64>(),
        sends in prop::collection::vec((4usize..1_400, 0u64..3_000, any::<bool>()), 1..200),
    ) {
        let run = |eager: bool| {
            let mut bed = bed(awful(seed));
            let mut arrivals = Vec::new();
            for (len, pause, poll) in &sends {
                bed.send(*len);
                let then = bed.link.clock().now() + Duration::from_micros(*pause);
                if eager || *poll {
                    while let Some(arrival) = bed.b.next_arrival().filter(|arrival| *arrival <= then) {
                        bed.link.clock().advance_to(arrival);
                        arrivals.extend(bed.received());
                    }
                }
                bed.link.clock().advance_to(then);
            }
            arrivals.extend(bed.received());
            arrivals.extend(bed.arrivals().into_iter().map(|(_, frame)| frame));
            let stats = bed.stats();
            let lost = stats.lost + stats.too_long + stats.queue_full + stats.no_packet;
            assert_eq!(stats.frames, sends.len() as u64);
            assert_eq!(arrivals.len() as u64, stats.frames - lost + stats.duplicated);
            assert_eq!(bed.a.pool_available(), bed.a.pool_capacity());
            (arrivals, stats)
        };
        let eager = run(true);
        prop_assert_eq!(&eager, &run(true));
        prop_assert_eq!(&eager, &run(false));
    }
}
