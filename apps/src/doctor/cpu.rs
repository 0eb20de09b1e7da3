//! The processor: what its instructions, clock and cores are good for.

use super::{Check, Machine, State, Subject};

/// What a guest's host has to give it. Only the host can.
const HOST_MODEL: &str = "qemu-system-x86_64 -cpu host,migratable=off  # where this guest is started";

pub(super) fn checks(machine: &Machine) -> Vec<Check> {
    let mut checks = Vec::new();
    match machine.cpuinfo("flags") {
        Some(flags) => {
            let flags: Vec<&str> = flags.split(' ').collect();
            checks.extend(features(machine, &flags));
        }
        None => checks.push(check("processor", State::Ok, "not x86-64: its features are not looked at")),
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
        ("sse4.2", &["sse4_2"], State::Missing, "not there: DPDK does not start"),
        ("avx2", &["avx2"], State::Warn, "not there: drivers and checksums use narrower instructions"),
        (
            "avx512",
            &["avx512f", "avx512bw", "avx512dq", "avx512vl"],
            State::Ok,
            "not there: DPDK uses it only when told to",
        ),
        ("invariant tsc", &["constant_tsc", "nonstop_tsc"], State::Warn, "not there: reading the time is slow"),
        ("1 GB pages", &["pdpe1gb"], State::Warn, "not there: 2 MB pages serve"),
    ];
    let checks = features.into_iter().map(|(name, needed, otherwise, without)| {
        if needed.iter().all(|flag| flags.contains(flag)) {
            return check(name, State::Ok, "there");
        }
        let check = check(name, otherwise, without);
        if otherwise != State::Ok && machine.is_guest() { check.remedy(HOST_MODEL) } else { check }
    });
    checks.collect()
}

fn clock_source(machine: &Machine) -> Option<Check> {
    let directory = "sys/devices/system/clocksource/clocksource0";
    let current = machine.read(format!("{directory}/current_clocksource"))?;
    // These are read without a system call.
    if ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter"].contains(&current.as_str()) {
        return Some(check("clock source", State::Ok, current));
    }
    let check = check("clock source", State::Warn, format!("{current}: asking for the time is a system call"));
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

fn cores(machine: &Machine) -> Vec<Check> {
    let online = machine.read("sys/devices/system/cpu/online").map_or_else(Vec::new, |list| numbers(&list));
    let count = check("cores", State::Ok, format!("{} online", online.len()));
    // The first core stays for the kernel's own work.
    let Some((_, spare)) = online.split_first().filter(|(_, spare)| !spare.is_empty()) else {
        let found = format!("{} online: a polling worker takes all of it", online.len());
        return vec![Check { state: State::Warn, found, ..count }];
    };
    let isolated = machine.read("sys/devices/system/cpu/isolated").unwrap_or_default();
    let tickless = machine.read("sys/devices/system/cpu/nohz_full").filter(|list| list != "(null)").unwrap_or_default();
    let list = ranges(spare);
    let remedy = machine.boot_with(&format!("isolcpus={list} nohz_full={list} rcu_nocbs={list}"));
    let isolation = if numbers(&isolated).is_empty() {
        check("isolated cores", State::Warn, "none: the scheduler puts other work on workers' cores").remedy(remedy)
    } else if numbers(&tickless).is_empty() {
        check("isolated cores", State::Warn, format!("{isolated}, but with timer ticks")).remedy(remedy)
    } else {
        check("isolated cores", State::Ok, format!("{isolated}; without timer ticks {tickless}"))
    };
    vec![count, isolation]
}

/// Reads `0-2,5`. What is no list of numbers is none; ranges are cut at a number of cores that no machine has.
fn numbers(list: &str) -> Vec<u32> {
    let parts = list.split(',').filter_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some((first.trim().parse::<u32>().ok()?, last.trim().parse::<u32>().ok()?))
    });
    parts.flat_map(|(first, last)| first..=last.min(first.saturating_add(65_535))).collect()
}

