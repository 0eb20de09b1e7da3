//! NUMA nodes, hugepages and locked memory.

use super::machine::{capability, quoted};
use super::{Check, Machine, State, Subject};
use linerate_hugepages::{PageSize, Pool};

/// Hugepage memory in MB that suffices for a server and a load generator.
const RECOMMENDED_MB: u64 = 512;

pub(super) fn checks(machine: &Machine) -> Vec<Check> {
    let mut checks = vec![nodes(machine)];
    match machine.hugepages().status() {
        Ok(status) => {
            checks.extend(status.pools.iter().map(|pool| hugepages(machine, pool)));
            checks.push(mounts(&status));
        }
        Err(error) => checks.push(check("hugepages", State::Warn, error.to_string())),
    }
    checks.extend(locked(machine));
    checks
}

fn check(name: impl Into<String>, state: State, found: impl Into<String>) -> Check {
    Check::new(Subject::Memory, name, state, found)
}

fn nodes(machine: &Machine) -> Check {
    let directory = "sys/devices/system/node";
    let mut nodes = Vec::new();
    for name in machine.list(directory) {
        let Some(number) = name.strip_prefix("node").and_then(|number| number.parse::<u32>().ok()) else { continue };
        let cores = machine.read(format!("{directory}/{name}/cpulist")).unwrap_or_default();
        let meminfo = machine.read(format!("{directory}/{name}/meminfo")).unwrap_or_default();
        let total = meminfo.lines().find_map(|line| line.split_once("MemTotal:")).map(|(_, total)| total);
        let kilobytes = total.and_then(|total| total.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
        nodes.push((number, format!("node {number}: cores {cores}, {} MB", kilobytes.unwrap_or(0) / 1024)));
    }
    nodes.sort();
    let found: Vec<String> = nodes.into_iter().map(|(_, text)| text).collect();
    check("numa", State::Ok, if found.is_empty() { "one node".to_owned() } else { found.join("; ") })
}

fn hugepages(machine: &Machine, pool: &Pool) -> Check {
    let name = format!("hugepages of {}", pool.page_size);
    let found = format!("{} reserved, {} free", pool.reserved, pool.available());
    if pool.page_size != PageSize::MB_2 {
        return check(
            name,
            State::Ok,
            if pool.reserved > 0 { found } else { "none reserved: 2 MB pages are sufficient".into() },
        );
    }
    let reserve = format!("sudo {} hugepages reserve --memory {RECOMMENDED_MB}M --top-up", machine.program);
    if pool.available() * PageSize::MB_2.bytes() < RECOMMENDED_MB << 20 {
        let found = format!("{found}: a port that finds too few uses ordinary pages, which are slower");
        return check(name, State::Warn, found).remedy(reserve);
    }
    match pool.nodes.iter().find(|node| node.free == 0) {
        Some(node) => {
            let found = format!("{found}, but none on node {}: ports there use remote memory", node.node);
            check(name, State::Warn, found).remedy(format!("{reserve} --node {}", node.node))
        }
        None => check(name, State::Ok, found),
    }
}

fn mounts(status: &linerate_hugepages::Status) -> Check {
    let name = "hugetlbfs";
    if status.mounts.is_empty() {
        return check(name, State::Ok, "not mounted: not needed");
    }
    let mount_points: Vec<String> = status.mounts.iter().map(|mount| mount.path.display().to_string()).collect();
    let files: Vec<_> = status.mounts.iter().flat_map(|mount| &mount.files).collect();
    if files.is_empty() || !status.processes.is_empty() {
        return check(name, State::Ok, format!("mounted at {}", mount_points.join(", ")));
    }
    let pages: u64 = files.iter().map(|file| file.pages).sum();
    let paths: Vec<String> = files.iter().map(|file| quoted(&file.path.display().to_string())).collect();
    let found = format!("{} unused files hold {pages} pages", files.len());
    check(name, State::Warn, found).remedy(format!("sudo rm {}", paths.join(" ")))
}

fn locked(machine: &Machine) -> Option<Check> {
    let limits = machine.read("proc/self/limits")?;
    let soft = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?.split_whitespace().next()?;
    let name = "locked memory";
    Some(match soft.parse::<u64>() {
        Err(_) => check(name, State::Ok, "unlimited"),
        Ok(bytes) => {
            let found = format!("at most {} KB", bytes >> 10);
            if machine.capable(capability::IPC_LOCK) {
                check(name, State::Ok, format!("{found}, lifted by CAP_IPC_LOCK"))
            } else {
                let found = format!("{found}: too little for AF_XDP, VFIO and RDMA");
                check(name, State::Warn, found).remedy(
                    "echo '* - memlock unlimited' | sudo tee /etc/security/limits.d/linerate.conf  # then log in again",
                )
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::super::machine::tests::Fake;
    use super::*;

    fn find(fake: &Fake, name: &str) -> Check {
        checks(&fake.machine).into_iter().find(|check| check.name == name).unwrap()
    }

    fn pool(fake: &Fake, parent: &str, kilobytes: u32, reserved: u32, free: u32) {
        let directory = format!("sys/{parent}/hugepages/hugepages-{kilobytes}kB");
        fake.write(&format!("{directory}/nr_hugepages"), reserved.to_string());
        fake.write(&format!("{directory}/free_hugepages"), free.to_string());
        fake.write(&format!("{directory}/resv_hugepages"), "0");
        fake.write(&format!("{directory}/surplus_hugepages"), "0");
    }

    #[test]
    fn numa_nodes_list_cores_and_memory() {
        let fake = Fake::new();
        assert_eq!(find(&fake, "numa").found, "one node");
        fake.write("sys/devices/system/node/node0/cpulist", "0-1\n");
        fake.write("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal:       2048000 kB\n");
        assert_eq!(find(&fake, "numa").found, "node 0: cores 0-1, 2000 MB");
    }

    #[test]
    fn missing_hugepages_name_the_reserve_command() {
        let fake = Fake::new();
        for free in [0, 255] {
            pool(&fake, "kernel/mm", 2048, 300, free);
            let check = find(&fake, "hugepages of 2 MB");
            assert_eq!(check.state, State::Warn);
            assert_eq!(check.remedy.unwrap(), "sudo linerate hugepages reserve --memory 512M --top-up");
        }
    }

    #[test]
    fn node_without_hugepages_is_named() {
        let fake = Fake::new();
        pool(&fake, "kernel/mm", 2048, 256, 256);
        pool(&fake, "devices/system/node/node0", 2048, 256, 256);
        assert_eq!(find(&fake, "hugepages of 2 MB").state, State::Ok);
        pool(&fake, "devices/system/node/node1", 2048, 0, 0);
        assert!(find(&fake, "hugepages of 2 MB").remedy.unwrap().ends_with("--node 1"));
    }

    #[test]
    fn missing_1_gb_pages_are_ok() {
        let fake = Fake::new();
        pool(&fake, "kernel/mm", 1_048_576, 0, 0);
        assert_eq!(find(&fake, "hugepages of 1 GB").state, State::Ok);
    }

    #[test]
    fn kernel_without_hugepages_is_a_warning() {
        assert_eq!(find(&Fake::new(), "hugepages").state, State::Warn);
    }

    #[test]
    fn files_of_dead_processes_are_removed() {
        let fake = Fake::new();
        pool(&fake, "kernel/mm", 2048, 4, 2);
        assert_eq!(find(&fake, "hugetlbfs").state, State::Ok);
        fake.write("huge/rtemap_0", "x".repeat(4096));
        let mount_point = fake.machine.path("huge");
        fake.write("proc/mounts", format!("none {} hugetlbfs rw,pagesize=4K 0 0\n", mount_point.display()));
        let check = find(&fake, "hugetlbfs");
        assert_eq!(check.state, State::Warn);
        assert_eq!(
            check.remedy.unwrap(),
            format!("sudo rm {}", quoted(&mount_point.join("rtemap_0").display().to_string()))
        );
        fake.write("proc/7/status", "HugetlbPages:\t 2048 kB\n");
        assert_eq!(find(&fake, "hugetlbfs").state, State::Ok);
    }

    #[test]
    fn locked_memory_limit_applies_without_cap_ipc_lock() {
        let fake = Fake::new();
        fake.write("proc/self/limits", "Max locked memory         8388608              8388608              bytes\n");
        assert_eq!(find(&fake, "locked memory").state, State::Ok);
        fake.write("proc/self/status", "CapEff:\t0\n");
        assert!(find(&fake, "locked memory").remedy.unwrap().contains("memlock unlimited"));
        fake.write("proc/self/limits", "Max locked memory         unlimited            unlimited            bytes\n");
        assert_eq!(find(&fake, "locked memory").state, State::Ok);
    }
}
