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
use plan::{Action, Step, plan};
use std::time::Instant;
use summary::{Outcome, Row, Summary};

/// Runs the steps named by `names`, or all steps, and prints their summary. A failed check or build ends the run; a
/// failure of any other step does not.
pub fn run(machine: &Machine, all: bool, names: &[String]) -> Result<(), Error> {
    let steps = select(machine, all, names)?;
    if !machine.is_root() {
        note("not root: tests of namespaces, hugepages and interfaces report that they are skipped");
    }
    let mut hugepages = None;
    let mut summary = Summary::default();
    let begin = Instant::now();
    for step in steps {
        let from = Instant::now();
        if !step.required && summary.end().is_none() {
            // After the builds, which need the memory.
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

/// Returns the steps named by `names` in the order of the plan, or all steps if `names` is empty.
fn select(machine: &Machine, all: bool, names: &[String]) -> Result<Vec<Step>, Error> {
    let steps = plan(machine, all);
    if let Some(unknown) = names.iter().find(|name| steps.iter().all(|step| step.name != **name)) {
        let known: Vec<_> = steps.iter().map(|step| format!("'{}'", step.name)).collect();
        let all = if all { "" } else { ", and more with --all" };
        return Err(Error::Usage(format!("no step is named '{unknown}': the steps are {}{all}", known.join(", "))));
    }
    Ok(steps.into_iter().filter(|step| names.is_empty() || names.contains(&step.name)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_steps_run_in_the_order_of_the_plan() {
        let machine = Machine::with_missing(&[]);
        let select = |all, names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
            let steps = select(&machine, all, &names)?;
            Ok::<_, Error>(steps.into_iter().map(|step| step.name).collect::<Vec<_>>())
        };
        assert_eq!(select(true, &[]).unwrap().len(), plan(&machine, true).len());
        assert_eq!(select(true, &["fuzzing", "Miri"]).unwrap(), ["Miri", "fuzzing"]);
        let error = |all| select(all, &["format", "fuzz"]).unwrap_err().to_string();
        assert!(error(true).starts_with("no step is named 'fuzz': the steps are 'scripts parse', "), "{}", error(true));
        assert!(error(false).ends_with("'lab, in short', and more with --all"), "{}", error(false));
    }
}
