//! Network devices on PCI: which DPDK can drive, and how to hand them over.

use super::dpdk::Dpdk;
use super::interfaces::Interface;
use super::iommu;
use super::machine::{DEBIAN_KERNEL, Module};
use super::pmd::Pmd;
use super::{Check, Machine, State, Subject};

/// Kernel drivers that do nothing but hand a device to a process.
const PASS_THROUGH: [&str; 3] = ["vfio-pci", "uio_pci_generic", "igb_uio"];

pub(super) fn checks(machine: &Machine, dpdk: Option<&Dpdk>, interfaces: &[Interface]) -> Vec<Check> {
    let directory = "sys/bus/pci/devices";
    let mut checks: Vec<Check> = Vec::new();
    for address in machine.list(directory) {
        let device = Device::read(machine, address);
        // Class 02 is network controllers.
        if machine.read(format!("{directory}/{}/class", device.address)).is_some_and(|class| class.starts_with("0x02"))
        {
            checks.push(device.check(machine, dpdk, interfaces));
        }
    }
    if checks.is_empty() {
        checks.push(Check::new(Subject::Pci, "network devices", State::Ok, "none"));
    }
    checks
}

struct Device {
    address: String,
    /// Vendor, device, subsystem vendor, subsystem device.
    ids: [u32; 4],
    driver: Option<String>,
    /// The kernel's interfaces on it.
    interfaces: Vec<String>,
    /// Its group of the IOMMU, which VFIO has a file for.
    group: Option<String>,
}

impl Device {
    fn read(machine: &Machine, address: String) -> Device {
        let directory = format!("sys/bus/pci/devices/{address}");
        let id = |file: &str| {
            let text = machine.read(format!("{directory}/{file}")).unwrap_or_default();
            text.strip_prefix("0x").and_then(|digits| u32::from_str_radix(digits, 16).ok()).unwrap_or(0)
        };
        let ids = ["vendor", "device", "subsystem_vendor", "subsystem_device"].map(id);
        // A virtio device is one step further down: 0000:00:03.0/virtio0/net/eth0.
        let mut interfaces = machine.list(format!("{directory}/net"));
        for name in machine.list(&directory).iter().filter(|name| name.starts_with("virtio")) {
            interfaces.extend(machine.list(format!("{directory}/{name}/net")));
        }
        Device {
            ids,
            driver: machine.link(format!("{directory}/driver")),
            interfaces,
            group: machine.link(format!("{directory}/iommu_group")),
            address,
        }
    }

    fn check(&self, machine: &Machine, dpdk: Option<&Dpdk>, interfaces: &[Interface]) -> Check {
        let [vendor, device, ..] = self.ids;
        let driver = self.driver.as_deref().unwrap_or("no driver");
        let mut found = format!("{vendor:04x}:{device:04x}, {driver}");
        if !self.interfaces.is_empty() {
            found += &format!(", {}", self.interfaces.join(", "));
        }
        let check = |state, found: String| Check::new(Subject::Pci, &self.address, state, found);
        let Some(pmd) = dpdk.and_then(|dpdk| dpdk.pmds.iter().find(|pmd| pmd.drives(self.ids))) else {
            return check(State::Warn, format!("{found}; no installed DPDK driver knows it"));
        };
        found += &format!("; {}", pmd.name);
        let via = format!("pci:{}", self.address);
        let carries_route =
            interfaces.iter().any(|interface| interface.has_default_route && self.interfaces.contains(&interface.name));
        if pmd.is_bifurcated() && self.driver.is_some() {
            if carries_route {
                let found = format!("{found} works beside it; carries the default route");
                let remedy = format!("use another device; or, with another way into this host: --via {via} --force");
                return check(State::Warn, found).via(via).remedy(remedy);
            }
            return check(State::Ok, format!("{found} works beside it")).via(via);
        }
        if PASS_THROUGH.contains(&driver) {
            return match self.refused(machine, driver) {
                None => check(State::Ok, found).via(via),
                Some((why, remedy)) => check(State::Warn, format!("{found}; {why}")).remedy(remedy),
            };
        }
        let vfio_takes_it = self.group.is_some() || iommu::is_unsafe(machine);
        if !vfio_takes_it && !PASS_THROUGH[1..].iter().any(|driver| pmd.runs_on(driver)) {
            let check = check(State::Warn, format!("{found}; it needs vfio-pci, and that an IOMMU"));
            return Check { remedy: iommu::iommu(machine).remedy, ..check };
        }
        let Some((target, module)) = self.pass_through(machine, pmd, vfio_takes_it) else {
            return check(State::Warn, format!("{found}; this kernel has no driver that hands it over"))
                .remedy(DEBIAN_KERNEL);
        };
        if carries_route {
            found += "; carries the default route: binding it cuts this host off";
        }
        check(State::Warn, format!("{found}; to be bound to {target}")).remedy(self.bind(machine, target, module))
    }

