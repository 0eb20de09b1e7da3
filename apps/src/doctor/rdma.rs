//! RDMA devices and the verbs libraries.

use super::interfaces::Interface;
use super::machine::{DEBIAN_KERNEL, Module};
use super::{Check, Machine, State, Subject};
use std::fs::OpenOptions;

pub(super) fn checks(machine: &Machine, interfaces: &[Interface]) -> Vec<Check> {
    let mut checks = vec![support(machine), libraries(machine)];
    checks.extend(KERNEL.map(|(module, file, without)| kernel(machine, module, file, without)));
    let devices = machine.list("sys/class/infiniband");
    if devices.is_empty() {
        checks.push(no_device(machine, interfaces));
    } else {
        checks.extend(access(machine));
    }
    checks.extend(devices.iter().map(|device| describe(machine, device)));
    checks
}

fn check(name: &str, state: State, found: impl Into<String>) -> Check {
    Check::new(Subject::Rdma, name, state, found)
}

/// Kernel modules: name, file that the loaded module creates, and effect of its absence.
const KERNEL: [(&str, &str, &str); 2] = [
    ("ib_uverbs", "sys/class/infiniband_verbs/abi_version", "programs cannot open RDMA devices"),
    ("rdma_ucm", "sys/class/misc/rdma_cm", "programs cannot connect by IP address"),
];

fn support(machine: &Machine) -> Check {
    if machine.has_rdma {
        return check("support", State::Ok, "linerate was built with RDMA");
    }
    check("support", State::Warn, "linerate was built without RDMA")
        .remedy("sudo apt-get install cmake libclang-dev && cargo build --release -p linerate-apps")
}

fn kernel(machine: &Machine, module: &str, file: &str, without: &str) -> Check {
    if machine.exists(file) {
        return check(module, State::Ok, "loaded");
    }
    let remedy = match machine.module(module) {
        Module::Absent => DEBIAN_KERNEL.to_owned(),
        _ => format!("sudo modprobe {module}"),
    };
    check(module, State::Warn, format!("missing: {without}")).remedy(remedy)
}

/// Checks that this user can open the device files of verbs.
fn access(machine: &Machine) -> Option<Check> {
    let files = machine.list("dev/infiniband");
    let files: Vec<String> = files
        .iter()
        .filter(|name| name.starts_with("uverbs") || *name == "rdma_cm")
        .map(|name| format!("dev/infiniband/{name}"))
        .collect();
    if files.is_empty() {
        return None;
    }
    let opens = |file: &String| OpenOptions::new().read(true).write(true).open(machine.path(file));
    let refused = files.iter().find_map(|file| opens(file).err().map(|error| format!("/{file}: {error}")));
    Some(match refused {
        None => check("/dev/infiniband", State::Ok, "accessible"),
        Some(refused) => check("/dev/infiniband", State::Warn, refused).remedy(format!("sudo {} …", machine.program)),
    })
}

fn libraries(machine: &Machine) -> Check {
    let directories = ["usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/local/lib"];
    let names: Vec<String> = directories.into_iter().flat_map(|directory| machine.list(directory)).collect();
    let libraries = [("libibverbs.so.1", "libibverbs1"), ("librdmacm.so.1", "librdmacm1")];
    let mut packages: Vec<&str> = libraries
        .into_iter()
        .filter(|(library, _)| !names.iter().any(|name| name == library))
        .map(|(_, package)| package)
        .collect();
    if machine.list("etc/libibverbs.d").is_empty() {
        packages.push("ibverbs-providers");
    }
    if packages.is_empty() {
        return check("libraries", State::Ok, "libibverbs, librdmacm and providers");
    }
    check("libraries", State::Warn, format!("{} not installed", packages.join(", ")))
        .remedy(format!("sudo apt-get install {}", packages.join(" ")))
}

