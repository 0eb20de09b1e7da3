//! Description of a machine, printed with measurements on it.

use super::{Machine, Report, Subject};
use linerate_compare::results;

/// Describes `machine`. `report` supplies the DPDK version.
pub fn facts(machine: &Machine, report: &Report) -> results::Machine {
    let line = |path: &str| machine.read(path).filter(|text| !text.is_empty());
    let memory = line("proc/meminfo").unwrap_or_default();
    let memory = memory.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kilobytes = memory.and_then(|total| total.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    let kernel = ["proc/sys/kernel/ostype", "proc/sys/kernel/osrelease"].map(|path| line(path).unwrap_or_default());
    let pools = machine.hugepages().status().map(|status| status.pools).unwrap_or_default();
    results::Machine {
        cpu: machine.cpuinfo("model name").unwrap_or_else(|| "unknown".to_owned()),
        cores: core_affinity::get_core_ids().map_or(0, |cores| cores.len()),
        memory: kilobytes.unwrap_or(0) * 1024,
        kernel: kernel.join(" "),
        virtualised_by: virtualised_by(machine),
        emulated: is_emulated(machine),
        versions: dpdk(report).into_iter().chain(rdma_core(machine)).collect(),
        hugepages: pools.iter().map(|pool| pool.available() * pool.page_size.bytes()).sum(),
    }
}

fn virtualised_by(machine: &Machine) -> Option<String> {
    if !machine.is_guest() {
        return None;
    }
    if let Some(hypervisor) = machine.read("sys/hypervisor/type").filter(|name| !name.is_empty()) {
        return Some(hypervisor);
    }
    let named = ["sys_vendor", "product_name"].map(|file| machine.read(format!("sys/class/dmi/id/{file}")));
    let named: Vec<String> = named.into_iter().flatten().filter(|name| !name.is_empty()).collect();
    Some(if !named.is_empty() {
        named.join(" ")
    } else if clocks(machine).contains("kvm-clock") {
        "KVM".to_owned()
    } else {
        "an unnamed hypervisor".to_owned()
    })
}

/// Detects QEMU without KVM (TCG): by the CPU model name, or, if that was overridden, by the absence of the KVM clock.
fn is_emulated(machine: &Machine) -> bool {
    let named = machine.cpuinfo("model name").is_some_and(|name| name.contains("TCG"));
    let vendor = machine.read("sys/class/dmi/id/sys_vendor");
    named || machine.is_guest() && vendor.as_deref() == Some("QEMU") && !clocks(machine).contains("kvm-clock")
}

fn clocks(machine: &Machine) -> String {
    machine.read("sys/devices/system/clocksource/clocksource0/available_clocksource").unwrap_or_default()
}

/// Extracts the DPDK version from the finding of its check.
fn dpdk(report: &Report) -> Option<String> {
    let check = report.checks.iter().find(|check| check.subject == Subject::Dpdk && check.name == "version")?;
    check.found.split_once(" in ").map(|(version, _)| format!("DPDK {version}"))
}

/// Reads the version from the file name of the library: `libibverbs.so.1.14.44.0` belongs to rdma-core 44.0.
fn rdma_core(machine: &Machine) -> Option<String> {
    let directories = ["usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/local/lib"];
    let names = directories.into_iter().flat_map(|directory| machine.list(directory));
    let mut versions = names.filter_map(|name| {
        let mut numbers = name.strip_prefix("libibverbs.so.1.")?.split('.').skip(1);
        Some(format!("rdma-core {}.{}", numbers.next()?, numbers.next()?))
    });
    versions.next_back()
}

#[cfg(test)]
mod tests {
    use super::super::machine::tests::Fake;
    use super::super::{Check, State};
    use super::*;

    fn describe(fake: &Fake) -> results::Machine {
        let version = Check::new(Subject::Dpdk, "version", State::Ok, "22.11.7 in /usr/lib");
        facts(&fake.machine, &Report { checks: vec![version] })
    }

    fn guest(fake: &Fake, model: &str) {
        fake.write("proc/cpuinfo", format!("processor\t: 0\nmodel name\t: {model}\nflags\t\t: sse4_2 hypervisor\n\n"));
    }

    #[test]
    fn machine_is_described_by_its_files() {
        let fake = Fake::new();
        fake.write("proc/cpuinfo", "processor\t: 0\nmodel name\t: EPYC\nflags\t\t: sse4_2\n\n");
        fake.write("proc/meminfo", "MemTotal:       1024 kB\nMemFree: 1 kB\n");
        fake.write("proc/sys/kernel/ostype", "Linux\n");
        fake.write("usr/lib/x86_64-linux-gnu/libibverbs.so.1.14.44.0", "");
        fake.write("usr/lib/x86_64-linux-gnu/libibverbs.so.1", "");
        let machine = describe(&fake);
        assert_eq!((&*machine.cpu, machine.memory, &*machine.kernel), ("EPYC", 1 << 20, "Linux 6.1.0-40-amd64"));
        assert_eq!(machine.versions, ["DPDK 22.11.7", "rdma-core 44.0"]);
        assert_eq!((machine.virtualised_by, machine.emulated), (None, false));
    }

    #[test]
    fn guest_names_its_host_and_is_emulated_without_kvm() {
        let fake = Fake::new();
        guest(&fake, "EPYC");
        assert!(describe(&fake).virtualised_by.unwrap().contains("hypervisor"));
        fake.write("sys/class/dmi/id/sys_vendor", "QEMU\n");
        fake.write("sys/class/dmi/id/product_name", "Standard PC\n");
        let clocks = "sys/devices/system/clocksource/clocksource0/available_clocksource";
        fake.write(clocks, "kvm-clock tsc\n");
        let machine = describe(&fake);
        assert_eq!((machine.virtualised_by.as_deref(), machine.emulated), (Some("QEMU Standard PC"), false));
        fake.write(clocks, "tsc hpet\n");
        assert!(describe(&fake).emulated);
        fake.write(clocks, "kvm-clock tsc\n");
        guest(&fake, "QEMU TCG CPU version 2.5+");
        assert!(describe(&fake).emulated);
    }
}
