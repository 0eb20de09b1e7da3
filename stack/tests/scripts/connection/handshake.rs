//! How connections begin: RFC 9293 §3.5, and the options of a SYN.

use super::harness::*;

/// Peers with each option of a SYN and without it, in all combinations.
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

/// A fresh connection is used: what was not agreed upon is not done, and what was, is. That no option appears that was not
/// agreed upon, and none is missing, the harness sees to.
fn use_connection(s: &mut Script, peer: &Peer) {
    s.inject(data(1001, 1000));
    let gap = ack(1, 1);
    s.expect(if peer.sack { gap.sack(&[(1001, 2001)]) } else { gap });
    s.inject(data(1, 1000));
    s.expect(ack(1, 2001));
    let timestamps = if peer.timestamps { 12 } else { 0 };
    let len = Rel::from(peer.mss.unwrap_or(536)) - timestamps;
    s.write(len + 1);
    s.expect(data(1, len).ack(2001));
    s.expect(data(1 + len, 1).ack(2001).push());
}

/// What the worker's answer to a SYN of `peer` offers is what RFC 7323 §2.2 and §3.2 and RFC 2018 §2 allow.
fn check_answer(got: &Got, peer: &Peer) {
    let options = &got.raw.options;
    assert_eq!(options.window_scale.is_some(), peer.window_scale.is_some(), "{peer:?}");
    assert_eq!(options.timestamp.is_some(), peer.timestamps, "{peer:?}");
    assert_eq!(options.sack_permitted, peer.sack, "{peer:?}");
}

#[test]
fn a_connection_is_accepted_carries_data_and_is_closed() {
    // RFC 9293 §3.5, figure 6; §3.6, figure 12.
    let mut s = Script::accepted(peer());
    s.inject(data(1, 100));
    s.expect_within(DELAYED_ACK, ack(1, 101));
    s.expect_delivered(100);
    s.write(500);
    s.expect(data(1, 500).ack(101));
    s.inject(ack(101, 501));
    s.inject(fin(101, 501));
    s.expect_within(DELAYED_ACK, ack(501, 102));
    s.expect_peer_closed();
    s.close();
    s.expect(fin(501, 102));
    s.inject(ack(102, 502));
    s.expect_closed(CloseReason::Finished);
    s.expect_nothing_for(TIME_WAIT);
    s.expect_all_packets_back();
}

#[test]
fn a_connection_is_made_carries_data_and_is_closed() {
    // RFC 9293 §3.5, figure 6; §3.6, figure 12.
    let mut s = Script::connected(peer().rtt(ms(20)));
    s.write(1500);
    s.expect(data(1, 1000).ack(1));
    s.expect(data(1001, 500).ack(1).push());
    s.inject(ack(1, 1501));
    s.close();
    s.expect(fin(1501, 1));
    s.inject(ack(1, 1502));
    s.inject(data(1, 10).ack(1502));
    s.expect_within(DELAYED_ACK, ack(1502, 11));
    s.inject(fin(11, 1502));
    s.expect_within(DELAYED_ACK, ack(1502, 12));
    s.expect_peer_closed();
    s.expect_closed(CloseReason::Finished);
    s.expect_nothing_for(2 * TIME_WAIT);
    s.expect_all_packets_back();
}

#[test]
fn an_accepted_connection_uses_the_options_that_the_syn_offered() {
    for peer in offers(false) {
        let mut s = Script::listen(peer.clone(), |_| {});
        s.inject_hello(syn(0));
        check_answer(&s.expect(syn_ack(0, 1).mss(1460)), &peer);
        s.inject(ack(1, 1));
        s.expect_opened();
        use_connection(&mut s, &peer);
    }
}

#[test]
fn an_accepted_connection_uses_timestamps_and_the_options_that_the_syn_offered() {
    native_only!();
    for peer in offers(true) {
        let mut s = Script::listen(peer.clone(), |_| {});
        s.inject_hello(syn(0).timestamp(100, 0));
        // RFC 7323 §3.2: TSecr is the SYN's TSval.
        check_answer(&s.expect(syn_ack(0, 1).mss(1460)), &peer);
        s.inject(ack(1, 1));
        s.expect_opened();
        use_connection(&mut s, &peer);
    }
}

