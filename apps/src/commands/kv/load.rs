//! `linerate kv load`.

use crate::commands::shared::load::Work;
use crate::commands::shared::signals;
use crate::commands::shared::{self, LoadArgs, MEMCACHED_ADDRESS, OpenArgs, REDIS_ADDRESS, TimesArgs};
use crate::error::Error;
use linerate::ThreadingMode;
use linerate::units::{format_size, parse_size};
use linerate::{CorePlacement, KeptDevices, Network, NetworkBuilder};
use linerate_load::report::{CountReport, KvReport, OneSidedReport, OpReport, OpenReport, Report};
use linerate_load::{
    CountLoad, CountPlan, CountStats, CounterLookup, CounterLookupError, Errors, Exported, Keyspace, KvLoad, KvPlan,
    MOST_KEYS, OneSidedStats, OpStats, Protocol, Query, Times, counter_name,
};
use linerate_service::{RemoteAddr, Service, Stop};
use std::convert::Infallible;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Interval of checking for a reply, and time limit of the reply.
const TICK: Duration = Duration::from_millis(2);
const REPLY_LIMIT: Duration = Duration::from_secs(30);

/// Arguments of `linerate kv load`.
#[derive(Debug, clap::Args)]
#[command(mut_arg("connect", |arg| {
    arg.default_value_if("protocol", "memcached", MEMCACHED_ADDRESS).default_value(REDIS_ADDRESS)
}))]
pub struct KvLoadArgs {
    #[command(flatten)]
    pub(super) load: LoadArgs,

    #[command(flatten)]
    pub(super) times: TimesArgs,

    #[command(flatten)]
    pub(super) open: OpenArgs,

    /// Protocol of the server
    #[arg(long, value_enum, value_name = "NAME", default_value_t, help_heading = "Load")]
    pub(super) protocol: Protocol,

    /// Number of keys
    #[arg(
        long,
        value_name = "N",
        default_value_t = KvPlan::default().keys,
        value_parser = clap::value_parser!(u64).range(1..=MOST_KEYS),
        help_heading = "Load",
    )]
    keys: u64,

    /// Value size in bytes, or a range: 64, 64-4k
    #[arg(
        long,
        value_name = "BYTES",
        default_value = format_size((*KvPlan::default().value_size.start()).into()),
        value_parser = parse_sizes,
        help_heading = "Load",
    )]
    pub(super) value_size: RangeInclusive<u32>,

    /// Fraction of GETs among the requests; the rest are SETs
    #[arg(
        long,
        value_name = "0..1",
        default_value_t = KvPlan::default().get_ratio,
        value_parser = parse_ratio,
        help_heading = "Load",
    )]
    get_ratio: f64,

    /// Skew of key popularity: the k-th key is requested in proportion to 1/k^THETA; 0 is uniform
    #[arg(
        long,
        value_name = "THETA",
        default_value_t = KvPlan::default().zipf,
        value_parser = parse_theta,
        help_heading = "Load",
    )]
    zipf: f64,

    /// Skip the initial SET of every key
    #[arg(long, help_heading = "Load")]
    no_fill: bool,

    /// Verify every byte of every value, and that the value was written to its key and is current. Takes 32 bytes of
    /// memory per key
    #[arg(long, conflicts_with = "no_fill", help_heading = "Load")]
    verify: bool,

    /// Read values one-sided from the memory exported by kv serve --export, and request only missing values from the
    /// server (rdma)
    #[arg(long, help_heading = "Load")]
    one_sided: bool,

    /// Increment counters of kv serve --counters with one-sided atomics instead of GETs and SETs; --keys is the number
    /// of counters. Every 16th request is a compare-and-swap. Verifies the sum at the end (rdma)
    #[arg(
        long,
        conflicts_with_all = [
            "one_sided", "verify", "no_fill", "fail_on_miss", "rate", "get_ratio", "value_size", "protocol",
        ],
        help_heading = "Load",
    )]
    one_sided_incr: bool,

    /// Count a missing key as an error, for servers that do not evict
    #[arg(long, alias = "no-miss", conflicts_with = "no_fill", help_heading = "Load")]
    pub(super) fail_on_miss: bool,

    /// Use memcached's UDP protocol (with --protocol memcached). Each connection is a local port; a request without a
    /// reply within 100 ms is lost (one worker only)
    #[arg(long, conflicts_with_all = ["one_sided", "one_sided_incr"], help_heading = "Load")]
    pub(super) udp: bool,
}

