//! Connection establishment (RFC 9293 §3.5) and the options of a SYN.

use crate::harness::*;

/// Returns peers with all combinations of SYN options.
fn offers(timestamps: bool) -> impl Iterator<Item = Peer> {
    (0..8).map(move |bits| {
        let plain = if timestamps { peer().timestamps() } else { peer() };
        Peer {
            mss: plain.mss.filter(|_| bits & 1 != 0),
            window_scale: (bits & 2 != 0).then_some(7),
            sack: bits & 4 != 0,
            ..plain
        }
    })
}

/// Uses a fresh connection for data. The harness checks that exactly the negotiated options appear.
fn use_connection(s: &mut Script, peer: &Peer) {
    s.inject(data(1001, 1000));
    let gap = ack(1, 1);
    s.expect(if peer.sack { gap.sack(&[(1001, 2001)]) } else { gap });
    s.inject(data(1, 1000)).expect(ack(1, 2001));
    let timestamps = if peer.timestamps { 12 } else { 0 };
    let len = Rel::from(peer.mss.unwrap_or(536)) - timestamps;
    s.write(len + 1).expect(data(1, len).ack(2001));
    s.expect(data(1 + len, 1).ack(2001).push());
}

/// Checks that the SYN-ACK in reply to the SYN of `peer` offers only options that RFC 7323 §2.2, §3.2 and RFC 2018 §2
/// permit.
fn check_answer(got: &Got, peer: &Peer) {
    let options = &got.raw.options;
    assert_eq!(options.window_scale.is_some(), peer.window_scale.is_some(), "{peer:?}");
    assert_eq!(options.timestamp.is_some(), peer.timestamps, "{peer:?}");
    assert_eq!(options.sack_permitted, peer.sack, "{peer:?}");
}

#[test]
fn accepted_connection_carries_data_and_closes() {
    // RFC 9293 §3.5, figure 6; §3.6, figure 12.
    let mut s = Script::accepted(peer());
    s.inject(data(1, 100)).expect_within(DELAYED_ACK, ack(1, 101));
    s.expect_delivered(100);
    s.write(500).expect(data(1, 500).ack(101));
    s.inject(ack(101, 501));
    s.close_by_peer(101, 501);
    s.finish(501, 102);
    s.expect_nothing_for(TIME_WAIT);
    s.expect_no_packets_held();
}

#[test]
fn initiated_connection_carries_data_and_closes() {
    // RFC 9293 §3.5, figure 6; §3.6, figure 12.
    let mut s = Script::connected(peer().rtt(ms(20)));
    s.write(1500).expect(data(1, 1000).ack(1));
    s.expect(data(1001, 500).ack(1).push());
    s.inject(ack(1, 1501));
    s.close().expect(fin(1501, 1));
    s.inject(ack(1, 1502));
    s.inject(data(1, 10).ack(1502)).expect_within(DELAYED_ACK, ack(1502, 11));
    s.close_by_peer(11, 1502);
    s.expect_closed(CloseReason::Finished);
    s.expect_nothing_for(2 * TIME_WAIT);
    s.expect_no_packets_held();
}

#[test]
fn accepted_connection_uses_options_of_syn() {
    for peer in offers(false) {
        let mut s = Script::listen(peer.clone(), |_| {});
        s.inject_syn(syn(0));
        check_answer(&s.expect(syn_ack(0, 1).mss(1460)), &peer);
        s.inject(ack(1, 1)).expect_opened();
        use_connection(&mut s, &peer);
    }
}

#[test]
fn accepted_connection_uses_timestamps_and_options_of_syn() {
    for peer in offers(true) {
        let mut s = Script::listen(peer.clone(), |_| {});
        s.inject_syn(syn(0).timestamp(100, 0));
        // RFC 7323 §3.2: TSecr is the TSval of the SYN.
        check_answer(&s.expect(syn_ack(0, 1).mss(1460)), &peer);
        s.inject(ack(1, 1)).expect_opened();
        use_connection(&mut s, &peer);
    }
}

#[test]
fn initiated_connection_offers_all_options_and_uses_those_of_syn_ack() {
    for peer in offers(false) {
        let mut s = Script::connecting(peer.clone(), |_| {});
        let got = s.expect(syn(0).mss(1460).sack_permitted());
        assert!(got.raw.options.window_scale.is_some_and(|shift| shift <= 14), "RFC 7323 §2.3");
        s.inject_syn(syn_ack(0, 1)).expect(ack(1, 1));
        s.expect_opened();
        use_connection(&mut s, &peer);
    }
}

