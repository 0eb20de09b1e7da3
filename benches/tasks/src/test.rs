//! `./run test`: checks and tests in steps, and their summary.

use crate::machine::{Machine, is_root, reserve_hugepages};
use crate::process::{self, STEPS, built, cargo, command, script};
use crate::{Error, note, say};
use std::process::Command;
use std::time::{Duration, Instant};

/// Packages that build without DPDK, root or a network.
const PORTABLE: &str = "--workspace --exclude linerate-dpdk-sys --no-default-features";
const SPLIT: &str = "--test cli --test clients --test net";
const CLIENTS: &str = "--test clients --test net";
const BOOK: &str = "-p linerate-book --features mdbook";
/// Compiler with the lints of Clippy, and the variables with which `cargo clippy` denies warnings for `cargo check`.
/// With them one compilation serves for the lints and the tests.
const LINTED: [(&str, &str); 2] =
    [("RUSTC_WORKSPACE_WRAPPER", "clippy-driver"), ("CLIPPY_ARGS", "-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__")];

/// Runs with a step. A failed check ends the run: later steps depend on it, or it is quick.
enum When {
    Check,
    CheckOfAll,
    Always,
    All,
}

/// Step of the run.
struct Step {
    /// Name in the summary.
    name: &'static str,
    /// True if a failure ends the run.
    is_required: bool,
    /// Command that must succeed, or the reason it is skipped.
    action: Result<Command, String>,
}

fn with<const N: usize>(environment: [(&str, &str); N], mut command: Command) -> Command {
    command.envs(environment);
    command
}

/// Returns the steps. `all` adds the slow ones.
///
/// The tests are compiled by Clippy, and other commands use their profile: build scripts and procedural macros are then
/// built once.
fn plan(machine: &Machine, all: bool) -> Vec<Step> {
    use When::{All, Always, Check, CheckOfAll};
    let everything = &machine.everything();
    let linted = |words: String| with(LINTED, cargo(&words));
    let clippy = |what: &str| cargo(&format!("clippy --profile test {what} --all-targets -- -D warnings"));
    // One selection of packages for all optimised tests: another one would build with other features.
    let seeds = |what: &str| cargo(&format!("test --profile seeds {PORTABLE} {what}"));
    // Runs `command` unless a requirement is missing.
    let needs = |requirements: &[(bool, &str)], command: Command| {
        let missing = requirements.iter().find(|(is_met, _)| !is_met);
        missing.map_or(Ok(command), |(_, reason)| Err((*reason).to_owned()))
    };
    let has_packaging = machine.has("debhelper dpkg-dev lintian man-db");
    let root = (machine.has_namespaces, "a root file system of Debian 13 needs root");
    // Tests that start programs wait for half of their time.
    let threads = (2 * std::thread::available_parallelism().map_or(1, usize::from)).to_string();
    let cases = [("PROPTEST_CASES", "5000"), ("SIMULATOR_SEEDS", "12000"), ("LINERATE_SCRIPTS_EACH_FAST_PATH", "1")];
    let lab = |is_quick, command| machine.lab_obstacle(is_quick).map_or(Ok(command), Err);
    #[rustfmt::skip]
    let steps: Vec<(When, &str, Result<Command, String>)> = vec![
        (Check, "scripts parse", Ok(script("scripts_parse"))),
        (Check, "lints are inherited", Ok(script("lints_are_inherited"))),
        (Check, "lints are denied", Ok(with(LINTED, script("lints_are_denied")))),
        (Check, "README shows the example", Ok(script("readme_shows_the_example"))),
        (Check, "format", Ok(cargo("fmt --all --check"))),
        (CheckOfAll, "clippy of the portable part", Ok(clippy(PORTABLE))),
        // Includes the programs that the lab runs, with the features of all packages.
        (Check, "clippy and build of the tests",
            Ok(linted(format!("build --profile test {everything} --lib --bins --examples --tests")))),
        (Always, "tests", Ok(with([("RUST_TEST_THREADS", &threads)],
            linted(format!("test {everything} --no-fail-fast"))))),
        (All, "documentation", Ok(with([("RUSTDOCFLAGS", "-D warnings")],
            cargo(&format!("doc --profile test {everything} --no-deps"))))),
        (All, "lock-free protocols (loom)", Ok(script("loom"))),
        (All, "Miri", Ok(script("miri"))),
        (All, "AddressSanitizer", Ok(script(&format!("address_sanitizer{}", machine.devices())))),
        (All, "AddressSanitizer of unmodified programs", needs(
            &[(machine.dpdk(), "the library of linerate run needs DPDK")], script("asan_of_programs"))),
        (All, "suites of redis and memcached", needs(&[
            (machine.dpdk(), "the library of linerate run needs DPDK"),
            (machine.has_namespaces, "they need root, for network namespaces"),
            (machine.has("redis-server redis-tools memcached tcl dpkg-dev ethtool"),
                "they need redis-server, redis-tools, memcached, tcl, dpkg-dev and ethtool")],
            command(&format!("apps/tests/net/run/suites.sh {}", built("debug", "linerate"))))),
        (All, "package", needs(&[
            (machine.dpdk(), "a package needs DPDK"),
            (machine.rdma(), "a package needs cmake, make and libclang"),
            (has_packaging, "a package needs debhelper, dpkg-dev, lintian and man-db")], script("check_package"))),
        (All, "ports on Debian 13", needs(&[
            root, (machine.has("mmdebstrap"), "a root file system of Debian 13 needs mmdebstrap")],
            command("benches/debian13.sh"))),
        (All, "slower tests of clients",
            Ok(linted(format!("test {everything} {CLIENTS} --no-fail-fast -- --ignored")))),
        (All, "dashboard", Ok(linted(format!("test {everything} --test deploying -- --ignored")))),
        (All, "published crates", needs(&[(machine.dpdk(), "linerate-dpdk-sys needs DPDK")],
            script("published_crates"))),
        (All, "API since the last version", Ok(script("api"))),
        (All, "crate outside of the workspace", Ok(cargo("test -p linerate --test outside -- --ignored"))),
        (All, "clippy of the book", Ok(clippy(BOOK))),
        (All, "book", Ok(cargo(&format!("test {BOOK} --no-fail-fast")))),
        (All, "tests with split threads", Ok(with([("LINERATE_THREADING", "split")],
            linted(format!("test {everything} --no-fail-fast {SPLIT}"))))),
        (All, "more cases and seeds", Ok(with(cases, seeds("--no-fail-fast")))),
        (All, "kv over a bad link", Ok(with([("SOAK_SECONDS", "300")], seeds("--test kv lossy -- --nocapture")))),
        (All, "kv under memory pressure",
            Ok(with([("SOAK_SECONDS", "600")], seeds("--test clients soak -- --nocapture")))),
        (All, "wake-ups", Ok(with([("LINERATE_TEST_SLEEPS", "3000000")],
            linted(format!("test {everything} --test dpdk wakeups -- --test-threads=1"))))),
        (All, "fuzzing", Ok(script("fuzz"))),
        (All, "instruction counts", needs(
            &[(machine.has("valgrind"), "instructions are counted by valgrind, which is missing")],
            command(&format!("{} --all", built("debug", "baseline"))))),
        // The tests of devices use the build of all packages, which exists already.
        (All, "lab", lab(false, machine.lab(everything, &[]))),
    ];
    let quick_lab = (Always, "lab, in short", lab(true, command(&format!("{} rxe-quick", built("debug", "lab")))));
    let steps = steps.into_iter().chain((!all).then_some(quick_lab));
    let steps = steps.filter(|(when, ..)| all || matches!(when, Check | Always));
    steps.map(|(when, name, action)| Step { name, is_required: matches!(when, Check | CheckOfAll), action }).collect()
}

