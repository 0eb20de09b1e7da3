//! `linerate doctor`: checks of this host, with the command that fixes each problem.
//!
//! The exit status is 0 whatever the checks find. With `--json` it prints one object, `{"checks": […], "machine": {…},
//! "cores": […]}`: the fields of [`Check`], the description of the machine, and the cores available to a process.

mod fix;

use crate::doctor::{Check, Examined, Machine, State, Subject, TlsCheckArgs, examine_here, tls_checks};
use fix::{Confirmation, fix};
use linerate_process::output::is_coloured;
use std::io::{self, IsTerminal, Write};

/// Check this host and print a fix for each problem
///
/// The exit status is 0 whatever the checks find.
#[derive(Debug, clap::Args)]
pub struct DoctorArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,

    /// Run the proposed commands, each after a confirmation. Proposals that restart or disconnect this host are only
    /// printed. The exit status is 1 if a command fails
    #[arg(long, conflicts_with = "json")]
    fix: bool,

    /// Run the proposed commands of --fix without confirmation, except commands that take a device from the kernel
    #[arg(long, requires = "fix")]
    yes: bool,

    #[command(flatten)]
    tls: TlsCheckArgs,
}

/// Error of `linerate doctor`.
#[derive(Debug, thiserror::Error)]
pub enum DoctorError {
    /// Standard input or output failed.
    #[error("standard input and output: {0}")]
    Io(#[from] io::Error),
    /// Commands cannot be confirmed.
    #[error("--fix: standard input is no terminal to confirm commands on: add --yes, or leave --fix out")]
    NoTerminal,
    /// Commands failed.
    #[error("--fix: {0} commands failed: see their messages above")]
    Failed(usize),
}

/// Examines this machine and prints the report on standard output.
///
/// # Errors
/// [`DoctorError`].
pub fn run(args: DoctorArgs) -> Result<(), DoctorError> {
    if args.fix && !args.yes && !io::stdin().is_terminal() {
        return Err(DoctorError::NoTerminal);
    }
    let mut examined = examine_here(&Machine::local());
    examined.report.checks.extend(tls_checks(&args.tls));
    let mut out = io::stdout().lock();
    match print(&examined, args.json, is_coloured(&io::stdout()), &mut out) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
        result => result?,
    }
    if args.fix {
        let mut input = io::stdin().lock();
        let confirmation = if args.yes { Confirmation::All } else { Confirmation::Prompt(&mut input) };
        fix(&examined.report, confirmation, &mut out)?;
    }
    Ok(())
}

/// Returns the name of a state, in colour if `coloured`.
fn label(state: State, coloured: bool) -> String {
    let (name, colour) = match state {
        State::Ok => ("ok", 32),
        State::Warn => ("warn", 33),
        State::Missing => ("missing", 31),
    };
    if coloured { format!("\u{1b}[{colour}m{name:7}\u{1b}[0m") } else { format!("{name:7}") }
}

fn print(examined: &Examined, json: bool, coloured: bool, out: &mut dyn Write) -> io::Result<()> {
    if json {
        serde_json::to_writer(&mut *out, examined)?;
        return writeln!(out);
    }
    let report = &examined.report;
    let width = |check: &Check| check.name.chars().count();
    let width = report.checks.iter().map(width).max().unwrap_or(0);
    for checks in report.checks.chunk_by(|a, b| a.subject == b.subject) {
        writeln!(out, "{}", title(checks[0].subject))?;
        for (index, check) in checks.iter().enumerate() {
            let state = label(check.state, coloured);
            // Names come from the kernel, which allows almost any character in the name of an interface.
            let [name, found] = [&check.name, &check.found].map(|text| text.replace(char::is_control, "\u{fffd}"));
            write!(out, "  {state}  {name:width$}  {found}")?;
            if !check.via.is_empty() {
                write!(out, "  [--via {}]", check.via.join(", ").replace(char::is_control, "\u{fffd}"))?;
            }
            writeln!(out)?;
            // Consecutive checks with the same remedy print it once.
            let next = checks.get(index + 1).and_then(|check| check.remedy.as_ref());
            if let Some(remedy) = check.remedy.as_ref().filter(|remedy| next != Some(remedy)) {
                writeln!(out, "  {:7}  → {}", "", remedy.replace(char::is_control, "\u{fffd}"))?;
            }
        }
        writeln!(out)?;
    }
    let [ok, warn, missing] = [State::Ok, State::Warn, State::Missing].map(|state| report.count(state));
    writeln!(out, "{ok} ok, {warn} with warnings, {missing} missing")
}