#[test]
fn a_syn_offers_every_option_and_the_connection_uses_those_of_the_answer() {
    for peer in offers(false) {
        let mut s = Script::connecting(peer.clone(), |_| {});
        let got = s.expect(syn(0).mss(1460).sack_permitted());
        assert!(got.raw.options.window_scale.is_some_and(|shift| shift <= 14), "RFC 7323 §2.3");
        s.inject_hello(syn_ack(0, 1));
        s.expect(ack(1, 1));
        s.expect_opened();
        use_connection(&mut s, &peer);
    }
}

#[test]
fn a_syn_offers_timestamps_and_the_connection_uses_them_if_the_answer_has_them() {
    native_only!();
    for peer in offers(true) {
        let mut s = Script::connecting(peer.clone(), |_| {});
        let got = s.expect(syn(0).mss(1460).sack_permitted());
        // RFC 7323 §3.2: TSecr of an initial SYN is zero.
        assert_eq!(got.raw.options.timestamp.map(|(_, echo)| echo), Some(0));
        s.inject_hello(syn_ack(0, 1));
        s.expect(ack(1, 1).echoing(PEER_CLOCK));
        s.expect_opened();
        use_connection(&mut s, &peer);
    }
}

#[test]
fn a_syn_is_answered_with_its_timestamp() {
    // RFC 7323 §3.2: TSecr echoes the TSval of what is acknowledged.
    native_only!();
    let mut s = Script::listen(peer().timestamps(), |_| {});
    s.inject(syn(0).mss(1012).timestamp(0xdead_beef, 0));
    s.expect(syn_ack(0, 1).echoing(0xdead_beef));
}

#[test]
fn over_ipv6_the_maximum_segment_size_leaves_room_for_the_longer_header() {
    // RFC 9293 §3.7.1; RFC 8200 §8.3.
    let mut s = Script::listen(peer().ipv6(), |_| {});
    s.inject_hello(syn(0));
    s.expect(syn_ack(0, 1).mss(1440));
    let mut s = Script::connecting(peer().ipv6(), |_| {});
    s.expect(syn(0).mss(1440));
    s.inject_hello(syn_ack(0, 1));
    s.expect(ack(1, 1));
    s.expect_opened();
    s.expect_alive(1, 1);
}

#[test]
fn without_the_option_segments_to_a_peer_over_ipv4_carry_536_bytes() {
    // RFC 9293 §3.7.1 MUST-15.
    for mut s in [Script::accepted(Peer { mss: None, ..peer() }), Script::connected(Peer { mss: None, ..peer() })] {
        s.write(1500);
        s.expect(data(1, 536));
        s.expect(data(537, 536));
        s.expect(data(1073, 428));
    }
}

#[test]
fn without_the_option_segments_to_a_peer_over_ipv6_carry_1220_bytes() {
    // RFC 9293 §3.7.1 MUST-15.
    native_only!();
    for mut s in
        [Script::accepted(Peer { mss: None, ..peer() }.ipv6()), Script::connected(Peer { mss: None, ..peer() }.ipv6())]
    {
        s.write(2000);
        s.expect(data(1, 1220));
        s.expect(data(1221, 780));
    }
}

#[test]
fn a_larger_segment_size_than_the_links_is_not_used() {
    // RFC 9293 §3.7.1: never more than the maximum transmission unit of the network allows.
    let mut s = Script::accepted(peer().mss(9000));
    s.write(1461);
    s.expect(data(1, 1460));
    s.expect(data(1461, 1));
}

#[test]
fn unknown_options_are_skipped_and_those_behind_them_read() {
    // RFC 9293 §3.1 MUST-6: an unknown option with a length field is ignored without error.
    let unknown = [34, 2, 1, 253, 6, 1, 2, 3, 4, 254, 2, 1];
    let mut s = Script::listen(peer().window_scale(2).sack(), |_| {});
    s.inject_hello(syn(0).raw_option(&unknown));
    check_answer(&s.expect(syn_ack(0, 1)), &peer().window_scale(2).sack());
    s.inject(ack(1, 1).raw_option(&unknown));
    s.expect_opened();
    s.inject(data(1001, 1000).raw_option(&unknown));
    s.expect(ack(1, 1).sack(&[(1001, 2001)]));
    s.inject(data(1, 1000).raw_option(&unknown));
    s.expect(ack(1, 2001));
    s.write(1001);
    s.expect(data(1, 1000));
    s.expect(data(1001, 1));
}

