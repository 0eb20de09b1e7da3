//! TIME-WAIT: RFC 9293 §3.6.1, §3.10.7.4; RFC 1337; RFC 6191.

use crate::harness::*;

/// Returns a connection in TIME-WAIT that the worker closed first. The next sequence number is 2 on both sides.
fn in_time_wait(peer: Peer) -> Script {
    let mut s = Script::accepted(peer);
    s.close().expect(fin(1, 1));
    s.inject(ack(1, 2));
    s.close_by_peer(1, 2);
    s.expect_closed(CloseReason::Finished);
    s
}

/// Returns true if a SYN from the peer's port, `later` than the numbers of the old connection, opens a connection.
#[track_caller]
fn reopens(s: &mut Script, later: u32, syn: Seg) -> bool {
    let isn = s.flow().peer_isn;
    s.flow().reincarnate(isn.wrapping_add(later));
    s.inject(syn);
    s.drain().iter().any(|got| got.has(SYN | ACK) && got.ack == 1)
}

#[test]
fn repeated_fin_is_acknowledged() {
    // RFC 9293 §3.10.7.4, fifth and eighth.
    let mut s = in_time_wait(peer());
    for _ in 0..3 {
        s.pass(secs(1));
        s.inject(fin(1, 2)).expect(ack(2, 2));
    }
}

#[test]
fn time_wait_lasts_2_msl() {
    // RFC 9293 §3.6.1.
    let mut s = in_time_wait(peer());
    s.expect_nothing_for(TIME_WAIT - secs(1));
    s.inject(fin(1, 2)).expect(ack(2, 2));
    // The segment may have restarted the timer (§3.10.7.4, eighth).
    s.expect_nothing_for(TIME_WAIT + secs(1));
    s.inject(fin(1, 2)).expect(rst(2));
}

#[test]
fn repeated_fin_restarts_timer() {
    // RFC 9293 §3.10.7.4, eighth.
    let mut s = in_time_wait(peer());
    for _ in 0..3 {
        s.expect_nothing_for(TIME_WAIT - secs(5));
        s.inject(fin(1, 2)).expect(ack(2, 2));
    }
    s.expect_nothing_for(TIME_WAIT + secs(1));
    s.inject(fin(1, 2)).expect(rst(2));
}

#[test]
fn rst_does_not_end_time_wait() {
    // RFC 1337 §3, (F1).
    let mut s = in_time_wait(peer());
    for reset in [rst(2), rst_ack(2, 2)] {
        s.inject(reset).expect_nothing();
    }
    s.inject(rst(100)).drain();
    s.pass(secs(1));
    s.inject(fin(1, 2)).expect(ack(2, 2));
}

#[test]
fn old_data_is_acknowledged_not_reset() {
    // RFC 9293 §3.10.7.4, first: unacceptable, so acknowledged; RFC 1337 §2.
    let mut s = in_time_wait(peer());
    s.inject(data(-49, 40).ack(2).junk()).expect(ack(2, 2));
    s.pass(secs(1));
    s.inject(data(2, 100).ack(2).junk());
    // Data after the FIN is invalid and must not end TIME-WAIT.
    assert!(s.drain().iter().all(|got| !got.has(RST)));
    s.inject(fin(1, 2)).expect(ack(2, 2));
}

#[test]
fn ack_is_not_answered() {
    // RFC 9293 §3.10.7.4, fifth: two ends in TIME-WAIT would acknowledge each other endlessly.
    let mut s = in_time_wait(peer());
    s.inject(ack(2, 2)).expect_nothing();
}

#[test]
fn syn_with_larger_sequence_number_reopens() {
    // RFC 6191 §2; RFC 9293 §3.6.1 MAY-2: the new ISN is larger than any number used before.
    let mut s = in_time_wait(peer());
    let last = s.flow().worker_isn.expect("a connection").wrapping_add(2);
    assert!(reopens(&mut s, 100_000, syn(0).mss(1000)));
    let new = s.flow().worker_isn.expect("a new connection");
    assert!(new.wrapping_sub(last) < 1 << 31, "{new} is not after {last}");
    s.inject(ack(1, 1)).expect_opened();
    s.expect_alive(1, 1);
}

#[test]
fn old_duplicate_syn_does_not_reopen() {
    // RFC 6191 §2: a sequence number of the old connection.
    let mut s = in_time_wait(peer());
    s.inject(syn(-10).mss(1000));
    assert!(s.drain().iter().all(|got| !got.has(SYN) && !got.has(RST)));
    s.inject(fin(1, 2)).expect(ack(2, 2));
}

