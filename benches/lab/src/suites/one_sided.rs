//! One-sided GETs while as many SETs change the values: each value is intact, belongs to its key, and is recent
//! enough, or the load fails.

use super::Suite;
use super::pair::{Pair, Provider};
use super::service::{COUNTING, ONE_SIDED, Service};
use crate::error::{Result, failed};
use crate::host::Lab;
use crate::program::Program;
use crate::report::Report;

/// Part that can be run alone.
pub const SUITE: Suite = Suite {
    name: "rxe-one-sided",
    about: "one-sided GETs over Soft-RoCE, while as many SETs change the same keys",
    run: alone,
};

/// Suite of a million SETs, within an hour at most.
pub const MILLION: Suite =
    Suite { name: "rxe-million", about: "a million SETs against one-sided GETs over Soft-RoCE", run: million };

/// Half SETs, of few keys, some of which are very frequent.
const MIXED: Service = Service {
    load: "--one-sided --keys 200 --value-size 64-1k --get-ratio 0.5 --verify --fail-on-miss --depth 8",
    seconds: 15,
    ..ONE_SIDED
};
/// GETs alone, of existing keys.
const READS: Service = Service {
    load: "--one-sided --keys 200 --get-ratio 1 --no-fill --depth 8",
    connections: 2,
    seconds: 10,
    ..ONE_SIDED
};
/// Required number of SETs.
const SETS: u64 = 1_000_000;
/// One load of the suite, and the maximum number of loads. Most operations are SETs, many of which share a message,
/// while a GET waits for two READs.
const ROUND: Service = Service {
    load: "--one-sided --keys 200 --value-size 64-1k --get-ratio 0.1 --verify --fail-on-miss --depth 32",
    seconds: 60,
    ..MIXED
};
const ROUNDS: u32 = 60;
/// Shortest load, which has the same connections as the longer one.
const SHORT: Service = Service { seconds: 1, ..READS };
/// Maximum CPU share of a server whose clients only READ. A load with SETs uses most of the CPU.
const BUSY: f64 = 0.25;

fn alone(lab: &Lab, report: &mut Report) {
    let Some(pair) = report.case("two guests", || Pair::boot(lab, Provider::Rxe)) else { return };
    run(lab, report, &pair);
}

fn million(lab: &Lab, report: &mut Report) {
    let Some(pair) = report.case("two guests", || Pair::boot(lab, Provider::Rxe)) else { return };
    let server = report.case("a server", || pair.serve(lab, ROUND, ""));
    let Some(_server) = server else { return };
    let mut sets = 0;
    for _ in 0..ROUNDS {
        let Some(round) = report.case("SETs and one-sided GETs", || mixed(lab, &pair, ROUND)) else { return };
        sets += round.sets;
        println!("    {}; {sets} SETs in all", round.summary);
        if sets >= SETS {
            return;
        }
    }
    report.case::<()>("a million SETs", || failed(format!("only {sets}")));
}

/// Runs one load with as many SETs as GETs, measures the server's CPU time for GETs alone, and tests counters.
pub fn run(lab: &Lab, report: &mut Report, pair: &Pair) {
    let Some(server) = report.case("a server that exports its values", || pair.serve(lab, MIXED, "")) else { return };
    if let Some(round) = report.case("one-sided GETs and as many SETs", || mixed(lab, pair, MIXED)) {
        println!("    {}", round.summary);
    }
    if let Some(summary) = report.case("one-sided GETs take none of the server's time", || reads(lab, pair, server)) {
        println!("    {summary}");
    }
    report.case("counters equal the sum of their additions", || pair.answers(lab, COUNTING, ""));
}

/// Result of a load.
struct LoadResult {
    sets: u64,
    summary: String,
}

fn mixed(lab: &Lab, pair: &Pair, service: Service) -> Result<LoadResult> {
    let load = pair.load(lab, service, "")?.succeed_within(crate::program::TIMEOUT * 2)?.last_json()?;
    let (one, sets) = (&load["one_sided"], load["set"]["requests"].as_u64().unwrap_or(0));
    let found = one["found"].as_u64().unwrap_or(0);
    if load["errors"] != 0 || load["misses"] != 0 || sets == 0 || found == 0 {
        return failed(format!("the load reports {load}"));
    }
    Ok(LoadResult { sets, summary: format!("{sets} SETs, and {}", shown(one)) })
}

/// Measures the server's CPU time for one-sided GETs, as the difference between a longer and a shorter load.
fn reads(lab: &Lab, pair: &Pair, server: Program) -> Result<String> {
    let (short, _) = only_read(lab, pair, SHORT)?;
    let (long, summary) = only_read(lab, pair, READS)?;
    server.stop()?;
    let (busy, seconds) = (long - short, f64::from(READS.seconds - SHORT.seconds));
    if busy > seconds * BUSY {
        return failed(format!("the server was busy for {busy:.3} s of {seconds} additional s: {summary}"));
    }
    Ok(format!("{summary}, and for {short:.3} s in {} s", SHORT.seconds))
}

/// Returns the server's CPU time for a load of GETs in seconds, and the load's report.
fn only_read(lab: &Lab, pair: &Pair, service: Service) -> Result<(f64, String)> {
    let load = pair.load(lab, service, "")?.succeed()?.last_json()?;
    let one = &load["one_sided"];
    let is_well = load["errors"] == 0 && load["misses"] == 0 && one["asked"] == 0 && one["found"].as_u64() > Some(0);
    match one["server_cpu_seconds"].as_f64() {
        Some(busy) if is_well => Ok((busy, format!("in {} s {}", service.seconds, shown(one)))),
        _ => failed(format!("the load reports {load}")),
    }
}

/// Formats a load's report of READs.
fn shown(one: &serde_json::Value) -> String {
    format!(
        "{} GETs by {:.2} READs each, {} torn, {} superseded, {} touches, {} sent as requests; the server was \
         busy for {} s",
        one["found"],
        one["reads_per_get"].as_f64().unwrap_or(0.0),
        one["torn"],
        one["superseded"],
        one["touches"],
        one["asked"],
        one["server_cpu_seconds"],
    )
}
