//! `linerate doctor --fix`: runs the proposed commands.

use super::DoctorError;
use crate::doctor::{Report, State};
use std::io::{self, BufRead, Write};
use std::process::{Command, Stdio};

/// Confirmation of proposals.
pub enum Confirmation<'a> {
    /// Confirms every proposal.
    All,
    /// Asks for each proposal, and reads the answer from this input.
    Prompt(&'a mut dyn BufRead),
}

/// Returns the commands that fix problems in `report`, each once. Remedies that are not complete commands, and commands
/// that restart or disconnect the machine, are left to the user.
fn proposals(report: &Report) -> Vec<&str> {
    let mut commands = Vec::new();
    for check in report.checks.iter().filter(|check| check.state != State::Ok) {
        // The rest of a remedy is a comment.
        let remedy = check.remedy.as_deref().unwrap_or_default();
        let command = remedy.split("  #").next().unwrap_or(remedy).trim();
        let is_command = ["sudo ", "echo "].iter().any(|word| command.starts_with(word));
        let is_left = ["reboot", "…"].iter().any(|word| command.contains(word)) || check.found.contains("disconnects");
        if is_command && !is_left && !commands.contains(&command) {
            commands.push(command);
        }
    }
    commands
}

/// Runs the proposals of `report` that are confirmed. Returns an error after the last one if any has failed.
pub fn fix(report: &Report, mut confirmation: Confirmation<'_>, out: &mut dyn Write) -> Result<(), DoctorError> {
    let (mut run, mut failed) = (0, 0);
    for command in proposals(report) {
        // Without -y the package manager would ask again.
        let command = match confirmation {
            Confirmation::All => command.replace("apt-get install", "apt-get install -y"),
            Confirmation::Prompt(_) => command.to_owned(),
        };
        writeln!(out, "→ {}", command.replace(char::is_control, "\u{fffd}"))?;
        let is_confirmed = match &mut confirmation {
            // The network interfaces of the device disappear from the kernel: the user decides for each device.
            Confirmation::All => !command.contains("dpdk-devbind"),
            Confirmation::Prompt(answers) => {
                write!(out, "  run it? [y/N] ")?;
                out.flush()?;
                let mut answer = String::new();
                answers.read_line(&mut answer)?;
                ["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str())
            }
        };
        if !is_confirmed {
            writeln!(out, "  skipped")?;
            continue;
        }
        run += 1;
        if !succeeds(&command)? {
            failed += 1;
            writeln!(out, "  failed")?;
        }
    }
    writeln!(out, "{run} commands run, {failed} failed")?;
    if failed > 0 { Err(DoctorError::Failed(failed)) } else { Ok(()) }
}

/// Runs a command of the shell. Root needs no sudo, which may not be installed.
fn succeeds(command: &str) -> io::Result<bool> {
    let sudo = if rustix::process::geteuid().is_root() { "sudo() { \"$@\"; }\n" } else { "" };
    let mut shell = Command::new("/bin/sh");
    shell.arg("-c").arg(format!("{sudo}{command}")).stdin(Stdio::inherit());
    Ok(shell.status()?.success())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::{Check, Subject};

    fn report(remedies: &[&str]) -> Report {
        let check = |remedy: &&str| Check::new(Subject::Memory, "x", State::Warn, "found").remedy(*remedy);
        Report { checks: remedies.iter().map(check).collect() }
    }

    fn fixed(report: &Report, confirmation: Confirmation<'_>) -> (String, Result<(), DoctorError>) {
        let mut out = Vec::new();
        let result = fix(report, confirmation, &mut out);
        (String::from_utf8(out).unwrap(), result)
    }

    #[test]
    fn proposals_are_commands_that_neither_restart_nor_disconnect() {
        let mut report = report(&[
            "sudo modprobe tun  # until the next boot",
            "sudo modprobe tun",
            "echo 1 | sudo tee /tmp/x",
            "sudo apt-get install linux-image && sudo reboot  # into Debian's kernel",
            "enable the IOMMU in the firmware",
            "sudo linerate …",
            "sudo dpdk-devbind.py --bind=vfio-pci 0000:03:00.0",
        ]);
        report.checks[6].found = "virtio-pci; carries the default route: binding it disconnects this host".into();
        report.checks.push(Check::new(Subject::Cpu, "ok", State::Ok, "").remedy("sudo true"));
        assert_eq!(proposals(&report), ["sudo modprobe tun", "echo 1 | sudo tee /tmp/x"]);
    }

    #[test]
    fn only_confirmed_proposals_run() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let commands = ["a", "b", "c"].map(|name| format!("echo done > {}", path(name).display()));
        let report = report(&commands.each_ref().map(String::as_str));
        // The end of input is no confirmation.
        let (text, result) = fixed(&report, Confirmation::Prompt(&mut "no\nY\n".as_bytes()));
        assert!(result.is_ok() && text.ends_with("1 commands run, 0 failed\n"), "{text}");
        assert!(commands.iter().all(|command| text.contains(&format!("→ {command}\n"))), "{text}");
        assert_eq!(["a", "b", "c"].map(|name| path(name).exists()), [false, true, false]);
        let (text, result) = fixed(&report, Confirmation::All);
        assert!(result.is_ok() && text.ends_with("3 commands run, 0 failed\n"), "{text}");
        assert!(["a", "b", "c"].iter().all(|name| path(name).exists()));
    }

    #[test]
    fn failure_is_reported_after_the_last_proposal() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        let last = format!("echo done > {}", file.display());
        let (text, result) = fixed(&report(&["echo one && false", &last]), Confirmation::All);
        assert!(matches!(result, Err(DoctorError::Failed(1))) && text.contains("  failed\n"), "{text}");
        assert!(file.exists());
    }

    #[test]
    fn devices_are_not_bound_without_a_question() {
        let (text, result) = fixed(&report(&["sudo dpdk-devbind.py --bind=vfio-pci 0000:03:00.0"]), Confirmation::All);
        assert!(result.is_ok() && text.contains("skipped") && text.ends_with("0 commands run, 0 failed\n"), "{text}");
    }
}
