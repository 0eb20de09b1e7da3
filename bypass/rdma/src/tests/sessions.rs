//! Sessions: streams over lost and reordered datagrams, and hostile peers.

use super::rig::{Peer, Rig, Setup, message};
use crate::connection::conn_transport::FIRST_SESSION;
use crate::provider::{AhAttr, Provider};
use crate::session::DatagramHeader;
use crate::verbs::{Ah, Cq, Mr, Pd, QpConfig, UdQp};
use crate::wire::{HEADER, Header, MessageKind};
use crate::{Config, Connect, Mode};
use linerate_bypass::Arena;
use linerate_bypass::arena::ArenaConfig;
use linerate_roce::testing::{Faults, Live, SimDevice};
use linerate_service::{CloseReason, ConnectError, Origin};
use std::net::SocketAddr;
use std::time::Duration;

/// Nanoseconds per step: sessions wait milliseconds before retransmission.
const TICK: u64 = 20_000;
/// Data to echo.
const PARTS: [(usize, bool); 4] = [(100, false), (5000, true), (20, true), (3000, false)];
const ALL: usize = 8120;

fn setup(seed: u64) -> Setup {
    let defaults = Setup::default();
    let config = Config {
        mode: Mode::Ud,
        connect: Connect::Exchange,
        connect_timeout: Duration::from_millis(500),
        offer_from: usize::MAX,
        max_connections: 16,
        ..defaults.config
    };
    Setup { seed, network: [127, 0, 0], config, offers: false, inline: 64 * (seed as u32 % 2), ..defaults }
}

/// Creates two ends. The second one listens on the returned address.
fn rig(setup: &Setup) -> (Rig, SocketAddr) {
    let mut rig = Rig::new(setup, [Peer::sends(&PARTS), Peer::echoes()]);
    rig.tick = TICK;
    let address = rig.listens("127.0.0.2:0".parse().unwrap());
    (rig, address)
}

/// Like [`rig`], with a connect from the first end to the second.
fn connecting(setup: &Setup) -> Rig {
    let (mut rig, address) = rig(setup);
    rig.connect_to(address);
    rig
}

fn are_finished(rig: &mut Rig) {
    rig.run_until(|ends| ends.iter().all(|end| end.worker.service().ended == [CloseReason::Finished]));
    assert!(rig.ends.iter().all(|end| end.worker.service().received == ALL));
}

#[test]
fn streams_survive_loss_and_reordering() {
    for seed in 0..60 {
        let mut rig = connecting(&setup(seed));
        let faults = Faults { lost: 10 * (seed as u8 % 3), late: 20 * (seed as u8 % 4), twice: 0 };
        rig.fabric.set_faults(faults);
        are_finished(&mut rig);
        assert_eq!(rig.fabric.lost() > 0, faults.lost > 0);
        let resent: u64 = rig.ends.iter().filter_map(|end| end.worker.summary().retransmitted).sum();
        assert!(resent > 0 || faults.lost == 0, "{faults:?}");
        for end in &rig.ends {
            let counters = end.device.counters();
            assert_eq!((counters.malformed, counters.unexpected), (0, 0), "{counters:?}");
        }
        rig.end();
    }
}

#[test]
fn thousand_sessions_share_one_qp_and_ah() {
    let (mut rig, address) = rig(&setup(1));
    let before = [0, 1].map(|end| rig.ends[end].holds(&rig.fabric));
    let service = rig.ends[0].worker.service_mut();
    (service.remote, service.rounds) = (Some(address), 999);
    rig.connect_to(address);
    for count in 1..=1000 {
        rig.run_until(|ends| ends[0].worker.service().ended.len() == count);
        let live = rig.fabric.live();
        assert_eq!((live.qps, live.addresses), (2, 2));
    }
    assert!(rig.ends[0].worker.service().ended.iter().all(|reason| *reason == CloseReason::Finished));
    for (end, (live, memory)) in before.into_iter().enumerate() {
        // The address handle stays cached.
        rig.run_until_holds(end, (Live { addresses: 1, ..live }, memory));
    }
}

#[test]
fn sessions_follow_a_peer_to_another_network_card() {
    for seed in 0..10 {
        let (mut rig, address) = rig(&setup(seed));
        rig.connect_to(address);
        rig.run_until(|ends| ends[1].worker.service().received > 0);
        let device = rig.ends[(seed % 2) as usize].device.clone();
        rig.fabric.fail_over(&device);
        are_finished(&mut rig);
    }
}

