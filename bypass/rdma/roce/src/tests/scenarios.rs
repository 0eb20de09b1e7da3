//! One queue pair and a scripted peer: errors, retries and duplicates, by packets.

use super::packets::*;
use super::*;
use crate::Counters;
use linerate_service::time::Duration;
use std::ops::Deref;

/// Queue pair number of the peer.
const PEER: u32 = 0x77_7777;
pub const MTU: usize = 256;
const RNR_CODE: u8 = 0x1f;
pub const ACK: u8 = 0x1f;
/// Memory that requests of the peer name.
pub const OPEN: usize = 4096;

/// Attributes of a script.
#[derive(Clone, Copy)]
pub struct Attributes {
    /// First sequence numbers sent and received.
    own: u32,
    first: u32,
    timeout: u8,
    retries: u8,
    rnr_retries: u8,
    reads: u8,
}

pub const DEFAULT: Attributes = Attributes { own: 100, first: 200, timeout: 14, retries: 3, rnr_retries: 2, reads: 2 };

pub struct Script {
    pub fabric: Fabric,
    end: End,
}

impl Deref for Script {
    type Target = End;

    fn deref(&self) -> &End {
        &self.end
    }
}

/// Opcode, sequence number, and extension headers with payload.
pub type Part = (u8, u32, Vec<u8>);

impl Script {
    pub fn new() -> Self {
        Script::with(DEFAULT)
    }

    /// Returns a script whose peer does not limit messages.
    pub fn with(attributes: Attributes) -> Self {
        let script = Script::in_init();
        script.start(attributes);
        // The number before the first one is acknowledged already.
        script.acknowledge(attributes.own.wrapping_sub(1) & 0xff_ffff, ACK);
        script
    }

    /// Returns a script whose peer has not acknowledged anything.
    pub fn limited() -> Self {
        let script = Script::in_init();
        script.start(DEFAULT);
        script
    }

    pub fn in_init() -> Self {
        let setup = Setup::default();
        let fabric = Fabric::new(setup.fabric.clone());
        let end = End::new(&fabric, "model0", setup.devices[0].clone(), &setup);
        end.modify_qp(End::init()).unwrap();
        Script { fabric, end }
    }

    pub fn start(&self, Attributes { own, first, timeout, retries, rnr_retries, reads }: Attributes) {
        let gid = self.sim.gids(1).unwrap()[0];
        let path = AhAttr::to(Ipv4Addr::new(10, 0, 0, 2).to_ipv6_mapped().octets(), 0, &gid);
        let (mtu, min_rnr_timer) = (Mtu::Mtu256, RNR_CODE);
        let rtr = Transition::Rtr { mtu, qp: PEER, psn: first, responder_resources: reads, min_rnr_timer, path };
        self.modify_qp(rtr).unwrap();
        let rts = Transition::Rts { psn: own, timeout, retries, rnr_retries, initiator_depth: reads };
        self.modify_qp(rts).unwrap();
    }

    pub fn packet(&self, (opcode, psn, rest): Part) -> Packet {
        let [to, from] = [1, 2].map(|last| IpAddr::from([10, 0, 0, last]));
        Packet { from, to, opcode, solicited: false, qp: self.number, ack: true, psn: psn & 0xff_ffff, rest }
    }

    /// Delivers packets of the peer.
    pub fn give(&self, parts: impl IntoIterator<Item = Part>) {
        parts.into_iter().for_each(|part| self.fabric.inject([10, 0, 0, 1].into(), &self.packet(part).bytes()));
    }

    pub fn acknowledge(&self, psn: u32, syndrome: u8) {
        self.give([(0x11, psn, aeth(syndrome, 0))]);
    }

    /// Returns the packets sent since the last call.
    pub fn sent(&self) -> Vec<Part> {
        self.fabric.pass(Duration::ZERO);
        let packets = self.fabric.take_sent();
        packets
            .iter()
            .map(|packet| Packet::read(packet))
            .map(|packet| (packet.opcode, packet.psn, packet.rest))
            .collect()
    }

