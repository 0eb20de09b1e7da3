//! Division of the processor time of a server among its parts (`--profile`), from samples of the instructions that its
//! threads execute.

mod lines;
mod sampling;

use crate::results::{Part, SampleEvent};
use linerate_process::cpu_time::threads;
use lines::{LineTables, Mappings};
use sampling::Sample;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::Duration;

/// Reason why this program cannot be profiled, with the remedy.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// The instructions cannot be assigned to source files.
    #[error(
        "--profile: this build has no line tables: use one of the profile release, or of the profile demo with \
         CARGO_PROFILE_DEMO_DEBUG=line-tables-only"
    )]
    NoLineTables,
    /// The program cannot be read.
    #[error("--profile: the program cannot be read: {0}")]
    Read(io::Error),
    /// The kernel does not permit samples of instructions in the kernel.
    #[error("--profile: {0}: run it as root, or permit sampling with sysctl -w kernel.perf_event_paranoid=1")]
    NotPermitted(io::Error),
}

/// Profiler of processes that run this program.
pub struct Profiler {
    lines: LineTables,
    /// Event that causes samples.
    pub event: SampleEvent,
}

/// Samples of a process.
pub struct Samples {
    samples: Vec<Sample>,
    mappings: Mappings,
}

impl Profiler {
    /// Reads the line tables of this program and selects the event that causes samples.
    pub fn new() -> Result<Profiler, ProfileError> {
        let lines = LineTables::load().map_err(ProfileError::Read)?;
        let mappings = Mappings::read(std::process::id()).map_err(ProfileError::Read)?;
        // The standard library has line tables in every build. This function has those of the build.
        let own = Profiler::new as fn() -> Result<Profiler, ProfileError> as usize;
        if lines.part(own as u64, &mappings).is_none() {
            return Err(ProfileError::NoLineTables);
        }
        Ok(Profiler { lines, event: sampling::event().map_err(ProfileError::NotPermitted)? })
    }

    /// Samples the threads of `process` for `time`, or until an interruption. A server that is ready has created all
    /// its threads.
    pub fn sample(&self, process: u32, time: Duration) -> io::Result<Samples> {
        let mappings = Mappings::read(process)?;
        let samples = sampling::sample(&threads(Path::new("/proc"), process), self.event, time)?;
        Ok(Samples { samples, mappings })
    }

    /// Returns the number of samples in each part.
    pub fn divide(&self, Samples { samples, mappings }: &Samples) -> BTreeMap<Part, u64> {
        let mut parts = BTreeMap::from(Part::ALL.map(|part| (part, 0)));
        for Sample { address, return_address } in samples {
            // The return address follows the call, which may be the last instruction of its function.
            let caller = || self.lines.part(return_address.wrapping_sub(1), mappings);
            let part = self.lines.part(*address, mappings).or_else(caller);
            *parts.entry(part.unwrap_or(Part::Other)).or_default() += 1;
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::gettid;
    use std::hint::black_box;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::channel;
    use std::thread;

    /// Largest length of [`spin`] in bytes.
    const LENGTH: u64 = 512;

    /// Computes without a call, also where it is not optimised.
    #[inline(never)]
    fn spin(mut rounds: u32) -> u64 {
        let mut number = 1_u64;
        while rounds > 0 {
            number ^= number << 13;
            number ^= number >> 7;
            rounds -= 1;
        }
        number
    }

    #[test]
    fn function_that_spins_has_the_samples() {
        let Ok(event) = sampling::event() else { return };
        let (stop, (sender, receiver)) = (AtomicBool::new(false), channel());
        let mut samples = Vec::new();
        thread::scope(|scope| {
            scope.spawn(|| {
                sender.send(gettid().as_raw_nonzero().get()).unwrap();
                while !stop.load(Ordering::Relaxed) {
                    black_box(spin(black_box(100_000)));
                }
            });
            let spinning = receiver.recv().unwrap();
            // A busy machine runs the thread sometime.
            while samples.len() < 100 {
                samples.extend(sampling::sample(&[spinning], event, Duration::from_millis(50)).unwrap());
            }
            stop.store(true, Ordering::Relaxed);
        });
        let begin = spin as fn(u32) -> u64 as usize as u64;
        let within = samples.iter().filter(|sample| (begin..begin + LENGTH).contains(&sample.address)).count();
        assert!(within * 10 > samples.len() * 8, "{within} of {}", samples.len());
        let profiler = match Profiler::new() {
            Ok(profiler) => profiler,
            Err(error) => return assert!(matches!(error, ProfileError::NoLineTables), "{error}"),
        };
        let mappings = Mappings::read(std::process::id()).unwrap();
        let parts = profiler.divide(&Samples { samples, mappings });
        assert!(parts[&Part::Service] >= within as u64, "{within}: {parts:?}");
    }
}