/// Runs `linerate kv load`.
pub fn run(args: &KvLoadArgs) -> Result<(), Error> {
    // Queries before and after the load are networks of their own.
    let _devices = KeptDevices::new();
    if (args.one_sided || args.one_sided_incr) && args.load.net.threading == ThreadingMode::Split {
        // One-sided requests are started on the thread of the worker.
        return Err(Error::Usage(
            "a one-sided load has an effect only with --threading inline: leave it out".to_owned(),
        ));
    }
    args.times.check(&args.load)?;
    if args.one_sided_incr {
        return count(args);
    }
    args.plan(None).check()?;
    if args.udp {
        return super::udp::run(args);
    }
    let one_sided = if args.one_sided { Some(exported(args)?) } else { None };
    let space = Keyspace::new(args.plan(one_sided), fastrand::u64(..));
    let before = if args.one_sided { server_time(args)? } else { None };
    let work = Work { unit: "requests", keys: if args.no_fill { 0 } else { args.keys } };
    let mut load = shared::load::run(&args.load, work, move || KvLoad::new(space.clone()))?;
    let sum = |of: fn(&KvLoad) -> u64| load.traffic.iter().map(of).sum::<u64>();
    let first = load.traffic.iter().find_map(|traffic| traffic.first_error().map(str::to_owned));
    if load.traffic.iter().any(KvLoad::has_given_up) {
        return Err(Error::NotFilled { remote: args.load.connect, refused: sum(KvLoad::refused), first });
    }
    let misses = sum(KvLoad::misses);
    let mut reads = OneSidedStats::default();
    load.traffic.iter().for_each(|traffic| reads += traffic.reads());
    load.errors.refusals = sum(KvLoad::refused);
    load.errors.missing = if args.fail_on_miss { misses } else { 0 };
    // After connection losses the server is not queried.
    let after = if before.is_some() && load.errors.total() == 0 { server_time(args)? } else { None };
    let server = before.zip(after).map(|(before, after)| after.saturating_sub(before));
    let parts: Vec<&KvLoad> = load.traffic.iter().collect();
    let one_sided = args.one_sided.then(|| OneSidedReport::new(&reads, server));
    let report = KvReport { one_sided, ..args.report(&parts, load.measured, 0, &mut load.errors) };
    shared::load::print(&args.load, report, load, first)
}

impl KvLoadArgs {
    /// Returns the parameters of the load.
    pub(super) fn plan(&self, one_sided: Option<Exported>) -> KvPlan {
        KvPlan {
            one_sided,
            protocol: self.protocol,
            connections: self.load.connections as usize,
            depth: self.open.depth(),
            keys: self.keys,
            value_size: self.value_size.clone(),
            get_ratio: self.get_ratio,
            zipf: self.zipf,
            open: self.open.plan(),
            fill: !self.no_fill,
            verify: self.verify,
        }
    }