#[test]
fn options_whose_length_is_wrong_do_no_harm() {
    // RFC 9293 §3.1 MUST-7: an illegal option length, such as zero, is to be prepared for.
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
        // As the SYN of a new connection …
        let mut s = Script::listen(peer(), |_| {});
        s.inject(syn(0).raw_option(option));
        s.drain();
        s.on_port(5001).shake_hands();
        s.expect_alive(1, 1);
        // … and within one that exists, whether such a segment is dropped or not.
        s.inject(data(2, 10).ack(2).raw_option(option));
        s.drain_for(DELAYED_ACK);
        s.inject(data(2, 10).ack(2));
        s.drain_for(DELAYED_ACK);
        s.expect_delivered(11);
    }
}

#[test]
fn data_in_a_syn_is_delivered_once() {
    // RFC 9293 §3.10.7.2, third: it may be queued; what is not is not acknowledged and comes again.
    let mut s = Script::listen(peer(), |_| {});
    s.inject_hello(syn(0).len(100));
    let got = s.expect(syn_ack(0, 1).any_ack());
    assert!(got.ack == 1 || got.ack == 101);
    s.inject(ack(101, 1));
    s.inject(data(1, 100));
    s.drain_for(DELAYED_ACK);
    s.expect_opened();
    s.expect_delivered(100);
}

#[test]
fn the_acknowledgement_that_completes_a_connection_may_carry_data() {
    // RFC 9293 §3.10.7.4, fifth and seventh: processing continues in ESTABLISHED.
    let mut s = Script::listen(peer(), |_| {});
    s.inject_hello(syn(0));
    s.expect(syn_ack(0, 1));
    s.inject(data(1, 100));
    s.expect_opened();
    s.expect_delivered(100);
    s.expect_within(DELAYED_ACK, ack(1, 101));
}

#[test]
fn the_acknowledgement_that_completes_a_connection_may_carry_data_and_fin() {
    // RFC 9293 §3.10.7.4, eighth: from SYN-RECEIVED to CLOSE-WAIT.
    let mut s = Script::listen(peer(), |_| {});
    s.inject_hello(syn(0));
    s.expect(syn_ack(0, 1));
    s.inject(data(1, 100).with_fin());
    s.expect_within(DELAYED_ACK, ack(1, 102));
    s.expect_opened();
    s.expect_delivered(100);
    s.expect_peer_closed();
    s.close();
    s.expect(fin(1, 102));
    s.inject(ack(102, 2));
    s.expect_closed(CloseReason::Finished);
}

#[test]
fn a_window_in_a_syn_is_not_scaled() {
    // RFC 7323 §2.2: the window field of a SYN is never scaled.
    let mut s = Script::connecting(peer().window_scale(7).window(2000), |_| {});
    s.expect(syn(0));
    s.inject_hello(syn_ack(0, 1));
    s.expect(ack(1, 1));
    s.expect_opened();
    s.write(5000);
    s.expect_flight(1, 2);
    s.expect_nothing();
}

#[test]
fn a_window_scale_above_14_counts_as_14() {
    // RFC 7323 §2.3.
    native_only!();
    let mut s = Script::accepted(peer().window_scale(15).window(1));
    s.write(60_000);
    s.expect_flight(1, INITIAL_WINDOW);
    for n in 1..=INITIAL_WINDOW {
        s.inject(ack(1, 1 + n * SEG));
    }
    // The window is 16 384 bytes, the congestion window 20 segments.
    s.expect_flight(1 + INITIAL_WINDOW * SEG, 16);
    s.expect_nothing();
}

#[test]
fn both_ends_open_at_the_same_time() {
    // RFC 9293 §3.5, figure 7.
    native_only!();
    let mut s = Script::connecting(peer(), |_| {});
    s.expect(syn(0));
    s.inject_hello(syn(0));
    s.expect(syn_ack(0, 1));
    s.expect_no_event();
    s.inject_hello(syn_ack(0, 1));
    s.expect_opened();
    // It may acknowledge that once more.
    s.drain();
    s.expect_alive(1, 1);
}

#[test]
fn both_ends_open_at_the_same_time_and_an_acknowledgement_completes_it() {
    // RFC 9293 §3.10.7.3, fourth; §3.10.7.4, fifth.
    let mut s = Script::connecting(peer(), |_| {});
    s.expect(syn(0));
    s.inject_hello(syn(0));
    s.expect(syn_ack(0, 1));
    s.inject(ack(1, 1));
    s.expect_opened();
    s.expect_alive(1, 1);
}

