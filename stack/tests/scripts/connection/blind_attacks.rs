//! Blind attacks (RFC 5961), restarted peers, and segments that a state does not expect (RFC 9293 §3.10.7.4).

use crate::harness::*;

/// Synchronized states except TIME-WAIT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Established,
    FinWait1,
    FinWait2,
    CloseWait,
    Closing,
    LastAck,
}

const STATES: [State; 6] =
    [State::Established, State::FinWait1, State::FinWait2, State::CloseWait, State::Closing, State::LastAck];

/// Returns a connection in `state`, and the next sequence numbers of the worker and the peer.
fn in_state(state: State) -> (Script, Rel, Rel) {
    let mut s = Script::accepted(peer());
    let peer_finishes = |s: &mut Script| {
        s.inject(fin(1, 1)).drain_for(DELAYED_ACK);
        s.expect_peer_closed();
    };
    let worker_finishes = |s: &mut Script| {
        s.close().expect(fin(1, 1).any_ack());
    };
    let (local, remote) = match state {
        State::Established => (1, 1),
        State::FinWait1 => {
            worker_finishes(&mut s);
            (2, 1)
        }
        State::FinWait2 => {
            worker_finishes(&mut s);
            s.inject(ack(1, 2));
            (2, 1)
        }
        State::CloseWait => {
            peer_finishes(&mut s);
            (1, 2)
        }
        State::Closing => {
            worker_finishes(&mut s);
            peer_finishes(&mut s);
            (2, 2)
        }
        State::LastAck => {
            peer_finishes(&mut s);
            worker_finishes(&mut s);
            (2, 2)
        }
    };
    s.expect_no_event();
    (s, local, remote)
}

#[track_caller]
fn expect_end(s: &mut Script, state: State) {
    match state {
        // The service has seen all events.
        State::Closing | State::LastAck => s.expect_closed_for_any_reason(),
        _ => s.expect_closed(CloseReason::Reset),
    }
    s.expect_nothing_for(secs(60));
    s.inject(ack(1, 77)).expect(rst(77));
}

#[test]
fn rst_at_rcv_nxt_closes_connection() {
    // RFC 5961 §3.2 (2); RFC 9293 §3.10.7.4, second.
    for state in STATES {
        for with_ack in [false, true] {
            let (mut s, local, remote) = in_state(state);
            s.inject(if with_ack { rst_ack(remote, local) } else { rst(remote) }).expect_nothing();
            expect_end(&mut s, state);
        }
    }
}

#[test]
fn rst_elsewhere_in_window_gets_challenge_ack() {
    // RFC 5961 §3.2 (3).
    for state in STATES {
        for offset in [1, 1000, 30_000] {
            let (mut s, local, remote) = in_state(state);
            s.inject(rst(remote + offset)).expect(ack(local, remote));
            s.expect_no_event();
        }
    }
}

#[test]
fn rst_outside_window_is_ignored() {
    // RFC 5961 §3.2 (1).
    for state in STATES {
        let (mut s, local, remote) = in_state(state);
        for offset in [-1, -1000, 100_000, 1 << 31] {
            s.inject(rst(remote + offset));
            s.inject(rst_ack(remote + offset, local));
        }
        s.expect_nothing();
        s.expect_no_event();
    }
}

#[test]
fn rst_in_reply_to_challenge_ack_closes_connection() {
    // RFC 5961 §3.2: reply of a peer without the connection.
    let mut s = Script::accepted(peer());
    s.inject(rst(500)).expect(ack(1, 1));
    s.inject(rst(1)).expect_closed(CloseReason::Reset);
}

#[test]
fn rst_beyond_a_gap_does_not_close_connection() {
    // RFC 5961 §3.2 (3): in the window, but not at RCV.NXT.
    let mut s = Script::accepted(peer().sack());
    s.inject(data(1001, 1000)).expect(ack(1, 1).sack(&[(1001, 2001)]));
    s.inject(rst(2001)).expect(ack(1, 1).any_sack());
    s.inject(data(1, 1000)).expect(ack(1, 2001));
    s.expect_no_event();
    s.inject(rst(2001)).expect_closed(CloseReason::Reset);
}

