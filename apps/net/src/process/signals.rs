//! Handling of SIGINT and SIGTERM.

use super::notify;
use super::output::eprint_line;
use linerate_bypass::Stop;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

/// Interval at which draining checks for remaining connections.
const LOOK: Duration = Duration::from_millis(5);

/// Returns a flag that the first SIGINT or SIGTERM sets. The second kills the program at once.
pub fn stop_flag() -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // In this order: at the first signal the flag must still be unset here.
        flag::register_conditional_default(signal, stop.clone())?;
        flag::register(signal, stop.clone())?;
    }
    Ok(stop)
}

/// Returns the stop signal of workers, driven by SIGINT and SIGTERM, and a flag that the first of them sets.
///
/// The first signal drains workers for up to `drain`. They stop when no connection remains, at the timeout, or at the
/// second signal; a third kills the program at once. If `drain` is zero the first signal stops workers and the second
/// kills the program.
pub fn stop(drain: Duration) -> io::Result<(Stop, Arc<AtomicBool>)> {
    if drain.is_zero() {
        let flag = stop_flag()?;
        return Ok((flag.clone().into(), flag));
    }
    let stop = Stop::default();
    let signals = Signals::new([SIGINT, SIGTERM])?;
    let stopper = stop.clone();
    thread::Builder::new().name("signals".to_owned()).spawn(move || drain_and_stop(signals, &stopper, drain))?;
    let flag = stop.draining().clone();
    Ok((stop, flag))
}

/// Drains and stops the workers at the first of `signals`.
fn drain_and_stop(mut signals: Signals, stop: &Stop, drain: Duration) {
    if signals.forever().next().is_none() {
        return;
    }
    stop.drain();
    notify::stopping();
    let until = Instant::now() + drain;
    let mut reported = false;
    while !stop.is_stopped() && Instant::now() < until && signals.pending().next().is_none() {
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
    if let Some(signal) = signals.forever().next()
        && let Err(error) = emulate_default_handler(signal)
    {
        eprint_line(format_args!("linerate: signal {signal}: {error}"));
    }
}