    /// Why this user may not open it, and what mends that.
    fn refused(&self, machine: &Machine, driver: &str) -> Option<(String, String)> {
        if machine.user() == Some(0) {
            return None;
        }
        let Some(group) = self.group.as_ref().filter(|_| driver == "vfio-pci") else {
            // Without an IOMMU the device is told physical addresses, which the kernel tells root only.
            return Some((format!("{driver} is for root"), format!("sudo {} …", machine.program)));
        };
        let files = ["vfio".to_owned(), group.clone()].map(|name| format!("dev/vfio/{name}"));
        let file = files.into_iter().find(|file| !machine.may_use(file))?;
        let remedy = format!(
            "sudo chown $(id -u) /{file}  # until it is bound anew; for good: \
             echo 'SUBSYSTEM==\"vfio\", GROUP=\"'$(id -gn)'\", MODE=\"0660\"' | sudo tee /etc/udev/rules.d/70-vfio.rules"
        );
        Some((format!("this user may not open /{file}"), remedy))
    }

    /// What to bind it to: VFIO behind an IOMMU, UIO otherwise, whichever this kernel has.
    fn pass_through(&self, machine: &Machine, pmd: &Pmd, vfio: bool) -> Option<(&'static str, Module)> {
        let wanted: &[&str] = if vfio { &["vfio-pci"] } else { &["uio_pci_generic", "igb_uio"] };
        let candidates = PASS_THROUGH.into_iter().filter(|driver| wanted.contains(driver) && pmd.runs_on(driver));
        let candidates = candidates.map(|driver| (driver, machine.module(&driver.replace('-', "_"))));
        candidates.into_iter().find(|(_, module)| *module != Module::Absent)
    }

    fn bind(&self, machine: &Machine, driver: &str, module: Module) -> String {
        let mut steps = Vec::new();
        if !machine.exists("usr/bin/dpdk-devbind.py") {
            steps.push("sudo apt-get install dpdk".to_owned());
        }
        if module == Module::Loadable {
            steps.push(format!("sudo modprobe {driver}"));
        }
        // It refuses an interface that has routes.
        steps.extend(self.interfaces.iter().map(|interface| format!("sudo ip link set dev {interface} down")));
        steps.push(format!("sudo dpdk-devbind.py --bind={driver} {}", self.address));
        let forever = format!("sudo driverctl set-override {} {driver}", self.address);
        format!("{}  # until the next boot; for good: {forever}", steps.join(" && "))
    }
}

#[cfg(test)]
mod tests {
    use super::super::interfaces;
    use super::super::machine::tests::Fake;
    use super::*;

    const ADDRESS: &str = "0000:03:00.0";

    /// A machine with one virtio network device, a display, and DPDK's virtio and mlx5 drivers.
    fn machine() -> Fake {
        let fake = Fake::new();
        let lib = "usr/lib/x86_64-linux-gnu";
        fake.write(&format!("{lib}/librte_eal.so.23"), "");
        let uio = r#"{"name": "net_virtio", "kmod": "* igb_uio | uio_pci_generic | vfio-pci", "pci_ids": [[6900, 4161, 65535, 65535]]}"#;
        let mlx = r#"{"name": "mlx5_eth", "kmod": "* ib_uverbs & mlx5_core", "pci_ids": [[5555, 4115, 65535, 65535]]}"#;
        fake.write(
            &format!("{lib}/dpdk/pmds-23.0/librte_net_x.so"),
            format!("\0PMD_INFO_STRING= {uio}\0PMD_INFO_STRING= {mlx}\0"),
        );
        fake.write("sys/bus/pci/devices/0000:00:02.0/class", "0x030000\n");
        device(&fake, "0x1af4", "0x1041");
        fake
    }

    fn device(fake: &Fake, vendor: &str, device: &str) {
        for (file, content) in [("class", "0x020000"), ("vendor", vendor), ("device", device)] {
            fake.write(&format!("sys/bus/pci/devices/{ADDRESS}/{file}"), content);
        }
    }

    fn bound(fake: &Fake, driver: &str) {
        fake.link(&format!("sys/bus/pci/devices/{ADDRESS}/driver"), &format!("../../../bus/pci/drivers/{driver}"));
    }

    /// The device is behind an IOMMU.
    fn grouped(fake: &Fake) {
        let link = format!("sys/bus/pci/devices/{ADDRESS}/iommu_group");
        fake.link(&link, "../../../../kernel/iommu_groups/7");
    }

    fn of(fake: &Fake) -> Check {
        let dpdk = Dpdk::find(&fake.machine);
        let mut checks = checks(&fake.machine, dpdk.as_ref(), &interfaces::list(&fake.machine));
        assert_eq!(checks.len(), 1);
        checks.remove(0)
    }

    #[test]
    fn a_device_that_is_handed_over_is_ready() {
        for driver in PASS_THROUGH {
            let fake = machine();
            bound(&fake, driver);
            assert_eq!((of(&fake).state, of(&fake).via), (State::Ok, vec![format!("pci:{ADDRESS}")]));
        }
    }