    /// Returns opcodes and sequence numbers of the packets sent since the last call.
    pub fn numbers(&self) -> Vec<(u8, u32)> {
        self.sent().into_iter().map(|(opcode, psn, _)| (opcode, psn)).collect()
    }

    /// Returns sequence numbers and syndromes of the acknowledgements sent since the last call, which are all packets.
    /// Credits are left out.
    pub fn acknowledgements(&self) -> Vec<(u32, u8)> {
        let parts = self.sent().into_iter();
        parts
            .map(|(opcode, psn, rest)| (psn, if opcode == 0x11 { kind(rest[0]) } else { panic!("{opcode:#x}") }))
            .collect()
    }

    pub fn pass(&self, time: Duration) {
        self.fabric.pass(time);
    }

    /// Posts a SEND.
    pub fn post(&self, id: u64, len: usize) {
        self.request(id, Operation::Send, &[self.sge(0, len)], SIGNALLED);
    }

    pub fn read(&self, id: u64, len: usize) {
        self.request(id, Operation::Read { address: 0x10_0000, rkey: 9 }, &[self.sge(0, len)], SIGNALLED);
    }

    pub fn reth(&self, len: usize) -> Vec<u8> {
        reth(self.address(OPEN), self.keys.remote, len as u32)
    }

    pub fn counters(&self) -> Counters {
        self.sim.counters()
    }
}

/// Returns a syndrome without the credits of an acknowledgement.
pub fn kind(syndrome: u8) -> u8 {
    if syndrome < 0x20 { ACK } else { syndrome }
}

pub fn joined(header: &[u8], len: usize) -> Vec<u8> {
    [header, &vec![7; len]].concat()
}

#[test]
fn timeouts_grow_with_their_code_and_end_with_the_retries() {
    for code in [1u8, 8, 14, 20] {
        let script = Script::with(Attributes { timeout: code, ..DEFAULT });
        let time = Duration::from_nanos(4096 << code);
        script.post(1, 300);
        for _ in 0..4 {
            assert_eq!(script.numbers(), [(0x00, 100), (0x02, 101)], "code {code}");
            script.pass(time - Duration::from_nanos(1));
            assert_eq!((script.numbers(), script.ends()), (vec![], vec![]), "code {code}");
            script.pass(Duration::from_nanos(1));
        }
        assert_eq!((script.numbers(), script.ends()), (vec![], vec![(1, WcStatus::RetryExceeded)]));
    }
    let script = Script::with(Attributes { timeout: 0, ..DEFAULT });
    script.post(1, 1);
    script.sent();
    script.pass(Duration::from_secs(3600));
    assert_eq!((script.numbers(), script.state()), (vec![], QpState::Rts), "0 disables the timer");
}

#[test]
fn receiver_not_ready_delays_a_limited_number_of_times() {
    // IBA table 45, in units of 10 µs.
    for (code, time) in [(0, 65_536), (1, 1), (12, 64), (14, 128), (30, 32_768), (31, 49_152)] {
        let script = Script::new();
        let time = Duration::from_micros(10 * time);
        script.post(1, 300);
        for retry in 0..3 {
            assert_eq!(script.numbers(), [(0x00, 100), (0x02, 101)], "code {code}");
            // The network may repeat the NAK.
            (0..2).for_each(|_| script.acknowledge(100, 0x20 | code));
            if retry == 2 {
                break;
            }
            script.pass(time - Duration::from_nanos(1));
            assert_eq!((script.numbers(), script.ends()), (vec![], vec![]), "code {code}");
            script.pass(Duration::from_nanos(1));
        }
        assert_eq!((script.numbers(), script.ends()), (vec![], vec![(1, WcStatus::RnrRetryExceeded)]));
    }
}