#[test]
fn initiated_connection_offers_timestamps_and_uses_them_if_syn_ack_has_them() {
    for peer in offers(true) {
        let mut s = Script::connecting(peer.clone(), |_| {});
        let got = s.expect(syn(0).mss(1460).sack_permitted());
        // RFC 7323 §3.2: TSecr of an initial SYN is zero.
        assert_eq!(got.raw.options.timestamp.map(|(_, echo)| echo), Some(0));
        s.inject_syn(syn_ack(0, 1)).expect(ack(1, 1).echoing(PEER_CLOCK));
        s.expect_opened();
        use_connection(&mut s, &peer);
    }
}

#[test]
fn syn_ack_echoes_timestamp_of_syn() {
    // RFC 7323 §3.2: TSecr echoes the TSval of the acknowledged segment.
    let mut s = Script::listen(peer().timestamps(), |_| {});
    s.inject(syn(0).mss(1012).timestamp(0xdead_beef, 0)).expect(syn_ack(0, 1).echoing(0xdead_beef));
}

#[test]
fn mss_over_ipv6_accounts_for_longer_header() {
    // RFC 9293 §3.7.1; RFC 8200 §8.3.
    let mut s = Script::listen(peer().ipv6(), |_| {});
    s.inject_syn(syn(0)).expect(syn_ack(0, 1).mss(1440));
    let mut s = Script::connecting(peer().ipv6(), |_| {});
    s.expect(syn(0).mss(1440));
    s.inject_syn(syn_ack(0, 1)).expect(ack(1, 1));
    s.expect_opened();
    s.expect_alive(1, 1);
}

#[test]
fn default_mss_over_ipv4_is_536() {
    // RFC 9293 §3.7.1 MUST-15.
    for mut s in [Script::accepted(Peer { mss: None, ..peer() }), Script::connected(Peer { mss: None, ..peer() })] {
        s.write(1500).expect(data(1, 536));
        s.expect(data(537, 536));
        s.expect(data(1073, 428));
    }
}

#[test]
fn default_mss_over_ipv6_is_1220() {
    // RFC 9293 §3.7.1 MUST-15.
    for mut s in
        [Script::accepted(Peer { mss: None, ..peer() }.ipv6()), Script::connected(Peer { mss: None, ..peer() }.ipv6())]
    {
        s.write(2000).expect(data(1, 1220));
        s.expect(data(1221, 780));
    }
}

#[test]
fn mss_above_link_mtu_is_not_used() {
    // RFC 9293 §3.7.1: bounded by the maximum transmission unit of the network.
    let mut s = Script::accepted(peer().mss(9000));
    s.write(1461).expect(data(1, 1460));
    s.expect(data(1461, 1));
}

#[test]
fn unknown_options_are_skipped() {
    // RFC 9293 §3.1 MUST-6: an unknown option with a length field is ignored without error. Later options are parsed.
    let unknown = [34, 2, 1, 253, 6, 1, 2, 3, 4, 254, 2, 1];
    let mut s = Script::listen(peer().window_scale(2).sack(), |_| {});
    s.inject_syn(syn(0).raw_option(&unknown));
    check_answer(&s.expect(syn_ack(0, 1)), &peer().window_scale(2).sack());
    s.inject(ack(1, 1).raw_option(&unknown)).expect_opened();
    s.inject(data(1001, 1000).raw_option(&unknown)).expect(ack(1, 1).sack(&[(1001, 2001)]));
    s.inject(data(1, 1000).raw_option(&unknown)).expect(ack(1, 2001));
    s.write(1001).expect(data(1, 1000));
    s.expect(data(1001, 1));
}

#[test]
fn options_with_wrong_length_are_harmless() {
    // RFC 9293 §3.1 MUST-7: an illegal option length such as zero must be handled.
    let broken: [&[u8]; 10] = [
        &[2, 0, 5, 180],
        &[2, 1, 5, 180],
        &[2, 3, 5, 1],
        &[2, 8, 5, 180],
        &[3, 255, 1, 1],
        &[8, 10, 0, 0],
        &[1, 1, 5, 3],
        &[1, 1, 1, 2],
        &[4, 40, 0, 0],
        &[253, 0, 0, 0],
    ];
    for option in broken {
        // In the SYN of a new connection.
        let mut s = Script::listen(peer(), |_| {});
        s.inject(syn(0).raw_option(option)).drain();
        s.on_port(5001).handshake();
        s.expect_alive(1, 1);
        // In a segment of an existing connection, which may be dropped or not.
        s.inject(data(2, 10).ack(2).raw_option(option)).drain_for(DELAYED_ACK);
        s.inject(data(2, 10).ack(2)).drain_for(DELAYED_ACK);
        s.expect_delivered(11);
    }
}

