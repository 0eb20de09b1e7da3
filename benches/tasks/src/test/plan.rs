//! Steps of `./run test`, given the capabilities of the machine.

use super::{checks, fuzz, instrumented, packaged, published};
use crate::cargo::{PORTABLE, cargo, command, everything, linted, target};
use crate::error::Error;
use crate::lab::{self, Build};
use crate::machine::Machine;
use std::process::Command;

/// Action of a step.
pub enum Action {
    /// Program that must succeed.
    Run(Command),
    /// Function that must succeed.
    Call(fn(&Machine) -> Result<(), Error>),
    /// Step that is skipped, with the reason.
    Skip(String),
}

/// Step of the run.
pub struct Step {
    /// Name in the summary.
    pub name: String,
    /// True if a failure ends the run: later steps depend on the step, or it is a quick check.
    pub required: bool,
    /// Action of the step.
    pub action: Action,
}

fn required(name: &str, action: Action) -> Step {
    Step { name: name.to_owned(), required: true, action }
}

fn step(name: &str, action: Action) -> Step {
    Step { name: name.to_owned(), required: false, action }
}

/// Creates an action that runs `command` with environment variables.
fn with<const N: usize>(environment: [(&str, &str); N], mut command: Command) -> Action {
    Action::Run({
        command.envs(environment);
        command
    })
}

/// Returns the steps. `all` adds the slow ones.
///
/// The tests are compiled by Clippy, and other commands use their profile: build scripts and procedural macros are then
/// built once.
pub fn plan(machine: &Machine, all: bool) -> Vec<Step> {
    use Action::{Call, Run};
    let everything = everything(machine);
    let clippy = |what: &str| cargo(&format!("clippy --profile test {what} --all-targets -- -D warnings"));
    let mut steps = vec![
        required("scripts parse", Call(checks::scripts_parse)),
        required("lints are inherited", Call(checks::lints_are_inherited)),
        required("lints are denied", Call(checks::lints_are_denied)),
        required("README shows the example", Call(checks::readme_shows_the_example)),
        required("format", Run(cargo("fmt --all --check"))),
    ];
    if all {
        steps.push(required("clippy of the portable part", Run(clippy(PORTABLE))));
    }
    // Includes the programs that the lab runs, with the features of all packages.
    let build = linted(&format!("build --profile test {everything} --lib --bins --examples --tests"));
    steps.extend([
        required("clippy and build of the tests", Run(build)),
        step("tests", Run(linted(&format!("test {everything} --no-fail-fast")))),
    ]);
    if all {
        steps.extend(long_steps(machine, &everything));
    }
    if all {
        steps.push(step("lab", Call(|machine| lab::suites(machine, Build::ReleaseOfEverything, &[]))));
    } else {
        steps
            .push(step("lab, in short", Call(|machine| lab::suites(machine, Build::Tests, &["rxe-quick".to_owned()]))));
    }
    steps
}

/// Returns the steps of `--all` between the tests and the lab.
fn long_steps(machine: &Machine, everything: &str) -> Vec<Step> {
    use Action::{Call, Run};
    let split = "--test cli --test http --test kv --test kv_clients --test drain --test net --test links \
                 --test linux_peers --test rdma --test zero_copy";
    let clients = "--test kv_clients --test linux_peers --test net";
    let book = "-p linerate-book --features mdbook";
    let documentation = cargo(&format!("doc --profile test {everything} --no-deps"));
    // One selection of packages for all optimised tests: another one would build with other features.
    let seeds = |what: &str| cargo(&format!("test --profile seeds {PORTABLE} {what}"));
    let cases = [("PROPTEST_CASES", "5000"), ("SIMULATOR_SEEDS", "12000"), ("LINERATE_SCRIPTS_EACH_FAST_PATH", "1")];
    vec![
        step("documentation", with([("RUSTDOCFLAGS", "-D warnings")], documentation)),
        step("lock-free protocols (loom)", Run(instrumented::loom())),
        step("Miri", Call(instrumented::miri)),
        step("AddressSanitizer", Call(instrumented::address_sanitizer)),
        step("package", packaged::step(machine)),
        step("ports on Debian 13", packaged::debian_13(machine)),
        step(
            "slower tests of clients",
            Run(linted(&format!("test {everything} {clients} --no-fail-fast -- --ignored"))),
        ),
        step("dashboard", Run(linted(&format!("test {everything} --test deploying -- --ignored")))),
        step("published crates", published::packages(machine)),
        step("API since the last version", Call(published::api)),
        step("crate outside of the workspace", Run(cargo("test -p linerate --test outside -- --ignored"))),
        step("clippy of the book", Run(cargo(&format!("clippy --profile test {book} --all-targets -- -D warnings")))),
        step("book", Run(cargo(&format!("test {book} --no-fail-fast")))),
        step(
            "tests with split threads",
            with([("LINERATE_THREADING", "split")], linted(&format!("test {everything} --no-fail-fast {split}"))),
        ),
        step("more cases and seeds", with(cases, seeds("--no-fail-fast"))),
        step("kv over a bad link", with([("SOAK_SECONDS", "300")], seeds("--test lossy -- --nocapture"))),
        step("kv under memory pressure", with([("SOAK_SECONDS", "600")], seeds("--test kv_soak -- --nocapture"))),
        step("fuzzing", Call(fuzz::run)),
        step("instruction counts", instructions(machine)),
    ]
}

