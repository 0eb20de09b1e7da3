//! Instruction counts that were accepted, and whether those of now are no more.
//!
//! Times differ from hour to hour on a machine that is shared; counts of one compiler do not. So they show what a change costs.

use crate::requirements::instructions::OPERATIONS;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::process::Command;

/// Percent that a path may take more than was accepted.
const LET_PASS: f64 = 5.0;
/// What accepts the counts of now.
const ACCEPT: &str = "cargo run --release -p linerate-benches --bin baseline -- --accept";

/// What was accepted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Baseline {
    /// What it was compiled by and for.
    pub compiler: Compiler,
    /// Instructions per operation, by its name.
    pub counts: BTreeMap<String, u64>,
}

/// What decides which instructions there are: counts of different compilers are not compared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compiler {
    /// As `rustc -V` says it.
    pub rustc: String,
    /// The processor that all of it is compiled for: the level of x86-64, elsewhere the architecture.
    pub target_cpu: String,
}

impl Compiler {
    /// The one that this was compiled by, if it is still here and says what it is.
    pub fn here() -> Option<Self> {
        let output = Command::new("rustc").arg("-V").output().ok().filter(|output| output.status.success())?;
        let rustc = String::from_utf8(output.stdout).ok()?.trim().to_owned();
        let target_cpu = if cfg!(all(target_feature = "avx2", target_feature = "bmi2", target_feature = "fma")) {
            let is_newer = cfg!(target_feature = "avx512vl");
            if is_newer { "x86-64-v4" } else { "x86-64-v3" }
        } else {
            std::env::consts::ARCH
        };
        Some(Compiler { rustc, target_cpu: target_cpu.to_owned() })
    }
}

/// What is wrong with a count.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Complaint {
    /// It is too large.
    #[error(
        "{path}: {count} instructions, {percent:.1} % more than the {accepted} that were accepted ({LET_PASS} % are let pass). \
         Where that is right, accept it: {ACCEPT}"
    )]
    More {
        /// Of which path.
        path: String,
        /// Instructions of now.
        count: u64,
        /// Those that were accepted.
        accepted: u64,
        /// By how much it is more.
        percent: f64,
    },
    /// No count of the path was accepted.
    #[error("{path}: {count} instructions, and no count was accepted. Accept it: {ACCEPT}")]
    Unknown {
        /// Which path.
        path: String,
        /// Instructions of now.
        count: u64,
    },
    /// A count was accepted of a path that is not counted.
    #[error("{path}: a count was accepted, but there is no such path. Accept what there is: {ACCEPT}")]
    Gone {
        /// Which path.
        path: String,
    },
}

/// What is wrong with these counts: nothing, if none is more than 5 % above what was accepted, and all were.
pub fn complaints(accepted: &BTreeMap<String, u64>, counts: &BTreeMap<String, u64>) -> Vec<Complaint> {
    let more = counts.iter().filter_map(|(path, &count)| {
        let path = path.clone();
        let Some(&accepted) = accepted.get(&path) else { return Some(Complaint::Unknown { path, count }) };
        let percent = (count as f64 / accepted as f64 - 1.0) * 100.0;
        (percent > LET_PASS).then_some(Complaint::More { path, count, accepted, percent })
    });
    let is_counted = |path: &str| OPERATIONS.iter().any(|operation| operation.name == path);
    let gone = accepted.keys().filter(|path| !is_counted(path) && !counts.contains_key(*path));
    more.chain(gone.map(|path| Complaint::Gone { path: path.clone() })).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(all: &[(&str, u64)]) -> BTreeMap<String, u64> {
        all.iter().map(|(path, count)| (path.to_string(), *count)).collect()
    }

    #[test]
    fn four_percent_more_are_let_pass_and_six_are_not() {
        let echo = OPERATIONS[0].name;
        let accepted = counts(&[(echo, 1000)]);
        assert_eq!(complaints(&accepted, &counts(&[(echo, 1040)])), []);
        assert_eq!(complaints(&accepted, &counts(&[(echo, 600)])), []);
        let told = complaints(&accepted, &counts(&[(echo, 1060)]));
        let expected = format!(
            "{echo}: 1060 instructions, 6.0 % more than the 1000 that were accepted (5 % are let pass). \
             Where that is right, accept it: {ACCEPT}"
        );
        assert_eq!(told.iter().map(Complaint::to_string).collect::<Vec<_>>(), [expected]);
    }

    #[test]
    fn a_path_of_which_no_count_was_accepted_is_told_and_so_is_one_that_is_gone() {
        let [echo, other] = [OPERATIONS[0].name, OPERATIONS[1].name];
        let told = complaints(&counts(&[(other, 1), ("an old path", 1)]), &counts(&[(echo, 9)]));
        let unknown = Complaint::Unknown { path: echo.to_owned(), count: 9 };
        assert_eq!(told, [unknown, Complaint::Gone { path: "an old path".to_owned() }]);
    }

    #[test]
    fn the_accepted_counts_are_those_of_all_paths() {
        let baseline: Baseline = serde_json::from_str(include_str!("../../baseline.json")).unwrap();
        let accepted: Vec<&String> = baseline.counts.keys().collect();
        let mut all = OPERATIONS.map(|operation| operation.name);
        all.sort_unstable();
        assert_eq!(accepted, all.iter().collect::<Vec<_>>());
    }

    #[test]
    fn the_compiler_says_what_it_is() {
        let compiler = Compiler::here().expect("rustc");
        assert!(compiler.rustc.starts_with("rustc 1."), "{compiler:?}");
        assert!(!compiler.target_cpu.is_empty(), "{compiler:?}");
    }
}
