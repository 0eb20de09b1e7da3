//! Handling of SIGINT and SIGTERM.

use super::notify;
use linerate::Stop;
use linerate_process::output::eprint_line;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

/// Interval at which draining checks for remaining connections.
const LOOK: Duration = Duration::from_millis(5);
/// Time after the first signal in which further ones have no effect. `timeout` of coreutils sends a signal to the
/// process and then to its group.
const REPETITION: Duration = Duration::from_secs(1);

/// Returns a request to stop of the first SIGINT or SIGTERM. Another signal, at least a second later, kills the
/// program.
pub fn interrupted() -> io::Result<Stop> {
    let stop = Stop::default();
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let stopper = stop.clone();
    let watch = move || {
        if signals.forever().next().is_some() {
            stopper.stop();
            kill_by_next(&mut signals, Instant::now());
        }
    };
    thread::Builder::new().name("signals".to_owned()).spawn(watch)?;
    Ok(stop)
}

/// Ends the program at the next signal that does not repeat the signal received at `first`, as without a handler.
fn kill_by_next(signals: &mut Signals, first: Instant) {
    if let Some(signal) = signals.forever().find(|_| first.elapsed() >= REPETITION)
        && let Err(error) = emulate_default_handler(signal)
    {
        eprint_line(format_args!("linerate: signal {signal}: {error}"));
    }
}

/// Returns the stop request of workers, driven by SIGINT and SIGTERM.
///
/// The first signal drains workers for up to `drain`. They stop when no connection remains, at the timeout, or at the
/// second signal, if it comes at least a second later; a third kills the program. If `drain` is zero the first signal
/// stops workers, as with [`interrupted`].
pub fn stop(drain: Duration) -> io::Result<Stop> {
    if drain.is_zero() {
        return interrupted();
    }
    let stop = Stop::default();
    let signals = Signals::new([SIGINT, SIGTERM])?;
    let stopper = stop.clone();
    thread::Builder::new().name("signals".to_owned()).spawn(move || drain_and_stop(signals, &stopper, drain))?;
    Ok(stop)
}

/// Drains and stops the workers at the first of `signals`.
fn drain_and_stop(mut signals: Signals, stop: &Stop, drain: Duration) {
    if signals.forever().next().is_none() {
        return;
    }
    let began = Instant::now();
    stop.drain();
    notify::stopping();
    let mut reported = false;
    while !stop.is_stopped() && began.elapsed() < drain {
        if signals.pending().next().is_some() && began.elapsed() >= REPETITION {
            break;
        }
        match stop.remaining() {
            Some(0) if reported => break,
            Some(left) if !reported => {
                eprint_line(format_args!("draining: {left} connection{}", if left == 1 { "" } else { "s" }));
                reported = true;
            }
            _ => thread::sleep(LOOK),
        }
    }
    stop.stop();
    kill_by_next(&mut signals, began);
}
