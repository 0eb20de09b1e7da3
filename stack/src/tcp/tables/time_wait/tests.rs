use super::*;
use proptest::prelude::*;
use std::collections::HashSet;
use std::net::SocketAddr;

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

const START: Instant = Instant::from_nanos(7_000_000_000_000);
const TICK: Duration = Duration::from_nanos(1 << TICK_SHIFT);

/// State of all connections in the tests: the local FIN was 999, the peer's 1999.
const NEXT: Seq = Seq(1000);
const PEER_NEXT: Seq = Seq(2000);
const TS_RECENT: u32 = 500;

fn table(capacity: usize) -> TimeWait {
    let mut random = fastrand::Rng::with_seed(1);
    TimeWait::new(capacity, HashKey::new(|| random.u64(..)))
}

fn tuple(number: u16) -> Tuple {
    Tuple::new("10.0.0.1:7".parse().unwrap(), SocketAddr::from(([10, 0, 0, 2], number)))
}

fn closed(tuple: Tuple, timestamps: bool) -> TimeWaitEntry {
    TimeWaitEntry { tuple, next: NEXT, peer_next: PEER_NEXT, ts_recent: timestamps.then_some(TS_RECENT), window: 99 }
}

/// Creates a table with one connection, with or without timestamps.
fn one(timestamps: bool) -> TimeWait {
    let mut table = table(16);
    table.insert(closed(tuple(1), timestamps), START);
    table
}

fn segment(flags: u8, seq: Seq, timestamp: Option<u32>) -> Segment {
    let timestamp = timestamp.map(|value| Timestamp { value, echo: 0 });
    Segment { seq, ack: NEXT, flags, len: 0, timestamp }
}

fn meets(table: &mut TimeWait, segment: Segment) -> Action {
    table.process(&tuple(1), &segment, START + Duration::from_secs(10)).unwrap()
}

/// Returns the expected acknowledgement.
fn reply(timestamp: Option<u32>) -> Reply {
    Reply { seq: NEXT, ack: PEER_NEXT, window: 99, ts_recent: timestamp }
}

/// Returns whether the TIME-WAIT period restarted at the segment after ten seconds.
fn restarted(table: &TimeWait) -> bool {
    let deadline = table.next_deadline().unwrap();
    let since = |begin: Instant| deadline >= begin + TIME_WAIT && deadline < begin + TIME_WAIT + TICK;
    let anew = since(START + Duration::from_secs(10));
    assert!(anew || since(START), "{deadline:?}");
    anew
}

#[test]
fn reuse_is_allowed_once_timestamps_are_greater() {
    let ticks = TICK + Duration::from_millis(2);
    let with = one(true);
    assert_eq!(with.check_reuse(&tuple(2), START), Reuse::NoRecord);
    assert_eq!(with.check_reuse(&tuple(1), START), Reuse::TooSoon);
    assert_eq!(with.check_reuse(&tuple(1), START + ticks), Reuse::Allowed { isn_floor: NEXT });
    // Without timestamps the segments of both connections cannot be distinguished.
    let without = one(false);
    assert_eq!(without.check_reuse(&tuple(1), START + TIME_WAIT), Reuse::TooSoon);
    check(&with);
}

#[test]
fn reuse_with_timestamps_waits_at_most_two_milliseconds() {
    let millisecond = Duration::from_nanos(TIMESTAMP_TICK);
    for i in 0..1000 {
        let entered = START + Duration::from_nanos(i * 1_000_003);
        let mut table = table(16);
        table.insert(closed(tuple(1), true), entered);
        assert_eq!(
            table.check_reuse(&tuple(1), entered + millisecond),
            Reuse::TooSoon,
            "{i}: the timestamps may be equal"
        );
        let reusable = entered + millisecond + TICK;
        assert_eq!(table.check_reuse(&tuple(1), reusable), Reuse::Allowed { isn_floor: NEXT }, "{i}");
    }
}

#[test]
fn deadline_survives_wrap_of_ticks() {
    let wrap = Instant::from_nanos(1 << (32 + TICK_SHIFT));
    let mut table = table(16);
    let entered = [Duration::from_secs(70), Duration::from_secs(60), Duration::from_secs(30), Duration::ZERO]
        .map(|before| Instant::from_nanos(wrap.as_nanos() - before.as_nanos() as u64));
    for (number, at) in entered.iter().enumerate() {
        table.insert(closed(tuple(number as u16), true), *at);
    }
    for at in entered {
        let deadline = table.next_deadline().unwrap();
        assert!((at + TIME_WAIT..at + TIME_WAIT + TICK).contains(&deadline), "{deadline:?}");
        let before = table.len();
        table.expire(at + TIME_WAIT - Duration::from_nanos(1));
        assert_eq!(table.len(), before);
        table.expire(deadline);
        assert_eq!(table.len(), before - 1);
    }
}

