//! Windows, segment sizes, and the path in request-response mode.

use super::*;

#[test]
fn closed_window_holds_back_answer() {
    // RFC 9293 §3.8.6.1.
    play(in_rr(|s, at| {
        s.inject(request(at, LEN).window(0)).expect_within(DELAYED_ACK, ack(at, at + LEN));
        s.expect_rr(false);
        for _ in 0..3 {
            s.expect_probe_between(ms(1), secs(3), at);
            s.inject(ack(at + LEN, at).window(0));
        }
        s.inject(ack(at + LEN, at)).expect(answer(at, LEN));
        s.pass(RTT);
        expect_rr_resumes(s, at + LEN);
    }));
}

#[test]
fn window_of_each_request_applies() {
    // RFC 9293 §3.8.6, §3.8.6.2.1.
    play(|s| {
        let shift = s.flow().peer.window_scale.unwrap_or(0);
        let mut at = enter_rr(s);
        for window in [400, 300, 200, 30_000, 104, 100, 100] {
            s.inject(request(at, LEN).window(window >> shift)).expect(answer(at, LEN));
            s.expect_rr(true);
            s.pass(RTT);
            at += LEN;
        }
        // The window is smaller than the answer by one byte, or with scaling by four.
        s.inject(request(at, LEN).window(96 >> shift)).expect_within(DELAYED_ACK, ack(at, at + LEN));
        s.expect_rr(false);
        s.inject(ack(at + LEN, at).window(LEN as u16)).drain_for(secs(1));
    });
}

#[test]
fn window_of_last_request_limits_further_data() {
    // RFC 9293 §3.8.6.
    for window in [3000, 40_000] {
        play(|s| {
            let shift = s.flow().peer.window_scale.unwrap_or(0);
            let at = enter_rr(s);
            s.inject(request(at, LEN).window(window >> shift)).expect(answer(at, LEN));
            let end = s.write(20 * SEG).drain().last().map(|got| got.end());
            assert!(end <= Some(at + Rel::from(window)), "{end:?}");
        });
    }
}

#[test]
fn half_of_maximum_window_is_used() {
    // RFC 9293 §3.8.6.2.1: half of the peer's maximum window counts as a segment.
    let narrow = |peer: Peer| peer.window(120);
    play_to(
        plain_peers().into_iter().map(narrow),
        in_rr(|s, mut at| {
            for window in [LEN as u16, 2000, 150] {
                s.inject(request(at, LEN).window(window)).expect(answer(at, LEN));
                s.pass(RTT);
                at += LEN;
            }
            s.inject(request(at, LEN).window(90)).drain_for(secs(2));
        }),
    );
}

#[test]
fn answer_above_mss_is_sent_in_several_segments() {
    // RFC 9293 §3.7.1.
    let small = |peer: Peer| if peer.timestamps { peer.mss(512) } else { peer.mss(500) };
    play_to(
        peers().into_iter().map(small),
        in_rr(|s, mut at| {
            for len in [500, 501, 1000, 1200] {
                let sent = s.inject(request(at, len)).drain();
                assert!(sent.iter().all(|got| got.len <= 500), "{sent:?}");
                at += len;
                assert_eq!(sent.last().map(|got| (got.end(), got.ack)), Some((at, at)));
                s.expect_rr(len == 500);
                s.pass(RTT);
                at = expect_rr_resumes(s, at);
            }
        }),
    );
}

#[test]
fn first_answer_is_segmented() {
    // RFC 9293 §3.7.1: also before request-response mode begins.
    let small = |peer: Peer| if peer.timestamps { peer.mss(512) } else { peer.mss(500) };
    for len in [499, 500, 501, 502, 1000] {
        play_to(peers().into_iter().map(small), |s| {
            let sent = s.inject(request(1, len)).drain();
            assert!(sent.iter().all(|got| got.len <= 500), "{sent:?}");
            assert_eq!(sent.last().map(|got| (got.end(), got.ack)), Some((1 + len, 1 + len)));
        });
    }
}

#[test]
fn request_in_chained_packet_is_answered() {
    play(in_rr(|s, mut at| {
        for first in [0, 1, 300, 999] {
            s.inject_chain(request(at, SEG), first);
            assert_eq!(s.drain().last().map(|got| (got.end(), got.ack)), Some((at + SEG, at + SEG)));
            s.pass(RTT);
            at = expect_rr_resumes(s, at + SEG);
        }
        s.inject(ack(at, at)).expect_no_packets_held();
    }));
}