#[test]
fn an_unanswered_syn_is_repeated_ever_more_rarely_and_given_up() {
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
fn an_unanswered_syn_ack_is_repeated_ever_more_rarely_and_given_up() {
    // RFC 6298 §2.1, §5.5; RFC 9293 §3.8.3.
    let mut s = Script::listen(peer(), |config| config.half_open_timeout = secs(10));
    s.inject_hello(syn(0));
    let first = s.expect(syn_ack(0, 1));
    for wait in [1, 2, 4] {
        let again = s.expect_after(secs(wait), syn_ack(0, 1));
        assert_eq!(again.raw.seq, first.raw.seq);
    }
    s.drain_for(ms(3100));
    // Whoever comes back now finds nothing.
    s.inject(ack(1, 1));
    s.expect(rst(1));
    s.expect_no_event();
    s.expect_nothing_for(secs(60));
}

#[test]
fn a_repeated_syn_is_answered_and_opens_no_second_connection() {
    // RFC 9293 §3.10.7.4, first: it is not acceptable in SYN-RECEIVED, and answered; common systems repeat the SYN-ACK.
    let mut s = Script::listen(peer(), |_| {});
    s.inject_hello(syn(0));
    let first = s.expect(syn_ack(0, 1));
    s.inject_hello(syn(0));
    for got in s.drain() {
        let repeated = got.has(SYN | ACK) && got.raw.seq == first.raw.seq;
        assert!((repeated || got.seq == 1) && got.ack == 1);
    }
    s.inject(ack(1, 1));
    s.expect_opened();
    s.expect_no_event();
    s.expect_alive(1, 1);
}

#[test]
fn an_old_duplicate_syn_gives_way_to_the_right_one() {
    // RFC 9293 §3.5, figure 8.
    let mut s = Script::listen(peer(), |_| {});
    s.inject_hello(syn(-1000));
    s.expect(syn_ack(0, -999));
    s.inject(rst(-999));
    s.expect_nothing();
    s.shake_hands();
    s.expect_alive(1, 1);
}

#[test]
fn data_in_a_syn_ack_is_delivered_once() {
    // RFC 9293 §3.10.7.3, fourth: legal; what is not taken comes again.
    let mut s = Script::connecting(peer(), |_| {});
    s.expect(syn(0));
    s.inject_hello(syn_ack(0, 1).len(100));
    s.expect_opened();
    s.drain_for(DELAYED_ACK);
    s.inject(data(1, 100));
    s.drain_for(DELAYED_ACK);
    s.expect_delivered(100);
}

#[test]
fn a_repeated_syn_ack_is_acknowledged_again() {
    // RFC 9293 §3.10.7.4, fourth (RFC 5961 §4.2): the peer has not seen the acknowledgement of its SYN.
    let mut s = Script::connected(peer());
    s.inject_hello(syn_ack(0, 1));
    s.expect(ack(1, 1));
    s.expect_no_event();
    s.expect_alive(1, 1);
}

#[test]
fn initial_sequence_numbers_of_one_peer_grow_with_the_clock() {
    // RFC 6528 §3: ISN = M + F(…), M a timer of 4 µs.
    native_only!();
    let mut s = Script::listen(peer(), |_| {});
    s.inject_hello(syn(0));
    let first = s.expect(syn_ack(0, 1)).raw.seq;
    s.inject(rst(1));
    s.expect_nothing_for(ms(800));
    s.inject_hello(syn(0));
    let second = s.expect(syn_ack(0, 1)).raw.seq;
    let grown = second.wrapping_sub(first);
    assert!((190_000..=210_000).contains(&grown), "{grown} in 800 ms");
}

#[test]
fn initial_sequence_numbers_of_different_peers_and_workers_have_nothing_in_common() {
    // RFC 6528 §3: F is keyed, and depends on the whole 4-tuple.
    let mut numbers = Vec::new();
    for seed in 0..4 {
        let mut s = Script::listen(peer(), |config| config.seed = seed);
        for port in 6000..6004 {
            s.inject_hello(syn(0).port(port));
            numbers.push(s.expect(syn_ack(0, 1).port(port)).raw.seq);
        }
    }
    numbers.sort_unstable();
    let close = numbers.windows(2).filter(|pair| pair[1] - pair[0] < 1 << 16).count();
    assert!(close <= 1, "{numbers:?}");
}
