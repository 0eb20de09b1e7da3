//! End-to-end flow control: buffers that acknowledgements report, and the messages that they permit.

use super::packets::*;
use super::scenarios::*;
use super::*;
use crate::wire::syndrome;
use linerate_service::time::Duration;

#[test]
fn credit_counts_are_those_of_the_table() {
    let counts: Vec<_> = (0..31).map(|code| syndrome::decode_credits(code).unwrap()).collect();
    assert_eq!(counts[..15], [0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128]);
    assert_eq!((counts[29], counts[30], syndrome::decode_credits(31)), (24_576, 32_768, None));
    for buffers in 0..70_000 {
        let below = counts.iter().filter(|count| **count <= buffers).count();
        assert_eq!(usize::from(syndrome::encode_credits(buffers as usize)), below - 1, "{buffers} buffers");
    }
}

/// Returns opcode, sequence number and acknowledgement request of the packets sent since the last call.
fn asked(script: &Script) -> Vec<(u8, u32, bool)> {
    script.pass(Duration::ZERO);
    let packets = script.fabric.take_sent();
    packets.iter().map(|packet| Packet::read(packet)).map(|packet| (packet.opcode, packet.psn, packet.ack)).collect()
}

fn send_silently(script: &Script, id: u64) {
    script.request(id, Operation::Send, &[script.sge(0, 8)], SILENT);
}

#[test]
fn messages_wait_for_credits() {
    let script = Script::limited();
    (0..6).for_each(|id| send_silently(&script, id));
    // One message beyond the credits requests an acknowledgement, as does the last one within.
    assert_eq!(asked(&script), [(0x04, 100, true)]);
    script.give([(0x11, 100, aeth(2, 1))]);
    assert_eq!(asked(&script), [(0x04, 101, false), (0x04, 102, true), (0x04, 103, true)]);
    // Less than before, as the count is rounded down.
    script.give([(0x11, 101, aeth(0, 2))]);
    assert_eq!(asked(&script), []);
    script.give([(0x11, 103, aeth(0, 4))]);
    assert_eq!(asked(&script), [(0x04, 104, true)], "without credits, one message");
    script.give([(0x11, 104, aeth(31, 5))]);
    assert_eq!(asked(&script), [(0x04, 105, false)]);
    (6..8).for_each(|id| send_silently(&script, id));
    script.give([(0x11, 105, aeth(0, 6))]);
    assert_eq!(asked(&script), [(0x04, 106, false), (0x04, 107, false)], "unlimited from then on");
}

#[test]
fn only_requests_that_take_a_buffer_wait() {
    let script = Script::limited();
    let (address, rkey) = (0x10_0000, 9);
    send_silently(&script, 0);
    script.request(1, Operation::Write { address, rkey }, &[script.sge(0, 8)], SILENT);
    script.read(2, 8);
    let write = Operation::WriteImmediate { address, rkey, immediate: 1 };
    script.request(3, write, &[script.sge(0, 8)], SILENT);
    assert_eq!(asked(&script), [(0x04, 100, true), (0x0a, 101, true), (0x0c, 102, true)]);
    script.give([(0x11, 101, aeth(0, 2))]);
    assert_eq!(asked(&script), []);
    script.give([(0x10, 102, joined(&aeth(0, 3), 8))]);
    assert_eq!(asked(&script), [(0x0b, 103, true)], "a response reports credits");
}

#[test]
fn message_is_sent_if_the_peer_miscounts() {
    let script = Script::limited();
    (0..3).for_each(|id| send_silently(&script, id));
    for psn in 100..103 {
        assert_eq!(asked(&script), [(0x04, psn, true)]);
        script.give([(0x11, psn, aeth(0, 0))]);
    }
}

#[test]
fn limit_wraps_around() {
    let script = Script::limited();
    (0..2).for_each(|id| send_silently(&script, id));
    script.give([(0x11, 100, aeth(30, 0xff_f000))]);
    assert_eq!(asked(&script), [(0x04, 100, true)], "not a limit before the first message");
}

#[test]
fn acknowledgements_report_posted_buffers() {
    let script = Script::new();
    (0..8).for_each(|id| script.receive(id, 0, 8));
    script.give([(0x04, 200, vec![])]);
    assert_eq!(script.sent(), [(0x11, 200, aeth(5, 1))], "seven, rounded down to six");
    (0..2).for_each(|psn| script.give([(0x04, 201 + psn, vec![])]));
    assert_eq!(script.sent(), [(0x11, 202, aeth(4, 3))], "five, rounded down to four");
    script.give([(0x0c, 203, script.reth(8))]);
    assert_eq!(script.sent()[0].2[..4], aeth(4, 4));
}

#[test]
fn message_without_buffer_is_repeated_alone() {
    let setup = Setup { rnr_retries: 7, ..Setup::default() };
    let (fabric, a, b) = connected(&setup);
    let first = a.number * 7 % (1 << 24);
    (0..8).for_each(|id| a.send(id, b"hello"));
    fabric.run();
    let sent: Vec<_> = fabric.take_sent().iter().map(|packet| Packet::read(packet)).collect();
    assert!(sent.iter().filter(|packet| packet.opcode == 0x04).all(|packet| packet.psn == first));
    (0..8).for_each(|id| b.receive(id, 0, 8));
    fabric.run();
    assert_eq!((a.ends().len(), b.ends().len()), (8, 8));
}

#[test]
fn shared_buffers_are_unlimited() {
    let setup = Setup { srq: Some(SrqInitAttr { buffers: 4, sges: 1 }), ..Setup::default() };
    let (fabric, a, b) = connected(&setup);
    b.receive(1, 0, 8);
    a.send(1, b"hello");
    fabric.run();
    let sent: Vec<_> = fabric.take_sent().iter().map(|packet| Packet::read(packet)).collect();
    assert_eq!(sent.last().map(|packet| packet.rest.clone()), Some(aeth(31, 1)));
}
