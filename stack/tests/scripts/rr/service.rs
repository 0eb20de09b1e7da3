//! What the service does when it is its turn, and when it is not.

use super::*;

#[test]
fn the_service_closes_when_it_is_its_turn() {
    // RFC 9293 §3.10.4: what is queued goes first.
    play(|s| {
        let at = begin(s);
        s.without_controls();
        s.next(vec![Command::Forward, Command::Close]);
        s.inject(request(at, LEN));
        let sent = s.drain();
        let last = sent.last().map(|got| (got.end(), got.ack, got.has(FIN)));
        if last != Some((at + LEN + 1, at + LEN, true)) {
            s.expect_nothing_for(ms(1));
            s.inject(ack(at + LEN, at + LEN));
            s.expect(fin(at + LEN, at + LEN));
        }
        s.inject(fin(at + LEN, at + LEN + 1));
        s.expect(ack(at + LEN + 1, at + LEN + 1));
        s.expect_peer_closed();
        s.expect_closed(CloseReason::Finished);
        s.expect_all_packets_back();
    });
}

#[test]
fn the_service_closes_without_an_answer() {
    // RFC 9293 §3.10.4.
    play(|s| {
        let at = begin(s);
        s.next(vec![Command::Close, Command::Read(LEN as usize)]);
        s.inject(request(at, LEN));
        s.expect(fin(at, at + LEN));
        s.inject(fin(at + LEN, at + 1));
        s.expect(ack(at + 1, at + LEN + 1));
        s.expect_peer_closed();
        s.expect_closed(CloseReason::Finished);
        s.expect_all_packets_back();
    });
}

#[test]
fn the_service_closes_when_it_is_the_peers_turn() {
    // RFC 9293 §3.10.4.
    play(|s| {
        let at = begin(s);
        s.close();
        s.expect_exchanging(false);
        let early = s.drain().iter().any(|got| got.has(FIN));
        s.inject(request(at, LEN));
        if !early {
            s.expect(fin(at, at + LEN));
        }
        s.drain();
        s.inject(rst(at + LEN));
        s.expect_closed(CloseReason::Reset);
        s.expect_all_packets_back();
    });
}

#[test]
fn the_service_aborts_whoever_has_the_turn() {
    // RFC 9293 §3.10.5.
    play(|s| {
        let at = begin(s);
        s.abort();
        s.expect(rst_ack(at, at));
        s.expect_closed(CloseReason::Aborted);
        s.expect_all_packets_back();
    });
    for (commands, sent) in [(vec![Command::Abort], 0), (vec![Command::Peek, Command::Abort], 0)] {
        play(|s| {
            let at = begin(s);
            s.next(commands.clone());
            s.inject(request(at, LEN));
            s.expect(rst_ack(at + sent, at + LEN));
            s.expect_closed(CloseReason::Aborted);
            s.expect_all_packets_back();
        });
    }
    play(|s| {
        let at = begin(s);
        s.without_controls();
        s.next(vec![Command::Forward, Command::Abort]);
        s.inject(request(at, LEN));
        assert!(s.drain().last().is_some_and(|got| got.has(RST)));
        s.expect_closed(CloseReason::Aborted);
        s.expect_all_packets_back();
    });
}

#[test]
fn a_service_that_consumes_sends_nothing_back() {
    // RFC 9293 §3.8.6.3.
    play(|s| {
        let at = begin(s);
        s.start_reading();
        s.inject(request(at, LEN));
        s.expect_exchanging(false);
        s.expect_after(DELAYED_ACK, ack(at, at + LEN));
        s.expect_delivered(at - 1 + LEN);
        s.expect_nothing_for(secs(1));
        s.expect_all_packets_back();
    });
}

