//! Being asked to stop.

use super::notify;
use super::output::tell;
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

/// How often it is looked whether all connections have ended.
const LOOK: Duration = Duration::from_millis(5);

/// A flag that the first SIGINT or SIGTERM sets. The second one kills the program at once.
pub fn stop_flag() -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // In this order: the first signal must find the flag unset here.
        flag::register_conditional_default(signal, stop.clone())?;
        flag::register(signal, stop.clone())?;
    }
    Ok(stop)
}

/// By what workers are told to end when SIGINT or SIGTERM comes, and a flag that the first of them sets.
///
/// The first has them drain for `drain` at most. They stop when no connection is left, when the time is over, or at the second
/// signal; a third kills the program at once. If `drain` is zero the first has them stop, and the second kills.
pub fn stop(drain: Duration) -> io::Result<(Stop, Arc<AtomicBool>)> {
    if drain.is_zero() {
        let flag = stop_flag()?;
        return Ok((flag.clone().into(), flag));
    }
    let stop = Stop::default();
    let signals = Signals::new([SIGINT, SIGTERM])?;
    let asked = stop.clone();
    thread::Builder::new().name("signals".to_owned()).spawn(move || end_by(signals, &asked, drain))?;
    let flag = stop.draining().clone();
    Ok((stop, flag))
}

/// Sees workers to their end when the first of `signals` comes.
fn end_by(mut signals: Signals, stop: &Stop, drain: Duration) {
    if signals.forever().next().is_none() {
        return;
    }
    stop.drain();
    notify::stopping();
    let until = Instant::now() + drain;
    let mut told = false;
    while !stop.is_stopped() && Instant::now() < until && signals.pending().next().is_none() {
        match stop.remaining() {
            Some(0) if told => break,
            Some(left) if !told => {
                tell(format_args!("draining: {left} connection{}", if left == 1 { "" } else { "s" }));
                told = true;
            }
            _ => thread::sleep(LOOK),
        }
    }
    stop.stop();
    if let Some(signal) = signals.forever().next()
        && let Err(error) = emulate_default_handler(signal)
    {
        tell(format_args!("linerate: signal {signal}: {error}"));
    }
}
