//! Time that the host of a virtual machine used for other purposes.

use crate::distance::Cores;
use std::fs;
use std::time::{Duration, Instant};

/// Duration of a unit of `/proc/stat` (`USER_HZ` of proc_stat(5), which is 100 on x86-64 and AArch64).
const TICK: Duration = Duration::from_millis(10);

/// Returns the result of `measure`, and the share of its time that the host took from the two cores, from 0 to 1. The
/// share is 0 if the kernel does not report it.
pub fn measure<T>(cores: Cores, measure: impl FnOnce() -> T) -> (T, f64) {
    let both = || total(&fs::read_to_string("/proc/stat").unwrap_or_default(), [cores.server, cores.load]);
    let (before, from) = (both(), Instant::now());
    let measured = measure();
    let stolen = both().saturating_sub(before);
    (measured, stolen.as_secs_f64() / (2.0 * from.elapsed().as_secs_f64()))
}

/// Returns the stolen time of `cores` since the machine started.
fn total(stat: &str, cores: [usize; 2]) -> Duration {
    cores.into_iter().filter_map(|core| steal(stat, core)).sum()
}

fn steal(stat: &str, core: usize) -> Option<Duration> {
    let line = stat.lines().find_map(|line| line.strip_prefix(&format!("cpu{core} ")))?;
    Some(TICK * line.split_whitespace().nth(7)?.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eighth_number_of_both_cores_is_summed() {
        let stat = "cpu  9 9 9 9 9 9 9 99 0 0\ncpu0 1 1 1 1 1 1 1 30 0 0\ncpu1 1 1 1 1 1 1 1 5 0 0\n\
                    cpu10 1 1 1 1 1 1 1 70 0 0\nctxt 5\n";
        assert_eq!(total(stat, [0, 1]), Duration::from_millis(350));
        assert_eq!(total(stat, [10, 1]), Duration::from_millis(750));
        assert_eq!(total(stat, [2, 3]), Duration::ZERO);
        assert_eq!(total("", [0, 1]), Duration::ZERO);
    }
}
