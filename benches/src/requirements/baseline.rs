//! Accepted instruction counts, and their comparison with the current ones.
//!
//! On a shared machine times vary from hour to hour, while the counts of one compiler do not, so they show the cost of
//! a change.

use crate::requirements::instructions::OPERATIONS;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::process::Command;

/// Tolerance in percent.
const TOLERANCE: f64 = 5.0;
/// Command that accepts the current counts.
const ACCEPT: &str = "cargo run --release -p linerate-benches --bin baseline -- --accept";

/// Accepted counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Baseline {
    /// Compiler and target of the counts.
    pub compiler: Compiler,
    /// Instructions per operation, by name.
    pub counts: BTreeMap<String, u64>,
}

/// Compiler and target, which determine the instructions. Counts of different compilers are not compared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compiler {
    /// Output of `rustc -V`.
    pub rustc: String,
    /// Target CPU: the x86-64 level, or the architecture.
    pub target_cpu: String,
}

impl Compiler {
    /// Returns the compiler of this program, if it is available.
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

/// Describes the deviations: counts over 5 % above the accepted ones, and differences in the set of paths.
pub fn deviations(accepted: &BTreeMap<String, u64>, counts: &BTreeMap<String, u64>) -> Vec<String> {
    let more = counts.iter().filter_map(|(path, &count)| {
        let Some(&accepted) = accepted.get(path) else {
            return Some(format!("{path}: {count} instructions, without an accepted count. Accept it: {ACCEPT}"));
        };
        let percent = (count as f64 / accepted as f64 - 1.0) * 100.0;
        (percent > TOLERANCE).then(|| {
            format!(
                "{path}: {count} instructions, {percent:.1} % more than the accepted {accepted} (tolerance {TOLERANCE} \
                 %). If this is intended, accept it: {ACCEPT}"
            )
        })
    });
    let is_counted = |path: &str| OPERATIONS.iter().any(|operation| operation.name == path);
    let removed = accepted.keys().filter(|path| !is_counted(path) && !counts.contains_key(*path)).map(|path| {
        format!("{path}: an accepted count of a path that no longer exists. Accept the current counts: {ACCEPT}")
    });
    more.chain(removed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(all: &[(&str, u64)]) -> BTreeMap<String, u64> {
        all.iter().map(|(path, count)| (path.to_string(), *count)).collect()
    }

    #[test]
    fn counts_within_five_percent_are_accepted() {
        let echo = OPERATIONS[0].name;
        let accepted = counts(&[(echo, 1000)]);
        assert_eq!(deviations(&accepted, &counts(&[(echo, 1040)])), [""; 0]);
        assert_eq!(deviations(&accepted, &counts(&[(echo, 600)])), [""; 0]);
        let deviations = deviations(&accepted, &counts(&[(echo, 1060)]));
        let expected = format!(
            "{echo}: 1060 instructions, 6.0 % more than the accepted 1000 (tolerance 5 %). \
             If this is intended, accept it: {ACCEPT}"
        );
        assert_eq!(deviations, [expected]);
    }

    #[test]
    fn added_and_removed_paths_are_reported() {
        let [echo, other] = [OPERATIONS[0].name, OPERATIONS[1].name];
        let deviations = deviations(&counts(&[(other, 1), ("an old path", 1)]), &counts(&[(echo, 9)]));
        assert!(deviations[0].starts_with(&format!("{echo}: 9 instructions, without")), "{deviations:?}");
        assert!(deviations[1].starts_with("an old path: an accepted count of a path that no longer"), "{deviations:?}");
        assert_eq!(deviations.len(), 2);
    }

    #[test]
    fn baseline_covers_all_paths() {
        let baseline: Baseline = serde_json::from_str(include_str!("../../baseline.json")).unwrap();
        let accepted: Vec<&String> = baseline.counts.keys().collect();
        let mut all = OPERATIONS.map(|operation| operation.name);
        all.sort_unstable();
        assert_eq!(accepted, all.iter().collect::<Vec<_>>());
    }

    #[test]
    fn compiler_is_identified() {
        let compiler = Compiler::here().expect("rustc");
        assert!(compiler.rustc.starts_with("rustc 1."), "{compiler:?}");
        assert!(!compiler.target_cpu.is_empty(), "{compiler:?}");
    }
}
