//! Samples of the instructions of threads: perf_event_open(2).

use crate::results::SampleEvent;
use linerate_process::interrupt::is_interrupted;
use perf_event::data::Record;
use perf_event::events::{Hardware, Software};
use perf_event::{Builder, SampleFlag, Sampler};
use std::io;
use std::thread;
use std::time::{Duration, Instant};

/// Nanoseconds and cycles between two samples: about 2000 each second. Primes, so that periodic work is not sampled at
/// the same phase each time.
const CPU_CLOCK_PERIOD: u64 = 500_009;
const CYCLES_PERIOD: u64 = 1_500_007;
/// Bytes of the ring of a thread, many times those of the samples during a nap. Users without privileges may lock about
/// half a megabyte for each core.
const RING: usize = 1 << 16;
const NAP: Duration = Duration::from_millis(20);
/// Bytes of the stack in a sample: its top, which is the return address in functions that keep nothing on the stack.
const STACK: u32 = 8;

/// Sampled instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    pub address: u64,
    /// Top of the stack in user mode: a return address in functions without a stack frame, such as `memcpy`.
    pub return_address: u64,
}

/// Selects the event that causes samples: cycles, or `cpu-clock` where the machine does not count them.
///
/// # Errors
/// The kernel does not permit sampling.
pub fn event() -> io::Result<SampleEvent> {
    // A machine without counters may still open them; they then read zero.
    let cycles = sampler(0, SampleEvent::Cycles).and_then(|mut sampler| sampler.read());
    if cycles.is_ok_and(|cycles| cycles > 0) {
        return Ok(SampleEvent::Cycles);
    }
    sampler(0, SampleEvent::CpuClock).map(|_| SampleEvent::CpuClock)
}

/// Samples `threads` for `time`, or until an interruption.
pub fn sample(threads: &[i32], event: SampleEvent, time: Duration) -> io::Result<Vec<Sample>> {
    let samplers = threads.iter().map(|thread| sampler(*thread, event));
    let mut samplers = samplers.collect::<io::Result<Vec<_>>>()?;
    let (begun, mut samples) = (Instant::now(), Vec::new());
    while !is_interrupted() && begun.elapsed() < time {
        thread::sleep(NAP.min(time.saturating_sub(begun.elapsed())));
        samplers.iter_mut().for_each(|sampler| drain(sampler, &mut samples));
    }
    Ok(samples)
}

/// Begins to sample a thread in user and kernel mode; the calling one if `thread` is 0.
fn sampler(thread: i32, event: SampleEvent) -> io::Result<Sampler> {
    let mut builder = match event {
        SampleEvent::Cycles => Builder::new(Hardware::CPU_CYCLES),
        SampleEvent::CpuClock => Builder::new(Software::CPU_CLOCK),
    };
    builder.sample_period(match event {
        SampleEvent::Cycles => CYCLES_PERIOD,
        SampleEvent::CpuClock => CPU_CLOCK_PERIOD,
    });
    builder.sample(SampleFlag::IP | SampleFlag::STACK_USER).sample_stack_user(STACK);
    builder.observe_pid(thread).any_cpu().include_kernel().enabled(true);
    builder.build()?.sampled(RING)
}

fn drain(sampler: &mut Sampler, samples: &mut Vec<Sample>) {
    while let Some(record) = sampler.next_record() {
        let Ok(Record::Sample(sample)) = record.parse_record() else { continue };
        let top = sample.stack_user().and_then(|top| top.try_into().ok()).map_or(0, u64::from_ne_bytes);
        samples.extend(sample.ip().map(|address| Sample { address, return_address: top }));
    }
}