/// Asserts the invariants of records, list, table and addresses.
fn check(table: &TimeWait) {
    let mut listed = Vec::new();
    let mut at = table.first;
    let mut before = NONE;
    while at != NONE {
        let record = &table.records[at as usize];
        assert_eq!(record.earlier, before);
        assert!(before == NONE || table.records[before as usize].until <= record.until);
        assert_eq!(table.find(&table.tuple(at)), Some(at));
        listed.push(at);
        (before, at) = (at, record.later);
    }
    assert_eq!(table.last, before);
    assert_eq!(listed.len(), table.len());
    let mut free = 0;
    at = table.free;
    while at != NONE {
        free += 1;
        at = table.records[at as usize].later;
    }
    assert_eq!(listed.len() + free, table.records.len());
    for (id, (_, holders)) in table.locals.0.iter().enumerate() {
        let held = listed.iter().filter(|at| usize::from(table.records[**at as usize].local.0) == id).count();
        assert_eq!(held, *holders as usize);
    }
    let addresses: Vec<_> = table.locals.0.iter().filter(|(_, holders)| *holders > 0).collect();
    assert!(addresses.iter().enumerate().all(|(i, (a, _))| addresses[..i].iter().all(|(b, _)| a != b)));
}

#[test]
fn connection_takes_64_bytes() {
    assert_eq!(size_of::<Record>() + FlowTable::ENTRY, 64);
    assert_eq!(table(1 << 10).records.capacity(), 1 << 10);
}

/// RFC 9293 §3.10.7.4, eighth, TIME-WAIT.
#[test]
fn retransmitted_fin_is_acknowledged_and_restarts_period() {
    for len in [0, 1, 900] {
        let mut table = one(false);
        let fin = Segment { len, ..segment(FIN | ACK, PEER_NEXT - 1 - len, None) };
        assert_eq!(meets(&mut table, fin), Action::Acknowledge(reply(None)));
        assert!(restarted(&table));
    }
}

/// RFC 7323 §4.3: TS.Recent follows acceptable segments, and is echoed.
#[test]
fn timestamp_of_retransmitted_fin_is_echoed() {
    let mut table = one(true);
    let fin = segment(FIN | ACK, PEER_NEXT - 1, Some(TS_RECENT + 7));
    assert_eq!(meets(&mut table, fin), Action::Acknowledge(reply(Some(TS_RECENT + 7))));
    assert!(restarted(&table));
}

#[test]
fn invalid_fin_does_not_restart_period() {
    for timestamps in [false, true] {
        let stamp = timestamps.then_some(TS_RECENT);
        let last = segment(FIN | ACK, PEER_NEXT - 1, stamp);
        let wrong = [
            Segment { seq: PEER_NEXT, ..last },
            Segment { seq: PEER_NEXT - 2, ..last },
            Segment { seq: PEER_NEXT + (1 << 31), ..last },
            Segment { len: 1, ..last },
            Segment { ack: NEXT + 1, ..last },
        ];
        for fin in wrong {
            let mut table = one(timestamps);
            assert_eq!(meets(&mut table, fin), Action::Acknowledge(reply(stamp)), "{fin:?}");
            assert!(!restarted(&table));
        }
    }
}

/// RFC 1337 §3, F1: a RST does not end TIME-WAIT, even with the exact sequence number.
#[test]
fn rst_is_ignored() {
    for timestamps in [false, true] {
        let mut table = one(timestamps);
        for flags in [RST, RST | ACK, RST | SYN, RST | FIN | ACK] {
            for seq in [PEER_NEXT - 1, PEER_NEXT, PEER_NEXT + 1] {
                assert_eq!(meets(&mut table, segment(flags, seq, timestamps.then_some(TS_RECENT))), Action::Ignore);
            }
        }
        assert!(table.contains(&tuple(1)) && !restarted(&table));
    }
}