#[test]
fn missing_buffer_is_reported_once() {
    let script = Script::new();
    script.give([(0x04, 200, vec![1]), (0x04, 201, vec![2]), (0x04, 202, vec![3])]);
    assert_eq!(script.acknowledgements(), [(200, 0x20 | RNR_CODE)]);
    script.receive(1, 0, 8);
    script.give([(0x04, 200, vec![1]), (0x04, 201, vec![2])]);
    assert_eq!(script.acknowledgements(), [(201, 0x20 | RNR_CODE)]);
    assert_eq!((script.ends(), script.counters().not_ready), (vec![(1, WcStatus::Success)], 2));
}

#[test]
fn gap_in_the_sequence_is_reported_once() {
    let script = Script::new();
    (0..4).for_each(|id| script.receive(id, 0, 8));
    for (given, expected) in [
        (&[201, 202, 203][..], vec![(200, 0x60)]),
        (&[205], vec![]),
        (&[200], vec![(200, ACK)]),
        (&[202, 203], vec![(201, 0x60)]),
        (&[201, 202], vec![(202, ACK)]),
        // Duplicates are acknowledged again, also while a gap exists.
        (&[200, 204, 201], vec![(203, 0x60)]),
        (&[199], vec![(202, ACK)]),
    ] {
        script.give(given.iter().map(|&psn| (0x04, psn, vec![1])));
        assert_eq!(script.acknowledgements(), expected, "{given:?}");
    }
    assert_eq!((script.ends().len(), script.counters().duplicates), (3, 3));
}

#[test]
fn acknowledgement_completes_what_it_names_only() {
    let script = Script::new();
    (1..4).for_each(|id| script.post(id, 300));
    script.sent();
    for (psn, code, expected) in [
        (106, ACK, vec![]),
        (106, 0x60, vec![]),
        (0x80_0000, ACK, vec![]),
        (99, ACK, vec![]),
        (100, ACK, vec![]),
        (102, ACK, vec![(1, WcStatus::Success)]),
        (101, 0x61, vec![]),
        (105, ACK, vec![(2, WcStatus::Success), (3, WcStatus::Success)]),
        (105, ACK, vec![]),
    ] {
        script.acknowledge(psn, code);
        assert_eq!((script.ends(), script.state()), (expected, QpState::Rts), "{psn} {code:#x}");
    }
    assert_eq!((script.counters().unexpected, script.numbers()), (3, vec![]));
}

#[test]
fn negative_acknowledgement_fails_or_repeats_the_request() {
    for (code, status) in [
        (0x61, Some(WcStatus::RemoteInvalidRequest)),
        (0x62, Some(WcStatus::RemoteAccess)),
        (0x63, Some(WcStatus::RemoteOperation)),
        (0x60, None),
        (0x65, None),
        (0x40, None),
    ] {
        let script = Script::new();
        (1..4).for_each(|id| script.post(id, 1));
        script.sent();
        script.acknowledge(101, code);
        let mut expected = vec![(1, WcStatus::Success)];
        expected.extend(status.into_iter().flat_map(|status| [(2, status), (3, WcStatus::Flushed)]));
        assert_eq!(script.ends(), expected, "{code:#x}");
        let repeated = if code == 0x60 { vec![(0x04, 101), (0x04, 102)] } else { vec![] };
        assert_eq!(script.numbers(), repeated, "{code:#x}");
    }
}

#[test]
fn local_request_between_repeated_ones_has_no_packet() {
    let script = Script::new();
    let (mw, key) = call!(script.sim.alloc_mw(script.pd)).unwrap();
    script.post(1, 1);
    let (address, access) = (script.address(0), Access::default());
    let bind = Operation::Bind { mw, rkey: key ^ 1, mr: script.mr, address, len: 8, access };
    script.request(2, bind, &[], SIGNALLED);
    script.request(3, Operation::InvalidateLocal(key ^ 1), &[], SIGNALLED);
    script.post(4, 1);
    assert_eq!(script.numbers(), [(0x04, 100), (0x04, 101)]);
    script.acknowledge(100, 0x60);
    assert_eq!(script.numbers(), [(0x04, 100), (0x04, 101)]);
    script.acknowledge(101, ACK);
    assert_eq!(script.ends(), [1, 2, 3, 4].map(|id| (id, WcStatus::Success)));
}