#[test]
fn syn_in_synchronized_state_gets_challenge_ack() {
    // RFC 5961 §4.2; RFC 9293 §3.10.7.4, fourth: for every sequence number.
    for state in STATES {
        for offset in [0, 1, 1000, -1000, 100_000] {
            let (mut s, local, remote) = in_state(state);
            s.inject(syn(remote + offset)).expect(ack(local, remote));
            s.expect_no_event();
            let (mut s, local, remote) = in_state(state);
            s.inject(syn_ack(remote + offset, local)).expect(ack(local, remote));
            s.expect_no_event();
        }
    }
}

#[test]
fn restarted_peer_reconnects() {
    // RFC 9293 §3.5.1, figure 9; RFC 5961 §4.2.
    let mut s = Script::accepted(peer());
    let challenge = s.inject(syn(50_000)).expect(ack(1, 1));
    s.inject(rst(challenge.ack)).expect_closed(CloseReason::Reset);
    s.flow().reincarnate(PEER_ISN.wrapping_add(50_000));
    s.handshake();
    s.expect_alive(1, 1);
}

#[test]
fn rst_in_syn_received_closes_connection() {
    // RFC 9293 §3.10.7.4, second, SYN-RECEIVED; RFC 5961 §3.2.
    let mut s = Script::listen(peer(), |_| {});
    s.inject_syn(syn(0)).expect(syn_ack(0, 1));
    s.inject(rst(1)).expect_nothing_for(secs(60));
    s.expect_no_event();
    s.inject(ack(1, 1)).expect(rst(1));
}

#[test]
fn rst_in_syn_received_must_be_at_rcv_nxt() {
    // RFC 5961 §3.2 (1) and (3).
    let mut s = Script::listen(peer(), |_| {});
    s.inject_syn(syn(0)).expect(syn_ack(0, 1));
    s.inject(rst(-5)).expect_nothing();
    s.inject(rst(100));
    // The reply is a challenge ACK or a repeated SYN-ACK.
    assert!(s.drain().iter().all(|got| got.ack == 1 && !got.has(RST)));
    s.inject(ack(1, 1)).expect_opened();
    s.expect_alive(1, 1);
}

/// Returns a connection in SYN-RECEIVED, after a passive or a simultaneous open (RFC 9293 §3.5, figures 6 and 8).
fn syn_received(both_open: bool) -> Script {
    let mut s = if both_open { Script::connecting(peer(), |_| {}) } else { Script::listen(peer(), |_| {}) };
    if both_open {
        s.expect(syn(0));
    }
    s.inject_syn(syn(0)).expect(syn_ack(0, 1));
    s
}

#[test]
fn syn_received_discards_rst_outside_window() {
    // RFC 5961 §3.2 (1): silently. Only the sequence number of the reset counts, not its data.
    for both_open in [false, true] {
        let mut s = syn_received(both_open);
        let edge = s.flow().right_edge;
        for offset in [0, -1, -5, -1000, edge, edge + 1, 100_000, 1 << 31] {
            for reset in [rst(offset), rst_ack(offset, 1), rst(offset).len(10).junk(), rst(offset).with(SYN)] {
                s.inject(reset).expect_nothing();
            }
        }
        s.expect_no_event();
        s.inject(ack(1, 1)).expect_opened();
        s.expect_alive(1, 1);
    }
}

#[test]
fn rst_with_data_or_just_outside_window_is_ignored() {
    // RFC 5961 §3.2 (1).
    for state in STATES {
        let (mut s, local, remote) = in_state(state);
        let edge = remote + 65_535;
        for reset in [rst(edge), rst_ack(edge, local), rst(remote - 5).len(10).junk(), rst(remote - 1).with(FIN)] {
            s.inject(reset).expect_nothing();
        }
        s.expect_no_event();
    }
}

