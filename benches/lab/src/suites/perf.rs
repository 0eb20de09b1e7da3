//! `linerate-rdma-perf` compared with perftest: with the same options, both transfer the same bytes, and the former
//! needs no more verbs operations.

use super::Suite;
use super::pair::{DEVICE, Pair, Provider};
use super::perftest::{self, Counts, counted};
use crate::error::{Result, failed};
use crate::host::Lab;
use crate::report::Report;
use std::path::Path;

/// Part that can be run alone.
pub const SUITE: Suite = Suite { name: "rxe-perf", about: "rdma perf on Soft-RoCE, beside perftest", run: alone };

/// Operations, named alike in both programs, with message sizes for each kind of test where they can be chosen.
const VERBS: [(&str, [&str; 2]); 4] = [
    ("send", ["--size 64", "--size 4096"]),
    ("write", ["--size 64", "--size 4096"]),
    ("read", ["--size 64", "--size 4096"]),
    ("atomic", ["", ""]),
];

/// Tests with their options.
const TESTS: [(&str, &str); 4] = [
    ("lat", "--iters 300"),
    ("bw", "--iters 1024"),
    ("bw", "--iters 1024 --post_list 16"),
    ("bw", "--iters 1024 --bidirectional"),
];

/// Messages that are not a multiple of the list length, which perftest refuses.
const UNEVEN: (&str, u64) = ("--size 4096 --iters 200 --post_list 16", 200);

/// Additional operations of `linerate-rdma-perf`: an empty final message, and a buffer for the peer's.
const LAST: u64 = 1;

fn alone(lab: &Lab, report: &mut Report) {
    let Some(pair) = report.case("two guests", || Pair::boot(lab, Provider::Rxe)) else { return };
    run(lab, report, &pair, &TESTS);
}

/// Compares one test of each operation.
pub fn some(lab: &Lab, report: &mut Report, pair: &Pair) {
    run(lab, report, pair, &TESTS[2..3]);
}

fn run(lab: &Lab, report: &mut Report, pair: &Pair, tests: &[(&str, &str)]) {
    report.case(&format!("perf, each bw {}", UNEVEN.0), || uneven(lab, pair));
    let Some(perftest) = report.case("perftest", || lab.image.perftest(&lab.log)) else { return };
    for (verb, [lat, bw]) in VERBS {
        for &(kind, options) in tests {
            let options = format!("{} {options}", if kind == "lat" { lat } else { bw });
            let lines = report.case(&format!("perf {verb} {kind} {}, beside perftest", options.trim()), || {
                compare(lab, pair, &perftest, verb, kind, options.trim())
            });
            if let Some(lines) = lines {
                println!("    {lines}");
            }
        }
    }
}

/// Checks that the last list may be shorter.
fn uneven(lab: &Lab, pair: &Pair) -> Result<()> {
    for (verb, [_, size]) in VERBS {
        if size.is_empty() {
            continue;
        }
        let [client, _] = ours(lab, pair, verb, "bw", UNEVEN.0)?.map(|counts| less_last(counts).requests);
        if client != UNEVEN.1 {
            return failed(format!("{verb}: {client} requests"));
        }
    }
    Ok(())
}

/// Runs a test with both programs and returns the counts.
fn compare(lab: &Lab, pair: &Pair, perftest: &Path, verb: &str, kind: &str, options: &str) -> Result<String> {
    let ours = ours(lab, pair, verb, kind, options)?;
    let theirs = perftest::run(lab, pair, perftest, &format!("ib_{verb}_{kind}"), options)?;
    let mut lines = Vec::new();
    for (end, (ours, theirs)) in ["client", "server"].into_iter().zip(ours.into_iter().zip(theirs)) {
        let both = format!("{end}: perf: {}; perftest: {}", shown(&less_last(ours)), shown(&theirs));
        if ours.unseen + theirs.unseen > 0 {
            return failed(format!("incomplete counts: {ours:?}, {theirs:?}"));
        }
        if ours.bytes != theirs.bytes {
            return failed(format!("different transfers: {both}"));
        }
        if numbers(&less_last(ours)).into_iter().zip(numbers(&theirs)).any(|(ours, theirs)| ours > theirs) {
            return failed(format!("perf needs more: {both}"));
        }
        lines.push(both);
    }
    Ok(lines.join("\n    "))
}

/// Returns the compared counts.
fn numbers(counts: &Counts) -> [u64; 3] {
    [counts.requests, counts.buffers, counts.completions()]
}

/// Subtracts the final messages.
fn less_last(mut counts: Counts) -> Counts {
    counts.requests = counts.requests.saturating_sub(LAST);
    counts.buffers = counts.buffers.saturating_sub(LAST);
    counts.requests_completed = counts.requests_completed.saturating_sub(LAST);
    counts.buffers_completed = counts.buffers_completed.saturating_sub(LAST);
    counts
}

fn shown(counts: &Counts) -> String {
    let ([requests, buffers, completions], bytes) = (numbers(counts), counts.bytes);
    format!("{requests} requests of {bytes} bytes, {buffers} buffers, {completions} completions")
}

/// Counts the verbs calls of `linerate-rdma-perf`, client and server.
fn ours(lab: &Lab, pair: &Pair, verb: &str, kind: &str, options: &str) -> Result<[Counts; 2]> {
    let script = |rest: &str| -> Result<String> {
        let arguments = format!("rdma perf {verb} {kind} --ib-dev {DEVICE} --json {rest}");
        Ok(format!("{}{}", counted(lab)?, lab.in_guest(&arguments)))
    };
    let mut server = pair.server.start_script("perf", &script("")?)?;
    server.wait_for_line("ready ")?;
    let client = pair.client.run("perf", &script(&format!("{options} {}", Pair::SERVER))?)?;
    let server = server.succeed()?;
    Ok([Counts::read(&client)?, Counts::read(&server)?])
}
