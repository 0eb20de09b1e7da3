//! Actions of the service in request-response mode.

use super::*;

#[test]
fn close_with_answer_sends_fin_after_data() {
    // RFC 9293 §3.10.4: queued data is sent first.
    play(in_rr(|s, at| {
        s.drop_other_arms();
        s.on_readable(vec![Command::Forward, Command::Close]);
        let sent = s.inject(request(at, LEN)).drain();
        let last = sent.last().map(|got| (got.end(), got.ack, got.has(FIN)));
        if last != Some((at + LEN + 1, at + LEN, true)) {
            s.expect_nothing_for(ms(1));
            s.inject(ack(at + LEN, at + LEN)).expect(fin(at + LEN, at + LEN));
        }
        s.inject(fin(at + LEN, at + LEN + 1)).expect(ack(at + LEN + 1, at + LEN + 1));
        s.expect_peer_closed();
        s.expect_closed(CloseReason::Finished);
        s.expect_no_packets_held();
    }));
}

#[test]
fn close_without_answer_sends_fin() {
    // RFC 9293 §3.10.4.
    play(in_rr(|s, at| {
        s.on_readable(vec![Command::Close, Command::Read(LEN as usize)]);
        s.inject(request(at, LEN)).expect(fin(at, at + LEN));
        s.inject(fin(at + LEN, at + 1)).expect(ack(at + 1, at + LEN + 1));
        s.expect_peer_closed();
        s.expect_closed(CloseReason::Finished);
        s.expect_no_packets_held();
    }));
}

#[test]
fn close_while_peer_has_the_turn_sends_fin() {
    // RFC 9293 §3.10.4.
    play(in_rr(|s, at| {
        s.close().expect_rr(false);
        let early = s.drain().iter().any(|got| got.has(FIN));
        s.inject(request(at, LEN));
        if !early {
            s.expect(fin(at, at + LEN));
        }
        s.drain();
        s.inject(rst(at + LEN)).expect_closed(CloseReason::Reset);
        s.expect_no_packets_held();
    }));
}

#[test]
fn abort_sends_rst_in_either_turn() {
    // RFC 9293 §3.10.5.
    play(in_rr(|s, at| {
        s.abort();
        s.expect(rst_ack(at, at));
        s.expect_closed(CloseReason::Aborted);
        s.expect_no_packets_held();
    }));
    for (commands, sent) in [(vec![Command::Abort], 0), (vec![Command::Peek, Command::Abort], 0)] {
        play(in_rr(|s, at| {
            s.on_readable(commands.clone());
            s.inject(request(at, LEN)).expect(rst_ack(at + sent, at + LEN));
            s.expect_closed(CloseReason::Aborted);
            s.expect_no_packets_held();
        }));
    }
    play(in_rr(|s, at| {
        s.drop_other_arms();
        s.on_readable(vec![Command::Forward, Command::Abort]);
        s.inject(request(at, LEN));
        assert!(s.drain().last().is_some_and(|got| got.has(RST)));
        s.expect_closed(CloseReason::Aborted);
        s.expect_no_packets_held();
    }));
}

#[test]
fn consumed_request_without_answer_is_acknowledged() {
    // RFC 9293 §3.8.6.3.
    play(in_rr(|s, at| {
        s.start_reading();
        s.inject(request(at, LEN)).expect_rr(false);
        s.expect_after(DELAYED_ACK, ack(at, at + LEN));
        s.expect_delivered(at - 1 + LEN);
        s.expect_nothing_for(secs(1));
        s.expect_no_packets_held();
    }));
}

#[test]
fn service_may_use_any_calls_for_its_answer() {
    let half = LEN as usize / 2;
    let whole = LEN as usize;
    let sequences = [
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
        vec![Command::Answer(whole, whole)],
        vec![Command::Answer(whole + 1, whole)],
        vec![Command::Answer(half, half), Command::Answer(half, half)],
        vec![Command::Answer(half, whole), Command::Read(half)],
        vec![Command::Read(half), Command::Peek, Command::Answer(half, whole)],
        vec![Command::Write(half), Command::Answer(whole, half)],
        vec![Command::Reserve(half), Command::Answer(whole, whole)],
        vec![Command::Answer(half, 0), Command::Answer(half, whole)],
        vec![Command::Answer(whole, 0), Command::Write(whole)],
        vec![Command::Timer(None), Command::Forward],
        vec![Command::Forward, Command::Forward],
        vec![Command::Forward, Command::Peek, Command::Read(whole)],
        vec![Command::Room, Command::Forward, Command::Room],
    ];
    for commands in sequences {
        play(in_rr(|s, at| {
            s.on_readable(commands.clone());
            let sent = s.inject(request(at, LEN)).drain();
            assert_eq!(sent.last().map(|got| (got.end(), got.ack)), Some((at + LEN, at + LEN)), "{commands:?}");
            s.expect_delivered(at - 1 + LEN);
            s.pass(RTT);
            let at = expect_rr_resumes(s, at + LEN);
            s.command(Command::Timer(Some(ms(5))));
            s.pass(ms(6));
            s.expect_timer();
            s.inject(ack(at, at));
            s.pass(ms(1));
        }));
    }
}