#[test]
fn rst_at_closed_window_closes_connection() {
    // RFC 9293 §3.10.7.4, first: resets are processed with a zero window too.
    let mut s = Script::accepted_with(peer(), |config| settings::receive_buffer(config, 16 << 10));
    s.stop_reading();
    let next = s.fill_window(1, 0);
    assert_eq!(s.flow().right_edge, next);
    s.inject(rst(next + 1)).expect_nothing();
    s.inject(rst(next)).expect_closed(CloseReason::Reset);
}

#[test]
fn challenge_ack_in_syn_received_does_not_grow_cwnd() {
    // RFC 5961 §3.2 (3); RFC 6928 §2: ten segments, although the challenge and the final ACK arrive in one burst.
    for challenged in [rst(100), ack(0, 1)] {
        let mut s = syn_received(false);
        s.inject_burst([challenged, ack(1, 1)]).expect(ack(1, 1));
        s.expect_opened();
        s.write(20 * SEG).expect_flight(1, INITIAL_WINDOW);
        s.expect_nothing();
    }
}

#[test]
fn rst_refuses_simultaneous_open() {
    // RFC 9293 §3.10.7.4, second, SYN-RECEIVED from an active OPEN.
    let mut s = Script::connecting(peer(), |_| {});
    s.expect(syn(0));
    s.inject_syn(syn(0)).expect(syn_ack(0, 1));
    s.inject(rst(1)).expect_failed(ConnectError::Refused);
    s.expect_nothing_for(secs(60));
}

#[test]
fn unacceptable_ack_resets_half_open_connection() {
    // RFC 9293 §3.10.7.4, fifth, SYN-RECEIVED: <SEQ=SEG.ACK><CTL=RST>.
    for wrong in [0, 2, -100, 100_000] {
        let mut s = Script::listen(peer(), |_| {});
        s.inject_syn(syn(0)).expect(syn_ack(0, 1));
        s.inject(ack(1, wrong)).expect(rst(wrong));
        s.expect_no_event();
    }
}

#[test]
fn ack_of_unsent_data_is_answered_and_its_data_dropped() {
    // RFC 9293 §3.10.7.4, fifth, ESTABLISHED; RFC 5961 §5.2.
    for state in STATES {
        let (mut s, local, remote) = in_state(state);
        s.inject(ack(remote, local + 1)).expect(ack(local, remote));
        s.expect_no_event();
    }
    let mut s = Script::accepted(peer());
    s.write(1000).expect(data(1, 1000));
    s.inject(data(1, 100).ack(5000).junk()).expect(ack(1001, 1));
    s.expect_delivered(0);
}

#[test]
fn too_old_ack_is_answered_and_its_data_dropped() {
    // RFC 5961 §5.2: below SND.UNA - MAX.SND.WND, which is at most the maximum window.
    let mut s = Script::accepted(peer().window(5000));
    for n in 0..70 {
        s.write(1000).expect(data(1 + n * SEG, 1000));
        s.inject(ack(1, 1001 + n * SEG));
    }
    s.inject(data(1, 100).ack(1).junk()).expect(ack(70_001, 1));
    s.expect_delivered(0);
    s.inject(data(1, 100).ack(65_001)).expect_within(DELAYED_ACK, ack(70_001, 101));
    s.expect_delivered(100);
}

#[test]
fn challenge_acks_are_limited() {
    // RFC 5961 §7: a limit per period prevents amplification.
    let mut s = Script::accepted(peer());
    for n in 0..200 {
        s.inject(syn(1000 + n));
        s.inject(rst(2000 + n));
        s.inject(ack(1, 50_000 + n));
        s.pass(ms(1));
    }
    let challenges = s.drain();
    assert!((1..=CHALLENGES).contains(&challenges.len()), "{} challenge ACKs", challenges.len());
    s.pass(CHALLENGE_PERIOD);
    s.inject(rst(2000)).expect(ack(1, 1));
    s.expect_alive(1, 1);
}

