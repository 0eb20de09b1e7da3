//! Processor checks: instruction sets, clock, frequency, cores.

use super::{Check, Machine, State, Subject};

/// Fix for a guest without the instructions of its host's processor.
const HOST_MODEL: &str = "qemu-system-x86_64 -cpu host,migratable=off  # on the host of this guest";

pub(super) fn checks(machine: &Machine) -> Vec<Check> {
    let mut checks = Vec::new();
    match machine.cpuinfo("flags") {
        Some(flags) => {
            let flags: Vec<&str> = flags.split(' ').collect();
            checks.extend(features(machine, &flags));
        }
        None => checks.push(check("processor", State::Ok, "not x86-64: features not checked")),
    }
    checks.extend(clock_source(machine));
    checks.push(governor(machine));
    checks.extend(cores(machine));
    checks
}

fn check(name: &str, state: State, found: impl Into<String>) -> Check {
    Check::new(Subject::Cpu, name, state, found)
}

fn features(machine: &Machine, flags: &[&str]) -> Vec<Check> {
    let features: [(&str, &[&str], State, &str); 5] = [
        ("sse4.2", &["sse4_2"], State::Missing, "missing: DPDK does not start"),
        ("avx2", &["avx2"], State::Warn, "missing: drivers and checksums use narrower instructions"),
        ("avx512", &["avx512f", "avx512bw", "avx512dq", "avx512vl"], State::Ok, "missing: not used by default"),
        ("invariant tsc", &["constant_tsc", "nonstop_tsc"], State::Warn, "missing: reading the clock is slow"),
        ("1 GB pages", &["pdpe1gb"], State::Warn, "missing: 2 MB pages are sufficient"),
    ];
    let checks = features.into_iter().map(|(name, needed, otherwise, without)| {
        if needed.iter().all(|flag| flags.contains(flag)) {
            return check(name, State::Ok, "available");
        }
        let check = check(name, otherwise, without);
        if otherwise != State::Ok && machine.is_guest() { check.remedy(HOST_MODEL) } else { check }
    });
    checks.collect()
}

fn clock_source(machine: &Machine) -> Option<Check> {
    let directory = "sys/devices/system/clocksource/clocksource0";
    let current = machine.read(format!("{directory}/current_clocksource"))?;
    // The vDSO reads these clocks without a system call.
    if ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter"].contains(&current.as_str()) {
        return Some(check("clock source", State::Ok, current));
    }
    let check = check("clock source", State::Warn, format!("{current}: each clock read is a system call"));
    let available = machine.read(format!("{directory}/available_clocksource")).unwrap_or_default();
    Some(if available.split_whitespace().any(|source| source == "tsc") {
        check.remedy(format!("echo tsc | sudo tee /{directory}/current_clocksource"))
    } else {
        check.remedy(machine.boot_with("clocksource=tsc tsc=reliable"))
    })
}

fn governor(machine: &Machine) -> Check {
    let directory = "sys/devices/system/cpu/cpufreq";
    let mut governors: Vec<String> = machine
        .list(directory)
        .iter()
        .filter_map(|policy| machine.read(format!("{directory}/{policy}/scaling_governor")))
        .collect();
    governors.sort();
    governors.dedup();
    match governors.as_slice() {
        [] => check("frequency", State::Ok, "not set by this kernel"),
        [one] if one == "performance" => check("frequency", State::Ok, "performance"),
        several => check("frequency", State::Warn, format!("{}: cores slow down when idle", several.join(", ")))
            .remedy(format!("echo performance | sudo tee /{directory}/policy*/scaling_governor")),
    }
}

/// Returns the cores that are online.
pub(super) fn online(machine: &Machine) -> Vec<u32> {
    machine.read("sys/devices/system/cpu/online").map_or_else(Vec::new, |list| parse_cpu_list(&list))
}

fn cores(machine: &Machine) -> Vec<Check> {
    let online = online(machine);
    let count = check("cores", State::Ok, format!("{} online", online.len()));
    // The first core is left to the kernel.
    let Some((_, spare)) = online.split_first().filter(|(_, spare)| !spare.is_empty()) else {
        let found = format!("{} online: a polling worker occupies the core", online.len());
        return vec![Check { state: State::Warn, found, ..count }];
    };
    let isolated = machine.read("sys/devices/system/cpu/isolated").unwrap_or_default();
    let tickless = machine.read("sys/devices/system/cpu/nohz_full").filter(|list| list != "(null)").unwrap_or_default();
    let list = format_cpu_list(spare);
    let remedy = machine.boot_with(&format!("isolcpus={list} nohz_full={list} rcu_nocbs={list}"));
    let isolation = if parse_cpu_list(&isolated).is_empty() {
        check("isolated cores", State::Warn, "none: the scheduler runs other tasks on the cores of workers")
            .remedy(remedy)
    } else if parse_cpu_list(&tickless).is_empty() {
        check("isolated cores", State::Warn, format!("{isolated}, but with timer ticks")).remedy(remedy)
    } else {
        check("isolated cores", State::Ok, format!("{isolated}; without timer ticks {tickless}"))
    };
    vec![count, isolation]
}

