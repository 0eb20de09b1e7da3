//! Well-behaved clients of a server during attacks: rate and round trips without an attack, during it, and during the
//! same flood to another host.

mod attack;
mod frames;
mod packet_socket;
mod peers;
mod site;
mod sockets;

pub use attack::Attack;
pub use site::Setting;

use crate::echo_pair::Measured;
use frames::Link;
use linerate_harness::Error;
use linerate_harness::interrupt::is_interrupted;
use serde::Serialize;
use site::{Counters, Site};
use std::net::{Ipv6Addr, SocketAddrV4};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Maximum number of held packets that counts as normal.
const NORMAL: u64 = 16;
/// Maximum wait for recovery.
pub const RECOVERY: Duration = Duration::from_secs(35);
/// Time from the start of the attack to the measurement.
const SETTLE: Duration = Duration::from_millis(500);
/// Maximum time until all attackers are connected and the server accepts no more data from them.
const CONNECTED: Duration = Duration::from_secs(60);
/// Interval of counter samples.
const SAMPLE: Duration = Duration::from_millis(100);
const HELD: &str = "linerate_packets_held";
const BROKEN: &str = "linerate_connections_broken_total";

/// Attacked service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Service {
    /// `linerate echo serve`
    Echo,
    /// `linerate kv serve`
    Kv,
}

impl Service {
    /// Returns the subcommand of linerate.
    pub fn name(self) -> &'static str {
        match self {
            Service::Echo => "echo",
            Service::Kv => "kv",
        }
    }

    fn port(self) -> u16 {
        match self {
            Service::Echo => 7,
            Service::Kv => 6379,
        }
    }
}

/// Addresses of the attacked host.
#[derive(Debug, Clone)]
struct Target {
    link: Link,
    address: SocketAddrV4,
    /// Address on the link of the attackers.
    neighbor: SocketAddrV4,
    v6: Ipv6Addr,
    /// Request that the service answers.
    request: Vec<u8>,
}

/// Start and end of an attack, and the count of its packets or attempts.
#[derive(Debug, Default)]
struct Course {
    has_begun: AtomicBool,
    is_over: AtomicBool,
    sent: AtomicU64,
}

impl Course {
    fn goes_on(&self) -> bool {
        !self.is_over.load(Ordering::Relaxed)
    }

    fn begin(&self) {
        self.has_begun.store(true, Ordering::Relaxed);
    }

    fn count(&self, sent: usize) {
        self.sent.fetch_add(sent as u64, Ordering::Relaxed);
    }

    /// Advances `next` by a millisecond and sleeps until then. Lost time is not made up for.
    fn pace(&self, next: &mut Instant) {
        *next = (*next + Duration::from_millis(1)).max(Instant::now());
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}

/// Guard that ends an attack on drop.
struct Over<'a>(&'a Course);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}

/// Recovery after the link of the attackers is cut.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Recovery {
    /// Seconds until the number of held packets was normal, if within [`RECOVERY`].
    pub seconds: Option<f64>,
    /// Held packets at the end, if the server answered.
    pub held: Option<u64>,
}

/// Results of one round.
#[derive(Debug, Clone, Serialize)]
pub struct Round {
    /// Result of the clients without an attack.
    pub undisturbed: Option<Measured>,
    /// Result of the clients during the same flood to the sink, if the attack consists of frames.
    pub control: Option<Measured>,
    /// Result of the clients during the attack.
    pub attacked: Option<Measured>,
    /// Packets or attempts per second.
    pub per_second: f64,
    /// Maximum number of packets held by the server, if it answered.
    pub held: Option<u64>,
    /// Recovery, if measured.
    pub recovery: Option<Recovery>,
    /// Counters that grew during attack and recovery: drops by cause, and broken connections.
    pub counters: Vec<(String, u64)>,
}

impl Round {
    /// Returns the clients' rate during the attack relative to the control, or to the undisturbed rate without a
    /// control.
    pub fn ratio(&self) -> Option<f64> {
        let base = self.control.or(self.undisturbed)?.rate;
        Some(self.attacked.map_or(0.0, |attacked| attacked.rate) / base)
    }
}

/// Attack with its number of attackers.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Attacked service.
    pub service: Service,
    /// Attack.
    pub attack: Attack,
    /// Number of attackers, 0 for a flood.
    pub attackers: usize,
    /// Maximum frames per millisecond.
    pub per_millisecond: usize,
}

