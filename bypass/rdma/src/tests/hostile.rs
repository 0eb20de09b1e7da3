//! Protocol violations end the connection of the peer and affect nothing else.

use super::rig::{Peer, Rig, Setup, message};
use crate::provider::Provider;
use crate::verbs::{Cq, Qp, Rts};
use crate::wire::{HEADER, Header, MessageKind, OFFERS, Offer};
use linerate_roce::testing::SimDevice;
use linerate_service::CloseReason;

type Pair = Qp<SimDevice, Rts>;

fn header(kind: MessageKind, credits: u16) -> Vec<u8> {
    Header { kind, credits }.to_bytes().to_vec()
}

fn data() -> Vec<u8> {
    [header(MessageKind::Data, 0), b"x".to_vec()].concat()
}

fn offer(len: u32) -> Vec<u8> {
    let mut bytes = [0; 16];
    Offer { address: 0x1000, rkey: 0x1234, len }.write(&mut bytes);
    [header(MessageKind::Offer, 0), bytes.to_vec()].concat()
}

fn send(rig: &Rig, qp: &mut Pair, bytes: &[u8]) {
    qp.send(&mut message(&rig.ends[0].arena, bytes), true).unwrap();
}

/// Sends `messages` to a service, which ends the connection.
fn sends(setup: &Setup, messages: &[Vec<u8>]) {
    let mut rig = Rig::new(setup, [Peer::echoes(), Peer::echoes()]);
    let before = rig.ends[1].holds(&rig.fabric);
    let cq = Cq::new(&rig.ends[0].device, 64, None).unwrap();
    rig.ends[0].completes_to(&cq);
    let mut qp = rig.half(setup);
    messages.iter().for_each(|message| send(&rig, &mut qp, message));
    qp.flush().unwrap();
    // All messages arrive before the service processes the first.
    rig.fabric.run();
    rig.run_until(|ends| ends[1].worker.service().ended == [CloseReason::Reset]);
    drop(qp);
    for _ in 0..1000 {
        rig.step();
        rig.ends[1].retire();
    }
    assert_eq!(rig.ends[1].holds(&rig.fabric), before);
}

#[test]
fn malformed_message_ends_connection() {
    let setup = Setup::default();
    for message in [&b""[..], b"x", &[9; HEADER], &[0; HEADER], &[1, 0, 0, 0, 0, 0, 0, 0, 0]] {
        sends(&setup, &[message.to_vec()]);
    }
    sends(&setup, &[header(MessageKind::Taken, 0)]);
    sends(&setup, &[header(MessageKind::Finish, 0), data()]);
    sends(&setup, &[header(MessageKind::Finish, 0), header(MessageKind::Finish, 0)]);
    sends(&setup, &[header(MessageKind::Credit, 1)]);
    sends(&setup, &[data(), header(MessageKind::Credit, 0xffff)]);
    sends(&setup, &[offer(0)]);
}

#[test]
fn excess_use_of_shared_buffers_ends_connection() {
    let mut setup = Setup::default();
    setup.config.srq = Some(12);
    let most = usize::from(setup.config.buffers);
    // One message more than there are credits.
    sends(&setup, &vec![data(); most + 1]);
}

#[test]
fn peer_that_uses_all_shared_buffers_breaks_no_completion_queue() {
    let mut setup = Setup::default();
    let srq = 64;
    (setup.config.srq, setup.config.max_connections) = (Some(srq), 1);
    let mut rig = Rig::new(&setup, [Peer::echoes(), Peer::echoes()]);
    let mut cq = Cq::new(&rig.ends[0].device, 64, None).unwrap();
    rig.ends[0].completes_to(&cq);
    let mut qp = rig.half(&setup);
    // The service processes nothing meanwhile.
    for _ in 0..srq / u32::from(setup.config.sends) {
        (0..setup.config.sends).for_each(|_| send(&rig, &mut qp, &data()));
        qp.flush().unwrap();
        rig.fabric.run();
        let completions: Vec<_> = cq.poll(64).unwrap().collect();
        for completion in completions {
            qp.sent(completion).unwrap();
        }
    }
    assert_eq!((rig.ends[1].device.async_event().unwrap(), rig.fabric.srq_wrs(&rig.ends[1].device)), (None, 0));
    rig.run_until(|ends| ends[1].worker.service().ended == [CloseReason::Reset]);
}

#[test]
fn peer_cannot_write() {
    for message in [Vec::new(), data()] {
        let mut rig = Rig::new(&Setup::default(), [Peer::echoes(), Peer::echoes()]);
        let mut qp = rig.half(&Setup::default());
        let mut memory = rig.ends[1].buffers.alloc(64).unwrap();
        memory.fill(7);
        let mut message = super::rig::message(&rig.ends[0].arena, &message);
        qp.write(&mut message, memory.as_ptr().addr() as u64, 0, Some(1)).unwrap();
        qp.flush().unwrap();
        rig.run_until(|ends| ends[1].worker.service().ended == [CloseReason::Reset]);
        assert_eq!(memory[..], [7; 64]);
    }
}

#[test]
fn excess_offers_end_connection() {
    // Nothing is read while there is no room, so the offers remain.
    let mut setup = Setup::default();
    (setup.config.rx_buffer, setup.config.buffers) = (0, 6);
    sends(&setup, &vec![offer(1000); OFFERS + 1]);
    let setup = Setup { offers: false, ..setup };
    sends(&setup, &[offer(1000)]);
}

#[test]
fn unreadable_offer_ends_connection() {
    sends(&Setup::default(), &[offer(1000)]);
}