#[test]
fn syn_data_is_delivered_once() {
    // RFC 9293 §3.10.7.2, third: data may be queued. Unqueued data is not acknowledged and is retransmitted.
    let mut s = Script::listen(peer(), |_| {});
    let got = s.inject_syn(syn(0).len(100)).expect(syn_ack(0, 1).any_ack());
    assert!(got.ack == 1 || got.ack == 101);
    s.inject(ack(101, 1));
    s.inject(data(1, 100)).drain_for(DELAYED_ACK);
    s.expect_opened();
    s.expect_delivered(100);
}

#[test]
fn final_ack_of_handshake_may_carry_data() {
    // RFC 9293 §3.10.7.4, fifth and seventh: processing continues in ESTABLISHED.
    let mut s = Script::listen(peer(), |_| {});
    s.inject_syn(syn(0)).expect(syn_ack(0, 1));
    s.inject(data(1, 100)).expect_opened();
    s.expect_delivered(100);
    s.expect_within(DELAYED_ACK, ack(1, 101));
}

#[test]
fn final_ack_of_handshake_may_carry_data_and_fin() {
    // RFC 9293 §3.10.7.4, eighth: from SYN-RECEIVED to CLOSE-WAIT.
    let mut s = Script::listen(peer(), |_| {});
    s.inject_syn(syn(0)).expect(syn_ack(0, 1));
    s.inject(data(1, 100).with_fin()).expect_within(DELAYED_ACK, ack(1, 102));
    s.expect_opened();
    s.expect_delivered(100);
    s.expect_peer_closed();
    s.finish(1, 102);
}

#[test]
fn syn_window_is_not_scaled() {
    // RFC 7323 §2.2.
    let mut s = Script::connecting(peer().window_scale(7).window(2000), |_| {});
    s.expect(syn(0));
    s.inject_syn(syn_ack(0, 1)).expect(ack(1, 1));
    s.expect_opened();
    s.write(5000).expect_flight(1, 2);
    s.expect_nothing();
}

#[test]
fn window_scale_above_14_counts_as_14() {
    // RFC 7323 §2.3.
    let mut s = Script::accepted(peer().window_scale(15).window(1));
    s.write(60_000).expect_flight(1, INITIAL_WINDOW);
    for n in 1..=INITIAL_WINDOW {
        s.inject(ack(1, 1 + n * SEG));
    }
    // The window is 16 384 bytes, cwnd is 20 segments.
    s.expect_flight(1 + INITIAL_WINDOW * SEG, 16);
    s.expect_nothing();
}

#[test]
fn simultaneous_open_establishes_connection() {
    // RFC 9293 §3.5, figure 7.
    let mut s = Script::connecting(peer(), |_| {});
    s.expect(syn(0));
    s.inject_syn(syn(0)).expect(syn_ack(0, 1));
    s.expect_no_event();
    s.inject_syn(syn_ack(0, 1)).expect_opened();
    // The worker may repeat its acknowledgement.
    s.drain();
    s.expect_alive(1, 1);
}

#[test]
fn simultaneous_open_is_completed_by_ack() {
    // RFC 9293 §3.10.7.3, fourth; §3.10.7.4, fifth.
    let mut s = Script::connecting(peer(), |_| {});
    s.expect(syn(0));
    s.inject_syn(syn(0)).expect(syn_ack(0, 1));
    s.inject(ack(1, 1)).expect_opened();
    s.expect_alive(1, 1);
}

#[test]
fn unanswered_syn_is_retransmitted_with_backoff_and_times_out() {
    // RFC 6298 §2.1, §5.5; RFC 9293 §3.8.3.
    let mut s = Script::connecting(peer(), |config| settings::connect_timeout(config, secs(10)));
    let first = s.expect(syn(0));
    for wait in [1, 2, 4] {
        let again = s.expect_after(secs(wait), syn(0));
        assert_eq!(again.raw.seq, first.raw.seq, "a repeated SYN has the sequence number of the first");
    }
    s.expect_nothing_for(ms(2900));
    s.expect_no_event();
    s.drain_for(ms(200));
    s.expect_failed(ConnectError::TimedOut);
    s.expect_nothing_for(secs(60));
}