impl Plan {
    /// Measures one round with a new server, and the recovery after it if `recovers` is true.
    pub fn measure(&self, setting: &Setting, recovers: bool) -> Result<Round, Error> {
        let site = Site::new(setting, self.service)?;
        let undisturbed = site.measure()?;
        let control = if self.attack.answers() { None } else { self.control(&site, self.per_millisecond)? };
        let before = site.counters().unwrap_or_default();
        let target = site.target(false);
        let course = Course::default();
        let (attack, attackers, per_millisecond) = (self.attack, self.attackers, self.per_millisecond);
        let mut round = thread::scope(|scope| {
            let over = Over(&course);
            let attacking = scope
                .spawn(|| site.attack(attack.is_local(), || attack.run(&target, attackers, per_millisecond, &course)));
            wait_until(CONNECTED, || course.has_begun.load(Ordering::Relaxed) || attacking.is_finished())?;
            thread::sleep(SETTLE);
            let (sent, since) = (course.sent.load(Ordering::Relaxed), Instant::now());
            let (attacked, held) = measure_and_sample(&site)?;
            let sent = course.sent.load(Ordering::Relaxed) - sent;
            let per_second = sent as f64 / since.elapsed().as_secs_f64();
            if !attack.is_local() {
                site.cut()?;
            }
            let waits = recovers && !attack.is_local();
            let recovery = if waits { Some(recovery(&site)?) } else { None };
            drop(over);
            attacking.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            let counters = grown(&before, &site.counters().unwrap_or_default());
            Ok::<_, Error>(Round { undisturbed, control, attacked, per_second, held, recovery, counters })
        })?;
        drop(site);
        let rate = (round.per_second / 1000.0).round() as usize;
        if attack.answers() && rate > 0 {
            round.control = self.control(&Site::new(setting, self.service)?, rate)?;
        }
        Ok(round)
    }

    /// Measures the clients while the same frames go to the sink, `per_millisecond` of them.
    fn control(&self, site: &Site<'_>, per_millisecond: usize) -> Result<Option<Measured>, Error> {
        let target = site.target(true);
        let Some(frames) = self.attack.frames(&target) else { return Ok(None) };
        let course = Course::default();
        thread::scope(|scope| {
            let over = Over(&course);
            let flooding =
                scope.spawn(|| site.attack(false, || attack::flood(&frames, &target, per_millisecond, &course)));
            wait_until(CONNECTED, || course.has_begun.load(Ordering::Relaxed) || flooding.is_finished())?;
            thread::sleep(SETTLE);
            let measured = site.measure()?;
            drop(over);
            flooding.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            Ok(measured)
        })
    }
}

/// Measures the clients, and the maximum number of packets held by the server.
fn measure_and_sample(site: &Site<'_>) -> Result<(Option<Measured>, Option<u64>), Error> {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let sampling = scope.spawn(|| {
            let mut most = None;
            while !over.load(Ordering::Relaxed) {
                most = most.max(site.counters().map(|counters| packets_held(&counters)));
                thread::sleep(SAMPLE);
            }
            most
        });
        let measured = site.measure();
        over.store(true, Ordering::Relaxed);
        let most = sampling.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Ok((measured?, most))
    })
}

/// Waits until the server's number of held packets is normal. Returns the seconds and that number.
fn recovery(site: &Site<'_>) -> Result<Recovery, Error> {
    let begun = Instant::now();
    loop {
        let held = site.counters().map(|counters| packets_held(&counters));
        let is_over = held.is_some_and(|held| held <= NORMAL);
        if is_over || begun.elapsed() >= RECOVERY {
            return Ok(Recovery { seconds: is_over.then(|| begun.elapsed().as_secs_f64()), held });
        }
        wait_until(SAMPLE, || false)?;
    }
}

fn packets_held(counters: &Counters) -> u64 {
    counters.get(HELD).copied().unwrap_or_default()
}

/// Returns the drops and broken connections counted since `before`, in descending order.
fn grown(before: &Counters, after: &Counters) -> Vec<(String, u64)> {
    let is_reported = |name: &str| !name.starts_with("linerate_") || name == BROKEN;
    let mut grown: Vec<(String, u64)> = after
        .iter()
        .filter(|(name, _)| is_reported(name))
        .map(|(name, n)| {
            (
                name.replace(BROKEN, "broken connections"),
                n.saturating_sub(before.get(name).copied().unwrap_or_default()),
            )
        })
        .filter(|(_, n)| *n > 0)
        .collect();
    grown.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    grown
}

/// Waits until `done` returns true, for at most `limit`.
fn wait_until(limit: Duration, done: impl Fn() -> bool) -> Result<(), Error> {
    let end = Instant::now() + limit;
    while !done() && Instant::now() < end {
        if is_interrupted() {
            return Err(Error::Interrupted);
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