/// Proposes software RDMA, which the kernel provides on any Ethernet interface.
fn no_device(machine: &Machine, interfaces: &[Interface]) -> Check {
    let check = check("devices", State::Warn, "none");
    let up: Vec<&Interface> = interfaces.iter().filter(|interface| interface.is_ethernet && interface.is_up).collect();
    let Some(interface) = up.first() else {
        return Check { found: "none, and no Ethernet interface is up for software RDMA".into(), ..check };
    };
    let software = [("rdma_rxe", "rxe"), ("siw", "siw")];
    let usable = software.into_iter().find(|(module, _)| machine.module(module) != Module::Absent);
    match usable {
        Some((module, kind)) => check.remedy(format!(
            "sudo modprobe {module} && sudo rdma link add {kind}0 type {kind} netdev {}",
            interface.name
        )),
        None => Check { found: "none, and this kernel has no software RDMA".into(), ..check }.remedy(DEBIAN_KERNEL),
    }
}

fn describe(machine: &Machine, device: &str) -> Check {
    let directory = format!("sys/class/infiniband/{device}/ports");
    let ports: Vec<String> = machine.list(&directory);
    let read = |port: &String, file: &str| machine.read(format!("{directory}/{port}/{file}")).unwrap_or_default();
    // `4: ACTIVE`.
    let is_active = |port: &String| read(port, "state").starts_with("4:");
    let found: Vec<String> = ports
        .iter()
        .map(|port| {
            let state = read(port, "state");
            let state = state.split_once(": ").map_or(state.as_str(), |(_, name)| name).to_lowercase();
            format!("port {port} {}, {state}, {}", read(port, "link_layer"), read(port, "rate"))
        })
        .collect();
    let found = found.join("; ");
    if ports.iter().any(is_active) {
        let near = node_of(machine, device).map(|(node, cores)| format!("; on NUMA node {node}, cores {cores}"));
        return check(device, State::Ok, found + &near.unwrap_or_default());
    }
    let check = check(device, State::Warn, format!("{found}; no port is active"));
    // Interface of an Ethernet port; a software device has it in `parent`.
    let under = machine.list(format!("sys/class/infiniband/{device}/device/net")).into_iter().next();
    match under.or_else(|| machine.read(format!("sys/class/infiniband/{device}/parent"))) {
        Some(interface) => check.remedy(format!("sudo ip link set dev {interface} up")),
        None => check,
    }
}

/// Returns the NUMA node of a device and its cores, on which workers run by default.
fn node_of(machine: &Machine, device: &str) -> Option<(u32, String)> {
    // Software devices and machines with one node have none, or -1.
    let node: u32 = machine.read(format!("sys/class/infiniband/{device}/device/numa_node"))?.trim().parse().ok()?;
    let cores = machine.read(format!("sys/devices/system/node/node{node}/cpulist"))?.trim().to_owned();
    (!cores.is_empty()).then_some((node, cores))
}

#[cfg(test)]
mod tests {
    use super::super::interfaces;
    use super::super::machine::tests::Fake;
    use super::*;

    fn find(fake: &Fake, name: &str) -> Check {
        let interfaces = interfaces::list(&fake.machine);
        checks(&fake.machine, &interfaces).into_iter().find(|check| check.name == name).unwrap()
    }

    fn device(fake: &Fake, state: &str) {
        let port = "sys/class/infiniband/rxe0/ports/1";
        fake.write(&format!("{port}/state"), state);
        fake.write(&format!("{port}/link_layer"), "Ethernet\n");
        fake.write(&format!("{port}/rate"), "10 Gb/sec (4X)\n");
        fake.write("sys/class/infiniband/rxe0/parent", "eth1\n");
    }

    #[test]
    fn missing_libraries_name_their_packages() {
        let fake = Fake::new();
        fake.write("usr/lib/x86_64-linux-gnu/libibverbs.so.1", "");
        fake.write("etc/libibverbs.d/rxe.driver", "driver rxe\n");
        assert_eq!(find(&fake, "libraries").remedy.unwrap(), "sudo apt-get install librdmacm1");
        fake.write("usr/lib/x86_64-linux-gnu/librdmacm.so.1", "");
        assert_eq!(find(&fake, "libraries").state, State::Ok);
    }

