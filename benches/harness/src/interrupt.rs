//! Interruption by SIGINT and SIGTERM.

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

static INTERRUPTED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// Makes the first SIGINT or SIGTERM interrupt all waits. The second ends this process at once.
pub fn on_signals() -> io::Result<()> {
    for signal in [SIGINT, SIGTERM] {
        // In this order: at the first signal the flag must still be unset here.
        flag::register_conditional_default(signal, INTERRUPTED.clone())?;
        flag::register(signal, INTERRUPTED.clone())?;
    }
    Ok(())
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