#[test]
fn answer_may_have_any_length() {
    // RFC 9293 §3.7.1: no segment exceeds the peer's MSS; RFC 1122 §4.2.3.4: a short segment is sent when all data is
    // acknowledged.
    let (request_len, lens) = (LEN as usize, [10, LEN, SEG - 1, SEG, SEG + 1, 2 * SEG, 3 * SEG + 500]);
    for (len, at_once) in lens.iter().flat_map(|len| [(*len, false), (*len, true)]) {
        play(in_rr(|s, at| {
            s.on_readable(match at_once {
                true => vec![Command::Answer(request_len, len as usize)],
                false => vec![Command::Read(request_len), Command::Write(10), Command::Write(len as usize - 10)],
            });
            let sent = s.inject(request(at, LEN)).drain();
            let lens: Vec<Rel> = sent.iter().map(|got| got.len).collect();
            let mut want = vec![SEG; (len / SEG) as usize];
            want.extend((len % SEG > 0).then_some(len % SEG));
            assert_eq!(lens, want);
            assert!(sent.iter().all(|got| got.ack == at + LEN));
            s.expect_rr(len <= SEG);
            s.pass(RTT);
            // The next request acknowledges the whole answer.
            s.on_readable(vec![Command::Read(LEN as usize), Command::Write(1)]);
            s.inject(data(at + LEN, LEN).ack(at + len).push()).expect(data(at + len, 1).ack(at + 2 * LEN).push());
            s.pass(RTT);
            s.inject(ack(at + 2 * LEN, at + len + 1)).expect_nothing_for(secs(1));
            s.expect_delivered(at - 1 + 2 * LEN);
            s.expect_no_packets_held();
        }));
    }
}

#[test]
fn data_after_answer_call_is_sent_separately() {
    // With Nagle's algorithm it waits for the ACK (RFC 1122 §4.2.3.4).
    let half = LEN / 2;
    for (peer, nagle) in peers().into_iter().flat_map(|peer| [(peer.clone(), false), (peer, true)]) {
        let mut s = Script::accepted_over_with(peer, link(POOL), |config| config.nagle = nagle);
        s.rr_allowed = true;
        s.command(Command::CopyBack);
        let at = enter_rr(&mut s);
        s.drop_other_arms();
        s.on_readable(vec![Command::Answer(LEN as usize, half as usize), Command::Write(half as usize)]);
        s.inject(request(at, LEN)).expect(data(at, half).ack(at + LEN).push());
        if nagle {
            s.expect_nothing();
            s.inject(ack(at + LEN, at + half));
        }
        s.expect(data(at + half, half).ack(at + LEN).push());
        s.pass(RTT);
        expect_rr_resumes(&mut s, at + LEN);
    }
}

#[test]
fn service_may_consume_now_and_answer_later() {
    // RFC 5681 §4.2: the ACK waits for the answer, within the delay limit.
    play(|s| {
        let mut at = exchange(s, 1, LEN);
        s.pass(RTT);
        s.on_readable(vec![Command::Read(LEN as usize)]);
        s.inject(request(at, LEN));
        s.write(LEN).expect(answer(at, LEN));
        s.expect_rr(false);
        at += LEN;
        s.pass(RTT);
        at = expect_rr_resumes(s, at);
        for wait in [ms(0), ms(1), DELAYED_ACK + ms(1)] {
            s.on_readable(vec![Command::Read(LEN as usize)]);
            s.inject(request(at, LEN)).expect_nothing();
            s.expect_rr(false);
            s.drain_for(wait);
            s.write(LEN).expect(answer(at, LEN));
            s.expect_rr(false);
            s.pass(RTT);
            at = expect_rr_resumes(s, at + LEN);
        }
    });
}

#[test]
fn service_may_answer_before_it_consumes() {
    // RFC 9293 §3.8.6: unread data reduces the window.
    play(in_rr(|s, at| {
        s.on_readable(vec![Command::Write(LEN as usize)]);
        let sent = s.inject(request(at, LEN)).expect(answer(at, LEN));
        let window = u32::from(sent.raw.window);
        s.expect_rr(false);
        s.read(LEN);
        s.expect_nothing();
        s.pass(RTT);
        s.inject(request(at + LEN, LEN));
        assert!(u32::from(s.expect(answer(at + LEN, LEN)).raw.window) >= window);
        s.pass(RTT);
        expect_rr_resumes(s, at + 2 * LEN);
    }));
}

#[test]
fn nagle_delays_short_data() {
    // RFC 9293 §3.7.4.
    play_with(
        plain_peers(),
        settings::nagle,
        in_rr(|s, mut at| {
            let half = SEG as usize / 2;
            s.on_readable(vec![Command::Read(LEN as usize), Command::Write(SEG as usize), Command::Write(half)]);
            s.inject(request(at, LEN)).expect(data(at, SEG).ack(at + LEN));
            s.expect_nothing();
            s.pass(RTT);
            s.inject(ack(at + LEN, at + SEG)).expect(data(at + SEG, SEG / 2).ack(at + LEN).push());
            s.pass(RTT);
            s.on_readable(vec![Command::Read(LEN as usize), Command::Write(half)]);
            s.inject(data(at + LEN, LEN).ack(at + SEG + SEG / 2).push());
            at += SEG + SEG / 2;
            s.expect(data(at, SEG / 2).push());
            s.write(half as Rel).expect_nothing();
        }),
    );
}