/// Runs the steps named by `names`, or all steps, and prints their summary. A failed check or build ends the run; a
/// failure of any other step does not.
pub fn run(machine: &Machine, all: bool, names: &[&str]) -> Result<(), Error> {
    let mut steps = plan(machine, all);
    if let Some(unknown) = names.iter().find(|name| steps.iter().all(|step| step.name != **name)) {
        let known: Vec<_> = steps.iter().map(|step| format!("'{}'", step.name)).collect();
        let all = if all { "" } else { ", and more with --all" };
        return Err(Error::Usage(format!("no step is named '{unknown}': the steps are {}{all}", known.join(", "))));
    }
    steps.retain(|step| names.is_empty() || names.contains(&step.name));
    if !is_root() {
        note("not root: tests of namespaces, hugepages and interfaces report that they are skipped");
    }
    let (mut hugepages, mut end, mut rows, begin) = (None, None, Vec::new(), Instant::now());
    for Step { name, is_required, action } in steps {
        let from = Instant::now();
        if !is_required && end.is_none() {
            // After the builds, which need the memory.
            hugepages.get_or_insert_with(|| reserve_hugepages(1024));
        }
        let result = match (&end, action) {
            (Some(end), _) => Err(Error::Skipped(String::clone(end))),
            (None, Err(reason)) => Err(Error::Skipped(reason)),
            (None, Ok(command)) => {
                let line = process::line(&command);
                say(if line.contains(STEPS) { name } else { &line });
                process::run(command)
            }
        };
        match &result {
            Err(Error::Interrupted) => end = Some("interrupted".to_owned()),
            Err(Error::Failed(_)) if is_required => end = Some(format!("{name} failed")),
            _ => {}
        }
        rows.push(Row { name, result, time: from.elapsed() });
    }
    say("summary");
    note(&table(&rows, begin.elapsed()));
    outcome(&rows)
}