/// Writes `0-2,5`.
fn ranges(numbers: &[u32]) -> String {
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

    fn of(fake: &Fake, name: &str) -> Check {
        checks(&fake.machine).into_iter().find(|check| check.name == name).unwrap()
    }

    #[test]
    fn features_are_read_from_the_processors_flags() {
        let fake = Fake::new();
        fake.cpu("GenuineIntel", "sse4_2 avx2 avx512f constant_tsc nonstop_tsc");
        assert_eq!(of(&fake, "sse4.2").state, State::Ok);
        assert_eq!(of(&fake, "avx2").state, State::Ok);
        assert!(of(&fake, "avx512").found.starts_with("not there"));
        assert_eq!(of(&fake, "invariant tsc").state, State::Ok);
        assert_eq!((of(&fake, "1 GB pages").state, of(&fake, "1 GB pages").remedy), (State::Warn, None));
    }

    #[test]
    fn a_guest_gets_its_hosts_processor() {
        let fake = Fake::new();
        fake.cpu("GenuineIntel", "hypervisor sse4_1");
        let check = of(&fake, "sse4.2");
        assert_eq!(check.state, State::Missing);
        assert!(check.remedy.unwrap().contains("-cpu host"));
    }

    #[test]
    fn a_slow_clock_source_is_exchanged() {
        let fake = Fake::new();
        let directory = "sys/devices/system/clocksource/clocksource0";
        fake.write(&format!("{directory}/current_clocksource"), "hpet\n");
        fake.write(&format!("{directory}/available_clocksource"), "tsc hpet acpi_pm \n");
        assert_eq!(
            of(&fake, "clock source").remedy.unwrap(),
            format!("echo tsc | sudo tee /{directory}/current_clocksource")
        );
        fake.write(&format!("{directory}/available_clocksource"), "hpet acpi_pm \n");
        assert!(of(&fake, "clock source").remedy.unwrap().contains("tsc=reliable"));
    }

    #[test]
    fn one_core_that_may_slow_down_is_enough_for_a_warning() {
        let fake = Fake::new();
        assert_eq!(of(&fake, "frequency").state, State::Ok);
        fake.write("sys/devices/system/cpu/cpufreq/policy0/scaling_governor", "performance\n");
        assert_eq!(of(&fake, "frequency").state, State::Ok);
        fake.write("sys/devices/system/cpu/cpufreq/policy1/scaling_governor", "powersave\n");
        assert_eq!(of(&fake, "frequency").state, State::Warn);
    }

    #[test]
    fn all_cores_but_the_first_are_proposed_for_isolation() {
        let fake = Fake::new();
        fake.write("sys/devices/system/cpu/online", "0-3,6\n");
        fake.write("sys/devices/system/cpu/isolated", "\n");
        assert_eq!(of(&fake, "cores").found, "5 online");
        let remedy = of(&fake, "isolated cores").remedy.unwrap();
        assert!(remedy.contains("isolcpus=1-3,6 nohz_full=1-3,6"), "{remedy}");
        fake.write("sys/devices/system/cpu/isolated", "1-3\n");
        fake.write("sys/devices/system/cpu/nohz_full", "(null)\n");
        assert_eq!(of(&fake, "isolated cores").state, State::Warn);
        fake.write("sys/devices/system/cpu/nohz_full", "1-3\n");
        assert_eq!(of(&fake, "isolated cores").state, State::Ok);
    }

    #[test]
    fn a_single_core_is_a_warning_without_a_command() {
        let fake = Fake::new();
        fake.write("sys/devices/system/cpu/online", "0\n");
        assert_eq!((of(&fake, "cores").state, of(&fake, "cores").remedy), (State::Warn, None));
    }

    #[test]
    fn lists_of_cores_are_read_and_written() {
        assert_eq!(numbers("0-2,5"), [0, 1, 2, 5]);
        assert_eq!(numbers("x,3-1,"), [] as [u32; 0]);
        assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
    }
}