#[test]
fn later_acknowledgement_implies_a_lost_response() {
    let script = Script::new();
    script.post(1, 1);
    script.read(2, 600);
    script.post(3, 1);
    assert_eq!(script.numbers(), [(0x04, 100), (0x0c, 101), (0x04, 104)]);
    (0..3).for_each(|_| script.acknowledge(104, ACK));
    assert_eq!(script.ends(), [(1, WcStatus::Success)]);
    assert_eq!(script.numbers(), [(0x0c, 101), (0x04, 104)], "once");
    script.give([(0x0d, 101, joined(&aeth(ACK, 2), MTU)), (0x0e, 102, joined(&[], MTU))]);
    script.give([(0x0f, 103, joined(&aeth(ACK, 2), 88))]);
    script.acknowledge(104, ACK);
    assert_eq!(script.ends(), [(2, WcStatus::Success), (3, WcStatus::Success)]);
}

#[test]
fn rest_of_a_read_is_requested_after_a_lost_response_or_timeout() {
    for is_timeout in [false, true] {
        let script = Script::new();
        script.read(1, 4 * MTU);
        assert_eq!(script.sent(), [(0x0c, 100, reth(0x10_0000, 9, 1024))]);
        script.give([(0x0d, 100, joined(&aeth(ACK, 1), MTU)), (0x0e, 101, joined(&[], MTU))]);
        if is_timeout {
            script.pass(Duration::from_nanos(4096 << 14));
        } else {
            script.give([(0x0f, 103, joined(&aeth(ACK, 1), MTU))]);
        }
        assert_eq!(script.sent(), [(0x0c, 102, reth(0x10_0000 + 512, 9, 512))]);
        // Responses to the rest begin like those to a request of their own.
        script.give([(0x0d, 102, joined(&aeth(ACK, 1), MTU)), (0x0f, 103, joined(&aeth(ACK, 1), MTU))]);
        assert_eq!(script.ends(), [(1, WcStatus::Success)]);
    }
}

#[test]
fn response_of_other_kind_or_length_breaks_the_qp() {
    let head = aeth(ACK, 1);
    let atomic = Operation::FetchAdd { address: 0x10_0000, rkey: 9, add: 1 };
    let read = Operation::Read { address: 0x10_0000, rkey: 9 };
    for (operation, len, response) in [
        (read, 8, (0x10, 100, joined(&head, 7))),
        (read, 8, (0x10, 100, joined(&head, 9))),
        (read, 8, (0x0d, 100, joined(&head, MTU))),
        (read, 8, (0x12, 100, joined(&head, 8))),
        (read, 300, (0x10, 100, joined(&head, MTU))),
        (read, 300, (0x0d, 100, joined(&head, MTU - 1))),
        (read, 300, (0x0e, 100, joined(&[], MTU + 1))),
        (atomic, 8, (0x10, 100, joined(&head, 8))),
        (atomic, 8, (0x12, 100, joined(&head, 4))),
        (Operation::Send, 8, (0x10, 100, joined(&head, 0))),
    ] {
        let script = Script::new();
        script.memory.put(0, &[1; 600]);
        script.request(1, operation, &[script.sge(0, len)], SIGNALLED);
        script.sent();
        script.give([response.clone()]);
        assert_eq!(script.ends(), [(1, WcStatus::BadResponse)], "{operation:?} {response:x?}");
        assert_eq!(script.memory.get(0, 600), [1; 600]);
    }
}

