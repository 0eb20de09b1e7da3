//! Half-open connections: RFC 4987.

use crate::harness::*;
use linerate_bypass::Packet;

/// Returns peers of both families, with the usual SYN options, with more, and with fewer.
fn peers() -> [Peer; 5] {
    let usual = peer().sack().timestamps().window_scale(7);
    [usual.clone(), usual.clone().mss(700), usual.clone().ipv6(), usual.ecn(), peer()]
}

/// Sends SYNs from `ports` and returns the ports that received a SYN-ACK.
fn send_syns(s: &mut Script, ports: std::ops::Range<u16>) -> Vec<u16> {
    for port in ports {
        s.inject_syn(syn(0).port(port));
    }
    s.drain().iter().filter(|got| got.has(SYN | ACK)).map(|got| got.port).collect()
}

/// Returns the ports whose SYN-ACK is retransmitted, which shows that the worker keeps state for them. Cookies are not
/// retransmitted.
fn with_state(s: &mut Script) -> Vec<u16> {
    let mut ports: Vec<u16> = s.drain_for(INITIAL_RTO + ms(50)).iter().map(|got| got.port).collect();
    ports.sort_unstable();
    ports
}

#[test]
fn half_open_limit_bounds_kept_state() {
    // RFC 4987 §3.2: a bounded backlog.
    for peer in peers() {
        let mut s = Script::listen(peer, |config| config.max_half_open = 4);
        send_syns(&mut s, 6000..6020);
        assert_eq!(with_state(&mut s), [6000, 6001, 6002, 6003]);
    }
}

#[test]
fn syn_flood_does_not_exclude_client() {
    // RFC 4987 §3.6: SYN cookies.
    let mut s = Script::listen(peer(), |config| config.max_half_open = 16);
    for n in 0..40 {
        assert_eq!(send_syns(&mut s, 6000 + 50 * n..6050 + 50 * n).len(), 50);
    }
    s.handshake();
    s.expect_alive(1, 1);
    s.close_by_peer(2, 2);
}

#[test]
fn completed_connection_frees_half_open_slot() {
    // RFC 4987 §3.2.
    let mut s = Script::listen(peer(), |config| config.max_half_open = 2);
    assert_eq!(send_syns(&mut s, 6000..6002).len(), 2);
    for port in [6000, 6001] {
        s.on_port(port).inject(ack(1, 1));
        s.expect_opened();
    }
    assert_eq!(send_syns(&mut s, 6002..6004).len(), 2);
    assert_eq!(with_state(&mut s), [6002, 6003]);
}

#[test]
fn reset_connection_frees_half_open_slot() {
    // RFC 9293 §3.10.7.4, second, SYN-RECEIVED.
    let mut s = Script::listen(peer(), |config| config.max_half_open = 2);
    assert_eq!(send_syns(&mut s, 6000..6002).len(), 2);
    s.inject(rst(1).port(6000));
    s.inject(rst(1).port(6001));
    assert_eq!(send_syns(&mut s, 6002..6004).len(), 2);
    assert_eq!(with_state(&mut s), [6002, 6003]);
}

#[test]
fn timed_out_connection_frees_half_open_slot() {
    // RFC 4987 §3.2: reduced SYN-RECEIVED timer.
    let mut s = Script::listen(peer(), |config| {
        config.max_half_open = 2;
        config.half_open_timeout = secs(5);
    });
    assert_eq!(send_syns(&mut s, 6000..6002).len(), 2);
    s.drain_for(secs(20));
    assert_eq!(send_syns(&mut s, 6002..6004).len(), 2);
    assert_eq!(with_state(&mut s), [6002, 6003]);
    s.expect_no_event();
}

#[test]
fn connection_limit_bounds_accepted_connections() {
    // A further SYN is dropped and counted.
    let mut s = Script::listen(peer(), |config| config.max_connections = 2);
    for port in [6000, 6001] {
        s.on_port(port).handshake();
    }
    s.on_port(6002).inject_syn(syn(0));
    s.expect_nothing();
    assert_eq!(s.drops("too many connections"), 1);
    // A closed connection frees a slot.
    s.on_port(6000).inject(rst(1));
    s.expect_closed(CloseReason::Reset);
    s.on_port(6003).handshake();
    s.expect_alive(1, 1);
}

#[test]
fn syn_without_free_packet_is_answered_later() {
    // RFC 9293 §3.10.7.2, third: "The connection state should be changed to SYN-RECEIVED" with a SYN-ACK that is sent,
    // whether or not the peer repeats its SYN.
    for peer in peers() {
        let mut s = Script::listen(peer, |_| {});
        let taken = s.take_packets();
        let shared = s.inject_shared_syn(syn(0));
        s.expect_nothing_for(ms(30));
        drop(taken);
        s.expect_within(ms(1), syn_ack(0, 1).any_ecn());
        // The timeout of the peer's reply starts with the SYN-ACK.
        s.expect_after(INITIAL_RTO, syn_ack(0, 1).any_ecn());
        s.inject(ack(1, 1)).expect_opened();
        drop(shared);
        s.inject(rst(1)).expect_closed(CloseReason::Reset);
        s.expect_no_packets_held();
    }
}

#[test]
fn syn_ack_reuses_packet_of_syn() {
    // RFC 9293 §3.10.7.2, third: independent of free packets.
    for peer in peers() {
        let mut s = Script::accepted_with(peer.clone(), |config| config.ecn = peer.ecn);
        let taken = s.take_packets();
        s.on_port(6000).handshake();
        drop(taken);
        s.expect_alive(1, 1);
        // Except while the packet is shared.
        let shared = s.on_port(6001).inject_shared_syn(syn(0));
        let bytes = || shared.iter().map(|packet| packet.data().to_vec()).collect::<Vec<_>>();
        let before = bytes();
        s.expect(syn_ack(0, 1).any_ecn());
        assert_eq!(bytes(), before);
        s.inject(ack(1, 1)).expect_opened();
        s.expect_alive(1, 1);
    }
}

#[test]
fn half_open_connections_hold_no_packets() {
    // RFC 4987 §2: a flood multiplies the state kept per SYN.
    let mut s = Script::listen(peer(), |config| config.max_half_open = 100);
    let free = s.free_packets();
    send_syns(&mut s, 6000..6100);
    assert_eq!(s.free_packets(), free);
}
