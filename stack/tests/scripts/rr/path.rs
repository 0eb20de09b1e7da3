//! Windows, sizes, and what lies between the ends.

use super::*;

#[test]
fn a_closed_window_keeps_the_answer_back() {
    // RFC 9293 §3.8.6.1.
    play(|s| {
        let at = begin(s);
        s.inject(request(at, LEN).window(0));
        s.expect_within(DELAYED_ACK, ack(at, at + LEN));
        s.expect_exchanging(false);
        for _ in 0..3 {
            s.expect_probe_between(ms(1), secs(3), at);
            s.inject(ack(at + LEN, at).window(0));
        }
        s.inject(ack(at + LEN, at));
        s.expect(answer(at, LEN));
        s.pass(RTT);
        goes_on(s, at + LEN);
    });
}

#[test]
fn the_window_of_every_turn_counts() {
    // RFC 9293 §3.8.6, §3.8.6.2.1.
    play(|s| {
        let shift = s.flow().peer.window_scale.unwrap_or(0);
        let mut at = begin(s);
        for window in [400, 300, 200, 30_000, 104, 100, 100] {
            s.inject(request(at, LEN).window(window >> shift));
            s.expect(answer(at, LEN));
            s.expect_exchanging(true);
            s.pass(RTT);
            at += LEN;
        }
        // What fits is one byte less than the answer, or with scaling four.
        s.inject(request(at, LEN).window(96 >> shift));
        s.expect_within(DELAYED_ACK, ack(at, at + LEN));
        s.expect_exchanging(false);
        s.inject(ack(at + LEN, at).window(LEN as u16));
        s.pass(secs(1));
        s.drain();
    });
}

#[test]
fn the_window_of_the_last_turn_limits_what_else_is_sent() {
    // RFC 9293 §3.8.6.
    for window in [3000, 40_000] {
        play(|s| {
            let shift = s.flow().peer.window_scale.unwrap_or(0);
            let at = begin(s);
            s.inject(request(at, LEN).window(window >> shift));
            s.expect(answer(at, LEN));
            s.write(20 * SEG);
            let end = s.drain().last().map(|got| got.end());
            assert!(end <= Some(at + Rel::from(window)), "{end:?}");
        });
    }
}

#[test]
fn the_largest_window_counts_where_half_of_it_does() {
    // RFC 9293 §3.8.6.2.1: half of the largest window that the peer has had is worth a segment.
    let narrow = |peer: Peer| peer.window(120);
    play_with(
        plain_peers().into_iter().map(narrow).collect(),
        |_| {},
        |s| {
            let mut at = begin(s);
            for window in [LEN as u16, 2000, 150] {
                s.inject(request(at, LEN).window(window));
                s.expect(answer(at, LEN));
                s.pass(RTT);
                at += LEN;
            }
            s.inject(request(at, LEN).window(90));
            s.pass(secs(2));
            s.drain();
        },
    );
}

#[test]
fn an_answer_of_several_segments_goes_in_as_many() {
    // RFC 9293 §3.7.1.
    let small = |peer: Peer| if peer.timestamps { peer.mss(512) } else { peer.mss(500) };
    play_with(
        peers().into_iter().map(small).collect(),
        |_| {},
        |s| {
            let mut at = begin(s);
            for len in [500, 501, 1000, 1200] {
                s.inject(request(at, len));
                let sent = s.drain();
                assert!(sent.iter().all(|got| got.len <= 500), "{sent:?}");
                at += len;
                assert_eq!(sent.last().map(|got| (got.end(), got.ack)), Some((at, at)));
                s.expect_exchanging(len == 500);
                s.pass(RTT);
                at = goes_on(s, at);
            }
        },
    );
}

#[test]
fn the_first_answer_is_cut_into_segments() {
    // RFC 9293 §3.7.1: before the ends are known to take turns, too.
    let small = |peer: Peer| if peer.timestamps { peer.mss(512) } else { peer.mss(500) };
    for len in [499, 500, 501, 502, 1000] {
        play_with(
            peers().into_iter().map(small).collect(),
            |_| {},
            |s| {
                s.inject(request(1, len));
                let sent = s.drain();
                assert!(sent.iter().all(|got| got.len <= 500), "{sent:?}");
                assert_eq!(sent.last().map(|got| (got.end(), got.ack)), Some((1 + len, 1 + len)));
            },
        );
    }
}