/// RFC 9293 §3.10.7.4: first check, acceptability. A valid acknowledgement has no effect.
#[test]
fn expected_ack_is_ignored_and_others_are_challenged() {
    for timestamps in [false, true] {
        let stamp = timestamps.then_some(TS_RECENT);
        let mut table = one(timestamps);
        let good = segment(ACK, PEER_NEXT, stamp);
        assert_eq!(meets(&mut table, good), Action::Ignore);
        assert_eq!(meets(&mut table, Segment { ack: NEXT - 1, ..good }), Action::Ignore);
        let challenged = [
            Segment { seq: PEER_NEXT - 1, ..good },
            Segment { seq: PEER_NEXT + 1, ..good },
            Segment { ack: NEXT + 1, ..good },
        ];
        for segment in challenged {
            assert_eq!(meets(&mut table, segment), Action::Challenge(reply(stamp)), "{segment:?}");
        }
        assert!(!restarted(&table));
    }
}

/// RFC 9293 §3.10.7.4, first: an unacceptable segment is acknowledged, which informs the peer of RCV.NXT.
#[test]
fn retransmitted_data_is_acknowledged() {
    let mut table = one(false);
    for seq in [PEER_NEXT - 900, PEER_NEXT - 1, PEER_NEXT, PEER_NEXT + 100] {
        let data = Segment { len: 1, ..segment(ACK, seq, None) };
        assert_eq!(meets(&mut table, data), Action::Acknowledge(reply(None)));
    }
    assert!(!restarted(&table));
}

/// RFC 9293 §3.10.7.4, fifth.
#[test]
fn segment_without_ack_is_ignored() {
    let mut table = one(false);
    for flags in [0, FIN] {
        assert_eq!(meets(&mut table, segment(flags, PEER_NEXT - 1, None)), Action::Ignore);
    }
    assert!(!restarted(&table));
}

/// RFC 7323 §5.3: R1 acknowledges and drops the segment; R3 does not update TS.Recent.
#[test]
fn old_timestamp_fails_paws() {
    let mut table = one(true);
    let old = Some(TS_RECENT - 1);
    let fin = segment(FIN | ACK, PEER_NEXT - 1, old);
    assert_eq!(meets(&mut table, fin), Action::Acknowledge(reply(Some(TS_RECENT))));
    assert_eq!(meets(&mut table, segment(ACK, PEER_NEXT, old)), Action::Challenge(reply(Some(TS_RECENT))));
    assert!(!restarted(&table));
}

/// RFC 7323 §3.2: a segment without the negotiated option is dropped silently.
#[test]
fn segment_without_negotiated_timestamp_is_ignored() {
    let mut table = one(true);
    assert_eq!(meets(&mut table, segment(FIN | ACK, PEER_NEXT - 1, None)), Action::Ignore);
    assert!(!restarted(&table));
}

#[test]
fn timestamp_that_was_not_negotiated_is_ignored() {
    let mut table = one(false);
    let fin = segment(FIN | ACK, PEER_NEXT - 1, Some(0));
    assert_eq!(meets(&mut table, fin), Action::Acknowledge(reply(None)));
    assert!(restarted(&table));
}

/// RFC 6191 §2, all cases: timestamps negotiated before, timestamp of the SYN, sequence number of the SYN.
#[test]
fn syn_reopens_unless_it_may_be_a_duplicate() {
    let (old, last, new) = (Some(TS_RECENT - 1), Some(TS_RECENT), Some(TS_RECENT + 1));
    let (before, beyond) = (PEER_NEXT - 1, PEER_NEXT);
    let cases = [
        (true, new, before, true),
        (true, new, beyond, true),
        (true, last, before, false),
        (true, last, beyond, true),
        (true, old, before, false),
        (true, old, beyond, false),
        (true, None, before, false),
        (true, None, beyond, true),
        (false, old, before, true),
        (false, new, beyond, true),
        (false, None, before, false),
        (false, None, beyond, true),
    ];
    for (timestamps, stamp, seq, opens) in cases {
        let mut table = one(timestamps);
        let expected = match opens {
            // RFC 9293 §3.6.1, MAY-2 (1): larger than the largest number used.
            true => Action::Reopen { isn_floor: NEXT },
            // RFC 9293 §3.10.7.4, fourth.
            false => Action::Challenge(reply(timestamps.then_some(TS_RECENT))),
        };
        assert_eq!(meets(&mut table, segment(SYN, seq, stamp)), expected, "{timestamps} {stamp:?} {seq:?}");
        // RFC 9293 §3.6.1, MAY-2 (2): the record remains, in case the SYN is an old duplicate.
        assert!(table.contains(&tuple(1)) && !restarted(&table));
        assert!(table.remove(&tuple(1)));
        assert!(!table.remove(&tuple(1)));
        check(&table);
    }
}

