//! Interruption by SIGINT and SIGTERM.

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::{Duration, Instant};

/// Time after the first signal in which further ones have no effect. `timeout` of coreutils sends a signal to the
/// process and then to its group.
const REPETITION: Duration = Duration::from_secs(1);

static INTERRUPTED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// Makes the first SIGINT or SIGTERM interrupt all waits. Another one, at least a second later, ends this process at
/// once.
pub fn on_signals() -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let watch = move || {
        let mut first = None;
        for signal in signals.forever() {
            let first = *first.get_or_insert_with(Instant::now);
            INTERRUPTED.store(true, Ordering::Relaxed);
            if first.elapsed() >= REPETITION {
                // The default action of both signals is to end the process, so this does not return.
                let _ = emulate_default_handler(signal);
            }
        }
    };
    thread::Builder::new().name("signals".to_owned()).spawn(watch).map(drop)
}

/// Returns whether a signal was received.
pub fn is_interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// Returns the flag that a signal sets.
pub fn flag() -> Arc<AtomicBool> {
    INTERRUPTED.clone()
}

/// Interrupts all waits, as a signal does, for tests.
pub fn interrupt() {
    INTERRUPTED.store(true, Ordering::Relaxed);
}
