//! Caches and NUMA nodes of this machine, read from sysfs.

use crate::cores::CoreList;
use linerate_bypass::Via;
#[cfg(feature = "rdma")]
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Mount point of sysfs, or a directory in its place in tests.
#[derive(Debug, Clone)]
pub struct Topology(PathBuf);

impl Topology {
    pub fn of_machine() -> Self {
        Topology("/sys".into())
    }

    fn read(&self, path: impl AsRef<Path>) -> Option<String> {
        Some(fs::read_to_string(self.0.join(path)).ok()?.trim().to_owned())
    }

    /// Returns the cores of the NUMA node of the device of `via`. `None` if the network has no device, the kernel does
    /// not report its node, or the node has no cores.
    pub fn cores_near(&self, via: &Via) -> Option<Vec<usize>> {
        let device = match via {
            Via::Roce { port } => return self.cores_near(port),
            Via::Pci { address, .. } => format!("bus/pci/devices/{address}"),
            Via::AfXdp { interface, .. } => format!("class/net/{interface}/device"),
            Via::Rdma { device } => match self.read(format!("class/infiniband/{device}/parent")) {
                // A software device has the node of its interface.
                Some(interface) => format!("class/net/{interface}/device"),
                None => format!("class/infiniband/{device}/device"),
            },
            _ => return None,
        };
        // -1 without NUMA.
        let node: u32 = self.read(format!("{device}/numa_node"))?.parse().ok()?;
        let cores = self.read(format!("devices/system/node/node{node}/cpulist"))?.parse::<CoreList>().ok()?;
        Some(cores.cores().to_vec())
    }

    /// Returns the smallest share of `cores` in a last-level cache, in bytes: the size divided by the number of cores
    /// that share the cache. `None` if the kernel does not report caches, as in some virtual machines.
    #[cfg(feature = "rdma")]
    pub fn cache_share(&self, cores: &[usize]) -> Option<usize> {
        cores.iter().filter_map(|core| self.cache_share_of(*core)).min()
    }

    #[cfg(feature = "rdma")]
    fn cache_share_of(&self, core: usize) -> Option<usize> {
        let caches = format!("devices/system/cpu/cpu{core}/cache");
        let mut by_level = BTreeMap::new();
        for cache in fs::read_dir(self.0.join(&caches)).ok()?.flatten() {
            let read = |file| self.read(cache.path().join(file));
            let (Some(level), Some(size), Some(sharing)) = (read("level"), read("size"), read("shared_cpu_list"))
            else {
                continue;
            };
            let sharing = sharing.parse::<CoreList>().map_or(1, |cores| cores.cores().len());
            if read("type").as_deref() == Some("Instruction") {
                continue;
            }
            if let (Ok(level), Some(size)) = (level.parse::<u32>(), bytes(&size)) {
                by_level.insert(level, size / sharing);
            }
        }
        by_level.pop_last().map(|(_, share)| share)
    }
}

/// Parses a size such as `32768K`.
#[cfg(feature = "rdma")]
fn bytes(text: &str) -> Option<usize> {
    match text.split_at_checked(text.len().checked_sub(1)?)? {
        (number, "K") => number.parse::<usize>().ok()?.checked_mul(1 << 10),
        (number, "M") => number.parse::<usize>().ok()?.checked_mul(1 << 20),
        _ => text.parse().ok(),
    }
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
    fn cores_near_a_device_are_those_of_its_node() {
        let (_directory, topology) = sysfs(&[
            ("bus/pci/devices/0000:03:00.0/numa_node", "1"),
            ("bus/pci/devices/0000:04:00.0/numa_node", "-1"),
            ("bus/pci/devices/0000:05:00.0/numa_node", "2"),
            ("class/net/eth0/device/numa_node", "0"),
            ("class/infiniband/mlx5_0/device/numa_node", "1"),
            ("class/infiniband/rxe0/parent", "eth0"),
            ("devices/system/node/node0/cpulist", "0-1,4"),
            ("devices/system/node/node1/cpulist", "2-3,5"),
            // Memory without cores.
            ("devices/system/node/node2/cpulist", ""),
        ]);
        let near = |via: &str| topology.cores_near(&via.parse().unwrap());
        for via in ["pci:0000:03:00.0", "rdma:mlx5_0"] {
            assert_eq!(near(via), Some(vec![2, 3, 5]), "{via}");
        }
        for via in ["af_xdp:eth0", "rdma:rxe0"] {
            assert_eq!(near(via), Some(vec![0, 1, 4]), "{via}");
        }
        for via in ["pci:0000:04:00.0", "pci:0000:05:00.0", "rdma:mlx5_1", "kernel", "tap:lr0"] {
            assert_eq!(near(via), None, "{via}");
        }
    }

    #[cfg(feature = "rdma")]
    #[test]
    fn cache_share_is_the_smallest_share_in_a_last_level_cache() {
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