#[test]
fn timestamps_and_sequence_numbers_wrap() {
    let mut table = table(1);
    let old = TimeWaitEntry { peer_next: Seq(3), ts_recent: Some(u32::MAX), ..closed(tuple(1), true) };
    table.insert(old, START);
    assert!(matches!(meets(&mut table, segment(SYN, Seq(0), Some(1))), Action::Reopen { .. }));
    assert!(matches!(meets(&mut table, segment(SYN, Seq(3), Some(u32::MAX - 1))), Action::Challenge(_)));
    assert!(matches!(meets(&mut table, segment(SYN, Seq(u32::MAX), Some(u32::MAX))), Action::Challenge(_)));
    assert!(matches!(meets(&mut table, segment(SYN, Seq(4), Some(u32::MAX))), Action::Reopen { .. }));
}

/// RFC 9293 §3.10.7.4, fourth. A SYN-ACK answers a local SYN, and a SYN with FIN is invalid.
#[test]
fn syn_with_other_flags_is_challenged() {
    let mut table = one(false);
    for flags in [SYN | ACK, SYN | FIN, SYN | ACK | FIN] {
        assert_eq!(meets(&mut table, segment(flags, PEER_NEXT, None)), Action::Challenge(reply(None)));
    }
}

#[test]
fn segment_of_another_connection_finds_no_record() {
    let mut table = one(false);
    assert_eq!(table.process(&tuple(2), &segment(SYN, PEER_NEXT, None), START), None);
    assert_eq!(table.process(&tuple(1).reversed(), &segment(SYN, PEER_NEXT, None), START), None);
}

/// RFC 9293 §3.4.2: not before twice the maximum segment lifetime has passed.
#[test]
fn records_expire_in_order() {
    let mut table = table(16);
    for i in 0..10u16 {
        table.insert(closed(tuple(i), false), START + Duration::from_secs(u64::from(i)));
    }
    // The first record restarts after the last.
    let fin = segment(FIN | ACK, PEER_NEXT - 1, None);
    table.process(&tuple(0), &fin, START + Duration::from_secs(10)).unwrap();
    for i in (1..10).chain([0]) {
        let end = START + TIME_WAIT + Duration::from_secs(if i == 0 { 10 } else { i.into() });
        let deadline = table.next_deadline().unwrap();
        assert!(deadline >= end && deadline.since(end) < TICK);
        table.expire(end - Duration::from_nanos(1));
        assert!(table.contains(&tuple(i)));
        table.expire(deadline);
        assert!(!table.contains(&tuple(i)));
        check(&table);
    }
    assert_eq!((table.len(), table.next_deadline(), table.ended_early()), (0, None, 0));
}

#[test]
fn expiry_is_limited_to_a_batch_per_call() {
    let mut table = table(200);
    (0..200).for_each(|i| table.insert(closed(tuple(i), false), START));
    let end = table.next_deadline().unwrap();
    for left in [136, 72, 8, 0] {
        assert!(table.next_deadline().unwrap() <= end);
        table.expire(end);
        assert_eq!(table.len(), left);
        check(&table);
    }
    assert_eq!(table.next_deadline(), None);
}

#[test]
fn oldest_record_is_evicted_and_counted() {
    let mut table = table(3);
    (0..5).for_each(|i| table.insert(closed(tuple(i), false), START));
    let left: Vec<_> = (0..5).filter(|i| table.contains(&tuple(*i))).collect();
    assert_eq!((left, table.ended_early()), (vec![2, 3, 4], 2));
    check(&table);
    // An insertion for an existing tuple takes no additional slot.
    table.insert(TimeWaitEntry { window: 7, ..closed(tuple(3), false) }, START);
    assert_eq!((table.len(), table.ended_early()), (3, 2));
    let answer = meets_on(&mut table, 3);
    assert_eq!(answer, Action::Acknowledge(Reply { window: 7, ..reply(None) }));
    check(&table);
}

fn meets_on(table: &mut TimeWait, number: u16) -> Action {
    table.process(&tuple(number), &segment(FIN | ACK, PEER_NEXT - 1, None), START).unwrap()
}

#[test]
fn table_of_capacity_zero_keeps_no_record() {
    let mut table = table(0);
    table.insert(closed(tuple(1), false), START);
    assert_eq!((table.len(), table.ended_early(), table.next_deadline()), (0, 1, None));
}

