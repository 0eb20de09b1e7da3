//! Requests of a scripted peer that are refused or ignored.

use super::packets::*;
use super::scenarios::*;
use super::*;
use linerate_rdma_provider::WcOpcode;

/// Opcodes of requests, with the positions that they have in a message.
const REQUESTS: [u8; 20] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 19, 20, 22, 23, 0x15, 0x18, 0x1f];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    Nothing,
    Send,
    Write,
}

/// Returns the state after a request in a state, if it is valid there (IBA 9.7.4.1.2). Reserved opcodes are not.
fn next(progress: Progress, opcode: u8) -> Option<Progress> {
    use Progress::*;
    Some(match (progress, opcode) {
        (Nothing, 0) | (Send, 1) => Send,
        (Nothing, 6) | (Write, 7) => Write,
        (Nothing, 4 | 5 | 10 | 11 | 12 | 19 | 20 | 23) | (Send, 2 | 3 | 22) | (Write, 8 | 9) => Nothing,
        _ => return None,
    })
}

/// Returns a request with valid headers and length. WRITEs of several packets have 3 MTU.
fn request(script: &Script, opcode: u8, key: u32) -> Vec<u8> {
    let number = atomic_eth(script.address(OPEN), script.keys.remote, 1, 1);
    let word = 7u32.to_be_bytes();
    match opcode {
        0 | 1 | 7 => joined(&[], MTU),
        2 => joined(&[], 1),
        8 => joined(&[], MTU),
        3 => joined(&word, 1),
        9 => joined(&word, MTU),
        4 => vec![],
        5 => word.to_vec(),
        6 => joined(&script.reth(3 * MTU), MTU),
        10 => script.reth(0),
        11 => [script.reth(0), word.to_vec()].concat(),
        12 => script.reth(8),
        19 | 20 => number,
        22 => joined(&key.to_be_bytes(), 1),
        _ => key.to_be_bytes().to_vec(),
    }
}

#[test]
fn opcode_that_does_not_continue_the_message_is_invalid() {
    let middles = [&[][..], &[0], &[0, 1], &[6], &[6, 7]];
    for (before, first, second) in middles
        .iter()
        .flat_map(|&before| REQUESTS.iter().map(move |&first| (before, first)))
        .flat_map(|(before, first)| REQUESTS.map(|second| (before, first, second)))
    {
        let script = Script::new();
        (0..4).for_each(|id| script.receive(id, 0, 2048));
        let (mut progress, mut psn, mut packets) = (Some(Progress::Nothing), 200, 0);
        let mut invalidates = false;
        for &opcode in before.iter().chain(&[first, second]) {
            // Nothing is bound, so valid invalidations are access errors.
            let refused =
                progress.is_some_and(|progress| next(progress, opcode).is_some()) && [22, 23].contains(&opcode);
            // A WRITE LAST after another number of packets is too short or too long, and one more packet is.
            packets = if matches!(opcode, 0 | 6) { 1 } else { packets + 1 };
            let is_short = progress == Some(Progress::Write) && packets != 3 && matches!(opcode, 8 | 9)
                || opcode == 7 && packets > 2;
            script.give([(opcode, psn, request(&script, opcode, 0x1234))]);
            if progress.is_some() && !invalidates {
                progress = progress.and_then(|progress| next(progress, opcode)).filter(|_| !is_short);
                invalidates |= refused;
            }
            psn += 1;
        }
        let context = format!("{before:x?}, {first:#x}, {second:#x}");
        let code = script.sent().last().map(|(_, _, rest)| kind(rest[0]));
        let (expected, events) = match progress {
            _ if invalidates => (Some(0x62), vec![AsyncEvent::QpAccessError(script.qp)]),
            None => (Some(0x61), vec![AsyncEvent::QpRequestError(script.qp)]),
            Some(_) => (Some(ACK), vec![]),
        };
        assert_eq!((code, script.events()), (expected, events), "{context}");
        let state = if matches!(expected, Some(0x61 | 0x62)) { QpState::Error } else { QpState::Rts };
        assert_eq!(script.state(), state, "{context}");
    }
}