/// Parses a CPU list such as `0-2,5`. Ignores invalid parts. A range is limited to 65 536 cores.
fn parse_cpu_list(list: &str) -> Vec<u32> {
    let parts = list.split(',').filter_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some((first.trim().parse::<u32>().ok()?, last.trim().parse::<u32>().ok()?))
    });
    parts.flat_map(|(first, last)| first..=last.min(first.saturating_add(65_535))).collect()
}

/// Formats a CPU list such as `0-2,5`.
fn format_cpu_list(numbers: &[u32]) -> String {
    let parts = numbers.chunk_by(|a, b| a + 1 == *b).map(|run| match run {
        [one] => one.to_string(),
        run => format!("{}-{}", run[0], run[run.len() - 1]),
    });
    parts.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::super::machine::tests::Fake;
    use super::*;

    fn find(fake: &Fake, name: &str) -> Check {
        checks(&fake.machine).into_iter().find(|check| check.name == name).unwrap()
    }

    #[test]
    fn features_are_read_from_cpuinfo_flags() {
        let fake = Fake::new();
        fake.cpu("GenuineIntel", "sse4_2 avx2 avx512f constant_tsc nonstop_tsc");
        assert_eq!(find(&fake, "sse4.2").state, State::Ok);
        assert_eq!(find(&fake, "avx2").state, State::Ok);
        assert!(find(&fake, "avx512").found.starts_with("missing"));
        assert_eq!(find(&fake, "invariant tsc").state, State::Ok);
        assert_eq!((find(&fake, "1 GB pages").state, find(&fake, "1 GB pages").remedy), (State::Warn, None));
    }

    #[test]
    fn guest_without_sse4_2_needs_the_cpu_model_of_its_host() {
        let fake = Fake::new();
        fake.cpu("GenuineIntel", "hypervisor sse4_1");
        let check = find(&fake, "sse4.2");
        assert_eq!(check.state, State::Missing);
        assert!(check.remedy.unwrap().contains("-cpu host"));
    }

    #[test]
    fn slow_clock_source_is_replaced_by_tsc() {
        let fake = Fake::new();
        let directory = "sys/devices/system/clocksource/clocksource0";
        fake.write(&format!("{directory}/current_clocksource"), "hpet\n");
        fake.write(&format!("{directory}/available_clocksource"), "tsc hpet acpi_pm \n");
        assert_eq!(
            find(&fake, "clock source").remedy.unwrap(),
            format!("echo tsc | sudo tee /{directory}/current_clocksource")
        );
        fake.write(&format!("{directory}/available_clocksource"), "hpet acpi_pm \n");
        assert!(find(&fake, "clock source").remedy.unwrap().contains("tsc=reliable"));
    }

    #[test]
    fn frequency_warns_if_any_core_can_slow_down() {
        let fake = Fake::new();
        assert_eq!(find(&fake, "frequency").state, State::Ok);
        fake.write("sys/devices/system/cpu/cpufreq/policy0/scaling_governor", "performance\n");
        assert_eq!(find(&fake, "frequency").state, State::Ok);
        fake.write("sys/devices/system/cpu/cpufreq/policy1/scaling_governor", "powersave\n");
        assert_eq!(find(&fake, "frequency").state, State::Warn);
    }

    #[test]
    fn isolation_excludes_the_first_core() {
        let fake = Fake::new();
        fake.write("sys/devices/system/cpu/online", "0-3,6\n");
        fake.write("sys/devices/system/cpu/isolated", "\n");
        assert_eq!(find(&fake, "cores").found, "5 online");
        let remedy = find(&fake, "isolated cores").remedy.unwrap();
        assert!(remedy.contains("isolcpus=1-3,6 nohz_full=1-3,6"), "{remedy}");
        fake.write("sys/devices/system/cpu/isolated", "1-3\n");
        fake.write("sys/devices/system/cpu/nohz_full", "(null)\n");
        assert_eq!(find(&fake, "isolated cores").state, State::Warn);
        fake.write("sys/devices/system/cpu/nohz_full", "1-3\n");
        assert_eq!(find(&fake, "isolated cores").state, State::Ok);
    }

    #[test]
    fn single_core_is_a_warning_without_a_remedy() {
        let fake = Fake::new();
        fake.write("sys/devices/system/cpu/online", "0\n");
        assert_eq!((find(&fake, "cores").state, find(&fake, "cores").remedy), (State::Warn, None));
    }

    #[test]
    fn cpu_lists_are_parsed_and_formatted() {
        assert_eq!(parse_cpu_list("0-2,5"), [0, 1, 2, 5]);
        assert_eq!(parse_cpu_list("x,3-1,"), [] as [u32; 0]);
        assert_eq!(format_cpu_list(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
    }
}
