//! What fuzzing has found, each by the shortest sequence that shows it. What must hold is checked by the harness.

use crate::fuzz::steps::{Flags, Options, Place, Shape, Step, play};
use crate::fuzz::{Op, Setup};

/// A segment of the first flow with ACK alone, next in order, with `len` bytes.
const ORDINARY: Shape = Shape {
    flow: 0,
    seq: Place::Next,
    ack: Place::Next,
    flags: Flags::Ack,
    window: 5000,
    len: 10,
    options: Options::Ordinary,
    how: 0,
};

/// [`Shape::how`]: the next segment comes in the same burst.
const TOGETHER: u8 = 32;

/// RFC 9293 §3.8.4: the probes were not sent while anything was held out of order or was not read.
#[test]
fn a_peer_that_vanishes_is_asked_for_a_sign_of_life_whatever_is_held_of_it() {
    let setup = |habits| Setup { bits: Setup::KEEPALIVE, peer: 7, habits: habits | Setup::SILENCE };
    play(setup(0), &[Step::Send(Shape { seq: Place::Far(1000), ..ORDINARY })]);
    play(setup(Setup::HOLDS), &[Step::Send(ORDINARY)]);
}

/// RFC 4987 §3.2: every answer to a repeated SYN doubled the time until the next one was due, up to a minute.
#[test]
fn a_half_open_connection_does_not_last_longer_for_being_asked_for_again() {
    let syn = Step::Send(Shape { flow: 1, seq: Place::Any(7), flags: Flags::Syn, ..ORDINARY });
    play(Setup { habits: Setup::SILENCE, ..Setup::default() }, &vec![syn; 7]);
}

/// A half-open connection costs its control block alone.
#[test]
fn old_data_for_a_half_open_connection_gets_no_buffers() {
    let syn = Step::Send(Shape { flow: 1, seq: Place::Any(7), flags: Flags::Syn, ..ORDINARY });
    let old = Step::Send(Shape { flow: 1, seq: Place::Near(-20), ..ORDINARY });
    play(Setup::default(), &[syn, old]);
}

/// An idle connection holds no buffers and is asked for a sign of life, also if there was nothing to learn from its last
/// acknowledgement.
#[test]
fn the_last_acknowledgement_makes_a_connection_idle() {
    let round = [Step::Ask(0, Op::Write(2000), false), Step::Pass(0), Step::Next { flow: 0, len: 0, flags: 0 }];
    play(Setup { bits: Setup::KEEPALIVE, peer: 7, habits: Setup::SILENCE }, &vec![round; 20].concat());
}

/// A challenge in the same burst took the place of the SYN, which was never sent, nor was the connection ever given up.
#[test]
fn a_syn_is_answered_by_a_syn_whatever_comes_with_it() {
    let syn = Step::Send(Shape { flow: 1, seq: Place::Any(7), flags: Flags::Syn, how: TOGETHER, ..ORDINARY });
    let old = Step::Send(Shape { flow: 1, seq: Place::Any(0), len: 0, ..ORDINARY });
    play(Setup::default(), &[syn, old]);
}

/// RFC 9293 §3.8.6.1, MUST-37: a connection whose window is closed stays for as long as the peer answers probes. This one went on
/// probing a peer that did not.
#[test]
fn a_peer_that_closes_its_window_and_vanishes_is_given_up() {
    let closed = Step::Send(Shape { window: 0, ..ORDINARY });
    let setup = Setup { habits: Setup::SILENCE, ..Setup::default() };
    play(setup, &[closed, Step::Ask(0, Op::Write(100), false)]);
}

/// What is reserved and not committed is nothing, also if something else is sent in the same turn.
#[test]
fn a_place_that_was_left_is_not_in_front_of_what_is_sent_after_it() {
    let reserve = Step::Ask(0, Op::Reserve(1000), true);
    for sent in [Op::Send(10), Op::Write(10), Op::Forward] {
        let received = Step::Send(Shape { len: 3000, ..ORDINARY });
        play(
            Setup { habits: Setup::HOLDS, ..Setup::default() },
            &[received, reserve.clone(), Step::Ask(0, sent, false)],
        );
    }
    play(Setup::default(), &[reserve, Step::Settle]);
}
