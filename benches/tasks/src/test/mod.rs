//! `./run test`: checks and tests in steps, and their summary.

mod checks;
mod fuzz;
mod instrumented;
mod packaged;
mod plan;
mod published;
mod summary;

use crate::error::Error;
use crate::machine::{Machine, reserve_hugepages};
use crate::output::{note, say};
use crate::process;
use plan::{Action, plan};
use std::time::Instant;
use summary::{Outcome, Row, Summary};

/// Runs the steps and prints their summary. A failed check or build ends the run; the other steps all run.
pub fn run(machine: &Machine, all: bool) -> Result<(), Error> {
    if !machine.is_root() {
        note("not root: tests of namespaces, hugepages and interfaces report that they are skipped");
    }
    let mut hugepages = None;
    let mut summary = Summary::default();
    let begin = Instant::now();
    for step in plan(machine, all) {
        let from = Instant::now();
        if !step.required && summary.end().is_none() {
            // Builds need the memory themselves.
            hugepages.get_or_insert_with(|| reserve_hugepages(512));
        }
        let result = match (summary.end(), step.action) {
            (Some(end), _) => Err(Error::skipped(end)),
            (None, Action::Skip(reason)) => Err(Error::skipped(reason)),
            (None, Action::Run(command)) => {
                say(&process::line(&command));
                process::run(command)
            }
            (None, Action::Call(function)) => {
                say(&step.name);
                function(machine)
            }
        };
        let outcome = Outcome::from(result);
        summary.push(Row { name: step.name, required: step.required, outcome, time: from.elapsed() });
    }
    say("summary");
    note(&summary.table(begin.elapsed()));
    summary.result()
}