#[test]
fn sessions_are_limited() {
    let mut setup = setup(2);
    setup.config.max_connections = 1;
    let (mut rig, address) = rig(&setup);
    // Neither end closes.
    rig.ends[0].worker.service_mut().total = usize::MAX;
    rig.connect_to(address);
    rig.run_until(|ends| ends.iter().all(|end| end.worker.service().received == ALL));
    rig.connect_to(address);
    rig.run_until(|ends| ends[0].worker.service().failed == [(7, ConnectError::TooMany)]);
    assert!(rig.ends.iter().all(|end| end.worker.service().ended.is_empty()));
}

#[test]
fn mismatched_transports_are_reported() {
    for local in [Mode::Ud, Mode::Send] {
        let setup = setup(1);
        let other = if local == Mode::Send { Mode::Ud } else { Mode::Send };
        let configs = [local, other].map(|mode| Config { mode, ..setup.config.clone() });
        let mut rig = Rig::with(&setup, &configs, [Peer::sends(&PARTS), Peer::echoes()]);
        rig.tick = TICK;
        let listening = rig.listens("127.0.0.2:0".parse().unwrap());
        let before = [0, 1].map(|end| rig.ends[end].holds(&rig.fabric));
        rig.connect_to(listening);
        rig.run_until(|ends| ends[0].worker.service().failed == [(7, ConnectError::Refused)]);
        (0..2).for_each(|end| rig.run_until_holds(end, before[end]));
    }
}

#[test]
fn killed_peer_leaves_no_objects_and_other_end_continues() {
    for seed in 0..30 {
        let setup = setup(seed);
        let (mut rig, address) = rig(&setup);
        rig.connect_to(address);
        for _ in 0..rig.random.usize(..2000) {
            rig.step();
        }
        let device = rig.ends[0].device.clone();
        rig.fabric.vanish(&device, true);
        rig.replace(0, &setup, Peer::sends(&PARTS));
        rig.ends[0].connects(&[]);
        rig.connect_to(address);
        rig.run_until(|ends| ends[0].worker.service().ended == [CloseReason::Finished]);
        assert_eq!(rig.ends[0].worker.service().received, ALL);
        let summary = |rig: &Rig| rig.ends[1].worker.summary().clone();
        rig.run_until(|ends| {
            let summary = ends[1].worker.summary();
            summary.accepted == summary.finished + summary.broken
        });
        assert!(summary(&rig).accepted <= 2);
    }
}

#[test]
fn unresponsive_peer_is_given_up() {
    // Without a TCP connection, nothing signals the end.
    let setup = setup(3);
    let mut rig = Rig::new(&setup, [Peer::sends(&PARTS), Peer::echoes()]);
    rig.tick = TICK;
    rig.connect(&setup);
    rig.run_until(|ends| ends[1].worker.service().received > 0);
    rig.fabric.set_faults(Faults { lost: 100, ..Faults::default() });
    rig.tick = 1_000_000;
    rig.run_until(|ends| ends[0].worker.service().ended == [CloseReason::TimedOut]);
}

#[test]
fn failed_ud_qp_ends_all_sessions_and_is_rebuilt() {
    for seed in 0..20 {
        let mut setup = setup(seed);
        // As with Soft-RoCE, a queue pair that is reset with posted buffers receives nothing any more.
        setup.device = |device| device.keeps_reset_buffers = true;
        let (mut rig, address) = rig(&setup);
        rig.connect_to(address);
        rig.run_until(|ends| ends[1].worker.service().received > 0);
        let which = seed as usize % 2;
        let failed = rig.ends[which].datagrams.unwrap().qp;
        rig.fabric.pair_fatal(failed);
        rig.run_until(|ends| ends.iter().all(|end| end.worker.service().ended.len() == 1));
        let service = rig.ends[0].worker.service_mut();
        *service = Peer { arena: service.arena.clone(), ..Peer::sends(&PARTS) };
        let before = rig.ends[1].worker.service().received;
        rig.ends[1].worker.service_mut().received = 0;
        assert!(before < ALL);
        rig.connect_to(address);
        rig.run_until(|ends| ends[0].worker.service().ended == [CloseReason::Finished]);
        assert_eq!(rig.ends[0].worker.service().received, ALL);
        assert_eq!(rig.fabric.live().qps, 2);
    }
}

/// Third party that knows the second end's queue pair and Q_Key.
struct Stranger {
    datagrams: UdQp<SimDevice>,
    _queue: Cq<SimDevice>,
    to: Ah<SimDevice>,
    arena: Arena,
    qp: u32,
    key: u32,
}

