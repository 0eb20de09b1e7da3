//! TIME-WAIT: RFC 9293 §3.6.1, §3.10.7.4; RFC 1337; RFC 6191.

use super::harness::*;

/// A connection that the worker has finished first, in TIME-WAIT. The worker's next sequence number is 2, the peer's 2.
fn in_time_wait(peer: Peer) -> Script {
    let mut s = Script::accepted(peer);
    s.close();
    s.expect(fin(1, 1));
    s.inject(ack(1, 2));
    s.inject(fin(1, 2));
    s.expect_within(DELAYED_ACK, ack(2, 2));
    s.expect_peer_closed();
    s.expect_closed(CloseReason::Finished);
    s
}

/// Whether a SYN of the peer's port, `later` than the old connection's numbers, opens another connection.
#[track_caller]
fn reopens(s: &mut Script, later: u32, hello: Seg) -> bool {
    let isn = s.flow().peer_isn;
    s.flow().reincarnate(isn.wrapping_add(later));
    s.inject(hello);
    s.drain().iter().any(|got| got.has(SYN | ACK) && got.ack == 1)
}

#[test]
fn a_repeated_fin_is_acknowledged_again() {
    // RFC 9293 §3.10.7.4, fifth and eighth.
    let mut s = in_time_wait(peer());
    for _ in 0..3 {
        s.pass(secs(1));
        s.inject(fin(1, 2));
        s.expect(ack(2, 2));
    }
}

#[test]
fn time_wait_lasts_its_time_and_no_longer() {
    // RFC 9293 §3.6.1: 2 × MSL.
    let mut s = in_time_wait(peer());
    s.expect_nothing_for(TIME_WAIT - secs(1));
    s.inject(fin(1, 2));
    s.expect(ack(2, 2));
    // That may have started the time again (§3.10.7.4, eighth).
    s.expect_nothing_for(TIME_WAIT + secs(1));
    s.inject(fin(1, 2));
    s.expect(rst(2));
}

#[test]
fn a_repeated_fin_starts_the_time_again() {
    // RFC 9293 §3.10.7.4, eighth.
    native_only!();
    let mut s = in_time_wait(peer());
    for _ in 0..3 {
        s.expect_nothing_for(TIME_WAIT - secs(5));
        s.inject(fin(1, 2));
        s.expect(ack(2, 2));
    }
    s.expect_nothing_for(TIME_WAIT + secs(1));
    s.inject(fin(1, 2));
    s.expect(rst(2));
}

#[test]
fn a_reset_does_not_end_it() {
    // RFC 1337 §3, (F1).
    let mut s = in_time_wait(peer());
    for reset in [rst(2), rst_ack(2, 2)] {
        s.inject(reset);
        s.expect_nothing();
    }
    s.inject(rst(100));
    s.drain();
    s.pass(secs(1));
    s.inject(fin(1, 2));
    s.expect(ack(2, 2));
}

#[test]
fn old_data_is_answered_with_what_is_known_and_not_with_a_reset() {
    // RFC 9293 §3.10.7.4, first: not acceptable, so acknowledged; RFC 1337 §2.
    let mut s = in_time_wait(peer());
    s.inject(data(-49, 40).ack(2).junk());
    s.expect(ack(2, 2));
    s.pass(secs(1));
    s.inject(data(2, 100).ack(2).junk());
    // Nothing can come behind a FIN; whatever it is, it is no cause to end the record.
    assert!(s.drain().iter().all(|got| !got.has(RST)));
    s.inject(fin(1, 2));
    s.expect(ack(2, 2));
}

#[test]
fn an_acknowledgement_is_not_answered_for_ever() {
    // RFC 9293 §3.10.7.4, fifth: two records that acknowledged each other would not stop.
    let mut s = in_time_wait(peer());
    s.inject(ack(2, 2));
    s.expect_nothing();
}

#[test]
fn a_new_syn_with_a_larger_sequence_number_opens_a_connection() {
    // RFC 6191 §2; RFC 9293 §3.6.1 MAY-2: our initial sequence number is larger than any used before.
    let mut s = in_time_wait(peer());
    let last = s.flow().worker_isn.expect("a connection").wrapping_add(2);
    assert!(reopens(&mut s, 100_000, syn(0).mss(1000)));
    let new = s.flow().worker_isn.expect("a new connection");
    if runs_native_scripts() {
        assert!(new.wrapping_sub(last) < 1 << 31, "{new} is not behind {last}");
    }
    s.inject(ack(1, 1));
    s.expect_opened();
    s.expect_alive(1, 1);
}

#[test]
fn an_old_duplicate_syn_opens_nothing() {
    // RFC 6191 §2: a sequence number of the old connection.
    let mut s = in_time_wait(peer());
    s.inject(syn(-10).mss(1000));
    assert!(s.drain().iter().all(|got| !got.has(SYN) && !got.has(RST)));
    s.inject(fin(1, 2));
    s.expect(ack(2, 2));
}

