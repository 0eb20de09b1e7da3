//! Protocol violations end the connection of the peer and affect nothing else.

use super::rig::{Peer, Rig, Setup, message};
use crate::Mode;
use crate::connection::wire::{HEADER, Header, Kind, OFFERS, Offer};
use crate::provider::{Provider, WcStatus};
use crate::verbs::{Cq, Qp, RingAddr, Rts};
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
    qp.send(&mut message(&rig.ends[0].arena, bytes), true).unwrap();
}

/// Sends `messages` to a service, which ends the connection.
fn sends(setup: &Setup, messages: &[Vec<u8>]) {
    sends_by(setup, messages, |_, _| {});
}

/// Like [`sends`], after `begin` has received the service's ring, if any.
fn sends_by(setup: &Setup, messages: &[Vec<u8>], begin: impl FnOnce(&mut Pair, RingAddr)) {
    let mut rig = Rig::new(setup, [Peer::echoes(), Peer::echoes()]);
    let before = rig.ends[1].holds(&rig.fabric);
    let mut cq = Cq::new(&rig.ends[0].device, 64, None).unwrap();
    rig.ends[0].completes_to(&cq);
    let mut qp = rig.half(setup);
    if setup.config.mode == Mode::Write {
        let ring_addr = ring_of(&mut rig, &mut qp, &mut cq);
        begin(&mut qp, ring_addr);
    }
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

/// Returns the service's ring, which its first message announces.
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
fn malformed_message_ends_connection() {
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

fn writing() -> Setup {
    let mut setup = Setup::default();
    setup.config.mode = Mode::Write;
    setup
}

#[test]
fn malformed_ring_write_ends_connection() {
    let setup = writing();
    let slot = setup.config.buffer as u32;
    let to_ring = |qp: &mut Pair, ring_addr| qp.write_to(ring_addr, slot);
    for message in [&b""[..], b"x", &[9; HEADER], &[0; HEADER], &[1, 0, 0, 0, 0, 0, 0, 0, 0]] {
        sends_by(&setup, &[message.to_vec()], to_ring);
    }
    // Longer than a slot.
    sends_by(&setup, &[[data(), vec![0; slot as usize]].concat()], to_ring);
    // Always to the first slot, where the next message is not expected.
    sends_by(&setup, &[data(), header(Kind::Credit, 0), data()], |qp, ring_addr| {
        qp.write_to(RingAddr { len: slot, ..ring_addr }, slot);
    });
    // A ring is announced once and with its exact length.
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
fn peer_can_write_only_its_ring() {
    let setup = writing();
    let slot = setup.config.buffer as u32;
    type Change = fn(RingAddr) -> RingAddr;
    let elsewhere: [Change; 6] = [
        |ring_addr| RingAddr { address: ring_addr.address - 8, ..ring_addr },
        |ring_addr| RingAddr { address: ring_addr.address + u64::from(ring_addr.len) - 8, ..ring_addr },
        |ring_addr| RingAddr { address: ring_addr.address + (1 << 16), ..ring_addr },
        |ring_addr| RingAddr { rkey: ring_addr.rkey - 1, ..ring_addr },
        |ring_addr| RingAddr { rkey: ring_addr.rkey + (1 << 8), ..ring_addr },
        |ring_addr| RingAddr { address: 0, rkey: 0, ..ring_addr },
    ];
    for change in elsewhere {
        sends_by(&setup, &[data()], |qp, ring_addr| qp.write_to(change(ring_addr), slot));
    }
    // Without a ring, writes are not permitted at all.
    let nowhere = RingAddr { address: 0, rkey: 0, len: slot };
    for message in [Vec::new(), data()] {
        let mut rig = Rig::new(&Setup::default(), [Peer::echoes(), Peer::echoes()]);
        let mut qp = rig.half(&Setup::default());
        qp.write_to(nowhere, slot);
        send(&rig, &mut qp, &message);
        qp.flush().unwrap();
        rig.run_until(|ends| ends[1].worker.service().ended == [CloseReason::Reset]);
    }
}

#[test]
fn ring_does_not_expose_old_memory() {
    let setup = writing();
    let mut rig = Rig::new(&setup, [Peer::echoes(), Peer::echoes()]);
    let ring = usize::from(setup.config.buffers) * setup.config.buffer;
    let secrets: Vec<_> = std::iter::from_fn(|| rig.ends[1].buffers.alloc(ring)).take(100).collect();
    secrets.into_iter().for_each(|mut secret| secret.fill(b's'));
    let mut cq = Cq::new(&rig.ends[0].device, 64, None).unwrap();
    rig.ends[0].completes_to(&cq);
    let mut qp = rig.half(&setup);
    let RingAddr { address, rkey, .. } = ring_of(&mut rig, &mut qp, &mut cq);
    // Writes a header only, and announces more.
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
fn ring_accepts_writes_of_its_own_peer_only() {
    let setup = writing();
    let slot = setup.config.buffer as u32;
    let mut rig = Rig::new(&setup, [Peer::echoes(), Peer::echoes()]);
    let mut cq = Cq::new(&rig.ends[0].device, 64, None).unwrap();
    rig.ends[0].completes_to(&cq);
    let mut owner = rig.half(&setup);
    let ring_addr = ring_of(&mut rig, &mut owner, &mut cq);
    let mut other = rig.half(&setup);
    other.write_to(ring_addr, slot);
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
    // The owner can still write.
    owner.write_to(ring_addr, slot);
    send(&rig, &mut owner, &data());
    owner.flush().unwrap();
    rig.run_until(|ends| ends[1].worker.service().received == 1);
    assert_eq!(rig.ends[1].worker.service().ended.len(), 1);
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
