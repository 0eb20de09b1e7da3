//! Pools of hugepages, by size and NUMA node.

use crate::host::read_number;
use crate::{Error, Host, PageSize};
use serde::Serialize;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Pool of one page size, over all nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Pool {
    /// Page size; bytes in JSON.
    pub page_size: PageSize,
    /// Pages in the pool, used or free, surplus included (`nr_hugepages`).
    pub reserved: u64,
    /// Free pages in the pool (`free_hugepages`).
    pub free: u64,
    /// Free pages committed to a mapping that has not touched them yet (`resv_hugepages`).
    pub committed: u64,
    /// Pages beyond the requested number, which leave the pool once they are free (`surplus_hugepages`).
    pub surplus: u64,
    /// Pages used or committed: `reserved - free + committed`.
    pub in_use: u64,
    /// Numbers per NUMA node; empty on a kernel without NUMA. Pages are not committed per node.
    pub nodes: Vec<NodePool>,
}

/// Pool of one page size on one NUMA node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodePool {
    /// Number of the node.
    pub node: u32,
    /// Pages in the pool, surplus included.
    pub reserved: u64,
    /// Free pages in the pool.
    pub free: u64,
    /// Pages beyond the requested number, which leave the pool once they are free.
    pub surplus: u64,
}

impl Pool {
    /// Returns the number of pages that are neither used nor committed, and can be mapped or released.
    pub fn available(&self) -> u64 {
        self.free.saturating_sub(self.committed)
    }

    /// Returns the pool of one node.
    ///
    /// # Errors
    /// [`Error::UnknownNode`] if there is none.
    pub fn node(&self, wanted: u32) -> Result<&NodePool, Error> {
        self.nodes
            .iter()
            .find(|node| node.node == wanted)
            .ok_or_else(|| Error::UnknownNode { wanted, nodes: self.nodes.iter().map(|node| node.node).collect() })
    }

    /// Returns the number of pages without surplus, on one node or on all, which is the number that can be set.
    pub(crate) fn persistent(&self, node: Option<u32>) -> Result<u64, Error> {
        let (reserved, surplus) = match node {
            None => (self.reserved, self.surplus),
            Some(node) => self.node(node).map(|node| (node.reserved, node.surplus))?,
        };
        Ok(reserved.saturating_sub(surplus))
    }
}

impl Host {
    /// Returns the pools of all page sizes, smallest first.
    ///
    /// # Errors
    /// [`Error::Unsupported`] without hugepages in the kernel; [`Error::Io`] and [`Error::Malformed`] if a file of the
    /// kernel cannot be read or parsed.
    pub fn pools(&self) -> Result<Vec<Pool>, Error> {
        let directory = self.sys.join("kernel/mm/hugepages");
        let mut pools = Vec::new();
        for name in names(&directory)?.ok_or_else(|| Error::Unsupported(directory.clone()))? {
            let kilobytes = name.strip_prefix("hugepages-").and_then(|name| name.strip_suffix("kB"));
            if let Some(size) = kilobytes.and_then(|kilobytes| PageSize::from_kilobytes(kilobytes.parse().ok()?)) {
                pools.push(self.read_pool(size, &directory.join(&name))?);
            }
        }
        pools.sort_by_key(|pool| pool.page_size);
        Ok(pools)
    }

    /// Returns the pool of one page size.
    ///
    /// # Errors
    /// As [`Host::pools`], and [`Error::UnknownSize`] if the kernel has no such pages.
    pub fn pool(&self, size: PageSize) -> Result<Pool, Error> {
        let mut pools = self.pools()?;
        match pools.iter().position(|pool| pool.page_size == size) {
            Some(index) => Ok(pools.swap_remove(index)),
            None => {
                Err(Error::UnknownSize { wanted: size, offered: pools.iter().map(|pool| pool.page_size).collect() })
            }
        }
    }

    /// Returns the file that sets the size of a pool, on one node or on all.
    pub(crate) fn pool_control(&self, size: PageSize, node: Option<u32>) -> PathBuf {
        let directory = match node {
            None => self.sys.join("kernel/mm"),
            Some(node) => self.sys.join(format!("devices/system/node/node{node}")),
        };
        directory.join(format!("hugepages/hugepages-{}kB/nr_hugepages", size.kilobytes()))
    }

    fn read_pool(&self, page_size: PageSize, directory: &Path) -> Result<Pool, Error> {
        let read = |name| read_number(&directory.join(name));
        let (reserved, free) = (read("nr_hugepages")?, read("free_hugepages")?);
        let (committed, surplus) = (read("resv_hugepages")?, read("surplus_hugepages")?);
        let nodes = self.read_nodes(page_size)?;
        // The kernel may change the numbers between two reads, so they may be inconsistent.
        let in_use = reserved.saturating_sub(free).saturating_add(committed).min(reserved);
        Ok(Pool { page_size, reserved, free, committed, surplus, in_use, nodes })
    }

    fn read_nodes(&self, size: PageSize) -> Result<Vec<NodePool>, Error> {
        let mut nodes = Vec::new();
        let directory = self.sys.join("devices/system/node");
        for name in names(&directory)?.unwrap_or_default() {
            let Some(node) = name.strip_prefix("node").and_then(|number| number.parse::<u32>().ok()) else { continue };
            let pool = directory.join(&name).join(format!("hugepages/hugepages-{}kB", size.kilobytes()));
            // A node without memory has no pool.
            if pool.is_dir() {
                let read = |name| read_number(&pool.join(name));
                let (reserved, free) = (read("nr_hugepages")?, read("free_hugepages")?);
                nodes.push(NodePool { node, reserved, free, surplus: read("surplus_hugepages")? });
            }
        }
        nodes.sort_by_key(|node| node.node);
        Ok(nodes)
    }
}

