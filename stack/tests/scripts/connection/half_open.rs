//! Connections that peers have begun and not completed: RFC 4987.

use super::harness::*;
use linerate_bypass::Packet;

/// Peers that say what nearly everybody says in a SYN, more and less, of both families.
fn peers() -> [Peer; 5] {
    let usual = peer().sack().timestamps().window_scale(7);
    [usual.clone(), usual.clone().mss(700), usual.clone().ipv6(), usual.ecn(), peer()]
}

/// Begins connections from `ports`, and returns those that got an answer.
fn begin(s: &mut Script, ports: std::ops::Range<u16>) -> Vec<u16> {
    for port in ports {
        s.inject_hello(syn(0).port(port));
    }
    s.drain().iter().filter(|got| got.has(SYN | ACK)).map(|got| got.port).collect()
}

/// The ports whose SYN-ACK is sent again, because the worker knows of them: a cookie is not.
fn remembered(s: &mut Script) -> Vec<u16> {
    let mut ports: Vec<u16> = s.drain_for(INITIAL_RTO + ms(50)).iter().map(|got| got.port).collect();
    ports.sort_unstable();
    ports
}

#[test]
fn no_more_connections_are_remembered_half_open_than_allowed() {
    // RFC 4987 §3.2: a bounded backlog.
    for peer in peers() {
        let mut s = Script::listen(peer, |config| config.max_half_open = 4);
        begin(&mut s, 6000..6020);
        assert_eq!(remembered(&mut s), [6000, 6001, 6002, 6003]);
    }
}

#[test]
fn a_flood_of_syns_does_not_keep_a_real_client_out() {
    // RFC 4987 §3.6: SYN cookies.
    native_only!();
    let mut s = Script::listen(peer(), |config| config.max_half_open = 16);
    for n in 0..40 {
        assert_eq!(begin(&mut s, 6000 + 50 * n..6050 + 50 * n).len(), 50);
    }
    s.shake_hands();
    s.expect_alive(1, 1);
    s.inject(fin(2, 2));
    s.expect_within(DELAYED_ACK, ack(2, 3));
    s.expect_peer_closed();
}

#[test]
fn a_completed_connection_gives_its_place_to_another() {
    // RFC 4987 §3.2.
    let mut s = Script::listen(peer(), |config| config.max_half_open = 2);
    assert_eq!(begin(&mut s, 6000..6002).len(), 2);
    for port in [6000, 6001] {
        s.on_port(port).inject(ack(1, 1));
        s.expect_opened();
    }
    assert_eq!(begin(&mut s, 6002..6004).len(), 2);
    assert_eq!(remembered(&mut s), [6002, 6003]);
}

#[test]
fn a_connection_that_is_reset_gives_its_place_to_another() {
    // RFC 9293 §3.10.7.4, second, SYN-RECEIVED.
    let mut s = Script::listen(peer(), |config| config.max_half_open = 2);
    assert_eq!(begin(&mut s, 6000..6002).len(), 2);
    s.inject(rst(1).port(6000));
    s.inject(rst(1).port(6001));
    assert_eq!(begin(&mut s, 6002..6004).len(), 2);
    assert_eq!(remembered(&mut s), [6002, 6003]);
}

#[test]
fn a_connection_that_is_never_completed_gives_its_place_to_another() {
    // RFC 4987 §3.2: reduced SYN-RECEIVED timer.
    let mut s = Script::listen(peer(), |config| {
        config.max_half_open = 2;
        config.half_open_timeout = secs(5);
    });
    assert_eq!(begin(&mut s, 6000..6002).len(), 2);
    s.drain_for(secs(20));
    assert_eq!(begin(&mut s, 6002..6004).len(), 2);
    assert_eq!(remembered(&mut s), [6002, 6003]);
    s.expect_no_event();
}

#[test]
fn no_more_connections_are_accepted_than_allowed() {
    // The bound on connections: a further SYN is dropped and counted.
    let mut s = Script::listen(peer(), |config| config.max_connections = 2);
    for port in [6000, 6001] {
        s.on_port(port).shake_hands();
    }
    s.on_port(6002).inject_hello(syn(0));
    s.expect_nothing();
    assert_eq!(s.drops("too many connections"), 1);
    // Once one is over there is room.
    s.on_port(6000).inject(rst(1));
    s.expect_closed(CloseReason::Reset);
    s.on_port(6003).shake_hands();
    s.expect_alive(1, 1);
}

#[test]
fn a_syn_that_no_packet_is_left_to_answer_is_answered_once_there_is_one() {
    // RFC 9293 §3.10.7.2, third: "The connection state should be changed to SYN-RECEIVED" with a SYN-ACK that is sent, whether
    // or not the peer asks again.
    native_only!();
    for peer in peers() {
        let mut s = Script::listen(peer, |_| {});
        let taken = s.take_packets();
        let shared = s.inject_shared_hello(syn(0));
        s.expect_nothing_for(ms(30));
        drop(taken);
        s.expect_within(ms(1), syn_ack(0, 1).any_ecn());
        // The peer has as much time for its answer as ever.
        s.expect_after(INITIAL_RTO, syn_ack(0, 1).any_ecn());
        s.inject(ack(1, 1));
        s.expect_opened();
        drop(shared);
        s.inject(rst(1));
        s.expect_closed(CloseReason::Reset);
        s.expect_all_packets_back();
    }
}

#[test]
fn a_syn_is_answered_in_the_packet_that_brought_it() {
    // RFC 9293 §3.10.7.2, third: whether or not there are others.
    native_only!();
    for peer in peers() {
        let mut s = Script::accepted_with(peer.clone(), |config| config.ecn = peer.ecn);
        let taken = s.take_packets();
        s.on_port(6000).shake_hands();
        drop(taken);
        s.expect_alive(1, 1);
        // Unless somebody else has a share in it.
        let shared = s.on_port(6001).inject_shared_hello(syn(0));
        let bytes = || shared.iter().map(|packet| packet.data().to_vec()).collect::<Vec<_>>();
        let before = bytes();
        s.expect(syn_ack(0, 1).any_ecn());
        assert_eq!(bytes(), before);
        s.inject(ack(1, 1));
        s.expect_opened();
        s.expect_alive(1, 1);
    }
}

#[test]
fn half_open_connections_hold_no_packets() {
    // RFC 4987 §2: what is kept for a SYN is what a flood multiplies.
    let mut s = Script::listen(peer(), |config| config.max_half_open = 100);
    let free = s.free_packets();
    begin(&mut s, 6000..6100);
    assert_eq!(s.free_packets(), free);
}
