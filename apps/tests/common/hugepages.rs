//! Hugepages that two processes over a shared-memory link need.

/// Hugepage memory of two processes in kB.
const NEEDED: u64 = 512 << 10;

/// Returns whether this machine permits tests that need root and hugepages. Prints the reason if not.
pub fn available() -> bool {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap();
    let value = |name: &str| {
        let line = meminfo.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_whitespace().nth(1).and_then(|value| value.parse::<u64>().ok()).unwrap_or(0)
    };
    let available = rustix::process::geteuid().is_root() && value("HugePages_Free") * value("Hugepagesize") >= NEEDED;
    if !available {
        eprintln!("skipped: needs root and {} MB of free hugepages", NEEDED >> 10);
    }
    available
}
