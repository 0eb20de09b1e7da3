//! What a peer may not do ends its connection, and costs nothing else.

use super::rig::{Rig, Setup, UdPeer};
use crate::Mode;
use crate::connection::wire::{HEADER, Header, Kind, OFFERS, Offer};
use crate::provider::WcStatus;
use crate::verbs::{Cq, Message, Qp, RingAddr, Rts};
use linerate_bypass::CloseReason;
use linerate_rdma_sim::SimDevice;

type Pair = Qp<SimDevice, Rts>;

fn header(kind: Kind, credits: u16) -> Vec<u8> {
    let mut bytes = [0; HEADER];
    Header { kind, credits }.write(&mut bytes);
    bytes.to_vec()
}

pub fn data() -> Vec<u8> {
    [header(Kind::Data, 0), b"x".to_vec()].concat()
}

fn offer(len: u32) -> Vec<u8> {
    let mut bytes = [0; 16];
    Offer { address: 0x1000, rkey: 0x1234, len }.write(&mut bytes);
    [header(Kind::Offer, 0), bytes.to_vec()].concat()
}

pub fn send(rig: &Rig, qp: &mut Pair, bytes: &[u8]) {
    let mut block = rig.ends[0].arena.alloc(bytes.len()).unwrap();
    block.copy_from_slice(bytes);
    let mut message = Message::new();
    message.push(block.freeze()).unwrap();
    qp.send(&mut message, true).unwrap();
}

/// Sends `messages` to a service, which ends the connection.
fn sends(setup: &Setup, messages: &[Vec<u8>]) {
    sends_by(setup, messages, |_, _| {});
}

/// The same, after `begin` has been told of the service's ring if it has one.
fn sends_by(setup: &Setup, messages: &[Vec<u8>], begin: impl FnOnce(&mut Pair, RingAddr)) {
    let mut rig = Rig::new(setup, [UdPeer::echoes(), UdPeer::echoes()]);
    let before = rig.ends[1].holds(&rig.fabric);
    let mut cq = Cq::new(&rig.ends[0].device, 64, None).unwrap();
    rig.ends[0].completes_to(&cq);
    let mut qp = rig.half(setup);
    if setup.config.mode == Mode::Write {
        let place = ring_of(&mut rig, &mut qp, &mut cq);
        begin(&mut qp, place);
    }
    messages.iter().for_each(|message| send(&rig, &mut qp, message));
    qp.flush().unwrap();
    // All have come before the service hears of the first.
    rig.fabric.run();
    rig.run_until(|ends| ends[1].worker.service().ended == [CloseReason::Reset]);
    drop(qp);
    for _ in 0..1000 {
        rig.step();
        rig.ends[1].retire();
    }
    assert_eq!(rig.ends[1].holds(&rig.fabric), before);
}