    /// Combines the results of all `parts`, measured over `time`, into a report with `errors` and `lost` requests.
    /// Counts stalled requests as errors.
    pub(super) fn report(&self, parts: &[&KvLoad], time: Duration, lost: u64, errors: &mut Errors) -> KvReport {
        let sum = |of: fn(&KvLoad) -> u64| parts.iter().map(|part| of(part)).sum::<u64>();
        let side = |of: fn(&KvLoad) -> &OpStats| {
            let sides = || parts.iter().map(|part| of(part));
            let times: Times = sides().map(|side| &side.times).sum();
            let (requests, bytes) = sides().fold((0, 0), |(n, bytes), side| (n + side.requests, bytes + side.bytes));
            (OpReport::new(requests, time, bytes, &times), times)
        };
        let ((get, mut times), (set, sets)) = (side(KvLoad::gets), side(KvLoad::sets));
        times += &sets;
        errors.stalled = times.stalled();
        let (requests, failed) = (get.requests + set.requests, lost + errors.total());
        KvReport {
            all: Report::new(requests, time, get.bytes + set.bytes, failed, &times, self.times.histogram),
            get,
            set,
            misses: sum(KvLoad::misses),
            filled: sum(KvLoad::filled),
            one_sided: None,
            open: self
                .open
                .plan()
                .map(|open| OpenReport::new(open, requests, parts.iter().filter_map(|part| part.pace()))),
        }
    }
}

/// Queries the server for the location of its exported values.
fn exported(args: &KvLoadArgs) -> Result<Exported, Error> {
    let usage = |message: &str| Error::Usage(format!("--one-sided: {message}"));
    if !args.load.net.via.is_rdma() {
        return Err(usage("requires --via rdma:DEVICE or roce:NETWORK"));
    }
    if args.protocol != Protocol::Resp {
        return Err(usage("values are located through the Redis protocol: leave --protocol out"));
    }
    let remote = args.load.connect;
    let asked = linerate_load::local_millis();
    match query(args, move |done| Query::export(remote, done))?.map_or(Err(None), Query::outcome) {
        Ok(Some(exported)) => Ok(exported.asked_at(asked)),
        Ok(None) => Err(Error::NoExport(remote)),
        Err(reason) => Err(Error::no_connection(remote, reason)),
    }
}

/// Returns the processor time of the server, if it reports it.
fn server_time(args: &KvLoadArgs) -> Result<Option<Duration>, Error> {
    let remote = args.load.connect;
    Ok(query(args, move |done| Query::cpu_time(remote, done))?.and_then(|query| query.outcome().ok()?))
}

/// Runs the load of one-sided increments.
fn count(args: &KvLoadArgs) -> Result<(), Error> {
    if !args.load.net.via.is_rdma() {
        return Err(Error::Usage("--one-sided-incr: requires --via rdma:DEVICE or roce:NETWORK".to_owned()));
    }
    let most = 1 << 20;
    let counters = usize::try_from(args.keys).ok().filter(|count| *count <= most);
    let counters = counters.ok_or_else(|| {
        Error::Usage(format!("--keys: at most {most} counters; give the number of kv serve --counters"))
    })?;
    let (addrs, before) = read_counters(args, counters, Vec::new())?;
    let plan = Arc::new(CountPlan { addrs: addrs.clone(), depth: args.open.depth(), zipf: args.zipf });
    let mut load = shared::load::run(&args.load, Work::in_unit("requests"), move || CountLoad::new(plan.clone()))?;
    let (_, after) = read_counters(args, counters, addrs)?;
    let increase =
        before.iter().zip(&after).fold(0u64, |sum, (before, after)| sum.wrapping_add(after.wrapping_sub(*before)));

    let mut counts = CountStats::default();
    load.traffic.iter().for_each(|traffic| counts += traffic.counted());
    let requests = load.traffic.iter().map(CountLoad::requests).sum::<u64>();
    let times = load.traffic.iter().map(CountLoad::times).sum();
    let all = load.report(requests, requests * 8, &times, args.times.histogram);
    let report = CountReport::new(all, &counts, counters as u64, increase);
    shared::load::print(&args.load, report, load, None)?;
    let CountStats { unknown, .. } = counts;
    if counts.explains(increase) {
        Ok(())
    } else {
        Err(Error::Miscounted { grew: increase, added: counts.added(), unknown })
    }
}