/// Returns the names in a directory, or `None` if there is no such directory.
fn names(directory: &Path) -> Result<Option<Vec<String>>, Error> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io(directory)(error)),
    };
    let names =
        entries.map(|entry| Ok(entry.map_err(Error::io(directory))?.file_name().to_string_lossy().into_owned()));
    names.collect::<Result<_, _>>().map(Some)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use tempfile::TempDir;

    /// Fabricated host, initially empty.
    pub(crate) struct Fake {
        tree: TempDir,
    }

    impl Fake {
        /// Creates a host with an empty `/proc/mounts` and no pools.
        pub(crate) fn new() -> Fake {
            let fake = Fake { tree: TempDir::new().unwrap() };
            fake.write("proc/mounts", "");
            fs::create_dir_all(fake.tree.path().join("sys/kernel/mm/hugepages")).unwrap();
            fake
        }

        pub(crate) fn host(&self) -> Host {
            Host::below(self.tree.path())
        }

        pub(crate) fn path(&self) -> &Path {
            self.tree.path()
        }

        pub(crate) fn write(&self, path: &str, content: &str) {
            let path = self.tree.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }

        pub(crate) fn pool(&self, size: PageSize, [reserved, free, committed, surplus]: [u64; 4]) {
            let directory = format!("sys/kernel/mm/hugepages/hugepages-{}kB", size.kilobytes());
            self.write(&format!("{directory}/nr_hugepages"), &format!("{reserved}\n"));
            self.write(&format!("{directory}/free_hugepages"), &format!("{free}\n"));
            self.write(&format!("{directory}/resv_hugepages"), &format!("{committed}\n"));
            self.write(&format!("{directory}/surplus_hugepages"), &format!("{surplus}\n"));
        }

        /// Sets the files of one node's pool.
        pub(crate) fn node(&self, node: u32, size: PageSize, [reserved, free, surplus]: [u64; 3]) {
            let directory = format!("sys/devices/system/node/node{node}/hugepages/hugepages-{}kB", size.kilobytes());
            self.write(&format!("{directory}/nr_hugepages"), &format!("{reserved}\n"));
            self.write(&format!("{directory}/free_hugepages"), &format!("{free}\n"));
            self.write(&format!("{directory}/surplus_hugepages"), &format!("{surplus}\n"));
        }
    }

    #[test]
    fn pools_have_every_size_of_the_kernel_and_nodes_in_order() {
        let fake = Fake::new();
        fake.pool(PageSize::GB_1, [1, 1, 0, 0]);
        fake.pool(PageSize::MB_2, [12, 5, 2, 1]);
        for node in [10, 0, 2] {
            fake.node(node, PageSize::MB_2, [4, 1, 0]);
        }
        fake.write("sys/devices/system/node/possible", "0-10\n");
        let pools = fake.host().pools().unwrap();
        assert_eq!(pools.iter().map(|pool| pool.page_size).collect::<Vec<_>>(), [PageSize::MB_2, PageSize::GB_1]);
        assert_eq!((pools[0].reserved, pools[0].free, pools[0].committed, pools[0].surplus), (12, 5, 2, 1));
        assert_eq!((pools[0].in_use, pools[0].available()), (9, 3));
        assert_eq!(pools[0].nodes.iter().map(|node| node.node).collect::<Vec<_>>(), [0, 2, 10]);
        assert!(pools[1].nodes.is_empty());
    }

    #[test]
    fn kernel_without_hugepages_is_unsupported() {
        let host = Host::below("/nonexistent".as_ref());
        let error = host.pools().unwrap_err();
        assert!(matches!(error, Error::Unsupported(_)) && error.to_string().contains("CONFIG_HUGETLBFS"), "{error}");
    }

    #[test]
    fn unknown_size_or_node_error_lists_the_existing_ones() {
        let fake = Fake::new();
        fake.pool(PageSize::MB_2, [0; 4]);
        let error = fake.host().pool(PageSize::GB_1).unwrap_err().to_string();
        assert_eq!(error, "this kernel has no pages of 1 GB: it has 2 MB");
        let of_node_7 = || fake.host().pool(PageSize::MB_2).unwrap().node(7).unwrap_err().to_string();
        assert_eq!(of_node_7(), "there is no NUMA node 7: this host has no NUMA nodes: leave --node out");
        fake.node(0, PageSize::MB_2, [0; 3]);
        assert_eq!(of_node_7(), "there is no NUMA node 7: node 0 is the only one of this host");
        fake.node(1, PageSize::MB_2, [0; 3]);
        assert_eq!(of_node_7(), "there is no NUMA node 7: this host has the nodes 0, 1");
    }

    #[test]
    fn file_without_a_number_is_named_in_the_error() {
        let fake = Fake::new();
        fake.pool(PageSize::MB_2, [0; 4]);
        fake.write("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "many\n");
        let error = fake.host().pools().unwrap_err().to_string();
        assert!(error.contains("free_hugepages holds 'many'"), "{error}");
    }

    #[test]
    fn inconsistent_counters_do_not_wrap() {
        let fake = Fake::new();
        fake.pool(PageSize::MB_2, [4, 9, 20, 6]);
        let pool = fake.host().pool(PageSize::MB_2).unwrap();
        assert_eq!((pool.in_use, pool.available(), pool.persistent(None).unwrap()), (4, 0, 0));
    }
}