#[test]
fn reserved_opcode_is_refused_in_sequence_only() {
    for opcode in [0x15, 0x18, 0x1c, 0x1f] {
        let script = Script::new();
        (0..2).for_each(|id| script.receive(id, 0, 8));
        let next = (0x04, 200, vec![1]);
        script.give([next.clone(), (opcode, 200, vec![])]);
        assert_eq!(script.acknowledgements(), [(200, ACK)], "{opcode:#x}, before the expected packet");
        script.give([(opcode, 202, vec![])]);
        assert_eq!(script.acknowledgements(), [(201, 0x60)], "{opcode:#x}, after the expected packet");
        let mut foreign = script.packet((opcode, 201, vec![]));
        foreign.from = [10, 0, 0, 3].into();
        script.fabric.inject([10, 0, 0, 1].into(), &foreign.bytes());
        assert_eq!(
            (script.sent(), script.ends(), script.state()),
            (vec![], vec![(0, WcStatus::Success)], QpState::Rts)
        );
        script.give([(opcode, 201, vec![])]);
        assert_eq!(script.acknowledgements(), [(201, 0x61)], "{opcode:#x}");
        assert_eq!((script.ends(), script.state()), (vec![(1, WcStatus::Flushed)], QpState::Error));
        assert_eq!(script.events(), [AsyncEvent::QpRequestError(script.qp)]);
        let counters = script.counters();
        assert_eq!((counters.malformed, counters.unexpected, counters.refused), (1, 1, 1));
    }
}

#[test]
fn packet_of_wrong_length_is_invalid() {
    let reth = |len| move |script: &Script| script.reth(len);
    type Header = Box<dyn Fn(&Script) -> Vec<u8>>;
    let none = || -> Header { Box::new(|_: &Script| vec![]) };
    let atomic = |len: usize| -> Header {
        Box::new(move |script: &Script| {
            let mut header = atomic_eth(script.address(OPEN), script.keys.remote, 1, 1);
            header.resize(len, 0);
            header
        })
    };
    let cases: Vec<(&[u8], u8, Header, usize)> = vec![
        (&[], 0x00, none(), MTU - 1),
        (&[], 0x00, none(), MTU + 1),
        (&[], 0x04, none(), MTU + 1),
        (&[], 0x05, none(), 3),
        (&[0], 0x01, none(), 0),
        (&[0], 0x01, none(), MTU + 4),
        (&[0], 0x02, none(), 0),
        (&[0], 0x02, none(), MTU + 1),
        (&[0], 0x03, none(), 4),
        (&[], 0x06, Box::new(reth(3 * MTU)), MTU - 1),
        (&[], 0x06, Box::new(reth(MTU)), MTU),
        (&[], 0x06, none(), 15),
        (&[], 0x0a, Box::new(reth(8)), 7),
        (&[], 0x0a, Box::new(reth(8)), 9),
        (&[], 0x0a, Box::new(reth(MTU + 1)), MTU + 1),
        (&[], 0x0b, Box::new(reth(8)), 8),
        (&[6], 0x07, none(), MTU - 1),
        (&[6, 7], 0x08, none(), MTU - 1),
        (&[6, 7], 0x09, none(), MTU),
        (&[6, 7], 0x07, none(), MTU),
        (&[], 0x0c, Box::new(reth(8)), 1),
        (&[], 0x0c, none(), 15),
        (&[], 0x0c, Box::new(reth((1 << 30) + 1)), 0),
        (&[], 0x13, atomic(27), 0),
        (&[], 0x14, atomic(29), 0),
        (&[], 0x17, none(), 3),
    ];
    for (number, (before, opcode, header, len)) in cases.iter().enumerate() {
        let script = Script::new();
        script.receive(1, 0, 2048);
        let mut psn = 200;
        for &opcode in *before {
            script.give([(opcode, psn, request(&script, opcode, 0))]);
            psn += 1;
        }
        script.sent();
        script.memory.put(OPEN, &[1; 1024]);
        script.give([(*opcode, psn, joined(&header(&script), *len))]);
        assert_eq!(script.acknowledgements(), [(psn, 0x61)], "case {number}");
        assert_eq!((script.state(), script.memory.get(OPEN, 1024)), (QpState::Error, vec![1; 1024]), "case {number}");
    }
}

#[test]
fn keys_of_other_regions_and_domains_are_refused() {
    // A region of the domain for reads, of another domain, deregistered, and with another lower byte.
    for (key, opcode) in (0..4).flat_map(|key| [0x06, 0x0a, 0x0b, 0x0c, 0x13, 0x14].map(|opcode| (key, opcode))) {
        let script = Script::new();
        (0..2).for_each(|id| script.receive(id, 0, 8));
        let readable = Access { local_write: true, remote_read: true, ..Access::default() };
        let other = script.sim.alloc_pd().unwrap();
        let (pd, access) = match key {
            0 => (script.pd, readable),
            1 => (other, ALL),
            _ => (script.pd, ALL),
        };
        let (mr, keys) = call!(script.sim.reg_mr(pd, script.memory.start(), 8192, access)).unwrap();
        if key == 2 {
            call!(script.sim.dereg_mr(mr)).unwrap();
        }
        let rkey = if key == 3 { keys.remote ^ 1 } else { keys.remote };
        script.memory.put(OPEN, &[1; 1024]);
        let address = script.address(OPEN);
        let rest = match opcode {
            0x06 => joined(&reth(address, rkey, 512), MTU),
            0x0a => joined(&reth(address, rkey, 8), 8),
            0x0b => joined(&[reth(address, rkey, 8), vec![0; 4]].concat(), 8),
            0x0c => reth(address, rkey, 8),
            _ => atomic_eth(address, rkey, 1, 0x0101_0101_0101_0101),
        };
        script.give([(0x04, 200, vec![]), (opcode, 201, rest)]);
        let sent = script.sent();
        if key == 0 && opcode == 0x0c {
            assert_eq!(sent[0], (0x10, 201, joined(&aeth(1, 2), 0).into_iter().chain([1; 8]).collect()));
            continue;
        }
        // The NAK acknowledges what precedes it.
        assert_eq!(sent, [(0x11, 201, aeth(0x62, 1))], "{key} {opcode:#x}");
        assert_eq!(script.memory.get(OPEN, 1024), [1; 1024]);
        assert_eq!(script.events(), [AsyncEvent::QpAccessError(script.qp)]);
        assert_eq!(script.ends(), [(0, WcStatus::Success), (1, WcStatus::Flushed)]);
    }
}