#[test]
fn a_service_may_do_with_its_turn_what_it_likes() {
    let half = LEN as usize / 2;
    let whole = LEN as usize;
    let ways = [
        vec![Command::Peek, Command::Forward],
        vec![Command::Peek, Command::Peek, Command::Read(half), Command::Write(half), Command::Forward],
        vec![Command::Write(whole), Command::Read(whole)],
        vec![Command::Send(whole), Command::Read(whole)],
        vec![Command::Read(whole), Command::Write(whole)],
        vec![Command::Take(whole), Command::Send(whole)],
        vec![Command::Take(half), Command::Write(half), Command::Forward],
        vec![Command::Write(half), Command::Take(half), Command::Forward],
        vec![Command::Read(half), Command::Peek, Command::Read(half), Command::Write(half), Command::Write(half)],
        vec![Command::Write(half), Command::Write(half), Command::Peek, Command::Read(whole)],
        vec![Command::Write(half), Command::Read(half), Command::Write(half), Command::Read(half)],
        vec![Command::Reserve(half), Command::Read(whole), Command::Write(whole)],
        vec![Command::Write(half), Command::Reserve(1), Command::Read(whole), Command::Write(half)],
        vec![Command::Read(whole), Command::Write(whole), Command::Reserve(half)],
        vec![Command::Read(whole), Command::Reserve(0), Command::Send(half), Command::Write(half)],
        vec![Command::Read(whole), Command::Write(half), Command::Send(half)],
        vec![Command::Read(whole), Command::Fill(half), Command::Fill(half)],
        vec![Command::Fill(half), Command::Read(whole), Command::Fill(0), Command::Write(half)],
        vec![Command::AnswerAtOnce(whole, whole)],
        vec![Command::AnswerAtOnce(whole + 1, whole)],
        vec![Command::AnswerAtOnce(half, half), Command::AnswerAtOnce(half, half)],
        vec![Command::AnswerAtOnce(half, whole), Command::Read(half)],
        vec![Command::Read(half), Command::Peek, Command::AnswerAtOnce(half, whole)],
        vec![Command::Write(half), Command::AnswerAtOnce(whole, half)],
        vec![Command::Reserve(half), Command::AnswerAtOnce(whole, whole)],
        vec![Command::AnswerAtOnce(half, 0), Command::AnswerAtOnce(half, whole)],
        vec![Command::AnswerAtOnce(whole, 0), Command::Write(whole)],
        vec![Command::Timer(None), Command::Forward],
        vec![Command::Forward, Command::Forward],
        vec![Command::Forward, Command::Peek, Command::Read(whole)],
        vec![Command::Room, Command::Forward, Command::Room],
    ];
    for commands in ways {
        play(|s| {
            let at = begin(s);
            s.next(commands.clone());
            s.inject(request(at, LEN));
            let sent = s.drain();
            assert_eq!(sent.last().map(|got| (got.end(), got.ack)), Some((at + LEN, at + LEN)), "{commands:?}");
            s.expect_delivered(at - 1 + LEN);
            s.pass(RTT);
            let at = goes_on(s, at + LEN);
            s.order(Command::Timer(Some(ms(5))));
            s.pass(ms(6));
            s.expect_timer();
            s.inject(ack(at, at));
            s.pass(ms(1));
        });
    }
}

#[test]
fn an_answer_may_have_any_length() {
    // RFC 9293 §3.7.1: no segment is longer than the peer's MSS; RFC 1122 §4.2.3.4: what is short goes when all is acknowledged.
    let (request_len, lens) = (LEN as usize, [10, LEN, SEG - 1, SEG, SEG + 1, 2 * SEG, 3 * SEG + 500]);
    for (len, at_once) in lens.iter().flat_map(|len| [(*len, false), (*len, true)]) {
        play(|s| {
            let at = begin(s);
            s.next(match at_once {
                true => vec![Command::AnswerAtOnce(request_len, len as usize)],
                false => vec![Command::Read(request_len), Command::Write(10), Command::Write(len as usize - 10)],
            });
            s.inject(request(at, LEN));
            let sent = s.drain();
            let lens: Vec<Rel> = sent.iter().map(|got| got.len).collect();
            let mut want = vec![SEG; (len / SEG) as usize];
            want.extend((len % SEG > 0).then_some(len % SEG));
            assert_eq!(lens, want);
            assert!(sent.iter().all(|got| got.ack == at + LEN));
            s.expect_exchanging(len <= SEG);
            s.pass(RTT);
            // What the peer says next acknowledges all of it.
            s.next(vec![Command::Read(LEN as usize), Command::Write(1)]);
            s.inject(data(at + LEN, LEN).ack(at + len).push());
            s.expect(data(at + len, 1).ack(at + 2 * LEN).push());
            s.pass(RTT);
            s.inject(ack(at + 2 * LEN, at + len + 1));
            s.expect_nothing_for(secs(1));
            s.expect_delivered(at - 1 + 2 * LEN);
            s.expect_all_packets_back();
        });
    }
}

