//! What a peer may not do ends its connection, and costs nothing else.

use super::rig::{Peer, Rig, Setup};
use crate::verbs::Message;
use crate::wire::{HEADER, Header, Kind, OFFERS, Offer};
use linerate_bypass::CloseReason;

fn header(kind: Kind, credits: u16) -> Vec<u8> {
    let mut bytes = [0; HEADER];
    Header { kind, credits }.write(&mut bytes);
    bytes.to_vec()
}

fn data() -> Vec<u8> {
    [header(Kind::Data, 0), b"x".to_vec()].concat()
}

fn offer(len: u32) -> Vec<u8> {
    let mut bytes = [0; 16];
    Offer { address: 0x1000, remote_key: 0x1234, len }.write(&mut bytes);
    [header(Kind::Offer, 0), bytes.to_vec()].concat()
}

/// Sends `messages` to a service, which ends the connection.
fn sends(setup: &Setup, messages: &[Vec<u8>]) {
    let mut rig = Rig::new(setup, [Peer::echoes(), Peer::echoes()]);
    let before = rig.ends[1].holds(&rig.fabric);
    let mut pair = rig.half(setup);
    for message in messages {
        let mut block = rig.ends[0].arena.alloc(message.len()).unwrap();
        block.copy_from_slice(message);
        let mut message = Message::new();
        message.push(block.freeze()).unwrap();
        pair.send(&mut message, true).unwrap();
    }
    pair.flush().unwrap();
    // All have come before the service hears of the first.
    rig.fabric.run();
    rig.run_until(|ends| ends[1].worker.service().ended == [CloseReason::Reset]);
    drop(pair);
    for _ in 0..1000 {
        rig.step();
        rig.ends[1].bury();
    }
    assert_eq!(rig.ends[1].holds(&rig.fabric), before);
}

#[test]
fn what_makes_no_sense_ends_the_connection() {
    let setup = Setup::default();
    for message in [&b""[..], b"x", &[9; HEADER], &[0; HEADER], &[1, 0, 0, 0, 0, 0, 0, 0, 0]] {
        sends(&setup, &[message.to_vec()]);
    }
    sends(&setup, &[header(Kind::Taken, 0)]);
    sends(&setup, &[header(Kind::Finish, 0), data()]);
    sends(&setup, &[header(Kind::Finish, 0), header(Kind::Finish, 0)]);
    sends(&setup, &[header(Kind::Credit, 1)]);
    sends(&setup, &[data(), header(Kind::Credit, 0xffff)]);
    sends(&setup, &[offer(0)]);
}

#[test]
fn no_more_is_offered_than_was_agreed() {
    // Nothing is asked for while there is no room for it, so the offers are there.
    let mut setup = Setup::default();
    (setup.config.rx_buffer, setup.config.buffers) = (0, 6);
    sends(&setup, &vec![offer(1000); OFFERS + 1]);
    let setup = Setup { offers: false, ..setup };
    sends(&setup, &[offer(1000)]);
}

#[test]
fn what_is_offered_and_cannot_be_read_ends_the_connection() {
    sends(&Setup::default(), &[offer(1000)]);
}
