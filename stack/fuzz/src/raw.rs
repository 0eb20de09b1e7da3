//! Raw frames to an endpoint in a given state: listening, connected, or closing.
//!
//! An input is a [`Setup`] and records: a byte of [flags](Record), their arguments, and a length-prefixed frame.

use super::frames::{ACK, FIN, Located, readdress};
use super::probe::Op;
use super::rig::{Delivery, Rig};
use super::setup::Setup;
use linerate_service::time::Duration;

const MOST_RECORDS: usize = 48;

/// Bits of a record's first byte.
struct Record;

impl Record {
    /// Correct the checksums.
    const FIX_CHECKSUMS: u8 = 1;
    /// Count sequence numbers from the numbers that the endpoint expects.
    const RELATIVE: u8 = 1 << 1;
    /// Readdress the frame to a flow, which a byte selects.
    const ADDRESS: u8 = 1 << 2;
    /// Divide the frame; a byte gives the length of the first chunk.
    const CUT: u8 = 1 << 3;
    /// Report the checksums as verified by the port.
    const VERIFIED: u8 = 1 << 4;
    /// Deliver the next record's frame in the same burst.
    const BURST: u8 = 1 << 5;
    /// Pause before the frame; a byte gives the time.
    const PAUSE: u8 = 1 << 6;
    /// Run an operation of the service before the frame; a byte selects it.
    const ASK: u8 = 1 << 7;
}

/// Pauses in milliseconds.
const PAUSES: [u64; 12] = [1, 5, 41, 199, 201, 600, 1001, 3100, 10_001, 61_000, 130_000, 300_000];

pub fn pause(byte: u8) -> Duration {
    Duration::from_millis(PAUSES[usize::from(byte) % PAUSES.len()])
}

/// Runs frames into a listening endpoint without connections.
pub fn listening(data: &[u8]) {
    let (setup, records) = Setup::read(data);
    let mut rig = Rig::new(setup);
    play(&mut rig, records);
    rig.finish();
}

/// Runs frames into an endpoint with an established connection.
pub fn connected(data: &[u8]) {
    let (setup, records) = Setup::read(data);
    let mut rig = Rig::new(setup);
    rig.open(0);
    play(&mut rig, records);
    rig.finish();
}

/// Runs frames into an endpoint with a closing connection; the byte after the setup selects its state.
pub fn closing(data: &[u8]) {
    let (setup, rest) = Setup::read(data);
    let (state, records) = rest.split_first().unwrap_or((&0, rest));
    let mut rig = Rig::new(setup);
    rig.open(0);
    close(&mut rig, *state);
    play(&mut rig, records);
    rig.finish();
}

/// Brings the first connection into a state after ESTABLISHED.
fn close(rig: &mut Rig, state: u8) {
    let tuple = rig.tuple(0);
    let Some(conn) = rig.conn(&tuple) else { return };
    rig.run_op(conn, Op::Hold(true));
    if state & 8 != 0 {
        rig.run_op(conn, Op::Write(3000));
        rig.settle();
    }
    let (endpoint_first, acknowledges, peer_closes, endpoint_second) = match state & 7 {
        // FIN-WAIT-1, FIN-WAIT-2, CLOSE-WAIT, LAST-ACK, CLOSING, and TIME-WAIT.
        0 => (true, false, false, false),
        1 => (true, true, false, false),
        2 => (false, true, true, false),
        3 => (false, true, true, true),
        4 => (true, false, true, false),
        _ => (true, true, true, false),
    };
    if endpoint_first {
        rig.run_op(conn, Op::Close);
        rig.settle();
    }
    let mut segment = rig.next(&tuple, ACK, 0);
    if !acknowledges {
        segment.ack = segment.ack.wrapping_sub(1);
    }
    if state & 16 != 0 {
        // Some bytes that the service does not read.
        segment.len = 100;
        rig.send(&tuple, &segment, Delivery::default());
        rig.settle();
        segment.seq = segment.seq.wrapping_add(100);
        segment.len = 0;
    }
    if peer_closes {
        segment.flags |= FIN;
    }
    rig.send(&tuple, &segment, Delivery::default());
    rig.settle();
    if endpoint_second {
        rig.run_op(conn, Op::Close);
        rig.settle();
    }
}

fn play(rig: &mut Rig, mut records: &[u8]) {
    fn byte(records: &mut &[u8]) -> u8 {
        let Some((first, rest)) = records.split_first() else { return 0 };
        *records = rest;
        *first
    }
    for _ in 0..MOST_RECORDS {
        if records.is_empty() {
            break;
        }
        let flags = byte(&mut records);
        let has = |bit| flags & bit != 0;
        let flow = if has(Record::ADDRESS) { byte(&mut records) } else { 0 };
        let cut = if has(Record::CUT) { Some(usize::from(byte(&mut records)) * 4) } else { None };
        if has(Record::PAUSE) {
            rig.pass(pause(byte(&mut records)));
        }
        let tuple = rig.tuple(flow);
        if has(Record::ASK) {
            let op = Op::of(byte(&mut records));
            if let Some(conn) = rig.conn(&tuple) {
                rig.run_op(conn, op);
            }
        }
        let len = usize::from(byte(&mut records)) | usize::from(byte(&mut records)) << 8;
        let (frame, rest) = records.split_at(len.min(1600).min(records.len()));
        records = rest;
        if !frame.is_empty() {
            let mut frame = frame.to_vec();
            if has(Record::ADDRESS) {
                readdress(&mut frame, &tuple);
            }
            if let Some(located) = Located::find(&frame).filter(|_| has(Record::RELATIVE)) {
                let known = rig.flow(located.tuple);
                let (seq, ack) = (known.ack, known.nxt);
                located.shift(&mut frame, seq, ack);
            }
            rig.push(frame, has(Record::FIX_CHECKSUMS), Delivery { cut, verified: has(Record::VERIFIED) });
        }
        if !has(Record::BURST) {
            rig.settle();
        }
    }
    rig.settle();
}