impl Stranger {
    fn new(rig: &Rig) -> Self {
        let device = rig.ends[0].device.clone();
        let pd = Pd::new(&device).unwrap();
        let arena = Arena::new(ArenaConfig { bytes: 1 << 20, hugepages: false }).unwrap();
        let mr = Mr::new(&pd, std::slice::from_ref(&arena), None).unwrap();
        let cq = Cq::new(&device, 4096, None).unwrap();
        let config = QpConfig { sends: 2048, receives: 4, inline: 0, signal_every: 1, list: 1 };
        let datagrams = UdQp::new(&mr, cq.handle(), &config, 1, None).unwrap();
        let handle = rig.ends[1].datagrams.unwrap();
        let (own, other) = (device.gids(1).unwrap()[0], &rig.ends[1].device);
        let path = AhAttr::to(other.gids(1).unwrap()[0].raw, 0, &own);
        let to = Ah::new(&pd, &path).unwrap();
        Stranger { datagrams, _queue: cq, to, arena, qp: handle.qp, key: handle.q_key }
    }

    fn send(&mut self, bytes: &[u8]) {
        let mut message = message(&self.arena, bytes);
        self.datagrams.send(&self.to, self.qp, self.key, &mut message, true).unwrap();
        self.datagrams.flush().unwrap();
    }
}

fn datagram(session: u64, number: u32, message: &[u8]) -> Vec<u8> {
    let header = DatagramHeader { session, number, has_message: !message.is_empty(), expected: 0, room: 32, early: 0 };
    let mut bytes = vec![0; DatagramHeader::LEN];
    header.write(bytes.first_chunk_mut().unwrap());
    bytes.extend(message);
    bytes
}

#[test]
fn datagrams_of_third_parties_are_dropped() {
    let setup = setup(5);
    let mut rig = Rig::new(&setup, [Peer::sends(&PARTS), Peer::echoes()]);
    rig.tick = TICK;
    rig.connect(&setup);
    let mut stranger = Stranger::new(&rig);
    let mut random = fastrand::Rng::with_seed(5);
    for n in 0..200 {
        let noise: Vec<u8> = (0..random.usize(1..200)).map(|_| random.u8(..)).collect();
        stranger.send(&noise);
        // A valid session number from another queue pair, and an invalid session number.
        stranger.send(&datagram(FIRST_SESSION + 1, n % 32, b"forged"));
        stranger.send(&datagram(FIRST_SESSION + 77, n, b"forged"));
        (0..5).for_each(|_| rig.step());
    }
    are_finished(&mut rig);
    let dropped = &rig.ends[1].worker.summary().drops;
    assert!(dropped.values().sum::<u64>() >= 100, "{dropped:?}");
}

const STRANGE_SESSION: u64 = FIRST_SESSION + 9;

/// Creates two ends, the second of which has a session with the returned peer.
fn with_stranger(setup: &Setup) -> (Rig, Stranger) {
    let mut rig = Rig::new(setup, [Peer::sends(&PARTS), Peer::echoes()]);
    rig.tick = TICK;
    let stranger = Stranger::new(&rig);
    let gid = rig.ends[0].device.gids(1).unwrap()[0].raw;
    let other = (gid, stranger.datagrams.number(), stranger.datagrams.key(), STRANGE_SESSION);
    rig.half_session(setup, (1, STRANGE_SESSION, Origin::Accepted), other);
    rig.run_until(|ends| ends[1].worker.summary().accepted == 1);
    (rig, stranger)
}

#[test]
fn malformed_datagram_ends_its_session_only() {
    let credit = Header { kind: MessageKind::Credit, credits: 9 }.to_bytes();
    for message in [&b"x"[..], &[9; HEADER], &credit, &[]] {
        let setup = setup(6);
        let (mut rig, mut stranger) = with_stranger(&setup);
        // A number far ahead is as invalid as a malformed header.
        stranger.send(&datagram(
            STRANGE_SESSION,
            if message.is_empty() { 1000 } else { 0 },
            if message.is_empty() { b"x" } else { message },
        ));
        rig.run_until(|ends| ends[1].worker.service().ended == [CloseReason::Reset]);
        rig.ends[1].worker.service_mut().ended.clear();
        rig.connect(&setup);
        are_finished(&mut rig);
    }
}

#[test]
fn excess_messages_end_session() {
    let setup = setup(7);
    let (mut rig, mut stranger) = with_stranger(&setup);
    let message = [&Header { kind: MessageKind::Data, credits: 0 }.to_bytes()[..], b"x"].concat();
    // The peer acknowledges nothing and grants no room for the echo.
    (0..20).for_each(|at| stranger.send(&datagram(STRANGE_SESSION, at, &message)));
    rig.run_until(|ends| ends[1].worker.service().ended == [CloseReason::Reset]);
}
