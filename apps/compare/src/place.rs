//! Where a program runs: here, or where a command leads that is put before it, such as `ssh root@a`.

use super::process::{Error, Process};
use crate::host_checks::Examined;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// How long a machine may take to examine itself: one that is emulated does it in half a minute.
const EXAMINED: Duration = Duration::from_secs(120);

/// A place where `linerate` can be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The words that lead there; none: it is here.
    way: Vec<String>,
    /// Where the program lies there.
    program: PathBuf,
}

impl Place {
    /// This machine.
    pub fn here(program: PathBuf) -> Place {
        Place { way: Vec::new(), program }
    }

    /// Where `way` leads, whose words are parted by white space and by nothing else.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub fn on(way: &str, program: PathBuf) -> Result<Place, String> {
        let way: Vec<String> = way.split_whitespace().map(str::to_owned).collect();
        if way.is_empty() {
            return Err("write a command that runs there what follows it, such as 'ssh root@a'".to_owned());
        }
        Ok(Place { way, program })
    }

    /// A command that runs the program there for as long as its standard input, a pipe, is open.
    pub fn command(&self) -> Command {
        let mut words = self.way.iter().map(String::as_str);
        let mut command = match words.next() {
            Some(first) => Command::new(first),
            None => Command::new(&self.program),
        };
        command.args(words);
        if !self.way.is_empty() {
            command.arg(&self.program);
        }
        command.arg("--supervised").env_remove("RUST_LOG");
        command
    }

    /// What the machine there says of itself.
    ///
    /// # Errors
    /// It cannot be reached, or the program there is another.
    pub fn examine(&self, interrupted: &AtomicBool) -> Result<Examined, Error> {
        let mut command = self.command();
        command.args(["doctor", "--json"]);
        let process = Process::supervised(command, EXAMINED)?;
        let line = process.command().to_owned();
        let printed = process.output(EXAMINED, interrupted)?;
        serde_json::from_str(&printed).map_err(|_| Error::Unexpected { command: line, printed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::server::words;

    #[test]
    fn what_leads_there_comes_before_the_program() {
        let there = Place::on("  ssh -p  22 root@a ", "/opt/linerate".into()).unwrap();
        assert_eq!(words(&there.command()), ["ssh", "-p", "22", "root@a", "/opt/linerate", "--supervised"]);
        assert_eq!(words(&Place::here("/opt/linerate".into()).command()), ["/opt/linerate", "--supervised"]);
        assert!(Place::on(" ", "linerate".into()).unwrap_err().contains("ssh root@a"));
    }

    #[test]
    fn a_machine_that_is_not_there_is_told_by_what_leads_there() {
        let nowhere = Place::on("sh -c false", "linerate".into()).unwrap();
        let error = nowhere.examine(&AtomicBool::new(false)).unwrap_err();
        assert!(error.to_string().contains("sh -c false"), "{error}");
        let other = Place::on("echo", "linerate".into()).unwrap();
        assert!(matches!(other.examine(&AtomicBool::new(false)), Err(Error::Unexpected { .. })));
    }
}