#[test]
fn what_follows_an_answer_made_in_one_step_goes_by_itself() {
    // With Nagle's algorithm it waits for the acknowledgement (RFC 1122 §4.2.3.4).
    let half = LEN / 2;
    for (peer, nagle) in peers().into_iter().flat_map(|peer| [(peer.clone(), false), (peer, true)]) {
        let mut s = Script::accepted_over_with(peer, link(POOL), |config| config.nagle = nagle);
        s.exchanges = true;
        s.order(Command::Repeat);
        let at = begin(&mut s);
        s.without_controls();
        s.next(vec![Command::AnswerAtOnce(LEN as usize, half as usize), Command::Write(half as usize)]);
        s.inject(request(at, LEN));
        s.expect(data(at, half).ack(at + LEN).push());
        if nagle {
            s.expect_nothing();
            s.inject(ack(at + LEN, at + half));
        }
        s.expect(data(at + half, half).ack(at + LEN).push());
        s.pass(RTT);
        goes_on(&mut s, at + LEN);
    }
}

#[test]
fn a_service_may_consume_now_and_answer_later() {
    // RFC 5681 §4.2: the acknowledgement waits for the answer, though not for long.
    play(|s| {
        let mut at = turn(s, 1, LEN);
        s.pass(RTT);
        s.next(vec![Command::Read(LEN as usize)]);
        s.inject(request(at, LEN));
        s.write(LEN);
        s.expect(answer(at, LEN));
        s.expect_exchanging(false);
        at += LEN;
        s.pass(RTT);
        at = goes_on(s, at);
        for wait in [ms(0), ms(1), DELAYED_ACK + ms(1)] {
            s.next(vec![Command::Read(LEN as usize)]);
            s.inject(request(at, LEN));
            s.expect_nothing();
            s.expect_exchanging(false);
            s.pass(wait);
            s.drain();
            s.write(LEN);
            s.expect(answer(at, LEN));
            s.expect_exchanging(false);
            s.pass(RTT);
            at = goes_on(s, at + LEN);
        }
    });
}

#[test]
fn a_service_may_answer_before_it_consumes() {
    // RFC 9293 §3.8.6: the window is less by what waits.
    play(|s| {
        let at = begin(s);
        s.next(vec![Command::Write(LEN as usize)]);
        s.inject(request(at, LEN));
        let sent = s.expect(answer(at, LEN));
        let window = u32::from(sent.raw.window);
        s.expect_exchanging(false);
        s.read(LEN);
        s.expect_nothing();
        s.pass(RTT);
        s.inject(request(at + LEN, LEN));
        assert!(u32::from(s.expect(answer(at + LEN, LEN)).raw.window) >= window);
        s.pass(RTT);
        goes_on(s, at + 2 * LEN);
    });
}

#[test]
fn what_is_short_waits_for_acknowledgements_with_nagles_algorithm() {
    // RFC 9293 §3.7.4.
    play_with(plain_peers(), settings::nagle, |s| {
        let mut at = begin(s);
        let half = SEG as usize / 2;
        s.next(vec![Command::Read(LEN as usize), Command::Write(SEG as usize), Command::Write(half)]);
        s.inject(request(at, LEN));
        s.expect(data(at, SEG).ack(at + LEN));
        s.expect_nothing();
        s.pass(RTT);
        s.inject(ack(at + LEN, at + SEG));
        s.expect(data(at + SEG, SEG / 2).ack(at + LEN).push());
        s.pass(RTT);
        s.next(vec![Command::Read(LEN as usize), Command::Write(half)]);
        s.inject(data(at + LEN, LEN).ack(at + SEG + SEG / 2).push());
        at += SEG + SEG / 2;
        s.expect(data(at, SEG / 2).push());
        s.write(half as Rel);
        s.expect_nothing();
    });
}

#[test]
fn where_packets_run_low_answers_go_as_ever() {
    play_over(
        64,
        plain_peers(),
        |_| {},
        |s| {
            let at = begin(s);
            s.on_port(6000).shake_hands();
            s.stop_reading();
            // Two of them do not fit into one packet.
            for n in 0..24 {
                s.inject(data(1 + 1400 * n, 1400));
            }
            s.drain();
            s.on_port(5000);
            s.next(vec![Command::Write(LEN as usize), Command::Read(LEN as usize)]);
            s.inject(request(at, LEN));
            s.expect(answer(at, LEN));
            s.expect_exchanging(false);
            s.on_port(6000).start_reading();
            s.drain();
            s.on_port(5000);
            s.drain();
        },
    );
}

