//! Caches of this machine, read from sysfs.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Directory below which sysfs is read: that of this machine, or one of a test.
#[derive(Debug, Clone)]
pub struct Topology(PathBuf);

impl Topology {
    /// Returns that of this machine.
    pub fn of_machine() -> Self {
        Topology("/sys".into())
    }

    fn read(&self, path: impl AsRef<Path>) -> Option<String> {
        Some(fs::read_to_string(self.0.join(path)).ok()?.trim().to_owned())
    }

    /// Returns the bytes of the last-level cache for each core that shares it, the fewest of `cores`. `None` if the
    /// kernel does not report them, as in some virtual machines.
    pub fn cache_share(&self, cores: &[usize]) -> Option<usize> {
        cores.iter().filter_map(|core| self.cache_share_of(*core)).min()
    }

    fn cache_share_of(&self, core: usize) -> Option<usize> {
        let caches = format!("devices/system/cpu/cpu{core}/cache");
        let mut by_level = BTreeMap::new();
        for cache in fs::read_dir(self.0.join(&caches)).ok()?.flatten() {
            let read = |file| self.read(cache.path().join(file));
            let (Some(level), Some(size), Some(sharing)) = (read("level"), read("size"), read("shared_cpu_list"))
            else {
                continue;
            };
            if read("type").as_deref() == Some("Instruction") {
                continue;
            }
            if let (Ok(level), Some(size)) = (level.parse::<u32>(), bytes(&size)) {
                by_level.insert(level, size / cpu_list(&sharing).count().max(1));
            }
        }
        by_level.pop_last().map(|(_, share)| share)
    }
}

/// Parses a size such as `32768K`.
fn bytes(text: &str) -> Option<usize> {
    match text.split_at_checked(text.len().checked_sub(1)?)? {
        (number, "K") => number.parse::<usize>().ok()?.checked_mul(1 << 10),
        (number, "M") => number.parse::<usize>().ok()?.checked_mul(1 << 20),
        _ => text.parse().ok(),
    }
}

/// Iterates over a list such as `0-2,5`, without its invalid parts.
fn cpu_list(list: &str) -> impl Iterator<Item = usize> + '_ {
    let parts = list.split(',').filter_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse::<usize>().ok()?..=last.trim().parse::<usize>().ok()?)
    });
    parts.flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files of a fake sysfs.
    fn sysfs(files: &[(&str, &str)]) -> (tempfile::TempDir, Topology) {
        let directory = tempfile::tempdir().unwrap();
        for (path, contents) in files {
            let path = directory.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{contents}\n")).unwrap();
        }
        let topology = Topology(directory.path().to_owned());
        (directory, topology)
    }

    #[test]
    fn cache_share_is_that_of_the_last_level_and_the_fewest_of_the_cores() {
        let (_directory, topology) = sysfs(&[
            ("devices/system/cpu/cpu0/cache/index0/level", "1"),
            ("devices/system/cpu/cpu0/cache/index0/type", "Data"),
            ("devices/system/cpu/cpu0/cache/index0/size", "32K"),
            ("devices/system/cpu/cpu0/cache/index0/shared_cpu_list", "0"),
            ("devices/system/cpu/cpu0/cache/index3/level", "3"),
            ("devices/system/cpu/cpu0/cache/index3/type", "Unified"),
            ("devices/system/cpu/cpu0/cache/index3/size", "16384K"),
            ("devices/system/cpu/cpu0/cache/index3/shared_cpu_list", "0-3,8-11"),
            ("devices/system/cpu/cpu9/cache/index2/level", "2"),
            ("devices/system/cpu/cpu9/cache/index2/size", "1M"),
            ("devices/system/cpu/cpu9/cache/index2/shared_cpu_list", "9"),
            ("devices/system/cpu/cpu9/cache/uevent", ""),
            ("devices/system/cpu/cpu7/cache/index0/level", "1"),
        ]);
        assert_eq!(topology.cache_share(&[0]), Some(2 << 20));
        assert_eq!(topology.cache_share(&[0, 9]), Some(1 << 20));
        // Neither a core without caches nor one with incomplete files counts.
        assert_eq!(topology.cache_share(&[0, 7, 5]), Some(2 << 20));
        assert_eq!(topology.cache_share(&[5, 7]), None);
    }
}