    #[test]
    fn a_user_needs_the_files_of_vfio() {
        let fake = machine();
        fake.write("proc/self/status", "Uid:\t1000\t1000\t1000\t1000\n");
        bound(&fake, "vfio-pci");
        grouped(&fake);
        fake.write("dev/vfio/vfio", "");
        assert!(of(&fake).found.ends_with("this user may not open /dev/vfio/7") && of(&fake).via.is_empty());
        assert!(of(&fake).remedy.unwrap().starts_with("sudo chown $(id -u) /dev/vfio/7  #"));
        fake.write("dev/vfio/7", "");
        assert_eq!((of(&fake).state, of(&fake).via), (State::Ok, vec![format!("pci:{ADDRESS}")]));
    }

    #[test]
    fn without_an_iommu_only_root_opens_a_device() {
        let fake = machine();
        fake.write("proc/self/status", "Uid:\t1000\t1000\t1000\t1000\n");
        bound(&fake, "uio_pci_generic");
        assert!(of(&fake).found.ends_with("uio_pci_generic is for root"), "{:?}", of(&fake));
    }

    #[test]
    fn behind_an_iommu_a_device_is_bound_to_vfio() {
        let fake = machine();
        bound(&fake, "virtio-pci");
        grouped(&fake);
        fake.write(&format!("sys/bus/pci/devices/{ADDRESS}/virtio1/net/eth1/mtu"), "1500\n");
        fake.write("usr/bin/dpdk-devbind.py", "");
        fake.loadable(&["vfio-pci", "uio_pci_generic"]);
        let remedy = of(&fake).remedy.unwrap();
        let now = "sudo modprobe vfio-pci && sudo ip link set dev eth1 down && \
                   sudo dpdk-devbind.py --bind=vfio-pci 0000:03:00.0  #";
        assert!(remedy.starts_with(now), "{remedy}");
        assert!(remedy.ends_with("sudo driverctl set-override 0000:03:00.0 vfio-pci"), "{remedy}");
    }

    #[test]
    fn without_an_iommu_it_is_bound_to_uio_and_the_tool_installed() {
        let fake = machine();
        fake.write("sys/module/uio_pci_generic/initstate", "live\n");
        let remedy = of(&fake).remedy.unwrap();
        let now = "sudo apt-get install dpdk && sudo dpdk-devbind.py --bind=uio_pci_generic 0000:03:00.0  #";
        assert!(remedy.starts_with(now), "{remedy}");
    }

    #[test]
    fn a_device_that_only_vfio_can_drive_needs_an_iommu_or_its_unsafe_mode() {
        let fake = machine();
        device(&fake, "0x8086", "0x1592");
        let ice = r#"{"name": "net_ice", "kmod": "* vfio-pci", "pci_ids": [[32902, 5522, 65535, 65535]]}"#;
        let library = "usr/lib/x86_64-linux-gnu/dpdk/pmds-23.0/librte_net_ice.so";
        fake.write(library, format!("\0PMD_INFO_STRING= {ice}\0"));
        fake.loadable(&["vfio-pci", "uio_pci_generic"]);
        fake.cpu("GenuineIntel", "sse4_2");
        assert!(of(&fake).remedy.unwrap().contains("intel_iommu=on"));
        fake.write("sys/module/vfio/parameters/enable_unsafe_noiommu_mode", "Y\n");
        assert!(of(&fake).remedy.unwrap().contains("--bind=vfio-pci"));
    }

    #[test]
    fn a_kernel_that_can_hand_nothing_over_is_to_be_exchanged() {
        assert_eq!(of(&machine()).remedy.unwrap(), DEBIAN_KERNEL);
    }

    #[test]
    fn a_device_that_carries_the_default_route_is_named_as_such() {
        let fake = machine();
        bound(&fake, "virtio-pci");
        fake.write("sys/module/uio_pci_generic/initstate", "live\n");
        fake.write(&format!("sys/bus/pci/devices/{ADDRESS}/virtio1/net/eth0/mtu"), "1500\n");
        interfaces::tests::interface(&fake, "eth0", "0x1003", Some("virtio_net"));
        fake.write("proc/net/route", "eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n");
        assert!(of(&fake).found.contains("cuts this host off"));
    }

    #[test]
    fn a_bifurcated_driver_works_beside_the_kernels() {
        let fake = machine();
        device(&fake, "0x15b3", "0x1013");
        bound(&fake, "mlx5_core");
        assert_eq!((of(&fake).state, of(&fake).via), (State::Ok, vec![format!("pci:{ADDRESS}")]));
    }

    #[test]
    fn a_device_that_no_driver_knows_has_no_remedy() {
        let fake = machine();
        device(&fake, "0x10ec", "0x8168");
        assert_eq!((of(&fake).state, of(&fake).remedy), (State::Warn, None));
        assert!(of(&fake).found.starts_with("10ec:8168, no driver; no installed DPDK driver"));
    }

    #[test]
    fn a_machine_without_devices_says_so() {
        let fake = Fake::new();
        assert_eq!(of(&fake).found, "none");
    }
}