#[test]
fn packet_shortage_does_not_delay_answers() {
    play_over(
        64,
        plain_peers(),
        |_| {},
        |s| {
            let at = enter_rr(s);
            s.on_port(6000).handshake();
            s.stop_reading();
            // A packet holds one of these segments, not two.
            s.inject_run(0..24, 1400).drain();
            s.on_port(5000);
            s.on_readable(vec![Command::Write(LEN as usize), Command::Read(LEN as usize)]);
            s.inject(request(at, LEN)).expect(answer(at, LEN));
            s.expect_rr(false);
            s.on_port(6000).start_reading();
            s.drain();
            s.on_port(5000);
            s.drain();
        },
    );
}

#[test]
fn uncommitted_reservation_sends_nothing() {
    play(in_rr(|s, at| {
        s.on_readable(vec![Command::Read(LEN as usize), Command::Reserve(LEN as usize)]);
        s.inject(request(at, LEN)).expect_after(DELAYED_ACK, ack(at, at + LEN));
        s.write(LEN).expect(answer(at, LEN));
        s.pass(RTT);
        expect_rr_resumes(s, at + LEN);
    }));
}

#[test]
fn service_may_send_more_than_its_answer() {
    play(in_rr(|s, at| {
        s.drop_other_arms();
        s.on_readable(vec![Command::Forward, Command::Write(50)]);
        s.inject(request(at, LEN));
        assert_eq!(s.drain().iter().map(|got| got.len).sum::<Rel>(), LEN + 50);
        s.expect_rr(false);
        s.on_readable(vec![Command::Read(50)]);
        s.pass(RTT);
        s.inject(data(at + LEN, 50).ack(at + LEN + 50)).drain_for(DELAYED_ACK);
        expect_rr_resumes(s, at + LEN + 50);
    }));
}

#[test]
fn service_may_send_out_of_turn() {
    play(in_rr(|s, at| {
        s.write(50).expect(data(at, 50).ack(at));
        s.expect_rr(false);
        s.on_readable(vec![Command::Read(50)]);
        s.pass(RTT);
        s.inject(data(at, 50).ack(at + 50)).expect_within(DELAYED_ACK, ack(at + 50, at + 50));
        expect_rr_resumes(s, at + 50);
    }));
}

#[test]
fn taken_bytes_stay_unchanged() {
    play(in_rr(|s, mut at| {
        for _ in 0..20 {
            s.on_readable(vec![Command::Take(LEN as usize), Command::Write(LEN as usize)]);
            at = exchange(s, at, LEN);
            s.pass(RTT);
            at = exchange(s, at, LEN);
            s.pass(RTT);
        }
        s.command(Command::Timer(Some(ms(1))));
        s.pass(ms(2));
        s.expect_timer();
    }));
}

#[test]
fn service_timer_expires_in_rr_mode() {
    for delay in [ms(1), ms(25), ms(1000)] {
        play(in_rr(|s, mut at| {
            s.command(Command::Timer(Some(delay)));
            let due = s.now() + delay;
            while s.now() < due + ms(20) {
                at = exchange(s, at, LEN);
                s.pass(RTT);
            }
            let expired = s.expect_timer();
            assert!(expired >= due && expired.since(due) < ms(4), "{:?} late", expired.since(due));
            s.on_readable(vec![Command::Timer(Some(ms(5))), Command::Forward]);
            at = exchange(s, at, LEN);
            s.pass(RTT);
            s.expect_timer();
            expect_rr_resumes(s, at);
        }));
    }
}

#[test]
fn settings_that_exclude_rr_mode_do_not_change_behaviour() {
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
                at = exchange(s, at, LEN);
                s.expect_rr(n > 0);
                s.pass(RTT);
            }
            s.inject(ack(at, at)).drain_for(secs(20));
        });
    }
}

#[test]
fn writable_follows_in_rr_mode() {
    play_with(
        peers(),
        |config| settings::send_buffer(config, 4096),
        |s| {
            let at = enter_rr(s);
            s.on_readable(vec![Command::Oversend(5000), Command::Forward]);
            s.inject(request(at, LEN)).expect(answer(at, LEN));
            s.pass(RTT);
            s.inject(request(at + LEN, LEN)).expect(answer(at + LEN, LEN));
            s.expect_writable();
            s.pass(RTT);
            expect_rr_resumes(s, at + 2 * LEN);
        },
    );
}

#[test]
fn forward_between_requests_sends_nothing() {
    play(in_rr(|s, at| {
        s.command(Command::Forward);
        s.expect_nothing();
        s.expect_rr(true);
        expect_rr_resumes(s, at);
    }));
}
