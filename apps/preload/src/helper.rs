//! Helper thread. It runs turns while no thread of the program waits: acknowledgements and timers go on while the
//! program computes.

use crate::runtime;
use std::time::{Duration, Instant};

/// Longest time without a turn while the program computes.
pub const TICK: Duration = Duration::from_millis(1);
/// Longest time without a turn while the driver sleeps: longer than its sleeps. A signal handler may run in its thread.
const REST: Duration = Duration::from_millis(1200);
/// Time between two searches for addresses that can be released.
const RELEASE: Duration = Duration::from_secs(1);

/// Starts the thread.
pub fn start() {
    // SAFETY: the sets are initialized by sigfillset and pthread_sigmask.
    unsafe {
        let (mut all, mut old) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        // Signals are for the threads of the program. A thread inherits the mask of its creator.
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut old);
        let started = std::thread::Builder::new().name("linerate-ticker".to_owned()).spawn(run);
        libc::pthread_sigmask(libc::SIG_SETMASK, &old, std::ptr::null_mut());
        if let Err(error) = started {
            tracing::warn!("connections wait while the program computes: no thread: {error}");
        }
    }
}

fn run() {
    let (mut seen, mut released, mut rests) = (0, Instant::now(), false);
    loop {
        std::thread::park_timeout(if rests { REST } else { TICK });
        let ended = runtime::look(|runtime| {
            if released.elapsed() >= RELEASE {
                runtime.release_addresses();
                released = Instant::now();
            }
            let is_late = runtime.turns == seen;
            if is_late && runtime.turn() {
                runtime.wake_driver();
            }
            seen = runtime.turns;
            rests = runtime.waiting.driver_sleeps && !is_late;
            runtime.waiting.resting = rests.then(std::thread::current);
            Ok(runtime.has_ended())
        });
        if ended != Ok(false) {
            return;
        }
    }
}
