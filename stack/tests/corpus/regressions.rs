//! Regressions found by fuzzing, each as the shortest sequence. The harness checks the invariants.

use crate::fuzz::steps::{Flags, Options, SeqChoice, Shape, Step, play};
use crate::fuzz::{Op, Setup};

/// Segment of the first flow with ACK, next in order, with 10 bytes.
const ORDINARY: Shape = Shape {
    flow: 0,
    seq: SeqChoice::Next,
    ack: SeqChoice::Next,
    flags: Flags::Ack,
    window: 5000,
    len: 10,
    options: Options::Ordinary,
    how: 0,
};

/// Flag of [`Shape::how`]: the next segment arrives in the same burst.
const SAME_BURST: u8 = 32;

/// RFC 9293 §3.8.4: keepalive probes were not sent with out-of-order or unread data.
#[test]
fn keepalive_probes_vanished_peer_with_held_data() {
    let setup = |habits| Setup { bits: Setup::KEEPALIVE, peer: 7, habits: habits | Setup::SILENCE };
    play(setup(0), &[Step::Send(Shape { seq: SeqChoice::Far(1000), ..ORDINARY })]);
    play(setup(Setup::HOLDS), &[Step::Send(ORDINARY)]);
}

/// RFC 4987 §3.2: every reply to a repeated SYN doubled the SYN-ACK timeout, up to a minute.
#[test]
fn repeated_syns_do_not_extend_half_open_connection() {
    let syn = Step::Send(Shape { flow: 1, seq: SeqChoice::Any(7), flags: Flags::Syn, ..ORDINARY });
    play(Setup { habits: Setup::SILENCE, ..Setup::default() }, &vec![syn; 7]);
}

/// A half-open connection holds only its control block.
#[test]
fn old_data_for_a_half_open_connection_gets_no_buffers() {
    let syn = Step::Send(Shape { flow: 1, seq: SeqChoice::Any(7), flags: Flags::Syn, ..ORDINARY });
    let old = Step::Send(Shape { flow: 1, seq: SeqChoice::Near(-20), ..ORDINARY });
    play(Setup::default(), &[syn, old]);
}

/// An idle connection holds no buffers and is probed, even if its last acknowledgement gave no RTT sample.
#[test]
fn last_ack_makes_connection_idle() {
    let round = [Step::Run(0, Op::Write(2000), false), Step::Pass(0), Step::Next { flow: 0, len: 0, flags: 0 }];
    play(Setup { bits: Setup::KEEPALIVE, peer: 7, habits: Setup::SILENCE }, &vec![round; 20].concat());
}

/// A challenge ACK in the same burst replaced the SYN-ACK, which was never sent, and the connection never timed out.
#[test]
fn syn_is_answered_despite_segment_in_same_burst() {
    let syn = Step::Send(Shape { flow: 1, seq: SeqChoice::Any(7), flags: Flags::Syn, how: SAME_BURST, ..ORDINARY });
    let old = Step::Send(Shape { flow: 1, seq: SeqChoice::Any(0), len: 0, ..ORDINARY });
    play(Setup::default(), &[syn, old]);
}

/// RFC 9293 §3.8.6.1, MUST-37: a connection with a closed window stays open while the peer answers probes. The engine
/// probed an unresponsive peer forever.
#[test]
fn peer_that_closes_window_and_vanishes_times_out() {
    let closed = Step::Send(Shape { window: 0, ..ORDINARY });
    let setup = Setup { habits: Setup::SILENCE, ..Setup::default() };
    play(setup, &[closed, Step::Run(0, Op::Write(100), false)]);
}

/// An uncommitted reservation sends nothing, even if other data is sent in the same turn.
#[test]
fn uncommitted_reservation_does_not_precede_later_data() {
    let reserve = Step::Run(0, Op::Reserve(1000), true);
    for sent in [Op::Send(10), Op::Write(10), Op::Forward] {
        let received = Step::Send(Shape { len: 3000, ..ORDINARY });
        play(
            Setup { habits: Setup::HOLDS, ..Setup::default() },
            &[received, reserve.clone(), Step::Run(0, sent, false)],
        );
    }
    play(Setup::default(), &[reserve, Step::Settle]);
}