#[test]
fn sequence_numbers_wrap_around() {
    let script = Script::with(Attributes { own: 0xff_ffff, first: 0xff_fffe, ..DEFAULT });
    script.post(1, 600);
    script.read(2, 300);
    assert_eq!(script.numbers(), [(0x00, 0xff_ffff), (0x01, 0), (0x02, 1), (0x0c, 2)]);
    script.acknowledge(0xff_ffff, 0x60);
    script.acknowledge(0, 0x60);
    assert_eq!(script.numbers(), [(0x01, 0), (0x02, 1), (0x0c, 2)]);
    script.give([(0x0d, 2, joined(&aeth(ACK, 2), MTU)), (0x0f, 3, joined(&aeth(ACK, 2), 44))]);
    assert_eq!(script.ends(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    script.receive(3, 0, 600);
    script.give((0..3).map(|at| ([0x00, 0x01, 0x02][at], 0xff_fffe + at as u32, vec![9; [MTU, MTU, 5][at]])));
    script.give([(0x0c, 1, script.reth(300)), (0x0c, 1, script.reth(300)), (0x04, 0xff_ffff, vec![])]);
    assert_eq!(script.ends(), [(3, WcStatus::Success)]);
    assert_eq!(script.numbers(), [(0x0d, 1), (0x0f, 2), (0x11, 2)]);
}

#[test]
fn repeated_read_is_answered_again() {
    let script = Script::new();
    script.memory.put(OPEN, &[5; 1000]);
    script.give([(0x0c, 200, script.reth(1000))]);
    assert_eq!(script.numbers(), [(0x0d, 200), (0x0e, 201), (0x0e, 202), (0x0f, 203)]);
    // The memory is read again. A request for the rest is answered from there, beginning with a first response.
    script.memory.put(OPEN, &[6; 1000]);
    let from = |packets: usize| {
        let at = packets * MTU;
        reth(script.address(OPEN + at), script.keys.remote, 1000 - at as u32)
    };
    let middle = |psn| (0x0e, psn, vec![6; MTU]);
    let head = |code, psn, len| (code, psn, [aeth(0, 1), vec![6; len]].concat());
    for (packets, expected) in [
        (0, vec![head(0x0d, 200, MTU), middle(201), middle(202), head(0x0f, 203, 232)]),
        (1, vec![head(0x0d, 201, MTU), middle(202), head(0x0f, 203, 232)]),
        (3, vec![head(0x10, 203, 232)]),
    ] {
        script.give([(0x0c, 200 + packets as u32, from(packets))]);
        assert_eq!(script.sent(), expected, "from packet {packets}");
    }
    // A response is kept while the peer may request it again, and the oldest one is replaced even if it is due.
    script.give([(0x0c, 204, script.reth(8))]);
    assert_eq!(script.numbers(), [(0x10, 204)]);
    script.give([(0x0c, 200, from(0)), (0x0c, 205, script.reth(8))]);
    assert_eq!(script.numbers(), [(0x10, 205)]);
    script.give([(0x0c, 200, from(0)), (0x0c, 204, script.reth(8))]);
    assert_eq!(script.numbers(), [(0x10, 204)]);
}

#[test]
fn repeated_atomic_operation_is_answered_but_not_executed_again() {
    let script = Script::new();
    let number = || u64::from_ne_bytes(script.memory.get(OPEN, 8).try_into().unwrap());
    let header = |swap, compare| atomic_eth(script.address(OPEN), script.keys.remote, swap, compare);
    let answer = |psn, msn, was: u64| (0x12, psn, [aeth(0, msn), was.to_be_bytes().to_vec()].concat());
    for (given, expected, after) in [
        ((0x14, 200, header(5, 0)), vec![answer(200, 1, 0)], 5),
        ((0x14, 200, header(5, 0)), vec![answer(200, 1, 0)], 5),
        ((0x13, 201, header(9, 5)), vec![answer(201, 2, 5)], 9),
        ((0x13, 201, header(9, 5)), vec![answer(201, 2, 5)], 9),
        ((0x13, 202, header(1, 5)), vec![answer(202, 3, 9)], 9),
        // Forgotten.
        ((0x14, 200, header(5, 0)), vec![], 9),
    ] {
        script.give([given.clone()]);
        assert_eq!((script.sent(), number()), (expected, after), "{given:x?}");
    }
}
