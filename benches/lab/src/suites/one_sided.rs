//! GETs that the server has no part in, while as many SETs change what they read: each value is whole, was written to its key, and
//! is no older than may be, or the load fails.

use super::Suite;
use super::pair::{Pair, Provider};
use super::service::{COUNTING, ONE_SIDED, Service};
use crate::error::{Result, failed};
use crate::host::Lab;
use crate::program::Program;
use crate::report::Report;

/// This alone.
pub const SUITE: Suite = Suite {
    name: "rxe-one-sided",
    about: "one-sided GETs over Soft-RoCE, while as many SETs change what they read",
    run: alone,
};

/// As many as fill an hour, and pass as soon as there have been a million SETs.
pub const MILLION: Suite =
    Suite { name: "rxe-million", about: "a million SETs against one-sided GETs over Soft-RoCE", run: million };

/// Half of them SETs, of few keys, of which some are asked for all the time.
const MIXED: Service = Service {
    load: "--one-sided --keys 200 --value-size 64-1k --get-ratio 0.5 --verify --no-miss --depth 8",
    seconds: 15,
    ..ONE_SIDED
};
/// GETs alone, of the keys that are there.
const READS: Service = Service {
    load: "--one-sided --keys 200 --get-ratio 1 --no-fill --depth 8",
    connections: 2,
    seconds: 10,
    ..ONE_SIDED
};
/// How many SETs are a million.
const SETS: u64 = 1_000_000;
/// How long one load of those lasts, and how many there may be. Most are SETs, which go many to a message, where a GET has a READ to wait
/// for twice.
const ROUND: Service = Service {
    load: "--one-sided --keys 200 --value-size 64-1k --get-ratio 0.1 --verify --no-miss --depth 32",
    seconds: 60,
    ..MIXED
};
const ROUNDS: u32 = 60;
/// As short as can be, of which the server has the connections, too.
const SHORT: Service = Service { seconds: 1, ..READS };
/// Of each second more, how much a server may be busy that looks around now and then: in the other loads it is most of it.
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
        let Some(round) = report.case("SETs, and GETs that read", || mixed(lab, &pair, ROUND)) else { return };
        sets += round.sets;
        println!("    {}; {sets} SETs in all", round.told);
        if sets >= SETS {
            return;
        }
    }
    report.case::<()>("a million SETs", || failed(format!("there were {sets}")));
}

/// As much of it as goes into a quarter of a minute, and what it costs the server.
pub fn run(lab: &Lab, report: &mut Report, pair: &Pair) {
    let Some(server) = report.case("a server that exports its values", || pair.serve(lab, MIXED, "")) else { return };
    if let Some(round) = report.case("one-sided GETs and as many SETs", || mixed(lab, pair, MIXED)) {
        println!("    {}", round.told);
    }
    if let Some(told) = report.case("one-sided GETs take none of the server's time", || reads(lab, pair, server)) {
        println!("    {told}");
    }
    report.case("counters are what was added to them", || pair.answers(lab, COUNTING, ""));
}

/// What came of a load.
struct Round {
    sets: u64,
    told: String,
}

fn mixed(lab: &Lab, pair: &Pair, service: Service) -> Result<Round> {
    let load = pair.load(lab, service, "")?.succeed_within(crate::program::PATIENCE * 2)?.json()?;
    let (one, sets) = (&load["one_sided"], load["set"]["requests"].as_u64().unwrap_or(0));
    let found = one["found"].as_u64().unwrap_or(0);
    if load["errors"] != 0 || load["misses"] != 0 || sets == 0 || found == 0 {
        return failed(format!("the load tells {load}"));
    }
    Ok(Round { sets, told: format!("{sets} SETs, and {}", shown(one)) })
}

/// What a longer load takes of the server's time beyond a shorter one is what the server does by itself.
fn reads(lab: &Lab, pair: &Pair, server: Program) -> Result<String> {
    let (short, _) = only_read(lab, pair, SHORT)?;
    let (long, told) = only_read(lab, pair, READS)?;
    server.stop()?;
    let (busy, seconds) = (long - short, f64::from(READS.seconds - SHORT.seconds));
    if busy > seconds * BUSY {
        return failed(format!("it was busy for {busy:.3} s of {seconds} s more: {told}"));
    }
    Ok(format!("{told}, and for {short:.3} s in {} s", SHORT.seconds))
}

/// How long the server was busy with such a load, in seconds, and what the load tells.
fn only_read(lab: &Lab, pair: &Pair, service: Service) -> Result<(f64, String)> {
    let load = pair.load(lab, service, "")?.succeed()?.json()?;
    let one = &load["one_sided"];
    let is_well = load["errors"] == 0 && load["misses"] == 0 && one["asked"] == 0 && one["found"].as_u64() > Some(0);
    match one["server_cpu_seconds"].as_f64() {
        Some(busy) if is_well => Ok((busy, format!("in {} s {}", service.seconds, shown(one)))),
        _ => failed(format!("the load tells {load}")),
    }
}

/// What a load says of its READs.
fn shown(one: &serde_json::Value) -> String {
    format!(
        "{} GETs by {:.2} READs each, {} torn, {} asked for; the server was busy for {} s",
        one["found"],
        one["reads_per_get"].as_f64().unwrap_or(0.0),
        one["torn"],
        one["asked"],
        one["server_cpu_seconds"],
    )
}
