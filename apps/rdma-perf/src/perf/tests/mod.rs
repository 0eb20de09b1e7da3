//! Both ends of each test, on two simulated devices.

mod hostile;
mod killed;
mod parameters;
mod refused;
mod through;

use super::{AtomicKind, End, Kind, Outcome, Parameters, PerfError, Test, Turn, Verb};
use linerate_bypass::time::{Duration, Instant};
use linerate_rdma::provider::DeviceLimits;
use linerate_rdma_sim::{DeviceConfig, Fabric, FabricConfig, Live, SimDevice};
use std::cell::Cell;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

const fn address(number: u8) -> SocketAddr {
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(10, 0, 0, number)), 18_515)
}

const SERVER: SocketAddr = address(1);

/// Returns all tests.
fn tests() -> impl Iterator<Item = Test> {
    [Verb::Send, Verb::Write, Verb::Read, Verb::Atomic(AtomicKind::FetchAdd), Verb::Atomic(AtomicKind::CompareSwap)]
        .into_iter()
        .flat_map(|verb| [Kind::Latency, Kind::Bandwidth].map(|kind| Test { verb, kind }))
}

/// Returns parameters of a short test.
fn parameters(test: Test) -> Parameters {
    let defaults = Parameters::new(test);
    let size = if test.is_atomic() { defaults.size } else { 100 };
    Parameters { messages: 300, size, rx_depth: 20, ..defaults }
}

/// Returns true if iWARP supports the test.
fn goes_by_iwarp(parameters: &Parameters) -> bool {
    parameters.check(&DeviceConfig::iwarp(SERVER.ip()).limits, 1 << 20).is_ok()
}

/// State of one end.
#[expect(clippy::large_enum_variant, reason = "two instances only")]
enum State {
    Running(End<SimDevice>),
    Ended(Result<Outcome, PerfError>),
}

struct Rig {
    fabric: Fabric,
    /// Devices of the server and the client.
    devices: [Arc<SimDevice>; 2],
    ends: [State; 2],
    /// Recorded round-trip times of each end.
    trips: [Vec<Duration>; 2],
    random: fastrand::Rng,
    now: Cell<u64>,
}

impl Rig {
    fn new(seed: u64, parameters: Parameters) -> Rig {
        Rig::on(seed, DeviceConfig::roce, parameters.test, parameters)
    }

    /// Creates a server of `test` and a client with `parameters`, on devices of one kind.
    fn on(seed: u64, config: fn(std::net::IpAddr) -> DeviceConfig, test: Test, parameters: Parameters) -> Rig {
        let fabric = Fabric::new(FabricConfig { seed, ..FabricConfig::default() });
        let device = |number: u8| fabric.device(&format!("model{number}"), config(address(number).ip()));
        let devices = [device(1), device(2)];
        let server = End::server(&devices[0], test, super::LISTEN).unwrap();
        let client = End::client(&devices[1], parameters, SERVER).unwrap();
        let ends = [State::Running(server), State::Running(client)];
        let trips = [Vec::new(), Vec::new()];
        Rig { fabric, devices, ends, trips, random: fastrand::Rng::with_seed(seed), now: Cell::new(0) }
    }

    /// Performs one turn of an end.
    fn turn(&mut self, which: usize) {
        let now = || {
            self.now.set(self.now.get() + 1000);
            Instant::from_nanos(self.now.get())
        };
        let State::Running(end) = &mut self.ends[which] else { return };
        match end.turn(&now) {
            Ok(Turn::Over) => self.ends[which] = State::Ended(Ok(end.outcome())),
            Ok(Turn::Trip(time)) => self.trips[which].push(time),
            Ok(Turn::Idle | Turn::Worked) => {}
            Err(error) => self.ends[which] = State::Ended(Err(error)),
        }
    }

    /// Performs one random event.
    fn step(&mut self) {
        match self.random.u8(..4) {
            which @ 0..2 => self.turn(which.into()),
            _ => (0..self.random.u8(1..20)).for_each(|_| _ = self.fabric.step()),
        }
    }

    /// Runs until `done`.
    #[track_caller]
    fn run_until(&mut self, done: impl Fn(&Rig) -> bool) {
        for _ in 0..400_000 {
            if done(self) {
                return;
            }
            self.step();
        }
        panic!("condition not reached: {:?}", self.ends.each_ref().map(State::describe));
    }

    /// Lets an end wait while time passes.
    fn let_time_pass(&mut self, time: Duration) {
        self.now.set(self.now.get() + time.as_nanos() as u64);
    }

    fn has_ended(&self, which: usize) -> bool {
        matches!(self.ends[which], State::Ended(_))
    }

    /// Returns the result of an end.
    #[track_caller]
    fn result(&self, which: usize) -> &Result<Outcome, PerfError> {
        match &self.ends[which] {
            State::Running(_) => panic!("still running"),
            State::Ended(result) => result,
        }
    }
}

impl State {
    fn describe(&self) -> String {
        match self {
            State::Running(end) => format!("running: {:?}", end.outcome()),
            State::Ended(result) => format!("{result:?}"),
        }
    }
}

/// Checks that all objects of both ends are destroyed.
#[track_caller]
fn assert_nothing_is_left(rig: Rig) {
    let fabric = rig.fabric.clone();
    drop(rig);
    assert_eq!(fabric.live(), Live::default());
}

fn limits() -> DeviceLimits {
    DeviceConfig::roce(SERVER.ip()).limits
}
