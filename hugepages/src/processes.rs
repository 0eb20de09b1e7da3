//! Processes that have hugepages mapped.

use crate::{Error, Host, PageSize};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Process that has hugepages mapped. Pages shared by several processes count in each of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Process {
    /// Process identifier.
    pub pid: u32,
    /// Name, without control characters.
    pub command: String,
    /// Total of mapped hugepages in bytes.
    pub bytes: u64,
    /// Mapped pages by size and node; absent if this user may not inspect the process.
    pub pages: Option<Vec<Mapped>>,
}

/// Mapped pages of one size on one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Mapped {
    /// Page size; bytes in JSON.
    pub page_size: PageSize,
    /// NUMA node; absent on a kernel without NUMA.
    pub node: Option<u32>,
    /// Number of pages.
    pub pages: u64,
}

impl Process {
    /// Returns the mapped pages of one size, on one node or on all, or `None` if unknown.
    pub fn pages_of(&self, size: PageSize, node: Option<u32>) -> Option<u64> {
        let of_size = self.pages.as_ref()?.iter().filter(|mapped| mapped.page_size == size);
        let there = of_size.filter(|mapped| node.is_none() || mapped.node.is_none() || mapped.node == node);
        Some(there.map(|mapped| mapped.pages).sum())
    }
}

/// Numbers of pages by size and node.
type Tally = BTreeMap<(PageSize, Option<u32>), u64>;

impl Host {
    /// Returns the processes that have hugepages mapped, by pid. Processes that end meanwhile are omitted.
    ///
    /// # Errors
    /// [`Error::Io`] if the list of processes cannot be read.
    pub fn processes(&self) -> Result<Vec<Process>, Error> {
        let mut processes = Vec::new();
        for entry in fs::read_dir(&self.proc).map_err(Error::io(&self.proc))? {
            let name = entry.map_err(Error::io(&self.proc))?.file_name();
            if let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) {
                processes.extend(look_at(pid, &self.proc.join(name)));
            }
        }
        processes.sort_by_key(|process| process.pid);
        Ok(processes)
    }
}

fn look_at(pid: u32, directory: &Path) -> Option<Process> {
    // `status` is cheap and readable for every user; `numa_maps` is read only for processes with hugepages.
    let status = read(&directory.join("status"))?;
    let kilobytes = status.lines().find_map(|line| line.strip_prefix("HugetlbPages:")).map_or(0, kilobytes);
    if kilobytes == 0 {
        return None;
    }
    let command = read(&directory.join("comm")).unwrap_or_default();
    let command = command.trim_end_matches('\n').replace(char::is_control, "\u{fffd}");
    let tally = read(&directory.join("numa_maps"))
        .map(|maps| from_numa_maps(&maps))
        .or_else(|| read(&directory.join("smaps")).map(|maps| from_smaps(&maps)));
    let pages = tally
        .map(|tally| tally.into_iter().map(|((page_size, node), pages)| Mapped { page_size, node, pages }).collect());
    Some(Process { pid, command, bytes: kilobytes.saturating_mul(1024), pages })
}