#[test]
fn immediate_data_and_invalidation_of_a_send_are_executed() {
    let script = Script::new();
    (1..4).for_each(|id| script.receive(id, 0, 600));
    let (mw, window) = call!(script.sim.alloc_mw(script.pd)).unwrap();
    let rkey = window ^ 1;
    let (address, access) = (script.address(OPEN), Access { remote_read: true, ..Access::default() });
    let bind = Operation::Bind { mw, rkey, mr: script.mr, address, len: 8, access };
    script.request(9, bind, &[], SIGNALLED);
    script.sent();
    let read = |psn| (0x0c, psn, reth(address, rkey, 8));
    script.give([(0x05, 200, joined(&[1, 2, 3, 4], 3)), (0x00, 201, joined(&[], MTU))]);
    script.give([(0x03, 202, joined(&[5, 6, 7, 8], 3)), read(203)]);
    assert_eq!(script.numbers(), [(0x10, 203), (0x11, 203)]);
    script.give([(0x17, 204, joined(&rkey.to_be_bytes(), 3)), read(205)]);
    assert_eq!(script.acknowledgements(), [(205, 0x62)], "the window is unbound");
    let received = script.poll().into_iter().filter(|done| done.opcode == WcOpcode::Receive);
    let received: Vec<_> = received.map(|done| (done.id, done.len, done.immediate)).collect();
    assert_eq!(received, [(1, 3, Some(0x0102_0304)), (2, 259, Some(0x0506_0708)), (3, 3, None)]);
}

#[test]
fn packets_for_other_states_or_from_other_addresses_are_ignored() {
    let send = |script: &Script| script.packet((0x04, 200, vec![]));
    let here = IpAddr::from([10, 0, 0, 1]);
    let script = Script::new();
    (0..9).for_each(|id| _ = call!(script.sim.post_recv(script.qp, &[RecvWr { id, sges: &[] }])));
    type Change = fn(&mut Packet);
    let changes: [Change; 7] = [
        |packet| packet.from = [10, 0, 0, 3].into(),
        |packet| packet.to = [10, 0, 0, 3].into(),
        |packet| (packet.from, packet.to) = (packet.to, packet.from),
        |packet| packet.qp ^= 0x1_0000,
        |packet| packet.qp += 1,
        |packet| (packet.opcode, packet.rest) = (0x64, deth(0, 5)),
        |packet| packet.opcode |= 0x20,
    ];
    for (number, change) in changes.iter().enumerate() {
        let mut packet = send(&script);
        change(&mut packet);
        script.fabric.inject(here, &packet.bytes());
        assert_eq!((script.sent(), script.ends()), (vec![], vec![]), "change {number}");
    }
    assert_eq!(script.counters().unexpected, changes.len() as u64);
    script.fabric.inject(here, &send(&script).bytes());
    assert_eq!(script.acknowledgements(), [(200, ACK)]);

    let script = Script::in_init();
    script.receive(1, 0, 8);
    for (number, change) in [None, Some(Transition::Error), Some(Transition::Reset)].into_iter().enumerate() {
        if let Some(transition) = change {
            script.modify_qp(transition).unwrap();
        }
        script.poll();
        script.fabric.inject(here, &send(&script).bytes());
        script.give([(0x11, 99, aeth(ACK, 0)), (0x10, 100, aeth(ACK, 0))]);
        assert_eq!((script.sent(), script.ends()), (vec![], vec![]), "state {number}");
    }
    assert_eq!(script.counters().unexpected, 9);
    call!(script.sim.destroy_qp(script.qp)).unwrap();
    script.fabric.inject(here, &send(&script).bytes());
    assert_eq!(script.counters().unexpected, 10);
}