#[test]
fn more_than_256_local_addresses_evict_records() {
    let mut table = table(1000);
    let of = |i: u32| Tuple::new(SocketAddr::from(((0x0a00_0000 + i).to_be_bytes(), 7)), "10.1.0.1:1".parse().unwrap());
    (0..300).for_each(|i| table.insert(closed(of(i), false), START));
    assert_eq!((table.len(), table.ended_early()), (256, 44));
    assert!((44..300).all(|i| table.contains(&of(i))));
    check(&table);
    // Identifiers without users are reused.
    (44..300).for_each(|i| assert!(table.remove(&of(i))));
    (300..556).for_each(|i| table.insert(closed(of(i), false), START));
    assert_eq!((table.len(), table.ended_early()), (256, 44));
    check(&table);
}

#[test]
fn insertion_at_the_maximum_time_expires() {
    let mut table = table(2);
    let end = Instant::from_nanos(u64::MAX);
    table.insert(closed(tuple(1), false), end);
    table.expire(end);
    assert_eq!(table.len(), 0);
}

#[derive(Debug, Clone)]
enum Step {
    Insert(u16),
    Fin(u16),
    Remove(u16),
    Wait(u64),
}

proptest! {
    /// Model: tuples and their deadlines in ticks, sorted by deadline.
    #[test]
    fn table_behaves_like_a_sorted_list(
        steps in prop::collection::vec(
            prop_oneof![
                4 => (0u16..20).prop_map(Step::Insert),
                2 => (0u16..20).prop_map(Step::Fin),
                1 => (0u16..20).prop_map(Step::Remove),
                2 => (0u64..40).prop_map(Step::Wait),
            ],
            0..100,
        )
    ) {
        let of = |i: u16| {
            let local = SocketAddr::from(([10, 0, 0, (i % 3) as u8], 7));
            let remote = SocketAddr::from(([10, 0, 1, (i % 2) as u8], i));
            Tuple::new(local, remote)
        };
        let mut table = table(12);
        let mut model: Vec<(u64, u16)> = Vec::new();
        let deadline = |now: Instant| (now + TIME_WAIT).as_nanos().div_ceil(1 << TICK_SHIFT);
        let (mut now, mut early) = (START, 0);
        for step in steps {
            match step {
                Step::Insert(i) => {
                    model.retain(|(_, other)| *other != i);
                    if model.len() == 12 {
                        model.remove(0);
                        early += 1;
                    }
                    model.push((deadline(now), i));
                    table.insert(closed(of(i), false), now);
                }
                Step::Fin(i) => {
                    let known = model.iter().any(|(_, other)| *other == i);
                    let fin = segment(FIN | ACK, PEER_NEXT - 1, None);
                    prop_assert_eq!(table.process(&of(i), &fin, now).is_some(), known);
                    if known {
                        model.retain(|(_, other)| *other != i);
                        model.push((deadline(now), i));
                    }
                }
                Step::Remove(i) => {
                    let known = model.iter().any(|(_, other)| *other == i);
                    prop_assert_eq!(table.remove(&of(i)), known);
                    model.retain(|(_, other)| *other != i);
                }
                Step::Wait(seconds) => {
                    now += Duration::from_secs(seconds);
                    model.retain(|(deadline, _)| *deadline > now.as_nanos() >> TICK_SHIFT);
                    table.expire(now);
                }
            }
            check(&table);
            prop_assert_eq!(table.ended_early(), early);
            let held: HashSet<_> = (0..20).filter(|i| table.contains(&of(*i))).collect();
            prop_assert_eq!(held, model.iter().map(|(_, i)| *i).collect::<HashSet<_>>());
        }
    }
}

#[test]
fn reuse_is_exact_to_the_nanosecond() {
    // RFC 6191 §2: at the tick of the timestamp clock itself the timestamps may be equal.
    let table = one(true);
    let entered = Instant::from_nanos(table.next_deadline().unwrap().as_nanos() - TIME_WAIT.as_nanos() as u64);
    let tick = Duration::from_nanos(TIMESTAMP_TICK);
    assert_eq!(table.check_reuse(&tuple(1), entered + tick), Reuse::TooSoon);
    assert_eq!(
        table.check_reuse(&tuple(1), entered + tick + Duration::from_nanos(1)),
        Reuse::Allowed { isn_floor: NEXT }
    );
}

#[test]
fn challenge_keeps_the_use_of_timestamps() {
    let mut marks = Marks::new(true);
    assert!(marks.may_challenge(Instant::ZERO) && !marks.may_challenge(Instant::ZERO) && marks.timestamps());
}