#[test]
fn a_new_syn_with_a_later_timestamp_opens_a_connection_whatever_its_sequence_number() {
    // RFC 6191 §2.
    native_only!();
    let mut s = in_time_wait(peer().timestamps());
    s.pass(secs(1));
    let hello = syn(0).mss(1012).timestamp(PEER_CLOCK + 1000, 0);
    assert!(reopens(&mut s, 0u32.wrapping_sub(1000), hello));
    s.inject(ack(1, 1));
    s.expect_opened();
    s.expect_alive(1, 1);
}

#[test]
fn a_new_syn_with_all_options_opens_a_connection_beyond_the_old_one_or_nothing() {
    // RFC 6191 §2; RFC 9293 §3.6.1 MAY-2.
    native_only!();
    let hello = |value| Seg { window_scale: Want::Is(7), ..syn(0).mss(1000).sack_permitted().timestamp(value, 0) };
    for later in [false, true] {
        let mut s = in_time_wait(peer().sack().timestamps().window_scale(7));
        let last = s.flow().worker_isn.expect("a connection").wrapping_add(2);
        if later {
            assert!(reopens(&mut s, 0, hello(PEER_CLOCK + 1000)));
            let new = s.flow().worker_isn.expect("a new connection");
            assert!(new.wrapping_sub(last) < 1 << 31, "{new} is not behind {last}");
        } else {
            assert!(!reopens(&mut s, 0, hello(PEER_CLOCK - 1)));
        }
    }
}

#[test]
fn a_new_syn_with_an_earlier_timestamp_opens_nothing() {
    // RFC 6191 §2: larger sequence number or not.
    native_only!();
    let mut s = in_time_wait(peer().timestamps());
    s.pass(secs(1));
    s.inject(syn(100_000).mss(1012).timestamp(PEER_CLOCK - 100, 0));
    assert!(s.drain().iter().all(|got| !got.has(SYN) && !got.has(RST)));
}

#[test]
fn a_new_syn_with_the_same_timestamp_needs_a_larger_sequence_number() {
    // RFC 6191 §2: a peer that closes and opens within a tick.
    native_only!();
    let mut s = in_time_wait(peer().timestamps());
    assert!(reopens(&mut s, 100_000, syn(0).mss(1012).timestamp(PEER_CLOCK, 0)));
    let mut s = in_time_wait(peer().timestamps());
    s.inject(syn(-10).mss(1012).timestamp(PEER_CLOCK, 0));
    assert!(s.drain().iter().all(|got| !got.has(SYN)));
}

#[test]
fn acknowledgements_out_of_time_wait_carry_timestamps() {
    // RFC 7323 §3.2, §4.3: every segment, with the most recent timestamp. That there is one, the harness sees to.
    native_only!();
    let mut s = in_time_wait(peer().timestamps());
    s.pass(secs(1));
    s.inject(fin(1, 2));
    s.expect(ack(2, 2));
    s.inject(fin(1, 2).timestamp(1, 0));
    assert!(s.drain().iter().all(|got| !got.has(RST)));
}

#[test]
fn it_takes_up_no_place_of_a_connection() {
    // A record of its own: the bound on connections is not on what is over.
    let mut s = Script::listen(peer(), |config| config.max_connections = 1);
    for port in 5000..5010 {
        s.on_port(port).shake_hands();
        s.close();
        s.expect(fin(1, 1));
        s.inject(fin(1, 2));
        s.expect_within(DELAYED_ACK, ack(2, 2));
        s.expect_peer_closed();
        s.expect_closed(CloseReason::Finished);
    }
    s.expect_all_packets_back();
    // All of them are still answered for.
    for port in 5000..5010 {
        s.on_port(port).inject(fin(1, 2));
        s.expect(ack(2, 2));
    }
}

#[test]
fn challenges_in_time_wait_are_limited_for_each_connection_alone() {
    // RFC 5961 §7. A limit that connections share would tell each what the others get (CVE-2016-5696).
    native_only!();
    let mut s = in_time_wait(peer());
    s.on_port(6000).shake_hands();
    s.close();
    s.expect(fin(1, 1));
    s.inject(fin(1, 2));
    s.expect_within(DELAYED_ACK, ack(2, 2));
    s.pass(secs(1));
    let mut challenges = 0;
    for n in 0..3000 {
        s.inject(ack(100 + n, 2).port(5000));
        challenges += s.drain().len();
    }
    assert!((1..=CHALLENGES).contains(&challenges), "{challenges} challenges");
    s.inject(ack(100, 2).port(6000));
    s.expect(ack(2, 2).port(6000));
    s.pass(CHALLENGE_PERIOD);
    for port in [5000, 6000] {
        s.inject(ack(100, 2).port(port));
        s.expect(ack(2, 2).port(port));
    }
}
