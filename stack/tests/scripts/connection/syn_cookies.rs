//! SYN cookies: RFC 4987 §3.6 and appendix A. The worker restores a connection from the ACK of its SYN-ACK. The
//! timestamp keeps the options that the cookie cannot hold.

use crate::harness::*;

/// Maximum lifetime of a cookie.
const LIFETIME: Duration = secs(300);
/// Port of the half-open connection that fills the backlog.
const FILLER: u16 = 6000;

/// Returns a worker with a full half-open backlog.
fn full(peer: Peer) -> Script {
    let mut s = Script::listen(peer, |config| config.max_half_open = 1);
    s.inject_syn(syn(0).port(FILLER)).expect(syn_ack(0, 1).port(FILLER));
    s
}

/// Returns the SYN-ACK with the cookie for the current port.
fn cookie(s: &mut Script) -> Got {
    s.inject_syn(syn(0));
    s.expect(syn_ack(0, 1))
}

#[test]
fn cookie_restores_connection() {
    // RFC 4987 §3.6.
    let mut s = full(peer());
    cookie(&mut s);
    s.inject(ack(1, 1)).expect_opened();
    s.expect_alive(1, 1);
}

#[test]
fn cookie_with_data_restores_connection() {
    // RFC 4987 §3.6; RFC 9293 §3.10.7.4, seventh.
    let mut s = full(peer());
    cookie(&mut s);
    s.inject(data(1, 500)).expect_opened();
    s.expect_delivered(500);
    s.expect_within(DELAYED_ACK, ack(1, 501));
}

#[test]
fn cookie_keeps_no_state() {
    // RFC 4987 §3.6: the SYN-ACK is not retransmitted.
    let mut s = full(peer());
    cookie(&mut s);
    let again = s.drain_for(secs(5));
    assert!(again.iter().all(|got| got.port == FILLER));
}

#[test]
fn cookie_with_timestamps_keeps_window_scale_and_sack() {
    // RFC 4987 appendix A: the echoed timestamp holds the options.
    for (shift, sack) in [(Some(0), false), (Some(7), true), (Some(14), true), (None, true), (None, false)] {
        let peer = Peer { window_scale: shift, sack, window: 3, ..peer().timestamps() };
        let mut s = full(peer);
        let got = cookie(&mut s);
        assert_eq!(got.raw.options.window_scale.is_some(), shift.is_some());
        assert_eq!(got.raw.options.sack_permitted, sack);
        assert!(got.raw.options.timestamp.is_some());
        s.pass(ms(50));
        s.inject(ack(1, 1)).expect_opened();
        // Peer's window in bytes. The harness checks that the worker respects it.
        let window = 3 << shift.unwrap_or(0);
        s.write(2000);
        s.pass(secs(1));
        let sent: Rel = s.drain().iter().map(|got| got.end() - 1).max().unwrap_or(0);
        assert!(sent >= window.min(1000), "{sent} bytes into a window of {window}");
        let gap = s.inject(data(1001, 100)).drain();
        let blocks: &[(Rel, Rel)] = if sack { &[(1001, 1101)] } else { &[] };
        assert!(gap.iter().any(|got| got.ack == 1 && got.sack == blocks));
    }
}

#[test]
fn cookie_without_timestamps_offers_no_options() {
    // RFC 4987 §3.6: a cookie holds only the MSS.
    let mut s = full(peer().window_scale(7).sack());
    let got = cookie(&mut s);
    assert_eq!((got.raw.options.window_scale, got.raw.options.sack_permitted), (None, false));
    s.inject(ack(1, 1)).expect_opened();
    s.inject(data(1001, 100)).expect(ack(1, 1));
}

#[test]
fn cookie_keeps_mss_rounded_down() {
    // RFC 4987 appendix A: a few bits for the MSS. The harness checks the upper bound.
    for mss in [1460, 1400, 1220, 536] {
        let mut s = full(Peer { mss: Some(mss), ..peer() });
        cookie(&mut s);
        s.inject(ack(1, 1)).expect_opened();
        let longest = s.write(5000).drain().iter().map(|got| got.len).max().unwrap_or(0);
        assert!(longest >= 500.min(mss.into()), "{longest} bytes to a peer with MSS {mss}");
    }
}

#[test]
fn forged_cookie_is_refused() {
    // RFC 4987 §3.6: the acknowledgement number must be the one the worker computed.
    let mut s = full(peer());
    cookie(&mut s);
    for forged in [77_777, -77_777, 1 << 20, 0x0100_0001, 0x4000_0001] {
        s.inject(ack(1, forged)).expect(rst(forged));
    }
    s.expect_no_event();
    s.inject(ack(1, 1)).expect_opened();
}

#[test]
fn guessed_cookies_open_no_connection() {
    // RFC 4987 §3.6: as hard as guessing a sequence number.
    let mut s = full(peer());
    cookie(&mut s);
    for n in 0..5000i64 {
        let guess = n.wrapping_mul(0x9e37_79b9) & 0xffff_ffff;
        if guess != 1 {
            s.inject(ack(1, guess)).drain();
        }
    }
    s.expect_no_event();
}

#[test]
fn cookie_is_valid_for_its_peer_only() {
    // RFC 4987 §3.6: computed over addresses, ports, and the peer's sequence number.
    let mut s = full(peer());
    let isn = cookie(&mut s).raw.seq;
    s.on_port(5001).flow().worker_isn = Some(isn);
    s.inject(ack(1, 1)).expect(rst(1));
    s.expect_no_event();
    s.on_port(5000);
    s.inject(ack(2, 1)).expect(rst(1));
    s.expect_no_event();
}

#[test]
fn cookie_expires() {
    // RFC 4987 §3.6: a slowly increasing time is part of the cookie.
    let mut s = full(peer());
    cookie(&mut s);
    s.drain_for(LIFETIME);
    s.inject_syn(syn(0).port(FILLER)).drain();
    s.inject(ack(1, 1)).expect(rst(1));
    s.expect_no_event();
}

#[test]
fn cookie_is_valid_after_flood_ends() {
    // RFC 4987 §3.6: a cookie issued during the flood stays valid afterwards.
    let mut s = full(peer());
    cookie(&mut s);
    s.inject(rst(1).port(FILLER));
    s.pass(secs(2));
    s.inject(ack(1, 1)).expect_opened();
    s.expect_alive(1, 1);
}

#[test]
fn cookie_is_refused_without_flood() {
    // RFC 4987 §3.6: without a full backlog no cookie was issued, so none is checked.
    let mut s = Script::listen(peer(), |config| config.max_half_open = 100);
    for n in 0..200 {
        s.inject(ack(1, n)).expect(rst(n));
    }
    s.expect_no_event();
}

#[test]
fn connection_limit_applies_to_cookies() {
    // RFC 4987 §3.6: cookies replace half-open state only.
    let mut s = Script::listen(peer(), |config| {
        config.max_half_open = 1;
        config.max_connections = 2;
    });
    s.inject_syn(syn(0).port(FILLER)).expect(syn_ack(0, 1).port(FILLER));
    let mut opened = 0;
    for port in 5000..5010 {
        s.on_port(port).inject_syn(syn(0));
        if s.drain().iter().any(|got| got.has(SYN | ACK)) {
            s.inject(ack(1, 1));
            opened += usize::from(s.has_opened());
            s.drain();
        }
    }
    assert!((1..=2).contains(&opened), "{opened} connections");
}