/// The service's ring, of which its first message tells.
pub fn ring_of(rig: &mut Rig, qp: &mut Pair, cq: &mut Cq<SimDevice>) -> RingAddr {
    loop {
        rig.step();
        if let Some(completion) = cq.poll(1).unwrap().next() {
            let message = qp.received(completion).unwrap();
            assert_eq!(Header::read(&message).unwrap().kind, Kind::Ring);
            let Offer { address, rkey, len } = Offer::read(&message).unwrap();
            return RingAddr { address, rkey, len };
        }
    }
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
fn who_takes_more_of_the_shared_buffers_than_it_may_is_refused() {
    let mut setup = Setup::default();
    setup.config.srq = Some(12);
    let most = usize::from(setup.config.buffers);
    // What comes at once is as many as it was told of, and one more.
    sends(&setup, &vec![data(); most + 1]);
}

fn writing() -> Setup {
    let mut setup = Setup::default();
    setup.config.mode = Mode::Write;
    setup
}

#[test]
fn what_is_written_to_a_ring_and_makes_no_sense_ends_the_connection() {
    let setup = writing();
    let slot = setup.config.buffer as u32;
    let to_ring = |qp: &mut Pair, place| qp.write_to(place, slot);
    for message in [&b""[..], b"x", &[9; HEADER], &[0; HEADER], &[1, 0, 0, 0, 0, 0, 0, 0, 0]] {
        sends_by(&setup, &[message.to_vec()], to_ring);
    }
    // Longer than a slot.
    sends_by(&setup, &[[data(), vec![0; slot as usize]].concat()], to_ring);
    // Always into the first slot, where what comes next is not looked for.
    sends_by(&setup, &[data(), header(Kind::Credit, 0), data()], |qp, place| {
        qp.write_to(RingAddr { len: slot, ..place }, slot);
    });
    // Nothing of it may be told twice, and nothing of another length.
    let ring = |len: u32| {
        let mut bytes = [0; 16];
        Offer { address: 0x1000, rkey: 0x1234, len }.write(&mut bytes);
        [header(Kind::Ring, 0), bytes.to_vec()].concat()
    };
    let all = slot * u32::from(setup.config.buffers);
    sends(&setup, &[ring(all - 1)]);
    sends(&setup, &[ring(all), ring(all)]);
}

#[test]
fn nothing_but_its_ring_can_be_written_by_a_peer() {
    let setup = writing();
    let slot = setup.config.buffer as u32;
    type Change = fn(RingAddr) -> RingAddr;
    let elsewhere: [Change; 6] = [
        |place| RingAddr { address: place.address - 8, ..place },
        |place| RingAddr { address: place.address + u64::from(place.len) - 8, ..place },
        |place| RingAddr { address: place.address + (1 << 16), ..place },
        |place| RingAddr { rkey: place.rkey - 1, ..place },
        |place| RingAddr { rkey: place.rkey + (1 << 8), ..place },
        |place| RingAddr { address: 0, rkey: 0, ..place },
    ];
    for change in elsewhere {
        sends_by(&setup, &[data()], |qp, place| qp.write_to(change(place), slot));
    }
    // Where there is no ring, writing is not permitted at all.
    let nowhere = RingAddr { address: 0, rkey: 0, len: slot };
    for message in [Vec::new(), data()] {
        let mut rig = Rig::new(&Setup::default(), [UdPeer::echoes(), UdPeer::echoes()]);
        let mut qp = rig.half(&Setup::default());
        qp.write_to(nowhere, slot);
        send(&rig, &mut qp, &message);
        qp.flush().unwrap();
        rig.run_until(|ends| ends[1].worker.service().ended == [CloseReason::Reset]);
    }
}

#[test]
fn a_ring_shows_nothing_of_who_had_its_memory_before() {
    let setup = writing();
    let mut rig = Rig::new(&setup, [UdPeer::echoes(), UdPeer::echoes()]);
    let ring = usize::from(setup.config.buffers) * setup.config.buffer;
    let secrets: Vec<_> = std::iter::from_fn(|| rig.ends[1].buffers.alloc(ring)).take(100).collect();
    secrets.into_iter().for_each(|mut secret| secret.fill(b's'));
    let mut cq = Cq::new(&rig.ends[0].device, 64, None).unwrap();
    rig.ends[0].completes_to(&cq);
    let mut qp = rig.half(&setup);
    let RingAddr { address, rkey, .. } = ring_of(&mut rig, &mut qp, &mut cq);
    // A header is written, and more is said to have been.
    let mut block = rig.ends[0].arena.alloc(HEADER).unwrap();
    block.copy_from_slice(&header(Kind::Data, 0));
    qp.write_immediate(block.freeze(), address, rkey, 200).unwrap();
    qp.flush().unwrap();
    let echoed = loop {
        rig.step();
        let completion = cq.poll(1).unwrap().next();
        if let Some(completion) = completion.filter(|completion| completion.is_buffer()) {
            break qp.received(completion).unwrap();
        }
    };
    assert_eq!(echoed[HEADER..], [0; 192]);
}

#[test]
fn a_ring_is_open_to_its_own_peer_alone() {
    let setup = writing();
    let slot = setup.config.buffer as u32;
    let mut rig = Rig::new(&setup, [UdPeer::echoes(), UdPeer::echoes()]);
    let mut cq = Cq::new(&rig.ends[0].device, 64, None).unwrap();
    rig.ends[0].completes_to(&cq);
    let mut owner = rig.half(&setup);
    let place = ring_of(&mut rig, &mut owner, &mut cq);
    let mut other = rig.half(&setup);
    other.write_to(place, slot);
    send(&rig, &mut other, &data());
    other.flush().unwrap();
    let status = loop {
        rig.step();
        let completion = cq.poll(1).unwrap().next();
        if let Some(completion) = completion.filter(|completion| other.owns(completion) && !completion.is_buffer()) {
            break completion.status();
        }
    };
    assert_eq!(status, WcStatus::RemoteAccess);
    rig.run_until(|ends| ends[1].worker.service().ended == [CloseReason::Reset]);
    // The owner's goes on.
    owner.write_to(place, slot);
    send(&rig, &mut owner, &data());
    owner.flush().unwrap();
    rig.run_until(|ends| ends[1].worker.service().received == 1);
    assert_eq!(rig.ends[1].worker.service().ended.len(), 1);
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
