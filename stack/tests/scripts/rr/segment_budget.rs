//! Many connections in request-response mode with few packets.

use super::*;

#[test]
fn packet_shortage_ends_rr_mode_without_loss() {
    // No acknowledged data is lost, and every request is answered.
    let mut s = Script::accepted_over(peer().rtt(RTT), link(72));
    let ports: Vec<u16> = (5000..5060).collect();
    for port in &ports {
        s.on_port(*port);
        if *port != 5000 {
            s.handshake();
        }
        s.echo();
    }
    for round in 0..3 {
        let first = 1 + round * 2 * LEN;
        // Each peer sends two requests in a row: the port and its next sequence number.
        let mut waiting: Vec<(u16, Rel)> = ports.iter().map(|port| (*port, first)).collect();
        let mut exchanging = 0;
        while !waiting.is_empty() {
            let mut answered = 0;
            for (port, mut at) in std::mem::take(&mut waiting) {
                while at < first + 2 * LEN {
                    s.on_port(port).inject(request(at, LEN));
                    let Some(got) = s.drain().pop().filter(|got| got.len > 0) else { break };
                    assert_eq!((got.port, got.end(), got.ack), (port, at + LEN, at + LEN));
                    at += LEN;
                    answered += 1;
                }
                exchanging += usize::from(s.is_rr());
                if at < first + 2 * LEN {
                    waiting.push((port, at));
                }
            }
            assert!(exchanging > 0 && answered > 0, "{exchanging} in rr mode, {waiting:?} without an answer");
            // The peers acknowledge their answers.
            for port in ports.iter().filter(|port| waiting.iter().all(|(waits, _)| waits != *port)) {
                s.on_port(*port).inject(ack(first + 2 * LEN, first + 2 * LEN));
            }
            s.drain();
        }
        assert!(exchanging < ports.len(), "no packet shortage");
    }
    for port in &ports {
        s.on_port(*port).expect_delivered(6 * LEN);
    }
    s.expect_no_packets_held();
}

#[test]
fn packet_shortage_grants_no_window() {
    let mut s = Script::accepted_over(peer().rtt(RTT), link(72));
    s.echo();
    let at = enter_rr(&mut s);
    let edge = s.flow().right_edge;
    // The service of another connection leaves its data unread.
    s.on_port(5001).handshake();
    s.stop_reading();
    s.inject_run(0..60, 10).drain();
    // In request-response mode the request replaces the answer that it acknowledges and needs no further packet.
    s.drop_other_arms();
    s.on_port(5000).inject(request(at, LEN));
    s.expect(answer(at, LEN));
    s.expect_rr(false);
    assert!(s.flow().right_edge <= edge.max(at + LEN + SEG), "{edge} {}", s.flow().right_edge);
    s.on_port(5001).start_reading();
    s.drain_for(ms(1));
    s.on_port(5000).pass(RTT);
    expect_rr_resumes(&mut s, at + LEN);
}

#[test]
fn many_connections_use_rr_mode_and_close_by_every_method() {
    let mut s = Script::accepted_over(peer(), link(8192));
    let ports: Vec<u16> = (5000..6100).collect();
    for port in &ports {
        s.on_port(*port);
        if *port != 5000 {
            s.handshake();
        }
        s.echo();
    }
    let mut at = 1;
    for _ in 0..3 {
        for some in ports.chunks(128) {
            s.inject_burst(some.iter().map(|port| request(at, LEN).port(*port)));
        }
        let mut answered: Vec<_> = s.drain().iter().map(|got| (got.port, got.seq, got.len, got.ack)).collect();
        answered.sort_unstable();
        assert!(answered.iter().copied().eq(ports.iter().map(|port| (*port, at, LEN, at + LEN))));
        at += LEN;
        s.pass(ms(1));
    }
    for port in ports.iter().step_by(50) {
        s.on_port(*port).expect_rr(true);
    }
    for some in ports.chunks(128) {
        let ends = some.iter().filter(|port| **port % 4 != 3).map(|port| match port % 4 {
            0 => rst(at).port(*port),
            1 => fin(at, at).port(*port),
            _ => ack(at, at).port(*port),
        });
        s.inject_burst(ends.collect::<Vec<_>>());
    }
    for port in ports.iter().filter(|port| **port % 4 != 0) {
        s.on_port(*port).abort();
    }
    s.drain();
    s.expect_no_packets_held();
}

#[test]
fn request_longer_than_window_is_trimmed() {
    // RFC 9293 §3.10.7.4, first.
    let long = LinkConfig { mtu: 9000, data_room: 9200, ..link(POOL) };
    let mut s = Script::accepted_over_with(peer().rtt(RTT).mss(8000), long, |config| {
        settings::receive_buffer(config, 4096);
    });
    s.echo();
    let at = enter_rr(&mut s);
    s.inject(request(at, 5000)).expect(data(at, 4096).ack(at + 4096));
    s.expect_nothing();
    s.expect_delivered(at - 1 + 4096);
}