#[test]
fn syn_with_later_timestamp_reopens() {
    // RFC 6191 §2: for any sequence number.
    let mut s = in_time_wait(peer().timestamps());
    s.pass(secs(1));
    let syn = syn(0).mss(1012).timestamp(PEER_CLOCK + 1000, 0);
    assert!(reopens(&mut s, 0u32.wrapping_sub(1000), syn));
    s.inject(ack(1, 1)).expect_opened();
    s.expect_alive(1, 1);
}

#[test]
fn syn_with_all_options_reopens_beyond_old_connection_or_not_at_all() {
    // RFC 6191 §2; RFC 9293 §3.6.1 MAY-2.
    let syn = |value| Seg { window_scale: Want::Is(7), ..syn(0).mss(1000).sack_permitted().timestamp(value, 0) };
    for later in [false, true] {
        let mut s = in_time_wait(peer().sack().timestamps().window_scale(7));
        let last = s.flow().worker_isn.expect("a connection").wrapping_add(2);
        if later {
            assert!(reopens(&mut s, 0, syn(PEER_CLOCK + 1000)));
            let new = s.flow().worker_isn.expect("a new connection");
            assert!(new.wrapping_sub(last) < 1 << 31, "{new} is not after {last}");
        } else {
            assert!(!reopens(&mut s, 0, syn(PEER_CLOCK - 1)));
        }
    }
}

#[test]
fn syn_with_earlier_timestamp_does_not_reopen() {
    // RFC 6191 §2: for any sequence number.
    let mut s = in_time_wait(peer().timestamps());
    s.pass(secs(1));
    s.inject(syn(100_000).mss(1012).timestamp(PEER_CLOCK - 100, 0));
    assert!(s.drain().iter().all(|got| !got.has(SYN) && !got.has(RST)));
}

#[test]
fn syn_with_same_timestamp_needs_larger_sequence_number() {
    // RFC 6191 §2: a peer may close and reopen within one tick.
    let mut s = in_time_wait(peer().timestamps());
    assert!(reopens(&mut s, 100_000, syn(0).mss(1012).timestamp(PEER_CLOCK, 0)));
    let mut s = in_time_wait(peer().timestamps());
    s.inject(syn(-10).mss(1012).timestamp(PEER_CLOCK, 0));
    assert!(s.drain().iter().all(|got| !got.has(SYN)));
}

#[test]
fn acks_in_time_wait_carry_timestamps() {
    // RFC 7323 §3.2, §4.3: with the most recent timestamp. The harness checks that timestamps are present.
    let mut s = in_time_wait(peer().timestamps());
    s.pass(secs(1));
    s.inject(fin(1, 2)).expect(ack(2, 2));
    s.inject(fin(1, 2).timestamp(1, 0));
    assert!(s.drain().iter().all(|got| !got.has(RST)));
}

#[test]
fn time_wait_does_not_count_as_connection() {
    // TIME-WAIT records are separate from the connection limit.
    let mut s = Script::listen(peer(), |config| config.max_connections = 1);
    for port in 5000..5010 {
        s.on_port(port).handshake();
        s.close().expect(fin(1, 1));
        s.close_by_peer(1, 2);
        s.expect_closed(CloseReason::Finished);
    }
    s.expect_no_packets_held();
    // All records still answer.
    for port in 5000..5010 {
        s.on_port(port).inject(fin(1, 2));
        s.expect(ack(2, 2));
    }
}

#[test]
fn challenge_ack_limit_is_per_connection() {
    // RFC 5961 §7. A shared limit would leak to one peer how many challenge ACKs others receive (CVE-2016-5696).
    let mut s = in_time_wait(peer());
    s.on_port(6000).handshake();
    s.close().expect(fin(1, 1));
    s.inject(fin(1, 2)).expect_within(DELAYED_ACK, ack(2, 2));
    s.pass(secs(1));
    let mut challenges = 0;
    for n in 0..3000 {
        s.inject(ack(100 + n, 2).port(5000));
        challenges += s.drain().len();
    }
    assert!((1..=CHALLENGES).contains(&challenges), "{challenges} challenge ACKs");
    s.inject(ack(100, 2).port(6000)).expect(ack(2, 2).port(6000));
    s.pass(CHALLENGE_PERIOD);
    for port in [5000, 6000] {
        s.inject(ack(100, 2).port(port)).expect(ack(2, 2).port(port));
    }
}
