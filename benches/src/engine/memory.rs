//! Memory that this process has.

use crate::client::Wrong;

/// Bytes of anonymous memory that the process has written to and still has: the heap and the stacks, with all that the
/// allocator needs for itself.
pub fn resident() -> Result<u64, Wrong> {
    let status = std::fs::read_to_string("/proc/self/status").map_err(Wrong::Memory)?;
    parse(&status).ok_or_else(|| Wrong::Memory(std::io::Error::other("there is no RssAnon in it")))
}

fn parse(status: &str) -> Option<u64> {
    let kilobytes = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?.trim().strip_suffix(" kB")?;
    Some(kilobytes.trim().parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kilobytes_of_anonymous_memory_are_read() {
        assert_eq!(parse("VmRSS:\t   1234 kB\nRssAnon:\t     567 kB\nRssFile:\t     9 kB\n"), Some(567 * 1024));
        assert_eq!(parse("VmRSS:\t   1234 kB\n"), None);
    }
}