struct Row {
    name: &'static str,
    result: Result<(), Error>,
    time: Duration,
}

/// Returns the table of the steps, with `total` as the duration of the run.
fn table(rows: &[Row], total: Duration) -> String {
    let width = rows.iter().map(|row| row.name.chars().count()).max().unwrap_or(0).max("total".len());
    let mut table = format!("{:width$}  outcome  {:>10}\n", "step", "time");
    for Row { name, result, time } in rows {
        let (outcome, reason) = match result {
            Ok(()) => ("passed", ""),
            Err(Error::Skipped(reason)) => ("skipped", &**reason),
            Err(Error::Interrupted) => ("failed", "interrupted"),
            Err(Error::Failed(reason) | Error::Usage(reason)) => ("failed", &**reason),
        };
        let line =
            format!("{name:width$}  {outcome:7}  {:>10}  {}", duration(*time), reason.lines().next().unwrap_or(""));
        table += &format!("{}\n", line.trim_end());
    }
    let result = if outcome(rows).is_ok() { "passed" } else { "failed" };
    table + &format!("{:width$}  {result:7}  {:>10}\n", "total", duration(total))
}

/// Returns the result of the run. Skipped steps are no failure.
fn outcome(rows: &[Row]) -> Result<(), Error> {
    if rows.iter().any(|row| matches!(row.result, Err(Error::Interrupted))) {
        return Err(Error::Interrupted);
    }
    let failed = rows.iter().filter(|row| matches!(row.result, Err(Error::Failed(_) | Error::Usage(_))));
    let failed: Vec<&str> = failed.map(|row| row.name).collect();
    if failed.is_empty() { Ok(()) } else { Err(Error::Failed(format!("failed: {}", failed.join(", ")))) }
}

/// Formats a duration: `0.4 s`, `59 s`, `3 min 07 s`.
fn duration(time: Duration) -> String {
    match time.as_secs() {
        0..10 => format!("{:.1} s", time.as_secs_f64()),
        seconds @ 10..60 => format!("{seconds} s"),
        seconds => format!("{} min {:02} s", seconds / 60, seconds % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &'static str, result: Result<(), Error>, seconds: u64) -> Row {
        Row { name, result, time: Duration::from_secs(seconds) }
    }

    #[test]
    fn summary_has_outcomes_reasons_and_durations() {
        let mut rows = vec![
            row("clippy", Ok(()), 95),
            row("lab", Err(Error::Skipped("it needs root".into())), 0),
            row("tests", Err(Error::Failed("cargo test: exit status: 101\nmore".into())), 12),
        ];
        let expected = "\
step    outcome        time
clippy  passed   1 min 35 s
lab     skipped       0.0 s  it needs root
tests   failed         12 s  cargo test: exit status: 101
total   failed   1 min 47 s
";
        assert_eq!(table(&rows, Duration::from_secs(107)), expected);
        assert_eq!(outcome(&rows).unwrap_err().to_string(), "failed: tests");
        assert!(outcome(&rows[..2]).is_ok(), "skipped steps are no failure");
        rows.push(row("fuzzing", Err(Error::Interrupted), 1));
        assert!(matches!(outcome(&rows), Err(Error::Interrupted)));
    }

    #[test]
    fn required_steps_precede_the_others() {
        let [short, all] = [false, true].map(|all| plan(&Machine::with_missing(&[]), all));
        assert!(short.is_sorted_by_key(|step| !step.is_required) && all.is_sorted_by_key(|step| !step.is_required));
        assert!(all.iter().all(|step| step.action.is_ok()));
    }

    #[test]
    fn steps_depend_on_installed_packages() {
        let all = plan(&Machine::with_missing(&["libdpdk-dev", "valgrind", "mmdebstrap"]), true);
        let skipped: Vec<_> = all.iter().filter(|step| step.action.is_err()).map(|step| step.name).collect();
        let programs = ["AddressSanitizer of unmodified programs", "suites of redis and memcached"];
        let others = ["package", "ports on Debian 13", "published crates", "instruction counts", "lab"];
        assert_eq!(skipped, [&programs[..], &others].concat());
    }

    #[test]
    fn unknown_step_is_named_with_the_known_ones() {
        let error = run(&Machine::with_missing(&[]), false, &["format", "fuzz"]).unwrap_err().to_string();
        assert!(error.starts_with("no step is named 'fuzz': the steps are 'scripts parse', "), "{error}");
        assert!(error.ends_with("'lab, in short', and more with --all"), "{error}");
    }
}