fn title(subject: Subject) -> &'static str {
    match subject {
        Subject::Networks => "Networks (--via)",
        Subject::Cpu => "Processor",
        Subject::Memory => "Memory",
        Subject::Iommu => "IOMMU and drivers for PCI devices",
        Subject::Dpdk => "DPDK",
        Subject::Interfaces => "Interfaces (--via af_xdp)",
        Subject::Pci => "PCI devices (--via pci)",
        Subject::Rdma => "RDMA",
        Subject::Privileges => "Privileges",
        Subject::Tls => "TLS (--tls-cert)",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::{Report, examine};
    use linerate_compare::results;

    fn report() -> Report {
        let check = |subject, name: &str, state, via: &[&str], remedy: Option<&str>| Check {
            subject,
            name: name.into(),
            state,
            found: "what is there".into(),
            via: via.iter().map(|via| (*via).to_owned()).collect(),
            remedy: remedy.map(str::to_owned),
        };
        Report {
            checks: vec![
                check(Subject::Networks, "kernel", State::Ok, &["kernel"], None),
                check(Subject::Interfaces, "e\u{1b}[2J", State::Warn, &[], Some("sudo ip link set dev eth0 up")),
            ],
        }
    }

    fn printed(report: &Report, json: bool) -> String {
        let mut out = Vec::new();
        let machine = results::Machine { cpu: "EPYC".into(), ..results::Machine::default() };
        print(&Examined { report: report.clone(), machine, cores: vec![0, 2] }, json, false, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn json_has_the_documented_fields() {
        let value: serde_json::Value = serde_json::from_str(&printed(&report(), true)).unwrap();
        assert_eq!(
            value["checks"][0],
            serde_json::json!({
                "subject": "networks", "name": "kernel", "state": "ok", "found": "what is there", "via": ["kernel"],
                "remedy": null,
            })
        );
        assert_eq!(value["checks"][1]["remedy"], "sudo ip link set dev eth0 up");
        assert_eq!((&value["machine"]["cpu"], &value["cores"]), (&"EPYC".into(), &serde_json::json!([0, 2])));
        assert!(serde_json::from_str::<Examined>(&printed(&report(), true)).is_ok());
    }

    #[test]
    fn text_shows_state_finding_and_remedy_without_control_characters() {
        let text = printed(&report(), false);
        assert!(text.contains("ok       kernel"), "{text}");
        assert!(text.contains("→ sudo ip link set dev eth0 up\n"), "{text}");
        assert!(text.ends_with("1 ok, 1 with warnings, 0 missing\n"), "{text}");
        assert!(!text.contains('\u{1b}'));
    }

    #[test]
    fn shared_remedy_is_printed_once() {
        let mut report = report();
        report.checks.push(Check { name: "eth1".into(), ..report.checks[1].clone() });
        assert_eq!(printed(&report, false).matches('→').count(), 1);
        report.checks[2].remedy = Some("sudo ip link set dev eth1 up".into());
        assert_eq!(printed(&report, false).matches('→').count(), 2);
    }

    /// On any machine, every subject has checks and every name is unique.
    #[test]
    fn local_machine_can_be_examined() {
        let report = examine(&Machine::local());
        for subject in [
            Subject::Networks,
            Subject::Cpu,
            Subject::Memory,
            Subject::Iommu,
            Subject::Dpdk,
            Subject::Interfaces,
            Subject::Pci,
            Subject::Rdma,
            Subject::Privileges,
        ] {
            let names: Vec<&str> = report
                .checks
                .iter()
                .filter(|check| check.subject == subject)
                .map(|check| check.name.as_str())
                .collect();
            assert!(!names.is_empty(), "{subject:?}");
            assert!(names.iter().all(|name| names.iter().filter(|other| other == &name).count() == 1), "{names:?}");
        }
        assert!(report.checks.iter().any(|check| check.via == ["kernel"]));
    }
}