#[test]
fn unanswered_syn_ack_is_retransmitted_with_backoff_and_times_out() {
    // RFC 6298 §2.1, §5.5; RFC 9293 §3.8.3.
    let mut s = Script::listen(peer(), |config| config.half_open_timeout = secs(10));
    let first = s.inject_syn(syn(0)).expect(syn_ack(0, 1));
    for wait in [1, 2, 4] {
        let again = s.expect_after(secs(wait), syn_ack(0, 1));
        assert_eq!(again.raw.seq, first.raw.seq);
    }
    s.drain_for(ms(3100));
    // A late ACK finds no connection.
    s.inject(ack(1, 1)).expect(rst(1));
    s.expect_no_event();
    s.expect_nothing_for(secs(60));
}

#[test]
fn repeated_syn_is_answered_and_opens_no_second_connection() {
    // RFC 9293 §3.10.7.4, first: unacceptable in SYN-RECEIVED, so it is answered. Common systems repeat the SYN-ACK.
    let mut s = Script::listen(peer(), |_| {});
    let first = s.inject_syn(syn(0)).expect(syn_ack(0, 1));
    s.inject_syn(syn(0));
    for got in s.drain() {
        let repeated = got.has(SYN | ACK) && got.raw.seq == first.raw.seq;
        assert!((repeated || got.seq == 1) && got.ack == 1);
    }
    s.inject(ack(1, 1)).expect_opened();
    s.expect_no_event();
    s.expect_alive(1, 1);
}

#[test]
fn old_duplicate_syn_is_recovered() {
    // RFC 9293 §3.5, figure 8.
    let mut s = Script::listen(peer(), |_| {});
    s.inject_syn(syn(-1000)).expect(syn_ack(0, -999));
    s.inject(rst(-999)).expect_nothing();
    s.handshake();
    s.expect_alive(1, 1);
}

#[test]
fn syn_ack_data_is_delivered_once() {
    // RFC 9293 §3.10.7.3, fourth: legal. Unqueued data is retransmitted.
    let mut s = Script::connecting(peer(), |_| {});
    s.expect(syn(0));
    s.inject_syn(syn_ack(0, 1).len(100)).expect_opened();
    s.drain_for(DELAYED_ACK);
    s.inject(data(1, 100)).drain_for(DELAYED_ACK);
    s.expect_delivered(100);
}

#[test]
fn repeated_syn_ack_is_acknowledged() {
    // RFC 9293 §3.10.7.4, fourth (RFC 5961 §4.2): the peer has not received the ACK of its SYN.
    let mut s = Script::connected(peer());
    s.inject_syn(syn_ack(0, 1)).expect(ack(1, 1));
    s.expect_no_event();
    s.expect_alive(1, 1);
}

#[test]
fn isn_of_one_4_tuple_grows_with_the_clock() {
    // RFC 6528 §3: ISN = M + F(…), where M is a timer of 4 µs.
    let mut s = Script::listen(peer(), |_| {});
    let first = s.inject_syn(syn(0)).expect(syn_ack(0, 1)).raw.seq;
    s.inject(rst(1)).expect_nothing_for(ms(800));
    let second = s.inject_syn(syn(0)).expect(syn_ack(0, 1)).raw.seq;
    let grown = second.wrapping_sub(first);
    assert!((190_000..=210_000).contains(&grown), "{grown} in 800 ms");
}

#[test]
fn isns_of_different_4_tuples_and_workers_are_unrelated() {
    // RFC 6528 §3: F is keyed and depends on the whole 4-tuple.
    let mut numbers = Vec::new();
    for seed in 0..4 {
        let mut s = Script::listen(peer(), |config| config.seed = seed);
        for port in 6000..6004 {
            s.inject_syn(syn(0).port(port));
            numbers.push(s.expect(syn_ack(0, 1).port(port)).raw.seq);
        }
    }
    numbers.sort_unstable();
    let close = numbers.windows(2).filter(|pair| pair[1] - pair[0] < 1 << 16).count();
    assert!(close <= 1, "{numbers:?}");
}