/// Reads a file, or returns `None` if the process has ended or may not be inspected.
fn read(path: &Path) -> Option<String> {
    fs::read(path).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// Parses the number in `   2048 kB`.
fn kilobytes(text: &str) -> u64 {
    text.trim().strip_suffix("kB").and_then(|number| number.trim().parse().ok()).unwrap_or(0)
}

/// Parses `numa_maps`, with lines such as
/// `7f.. default file=/anon_hugepage huge anon=2 N0=1 N1=1 kernelpagesize_kB=2048` (proc(5)).
fn from_numa_maps(maps: &str) -> Tally {
    let mut tally = Tally::new();
    for line in maps.lines() {
        let tokens = || line.split(' ');
        let size = tokens().find_map(|token| token.strip_prefix("kernelpagesize_kB=")?.parse().ok());
        let Some(size) = size.and_then(PageSize::from_kilobytes) else { continue };
        if !tokens().any(|token| token == "huge") {
            continue;
        }
        for (node, pages) in tokens().filter_map(|token| token.strip_prefix('N')?.split_once('=')) {
            if let (Ok(node), Ok(pages)) = (node.parse(), pages.parse::<u64>()) {
                let sum = tally.entry((size, Some(node))).or_default();
                *sum = sum.saturating_add(pages);
            }
        }
    }
    tally
}

/// Parses `smaps`: a block of lines per mapping, with the page size before the amounts (proc(5)).
fn from_smaps(maps: &str) -> Tally {
    let mut tally = Tally::new();
    let mut size = None;
    for (name, value) in maps.lines().filter_map(|line| line.split_once(':')) {
        match name {
            "KernelPageSize" => size = PageSize::from_kilobytes(kilobytes(value)),
            "Private_Hugetlb" | "Shared_Hugetlb" => {
                let Some(size) = size.filter(|_| kilobytes(value) > 0) else { continue };
                let sum = tally.entry((size, None)).or_default();
                *sum = sum.saturating_add(kilobytes(value) / size.kilobytes());
            }
            _ => {}
        }
    }
    tally
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pools::tests::Fake;

    const NUMA_MAPS: &str = "\
55d322d2b000 default file=/usr/bin/huge mapped=2 N0=2 kernelpagesize_kB=4
7f0000000000 default file=/memfd:eal\\040huge huge dirty=3 N0=1 N1=2 kernelpagesize_kB=2048
7f0010000000 default file=/anon_hugepage huge anon=1 dirty=1 N1=1 kernelpagesize_kB=2048
7f0040000000 default file=/dev/hugepages/a huge dirty=1 N0=1 kernelpagesize_kB=1048576
";

    const SMAPS: &str = "\
7f0000000000-7f0000400000 rw-s 00000000 00:0f 1 /memfd:eal
KernelPageSize:     2048 kB
Rss:                   0 kB
Shared_Hugetlb:     4096 kB
Private_Hugetlb:    2048 kB
7f0100000000-7f0100001000 rw-p 00000000 00:00 0
KernelPageSize:        4 kB
Shared_Hugetlb:        0 kB
Private_Hugetlb:       0 kB
";

    fn process(fake: &Fake, pid: u32, name: &str, kilobytes: u64) {
        fake.write(&format!("proc/{pid}/comm"), &format!("{name}\n"));
        fake.write(&format!("proc/{pid}/status"), &format!("Name:\t{name}\nHugetlbPages:\t{kilobytes:8} kB\n"));
    }

    #[test]
    fn pages_are_distinguished_by_size_and_node() {
        let fake = Fake::new();
        process(&fake, 7, "testpmd", 1_056_768);
        fake.write("proc/7/numa_maps", NUMA_MAPS);
        let processes = fake.host().processes().unwrap();
        assert_eq!(processes.len(), 1);
        assert_eq!((processes[0].pid, processes[0].command.as_str()), (7, "testpmd"));
        assert_eq!(processes[0].bytes, 1_056_768 * 1024);
        assert_eq!(processes[0].pages_of(PageSize::MB_2, None), Some(4));
        assert_eq!(processes[0].pages_of(PageSize::MB_2, Some(1)), Some(3));
        assert_eq!(processes[0].pages_of(PageSize::GB_1, Some(0)), Some(1));
        assert_eq!(processes[0].pages_of(PageSize::GB_1, Some(1)), Some(0));
    }

    #[test]
    fn smaps_is_read_on_a_kernel_without_numa() {
        let fake = Fake::new();
        process(&fake, 7, "testpmd", 6144);
        fake.write("proc/7/smaps", SMAPS);
        let process = fake.host().processes().unwrap().remove(0);
        assert_eq!(process.pages, Some(vec![Mapped { page_size: PageSize::MB_2, node: None, pages: 3 }]));
        assert_eq!(process.pages_of(PageSize::MB_2, Some(0)), Some(3));
    }

    #[test]
    fn process_of_another_user_is_listed_without_details() {
        let fake = Fake::new();
        process(&fake, 7, "secret", 2048);
        let process = fake.host().processes().unwrap().remove(0);
        assert_eq!((process.bytes, process.pages.as_ref()), (2 << 20, None));
        assert_eq!(process.pages_of(PageSize::MB_2, None), None);
    }

    #[test]
    fn processes_without_hugepages_or_that_have_ended_are_omitted() {
        let fake = Fake::new();
        process(&fake, 9, "cat", 0);
        fake.write("proc/10/comm", "vanished\n");
        fake.write("proc/11/status", "Name:\tkthreadd\n");
        fake.write("proc/self/status", "HugetlbPages:\t 2048 kB\n");
        assert_eq!(fake.host().processes().unwrap(), []);
    }

    #[test]
    fn process_name_has_no_control_characters() {
        let fake = Fake::new();
        process(&fake, 7, "", 2048);
        fake.write("proc/7/comm", "\u{1b}[2Jx\ny\n");
        assert_eq!(fake.host().processes().unwrap()[0].command, "\u{fffd}[2Jx\u{fffd}y");
    }
}