#[test]
fn a_place_that_is_never_filled_is_nothing() {
    play(|s| {
        let at = begin(s);
        s.next(vec![Command::Read(LEN as usize), Command::Reserve(LEN as usize)]);
        s.inject(request(at, LEN));
        s.expect_after(DELAYED_ACK, ack(at, at + LEN));
        s.write(LEN);
        s.expect(answer(at, LEN));
        s.pass(RTT);
        goes_on(s, at + LEN);
    });
}

#[test]
fn a_service_may_say_more_than_its_answer() {
    play(|s| {
        let at = begin(s);
        s.without_controls();
        s.next(vec![Command::Forward, Command::Write(50)]);
        s.inject(request(at, LEN));
        assert_eq!(s.drain().iter().map(|got| got.len).sum::<Rel>(), LEN + 50);
        s.expect_exchanging(false);
        s.next(vec![Command::Read(50)]);
        s.pass(RTT);
        s.inject(data(at + LEN, 50).ack(at + LEN + 50));
        s.pass(DELAYED_ACK);
        s.drain();
        goes_on(s, at + LEN + 50);
    });
}

#[test]
fn a_service_may_speak_out_of_turn() {
    play(|s| {
        let at = begin(s);
        s.write(50);
        s.expect(data(at, 50).ack(at));
        s.expect_exchanging(false);
        s.next(vec![Command::Read(50)]);
        s.pass(RTT);
        s.inject(data(at, 50).ack(at + 50));
        s.expect_within(DELAYED_ACK, ack(at + 50, at + 50));
        goes_on(s, at + 50);
    });
}

#[test]
fn what_a_service_keeps_stays_what_it_is() {
    play(|s| {
        let mut at = begin(s);
        for _ in 0..20 {
            s.next(vec![Command::Take(LEN as usize), Command::Write(LEN as usize)]);
            at = turn(s, at, LEN);
            s.pass(RTT);
            at = turn(s, at, LEN);
            s.pass(RTT);
        }
        s.order(Command::Timer(Some(ms(1))));
        s.pass(ms(2));
        s.expect_timer();
    });
}

#[test]
fn the_timer_of_the_service_comes_while_turns_go_on() {
    for delay in [ms(1), ms(25), ms(1000)] {
        play(|s| {
            let mut at = begin(s);
            s.order(Command::Timer(Some(delay)));
            let due = s.now() + delay;
            while s.now() < due + ms(20) {
                at = turn(s, at, LEN);
                s.pass(RTT);
            }
            let came = s.expect_timer();
            assert!(came >= due && came.since(due) < ms(4), "{:?} late", came.since(due));
            s.next(vec![Command::Timer(Some(ms(5))), Command::Forward]);
            at = turn(s, at, LEN);
            s.pass(RTT);
            s.expect_timer();
            goes_on(s, at);
        });
    }
}

#[test]
fn with_other_settings_turns_are_as_they_were() {
    for configure in [
        settings::nagle as fn(&mut Config),
        |config| config.pacing = true,
        |config| settings::keepalive(config, secs(5), secs(1), 2),
        settings::newreno,
        settings::dctcp,
        |config| config.linger = Some(secs(1)),
    ] {
        play_with(peers(), configure, |s| {
            let mut at = 1;
            for n in 0..8 {
                at = turn(s, at, LEN);
                s.expect_exchanging(n > 0);
                s.pass(RTT);
            }
            s.inject(ack(at, at));
            s.pass(secs(20));
            s.drain();
        });
    }
}

#[test]
fn a_service_that_waits_for_room_is_told_of_it() {
    play_with(
        peers(),
        |config| settings::send_buffer(config, 4096),
        |s| {
            let at = begin(s);
            s.next(vec![Command::Offer(5000), Command::Forward]);
            s.inject(request(at, LEN));
            s.expect(answer(at, LEN));
            s.pass(RTT);
            s.inject(request(at + LEN, LEN));
            s.expect(answer(at + LEN, LEN));
            s.expect_writable();
            s.pass(RTT);
            goes_on(s, at + 2 * LEN);
        },
    );
}

#[test]
fn a_service_that_is_woken_between_turns_finds_nothing_to_send_back() {
    play(|s| {
        let at = begin(s);
        s.order(Command::Forward);
        s.expect_nothing();
        s.expect_exchanging(true);
        goes_on(s, at);
    });
}