#[test]
fn a_request_in_a_chain_of_packets_is_answered() {
    play(|s| {
        let mut at = begin(s);
        for first in [0, 1, 300, 999] {
            s.inject_chain(request(at, SEG), first);
            assert_eq!(s.drain().last().map(|got| (got.end(), got.ack)), Some((at + SEG, at + SEG)));
            s.pass(RTT);
            at = goes_on(s, at + SEG);
        }
        s.inject(ack(at, at));
        s.expect_all_packets_back();
    });
}

#[test]
fn answers_go_to_where_the_neighbour_is() {
    // RFC 826; RFC 4861 §7.2.5.
    play(|s| {
        let mut at = begin(s);
        for last in [7, 8] {
            s.move_peer([2, 0, 0, 0, 1, last]);
            s.expect_exchanging(true);
            at = turn(s, at, LEN);
            s.expect_exchanging(true);
            s.pass(RTT);
        }
    });
}

#[test]
fn turns_go_on_when_the_link_comes_back() {
    play_with(
        peers().into_iter().map(|peer| peer.rtt(ms(100))).collect(),
        |_| {},
        |s| {
            let at = turn(s, 1, LEN);
            // The timer of the first turn is out of the way.
            s.pass(ms(250));
            let at = turn(s, at, LEN);
            s.set_link(false);
            s.pass(ms(100));
            s.set_link(true);
            s.pass(ms(110));
            goes_on(s, at);
        },
    );
}

#[test]
fn a_neighbour_is_asked_whether_it_is_there_while_turns_go_on() {
    // RFC 4861 §7.3: what is sent to for long is confirmed, and where it has gone to is found out.
    play_with(
        vec![peer().rtt(ms(50))],
        |_| {},
        |s| {
            let mut at = 1;
            for n in 0..40 {
                at = turn(s, at, LEN);
                s.expect_exchanging(n > 0);
                s.pass(ms(50));
            }
            // It answers from another address; until it is asked it is not known.
            let asked = s.questions;
            for _ in 0..4000 {
                at = turn(s, at, LEN);
                s.pass(ms(50));
            }
            assert!(s.questions > asked, "the neighbour is never asked");
        },
    );
}

#[test]
fn a_path_that_becomes_narrower_is_noticed() {
    // RFC 1191 §6.4; RFC 8201 §5.2.
    play_with(
        peers().into_iter().map(|peer| peer.mss(1460)).collect(),
        |_| {},
        |s| {
            let at = begin(s);
            s.inject(request(at, 1400));
            let sent = s.expect(answer(at, 1400));
            s.expect_exchanging(true);
            let (kind, code, mtu) = if s.flow().peer.ipv6 { (2, 0, 1280) } else { (3, 4, 1000) };
            s.inject_icmp(kind, code, mtu, &sent);
            s.expect_exchanging(false);
            let again = s.drain();
            assert!(!again.is_empty() && again.iter().all(|got| got.raw.ip_len <= mtu as usize), "{again:?}");
            s.pass(RTT);
            s.inject(ack(at + 1400, at + 1400));
            let at = goes_on(s, at + 1400);
            s.inject(request(at, 1400));
            let sent = s.drain();
            assert!(sent.len() == 2 && sent.iter().all(|got| got.raw.ip_len <= mtu as usize), "{sent:?}");
        },
    );
}

#[test]
fn an_unreachable_peer_may_be_reached_again() {
    // RFC 9293 §3.9.2.2 MUST-56.
    play(|s| {
        let at = begin(s);
        let Some(sent) = s.sent.last().cloned() else { panic!("an answer") };
        let kind = if s.flow().peer.ipv6 { 1 } else { 3 };
        for code in [0, 1, 3] {
            s.inject_icmp(kind, code, 0, &sent);
        }
        s.expect_no_event();
        goes_on(s, at);
    });
}

#[test]
fn a_window_that_the_next_turn_closes_is_closed() {
    // RFC 9293 §3.8.6.1.
    play(|s| {
        let at = turn(s, 1, LEN);
        let at = turn(s, at, LEN);
        s.expect_exchanging(true);
        s.inject(request(at, LEN).window(0));
        s.expect_within(DELAYED_ACK, ack(at, at + LEN));
    });
}

#[test]
fn a_congestion_window_that_has_grown_stays_while_turns_go_on() {
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
            at = turn(s, at, LEN);
            s.pass(RTT);
        }
        s.write(30 * SEG);
        assert!(s.drain().len() > INITIAL_WINDOW as usize);
    });
}
