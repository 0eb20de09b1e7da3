//! Location of a program: this machine, or one reached through a command prefix such as `ssh root@a`.

use crate::host_checks::Examined;
use linerate_process::Error;
use linerate_process::process::Process;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// Timeout of `doctor`: an emulated machine takes half a minute.
const EXAMINED: Duration = Duration::from_secs(120);

/// Location of a `linerate` program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// Command prefix that reaches the machine; empty for this machine.
    prefix: Vec<String>,
    /// Path of the program on that machine.
    program: PathBuf,
}

impl Location {
    /// Returns this machine.
    pub fn here(program: PathBuf) -> Location {
        Location { prefix: Vec::new(), program }
    }

    /// Returns the machine reached through the command prefix `prefix`, which is split at white space only.
    ///
    /// # Errors
    /// A description of the error in the prefix.
    pub fn on(prefix: &str, program: PathBuf) -> Result<Location, String> {
        let prefix: Vec<String> = prefix.split_whitespace().map(str::to_owned).collect();
        if prefix.is_empty() {
            return Err("write a command prefix that runs a command there, such as 'ssh root@a'".to_owned());
        }
        Ok(Location { prefix, program })
    }

    /// Creates a command that runs the program there until its standard input, a pipe, is closed.
    pub fn command(&self) -> Command {
        let mut words = self.prefix.iter().map(String::as_str);
        let mut command = match words.next() {
            Some(first) => Command::new(first),
            None => Command::new(&self.program),
        };
        command.args(words);
        if !self.prefix.is_empty() {
            command.arg(&self.program);
        }
        command.arg("--supervised").env_remove("RUST_LOG");
        command
    }

    /// Runs `linerate doctor` there.
    ///
    /// # Errors
    /// The machine cannot be reached, or the program there has another version.
    pub fn examine(&self) -> Result<Examined, Error> {
        let mut command = self.command();
        command.args(["doctor", "--json"]);
        let process = Process::supervised(command, EXAMINED)?;
        let line = process.command().to_owned();
        let printed = process.output(EXAMINED)?;
        serde_json::from_str(&printed).map_err(|_| Error::Unexpected { command: line, printed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_process::child::words;

    #[test]
    fn prefix_precedes_the_program() {
        let there = Location::on("  ssh -p  22 root@a ", "/opt/linerate".into()).unwrap();
        assert_eq!(words(&there.command()), ["ssh", "-p", "22", "root@a", "/opt/linerate", "--supervised"]);
        assert_eq!(words(&Location::here("/opt/linerate".into()).command()), ["/opt/linerate", "--supervised"]);
        assert!(Location::on(" ", "linerate".into()).unwrap_err().contains("ssh root@a"));
    }

    #[test]
    fn unreachable_machine_is_reported_with_its_prefix() {
        let nowhere = Location::on("sh -c false", "linerate".into()).unwrap();
        let error = nowhere.examine().unwrap_err();
        assert!(error.to_string().contains("sh -c false"), "{error}");
        let other = Location::on("echo", "linerate".into()).unwrap();
        assert!(matches!(other.examine(), Err(Error::Unexpected { .. })));
    }
}
