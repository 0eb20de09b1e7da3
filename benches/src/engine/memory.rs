//! Memory of this process.

use crate::client::BenchError;

/// Returns the anonymous resident memory in bytes: heap and stacks, with allocator overhead.
pub fn resident() -> Result<u64, BenchError> {
    let status = std::fs::read_to_string("/proc/self/status").map_err(BenchError::Memory)?;
    parse(&status).ok_or_else(|| BenchError::Memory(std::io::Error::other("RssAnon is missing")))
}

fn parse(status: &str) -> Option<u64> {
    let kilobytes = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?.trim().strip_suffix(" kB")?;
    Some(kilobytes.trim().parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rss_anon_is_parsed() {
        assert_eq!(parse("VmRSS:\t   1234 kB\nRssAnon:\t     567 kB\nRssFile:\t     9 kB\n"), Some(567 * 1024));
        assert_eq!(parse("VmRSS:\t   1234 kB\n"), None);
    }
}
