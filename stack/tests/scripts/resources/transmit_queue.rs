//! Full transmit queue: the peer's port receives nothing, so the worker's port takes no more frames.

use super::harness::*;
use linerate_bypass::memory_nic::LinkConfig;

/// Ports of the connections whose data fill the queue: an initial window of each is more than the queue and the link hold.
const OTHERS: std::ops::Range<u16> = 6000..6064;
/// Frames that the link holds.
const RING: usize = 64;

/// A connection to `peer` whose service echoes, on a link that holds few frames.
fn echoing(peer: Peer) -> Script {
    let link = LinkConfig { checksum_offload: true, ring: RING, pool: 4096, ..LinkConfig::default() };
    let mut s = Script::accepted_over(peer, link);
    s.echo();
    for port in OTHERS {
        s.on_port(port).shake_hands();
    }
    s.on_port(5000);
    s
}

/// Fills the transmit queue.
fn fill(s: &mut Script) {
    s.set_receiving(false);
    for port in OTHERS {
        s.on_port(port).write(INITIAL_WINDOW * SEG);
    }
    s.on_port(5000);
}

/// The peer's port receives again: returns what it receives of the connection of port 5000.
fn empty(s: &mut Script) -> Vec<Got> {
    s.set_receiving(true);
    let sent = s.drain();
    let of_others = sent.iter().filter(|got| OTHERS.contains(&got.port) && got.len == SEG).count();
    assert_eq!(of_others, OTHERS.len() * INITIAL_WINDOW as usize, "{sent:?}");
    sent.into_iter().filter(|got| got.port == 5000).collect()
}

#[test]
fn echo_waits_for_room_in_the_transmit_queue() {
    // RFC 7323 §4.1: TSval is the time of sending, so an answer that waits for the port is not made before there is room.
    native_only!();
    for turns in [0, 4] {
        let mut s = echoing(peer().timestamps());
        let mut at = 1;
        for _ in 0..turns {
            s.inject(data(at, 100).ack(at));
            s.expect(data(at, 100).ack(at + 100));
            s.pass(ms(1));
            at += 100;
        }
        s.expect_exchanging(turns > 0);
        fill(&mut s);
        s.inject(data(at, 100).ack(at));
        s.pass(ms(3));
        s.expect_nothing();
        let sent = empty(&mut s);
        let [got] = &sent[..] else { panic!("{turns} turns: {sent:?}") };
        assert_eq!((got.seq, got.len, got.ack), (at, 100, at + 100), "{turns} turns");
        at += 100;
        s.inject(data(at, 100).ack(at));
        let next = s.expect(data(at, 100).ack(at + 100));
        assert_eq!(got.tsval(), next.tsval(), "{turns} turns");
    }
}
