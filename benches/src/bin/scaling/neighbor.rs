//! Cost of an echo next to other work on a second core.

use linerate_benches::client::BenchError;
use linerate_benches::client::echo::Acks;
use linerate_benches::engine::{Bench, Echo, EchoService, Forward, PairOptions};
use linerate_benches::transfer;
use linerate_bypass::memory_nic::MemoryPacket;
use linerate_harness::Error;
use linerate_harness::process::Process;
use linerate_load::services;
use linerate_service::{ConnId, Origin, Service, Transport, WorkerCtx};
use linerate_stack::NativeEngine;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Echoes between two checks for the end of a neighbor.
const PART: usize = 1000;
/// Time after which a neighbor in another process ends by itself.
const LIFETIME: Duration = Duration::from_secs(60);

/// Open connections of each worker.
pub const FLOWS: usize = 1000;
/// Size of a request in bytes.
pub const SIZE: usize = 64;
/// Echoes of a round.
const ECHOES: usize = 1_000_000;

/// Cores of a measurement.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct Setting {
    /// Core of the measured worker
    #[arg(long, value_name = "CORE", default_value_t = 0)]
    pub core: usize,

    /// Core of its neighbor
    #[arg(long, value_name = "CORE", default_value_t = 1)]
    pub neighbor_core: usize,
}

impl Setting {
    /// Returns the error of a thread that could not run on its core.
    pub fn not_pinned(&self, error: io::Error) -> ScalingError {
        let program = format!("a thread on core {} or {}", self.core, self.neighbor_core);
        Error::Start { program, error }.into()
    }
}

/// Work next to the measured worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Neighbor {
    None,
    OtherProcess,
    SameProcess,
    /// Control of the measurement.
    Writer,
}

impl Neighbor {
    pub const ALL: [Neighbor; 4] = [Self::None, Self::OtherProcess, Self::SameProcess, Self::Writer];

    pub fn name(self) -> &'static str {
        match self {
            Neighbor::None => "none",
            Neighbor::OtherProcess => "worker of another process",
            Neighbor::SameProcess => "worker of the same process",
            Neighbor::Writer => "writer to a line in which the worker counts",
        }
    }
}

/// Error of a measurement.
#[derive(Debug, thiserror::Error)]
pub enum ScalingError {
    /// A worker failed.
    #[error(transparent)]
    Bench(#[from] BenchError),
    /// A thread or the other process could not run.
    #[error(transparent)]
    Run(#[from] Error),
}

pub fn failed(error: io::Error) -> ScalingError {
    Error::Start { program: "scaling".to_owned(), error }.into()
}

/// Returns the nanoseconds of an echo next to `neighbor`.
pub fn time_next_to(neighbor: Neighbor, setting: &Setting) -> Result<f64, ScalingError> {
    match neighbor {
        Neighbor::None => Ok(time(&mut worker::<Forward>()?)?),
        Neighbor::OtherProcess => {
            let own = std::env::current_exe().map_err(failed)?;
            let mut command = Command::new(own);
            command.arg("--neighbor").args(["--neighbor-core", &setting.neighbor_core.to_string()]);
            let mut other = Process::dependent(&command)?.with_timeout(LIFETIME);
            other.wait_for_line("ready")?;
            Ok(time(&mut worker::<Forward>()?)?)
        }
        Neighbor::SameProcess => time_next_to_thread::<Forward, _>(setting, || {
            let mut worker = worker::<Forward>()?;
            Ok(move || worker.run(PART).map(drop))
        }),
        Neighbor::Writer => time_next_to_thread::<Count, _>(setting, || {
            Ok(|| {
                (0..PART).for_each(|_| _ = LINE.0[1].fetch_add(1, Ordering::Relaxed));
                Ok(())
            })
        }),
    }
}

/// Returns the nanoseconds of an echo next to a thread of this process that repeats the work returned by `prepare`.
fn time_next_to_thread<S: EchoService, W: FnMut() -> Result<(), BenchError>>(
    setting: &Setting,
    prepare: impl FnOnce() -> Result<W, BenchError> + Send,
) -> Result<f64, ScalingError> {
    let (is_ready, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        let neighbor = scope.spawn(|| -> Result<(), ScalingError> {
            let begun = transfer::pin(setting.neighbor_core).map_err(failed).and_then(|()| Ok(prepare()?));
            is_ready.store(true, Ordering::Release);
            let mut work = begun?;
            while !is_over.load(Ordering::Acquire) {
                work()?;
            }
            Ok(())
        });
        while !is_ready.load(Ordering::Acquire) {
            thread::yield_now();
        }
        let cost = worker::<S>().and_then(|mut worker| time(&mut worker));
        is_over.store(true, Ordering::Release);
        neighbor.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok(cost?)
    })
}

pub fn run_as_neighbor(setting: &Setting) -> Result<(), ScalingError> {
    transfer::pin(setting.neighbor_core).map_err(failed)?;
    let mut worker = worker::<Forward>()?;
    println!("ready");
    let start = Instant::now();
    while start.elapsed() < LIFETIME {
        worker.run(PART)?;
    }
    Ok(())
}

type Worker<S> = Echo<NativeEngine<MemoryPacket>, S>;

fn worker<S: EchoService>() -> Result<Worker<S>, BenchError> {
    Echo::new(FLOWS, SIZE, Acks::WithRequest, PairOptions::default())
}

/// Returns the nanoseconds of an echo.
fn time<S: EchoService>(worker: &mut Worker<S>) -> Result<f64, BenchError> {
    Ok(worker.run(ECHOES)?.as_nanos() as f64 / ECHOES as f64)
}

/// Echo service that counts its requests in [`LINE`].
struct Count;

/// Cache line of the control.
#[repr(align(64))]
struct Line([AtomicU64; 2]);

static LINE: Line = Line([const { AtomicU64::new(0) }; 2]);

impl EchoService for Count {
    type Service = Count;

    fn create(_: WorkerCtx<Infallible>, _: SocketAddr) -> Count {
        Count
    }
}

impl Service for Count {
    type Conn = ();
    type Message = Infallible;

    fn opened(&mut self, _: &mut impl Transport, _: ConnId, _: Origin) {}

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, (): &mut ()) {
        // Unlike a plain store, which waits in the store buffer, this waits for the cache line.
        LINE.0[0].fetch_add(1, Ordering::Relaxed);
        services::Echo.readable(net, conn, &mut ());
    }
}