#[test]
fn challenge_ack_limit_does_not_affect_ordinary_acks() {
    // RFC 5961 §7: only ACKs that an attacker can provoke count.
    let mut s = Script::accepted(peer().sack());
    for n in 0..200 {
        s.inject(rst(2000 + n));
    }
    s.drain();
    s.inject_burst([data(1, 1000), data(1001, 1000)]).expect_within(DELAYED_ACK, ack(1, 2001));
    s.inject(data(3001, 1000)).expect(ack(1, 2001).sack(&[(3001, 4001)]));
}

#[test]
fn invalid_flags_in_synchronized_state_are_harmless() {
    // RFC 9293 §3.10.7.4, fifth: segments without ACK are dropped. SYN is combined with every other flag.
    let mut s = Script::accepted(peer());
    let all = FIN | SYN | RST | PSH | ACK | URG | ECE | CWR;
    for flags in [0, FIN, PSH | URG, FIN | PSH | URG, SYN | FIN, SYN | FIN | ACK, SYN | URG, ECE | CWR] {
        s.inject(data(1, 10).flags(flags).junk());
        s.pass(CHALLENGE_PERIOD);
        assert!(s.drain().iter().all(|got| !got.has(RST)));
    }
    s.inject(data(1 << 30, 10).flags(all).junk()).drain();
    s.expect_no_event();
    s.expect_delivered(0);
    s.expect_alive(1, 1);
}

#[test]
fn invalid_flags_open_no_connection() {
    // RFC 9293 §3.10.7.2. A SYN+FIN opens no connection.
    let mut s = Script::listen(peer(), |_| {});
    for flags in [0, FIN, PSH | URG, SYN | RST, SYN | RST | FIN, SYN | RST | ACK] {
        s.inject(data(0, 10).flags(flags).junk());
        assert!(s.drain().iter().all(|got| !got.has(SYN)));
    }
    s.expect_no_event();
    s.on_port(5001).handshake();
    s.expect_alive(1, 1);
}

#[test]
fn tiny_mss_is_raised() {
    // No specification sets a minimum MSS. A peer with an MSS of 1 would cause forty times the traffic.
    for mss in [0, 1, 8] {
        let mut s = Script::accepted(Peer { mss: Some(mss), ..peer() });
        let sent = s.write(400).drain();
        let bytes: Rel = sent.iter().map(|got| got.len).sum();
        assert!(bytes > 0 && sent.len() as Rel * 32 <= bytes + 32, "{bytes} bytes in {} segments", sent.len());
    }
}

#[test]
fn scattered_bytes_hold_bounded_memory() {
    // RFC 9293 §3.10.7.4, first, SHLD-31: out-of-order data that is not held is retransmitted.
    let mut s = Script::accepted_with(peer(), |config| settings::receive_buffer(config, 16 << 10));
    let pool = s.free_packets();
    for n in 0..4000 {
        s.inject(data(3 + 2 * n, 1)).drain();
    }
    assert!(pool - s.free_packets() <= 100, "{} packets held", pool - s.free_packets());
    for n in 0..9 {
        s.inject(data(1 + n * SEG, SEG)).drain();
    }
    s.drain_for(DELAYED_ACK);
    s.expect_delivered(9000);
    s.expect_alive(9001, 1);
}

#[test]
fn peer_that_ignores_window_holds_no_memory() {
    // RFC 9293 §3.10.7.4, first: data beyond the window is discarded.
    let mut s = Script::accepted_with(peer(), |config| settings::receive_buffer(config, 16 << 10));
    s.stop_reading();
    let pool = s.free_packets();
    for n in 0..200 {
        s.inject(data(1 + n * SEG, SEG)).drain();
    }
    s.drain_for(DELAYED_ACK);
    assert!(pool - s.free_packets() <= 64, "{} packets held", pool - s.free_packets());
}

#[test]
fn acks_of_out_of_window_acks_are_limited() {
    // RFC 5961 §7: two ends that disagree would otherwise acknowledge each other endlessly.
    let mut s = Script::accepted(peer());
    let mut answers = 0;
    for _ in 0..3 * CHALLENGES {
        s.inject(ack(1_000_000, 1));
        s.pass(ms(1));
        answers += s.drain().len();
    }
    assert!((1..=CHALLENGES).contains(&answers), "{answers} answers");
}