/// Compares instructions of the hot paths with the accepted counts.
fn instructions(machine: &Machine) -> Action {
    if !machine.has("valgrind") {
        return Action::Skip("instructions are counted by valgrind, which is missing".to_owned());
    }
    Action::Run(command(&target().join("debug/baseline").to_string_lossy(), "--all"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process;

    fn names(machine: &Machine, all: bool) -> Vec<String> {
        plan(machine, all).into_iter().map(|step| step.name).collect()
    }

    fn lines(machine: &Machine, all: bool) -> Vec<String> {
        let line = |step: Step| match step.action {
            Action::Run(command) => Some(process::line(&command)),
            _ => None,
        };
        plan(machine, all).into_iter().filter_map(line).collect()
    }

    #[test]
    fn checks_and_builds_precede_tests_and_end_the_run() {
        let steps = plan(&Machine::with_missing(&[]), false);
        let names: Vec<&str> = steps.iter().map(|step| step.name.as_str()).collect();
        let expected = [
            "scripts parse",
            "lints are inherited",
            "lints are denied",
            "README shows the example",
            "format",
            "clippy and build of the tests",
            "tests",
            "lab, in short",
        ];
        assert_eq!(names, expected);
        assert!(steps.iter().all(|step| step.required != names[6..].contains(&&*step.name)));
    }

    #[test]
    fn all_adds_steps() {
        let machine = Machine::with_missing(&[]);
        let all = names(&machine, true);
        assert_eq!(all.len(), 28);
        let common = names(&machine, false);
        assert!(common.iter().filter(|name| !name.starts_with("lab")).all(|name| all.contains(name)));
    }

    #[test]
    fn bindings_are_left_out_without_dpdk() {
        let without = lines(&Machine::with_missing(&["libdpdk-dev"]), true);
        assert!(
            without.iter().all(|line| !line.contains("--workspace") || line.contains("--exclude linerate-dpdk-sys"))
        );
        assert!(without.iter().all(|line| !line.contains("/dpdk")));
    }

    #[test]
    fn instructions_are_counted_with_valgrind_only() {
        let steps = plan(&Machine::with_missing(&["valgrind"]), true);
        let counts = steps.iter().find(|step| step.name == "instruction counts").unwrap();
        assert!(matches!(&counts.action, Action::Skip(reason) if reason.contains("valgrind")));
    }

    #[test]
    fn package_is_skipped_without_its_tools() {
        let steps = plan(&Machine::with_missing(&["lintian"]), true);
        let package = steps.iter().find(|step| step.name == "package").unwrap();
        assert!(matches!(&package.action, Action::Skip(reason) if reason.contains("lintian")));
    }

    #[test]
    fn debian_13_needs_root_and_mmdebstrap() {
        for (machine, needed) in
            [(Machine::without_root(), "root"), (Machine::with_missing(&["mmdebstrap"]), "mmdebstrap")]
        {
            let step = plan(&machine, true).into_iter().find(|step| step.name == "ports on Debian 13").unwrap();
            assert!(matches!(&step.action, Action::Skip(reason) if reason.contains(needed)));
        }
        let lines = lines(&Machine::with_missing(&[]), true);
        assert!(lines.contains(&"benches/debian13.sh".to_owned()), "{lines:?}");
    }

    #[test]
    fn optimised_tests_have_one_selection_of_packages() {
        let seeds =
            lines(&Machine::with_missing(&[]), true).into_iter().filter(|line| line.contains("--profile seeds"));
        let seeds: Vec<String> = seeds.collect();
        assert_eq!(seeds.len(), 3);
        assert!(seeds.iter().all(|line| line.contains(PORTABLE)), "{seeds:?}");
    }
}