    #[test]
    fn binary_without_rdma_is_reported() {
        let mut fake = Fake::new();
        assert_eq!(find(&fake, "support").state, State::Ok);
        fake.machine.has_rdma = false;
        assert!(find(&fake, "support").remedy.unwrap().contains("cmake libclang-dev"));
    }

    #[test]
    fn missing_modules_are_loaded_or_need_another_kernel() {
        let fake = Fake::new();
        assert_eq!(find(&fake, "ib_uverbs").remedy.unwrap(), DEBIAN_KERNEL);
        fake.loadable(&["ib_uverbs", "rdma_ucm"]);
        assert_eq!(find(&fake, "ib_uverbs").remedy.unwrap(), "sudo modprobe ib_uverbs");
        assert_eq!(find(&fake, "rdma_ucm").remedy.unwrap(), "sudo modprobe rdma_ucm");
        fake.write("sys/class/infiniband_verbs/abi_version", "6\n");
        fake.write("sys/class/misc/rdma_cm/dev", "10:124\n");
        assert_eq!(["ib_uverbs", "rdma_ucm"].map(|module| find(&fake, module).state), [State::Ok; 2]);
    }

    #[test]
    fn device_files_must_be_accessible() {
        let fake = Fake::new();
        device(&fake, "4: ACTIVE\n");
        fake.write("dev/infiniband/rdma_cm", "");
        fake.write("dev/infiniband/uverbs0", "");
        assert_eq!(find(&fake, "/dev/infiniband").state, State::Ok);
        // Opening a directory for writing fails, even for root.
        fake.write("dev/infiniband/uverbs1/file", "");
        let check = find(&fake, "/dev/infiniband");
        assert!(check.state == State::Warn && check.found.starts_with("/dev/infiniband/uverbs1: "), "{check:?}");
        assert_eq!(check.remedy.unwrap(), "sudo linerate …");
    }

    #[test]
    fn missing_device_proposes_software_rdma_on_an_active_interface() {
        let fake = Fake::new();
        fake.loadable(&["rdma_rxe"]);
        assert_eq!(find(&fake, "devices").remedy, None);
        interfaces::tests::interface(&fake, "eth0", "0x1002", Some("virtio_net"));
        interfaces::tests::interface(&fake, "eth1", "0x1003", Some("virtio_net"));
        let remedy = "sudo modprobe rdma_rxe && sudo rdma link add rxe0 type rxe netdev eth1";
        assert_eq!(find(&fake, "devices").remedy.unwrap(), remedy);
    }

    #[test]
    fn kernel_without_rdma_needs_replacing() {
        let fake = Fake::new();
        interfaces::tests::interface(&fake, "eth1", "0x1003", Some("virtio_net"));
        assert_eq!(find(&fake, "devices").remedy.unwrap(), DEBIAN_KERNEL);
    }

    #[test]
    fn device_on_a_numa_node_names_the_cores() {
        let fake = Fake::new();
        device(&fake, "4: ACTIVE\n");
        fake.write("sys/devices/system/node/node0/cpulist", "0-7\n");
        fake.write("sys/devices/system/node/node1/cpulist", "8-15\n");
        for (node, found) in
            [("-1\n", ""), ("0\n", "; on NUMA node 0, cores 0-7"), ("1\n", "; on NUMA node 1, cores 8-15")]
        {
            fake.write("sys/class/infiniband/rxe0/device/numa_node", node);
            let check = find(&fake, "rxe0");
            assert_eq!(check.state, State::Ok);
            assert_eq!(check.found, format!("port 1 Ethernet, active, 10 Gb/sec (4X){found}"));
        }
    }

    #[test]
    fn device_needs_an_active_port() {
        let fake = Fake::new();
        device(&fake, "4: ACTIVE\n");
        assert_eq!(find(&fake, "rxe0").state, State::Ok);
        assert_eq!(find(&fake, "rxe0").found, "port 1 Ethernet, active, 10 Gb/sec (4X)");
        device(&fake, "1: DOWN\n");
        assert_eq!(find(&fake, "rxe0").state, State::Warn);
        assert_eq!(find(&fake, "rxe0").remedy.unwrap(), "sudo ip link set dev eth1 up");
    }
}