#[test]
fn answer_goes_to_new_neighbor_address() {
    // RFC 826; RFC 4861 §7.2.5.
    play(in_rr(|s, mut at| {
        for last in [7, 8] {
            s.change_peer_mac([2, 0, 0, 0, 1, last]);
            s.expect_rr(true);
            at = exchange(s, at, LEN);
            s.expect_rr(true);
            s.pass(RTT);
        }
    }));
}

#[test]
fn rr_mode_continues_after_link_is_restored() {
    play_to(peers().into_iter().map(|peer| peer.rtt(ms(100))), |s| {
        let at = exchange(s, 1, LEN);
        // The timer of the first answer has expired.
        s.pass(ms(250));
        let at = exchange(s, at, LEN);
        s.set_link(false);
        s.pass(ms(100));
        s.set_link(true);
        s.pass(ms(110));
        expect_rr_resumes(s, at);
    });
}

#[test]
fn neighbor_is_confirmed_in_rr_mode() {
    // RFC 4861 §7.3: reachability of a neighbour in long use is confirmed.
    play_to(vec![peer().rtt(ms(50))], |s| {
        let mut at = 1;
        for n in 0..40 {
            at = exchange(s, at, LEN);
            s.expect_rr(n > 0);
            s.pass(ms(50));
        }
        // The neighbour has another Ethernet address, which the worker discovers only by a neighbour request.
        let before = s.neighbor_requests;
        for _ in 0..4000 {
            at = exchange(s, at, LEN);
            s.pass(ms(50));
        }
        assert!(s.neighbor_requests > before, "no neighbour request");
    });
}

#[test]
fn smaller_path_mtu_is_used() {
    // RFC 1191 §6.4; RFC 8201 §5.2.
    play_to(
        peers().into_iter().map(|peer| peer.mss(1460)),
        in_rr(|s, at| {
            let sent = s.inject(request(at, 1400)).expect(answer(at, 1400));
            s.expect_rr(true);
            let (kind, code, mtu) = if s.flow().peer.ipv6 { (2, 0, 1280) } else { (3, 4, 1000) };
            s.inject_icmp(kind, code, mtu, &sent);
            s.expect_rr(false);
            let again = s.drain();
            assert!(!again.is_empty() && again.iter().all(|got| got.raw.ip_len <= mtu as usize), "{again:?}");
            s.pass(RTT);
            s.inject(ack(at + 1400, at + 1400));
            let at = expect_rr_resumes(s, at + 1400);
            let sent = s.inject(request(at, 1400)).drain();
            assert!(sent.len() == 2 && sent.iter().all(|got| got.raw.ip_len <= mtu as usize), "{sent:?}");
        }),
    );
}

#[test]
fn unreachable_error_does_not_close_connection() {
    // RFC 9293 §3.9.2.2 MUST-56.
    play(in_rr(|s, at| {
        let Some(sent) = s.sent.last().cloned() else { panic!("no answer") };
        let kind = if s.flow().peer.ipv6 { 1 } else { 3 };
        for code in [0, 1, 3] {
            s.inject_icmp(kind, code, 0, &sent);
        }
        s.expect_no_event();
        expect_rr_resumes(s, at);
    }));
}

#[test]
fn window_closed_by_next_request_stays_closed() {
    // RFC 9293 §3.8.6.1.
    play(|s| {
        let at = exchange(s, 1, LEN);
        let at = exchange(s, at, LEN);
        s.expect_rr(true);
        s.inject(request(at, LEN).window(0)).expect_within(DELAYED_ACK, ack(at, at + LEN));
    });
}

#[test]
fn cwnd_is_kept_in_rr_mode() {
    // RFC 5681 §4.1: the connection is not idle.
    play(|s| {
        let end = 1 + 40 * SEG;
        s.write(40 * SEG);
        Receiver::new(1, RTT, false).play(s, end, secs(5), |_| false);
        s.start_reading();
        for n in 0..40 {
            s.inject(data(1 + n * SEG, SEG).ack(end));
            s.pass(DELAYED_ACK);
        }
        s.drain();
        s.echo();
        let mut at = end;
        for _ in 0..100 {
            at = exchange(s, at, LEN);
            s.pass(RTT);
        }
        s.write(30 * SEG);
        assert!(s.drain().len() > INITIAL_WINDOW as usize);
    });
}