/// Reads `count` counters and returns their addresses and values. `addrs` contains the addresses of all counters, or is
/// empty if they are unknown.
fn read_counters(
    args: &KvLoadArgs,
    count: usize,
    addrs: Vec<RemoteAddr>,
) -> Result<(Vec<RemoteAddr>, Vec<u64>), Error> {
    let remote = args.load.connect;
    let query = query(args, move |done| CounterLookup::new(remote, count, addrs.clone(), done))?;
    query.map_or(Err(CounterLookupError::Connection(None)), CounterLookup::outcome).map_err(|reason| match reason {
        CounterLookupError::Connection(reason) => Error::no_connection(remote, reason),
        CounterLookupError::Refused(number, reply) => {
            Error::NoCounter { remote, name: counter_name(number as u64).escape_ascii().to_string(), reply }
        }
        CounterLookupError::Unsupported => {
            Error::Usage("--one-sided-incr: the device has no atomic operations: see linerate rdma info".to_owned())
        }
    })
}

/// Runs a query service until it sets its flag, or a time limit expires.
fn query<S: Service<Message = Infallible> + Send + 'static>(
    args: &KvLoadArgs,
    make: impl Fn(Arc<AtomicBool>) -> S + Send + Sync + 'static,
) -> Result<Option<S>, Error> {
    let (interrupted, done) = (signals::interrupted().map_err(Error::Signals)?, Arc::new(AtomicBool::new(false)));
    args.load.net.check_remote(args.load.connect)?;
    let builder = Network::builder().config(args.load.net.for_client(1)).core_placement(CorePlacement::Last);
    let builder = args.load.tls.config()?.into_iter().fold(builder, NetworkBuilder::tls);
    let network = builder.stop(interrupted.clone()).build()?;
    let seen = done.clone();
    let running = network.start(move |_| make(seen.clone()), Stop::default())?;
    let started = Instant::now();
    while !done.load(Ordering::Acquire) && !running.is_finished() && !interrupted.is_stopped() {
        if started.elapsed() > REPLY_LIMIT {
            break;
        }
        thread::sleep(TICK);
    }
    running.stop();
    let (services, _) = running.join()?;
    Ok(services.into_iter().next())
}

/// Parses a size, or two sizes separated by a dash.
fn parse_sizes(text: &str) -> Result<RangeInclusive<u32>, String> {
    let size = |text| parse_size(text).map(|size| size as u32);
    let (from, to) = text.split_once('-').unwrap_or((text, text));
    let sizes = size(from)?..=size(to)?;
    if *sizes.end() > KvPlan::MAX_VALUE {
        Err("values are limited to 512m".to_owned())
    } else if sizes.is_empty() {
        Err("the first must not be larger than the second".to_owned())
    } else {
        Ok(sizes)
    }
}

fn parse_ratio(text: &str) -> Result<f64, String> {
    let ratio = text.parse().ok().filter(|ratio| (0.0..=1.0).contains(ratio));
    ratio.ok_or_else(|| "give a number from 0 to 1, such as 0.9".to_owned())
}

fn parse_theta(text: &str) -> Result<f64, String> {
    let theta = text.parse().ok().filter(|theta| (0.0..=KvPlan::MAX_ZIPF).contains(theta));
    theta.ok_or_else(|| "give a number from 0 to 10, such as 0.99".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_size_is_a_size_or_a_range() {
        assert_eq!(parse_sizes("64"), Ok(64..=64));
        assert_eq!(parse_sizes("64-4k"), Ok(64..=4096));
        for text in ["", "-", "64-", "-64", "65-64", "0-64", "1-513m", "1-2-3"] {
            assert!(parse_sizes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn ratio_and_theta_are_bounded() {
        assert_eq!((parse_ratio("0"), parse_ratio("1"), parse_theta("1.2")), (Ok(0.0), Ok(1.0), Ok(1.2)));
        for text in ["", "-1", "NaN", "inf", "1.01"] {
            assert!(parse_ratio(text).is_err(), "{text}");
        }
        assert!(parse_theta("-0.1").is_err() && parse_theta("NaN").is_err());
    }
}
