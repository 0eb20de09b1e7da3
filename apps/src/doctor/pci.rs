//! PCI network devices: which of them DPDK supports, and how to bind them.

use super::dpdk::Dpdk;
use super::interfaces::Interface;
use super::iommu;
use super::machine::{DEBIAN_KERNEL, Module};
use super::pmd::Pmd;
use super::{Check, Machine, State, Subject};

/// Kernel drivers that give a device to a process.
const PASS_THROUGH: [&str; 3] = ["vfio-pci", "uio_pci_generic", "igb_uio"];

pub(super) fn checks(machine: &Machine, dpdk: Option<&Dpdk>, interfaces: &[Interface]) -> Vec<Check> {
    let directory = "sys/bus/pci/devices";
    let mut checks: Vec<Check> = Vec::new();
    for address in machine.list(directory) {
        let device = Device::read(machine, address);
        // Class 02: network controller.
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

/// Returns the finding and the remedy of the check of the PCI device at `address`, unless the device is usable.
pub fn pci_advice(machine: &Machine, address: &str) -> Option<String> {
    let dpdk = Dpdk::find(machine);
    let checks = checks(machine, dpdk.as_ref(), &super::interfaces::list(machine));
    match checks.into_iter().find(|check| check.name == address) {
        None => Some(format!("this host has no network device {address}: lspci -D lists the devices")),
        Some(check) if !check.via.is_empty() => None,
        Some(Check { found, remedy, .. }) => Some(match remedy {
            Some(remedy) => format!("{found}: {remedy}"),
            None => found,
        }),
    }
}

struct Device {
    address: String,
    /// Vendor, device, subsystem vendor, subsystem device.
    ids: [u32; 4],
    driver: Option<String>,
    /// Kernel interfaces of the device.
    interfaces: Vec<String>,
    /// IOMMU group, the name of the VFIO device file.
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
        // The interface of a virtio device is one directory deeper: 0000:00:03.0/virtio0/net/eth0.
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
            return check(State::Warn, format!("{found}; no installed DPDK driver supports it"));
        };
        found += &format!("; {}", pmd.name);
        let via = format!("pci:{}", self.address);
        let carries_route =
            interfaces.iter().any(|interface| interface.has_default_route && self.interfaces.contains(&interface.name));
        if pmd.is_bifurcated() && self.driver.is_some() {
            if carries_route {
                let found = format!("{found} works beside the kernel driver; carries the default route");
                let remedy = format!("use another device; or, with other access to this host: --via {via} --force");
                return check(State::Warn, found).via(via).remedy(remedy);
            }
            return check(State::Ok, format!("{found} works beside the kernel driver")).via(via);
        }
        if PASS_THROUGH.contains(&driver) {
            return match self.access_denied(machine, driver) {
                None => check(State::Ok, found).via(via),
                Some((reason, remedy)) => check(State::Warn, format!("{found}; {reason}")).remedy(remedy),
            };
        }
        let vfio_takes_it = self.group.is_some() || iommu::is_unsafe(machine);
        if !vfio_takes_it && !PASS_THROUGH[1..].iter().any(|driver| pmd.runs_on(driver)) {
            let check = check(State::Warn, format!("{found}; needs vfio-pci, which needs an IOMMU"));
            return Check { remedy: iommu::iommu(machine).remedy, ..check };
        }
        let Some((target, module)) = self.pass_through(machine, pmd, vfio_takes_it) else {
            return check(State::Warn, format!("{found}; this kernel has neither VFIO nor UIO")).remedy(DEBIAN_KERNEL);
        };
        if carries_route {
            found += "; carries the default route: binding it disconnects this host";
        }
        check(State::Warn, format!("{found}; needs binding to {target}")).remedy(self.bind(machine, target, module))
    }

    /// Returns the reason this user cannot open the device, and the command that changes that.
    fn access_denied(&self, machine: &Machine, driver: &str) -> Option<(String, String)> {
        if machine.user() == Some(0) {
            return None;
        }
        let Some(group) = self.group.as_ref().filter(|_| driver == "vfio-pci") else {
            // Without an IOMMU the device needs physical addresses, which the kernel reveals only to root.
            return Some((format!("{driver} needs root"), format!("sudo {} …", machine.program)));
        };
        let files = ["vfio".to_owned(), group.clone()].map(|name| format!("dev/vfio/{name}"));
        let file = files.into_iter().find(|file| !machine.may_use(file))?;
        let remedy = format!(
            "sudo chown $(id -u) /{file}  # until the next bind; permanent: \
             echo 'SUBSYSTEM==\"vfio\", GROUP=\"'$(id -gn)'\", MODE=\"0660\"' | \
             sudo tee /etc/udev/rules.d/70-vfio.rules"
        );
        Some((format!("this user cannot open /{file}"), remedy))
    }

    /// Returns the driver to bind to: VFIO with an IOMMU, otherwise the first UIO driver that this kernel has.
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
        // dpdk-devbind.py refuses an interface that has routes.
        steps.extend(self.interfaces.iter().map(|interface| format!("sudo ip link set dev {interface} down")));
        steps.push(format!("sudo dpdk-devbind.py --bind={driver} {}", self.address));
        let permanent = format!("sudo driverctl set-override {} {driver}", self.address);
        format!("{}  # until the next boot; permanent: {permanent}", steps.join(" && "))
    }
}

#[cfg(test)]
mod tests {
    use super::super::interfaces;
    use super::super::machine::tests::Fake;
    use super::*;

    const ADDRESS: &str = "0000:03:00.0";

    /// Returns a machine with one virtio network device, a display, and the virtio and mlx5 drivers of DPDK.
    fn machine() -> Fake {
        let fake = Fake::new();
        let lib = "usr/lib/x86_64-linux-gnu";
        fake.write(&format!("{lib}/librte_eal.so.23"), "");
        let uio = r#"{"name": "net_virtio", "kmod": "* igb_uio | uio_pci_generic | vfio-pci",
                     "pci_ids": [[6900, 4161, 65535, 65535]]}"#;
        let mlx5 =
            r#"{"name": "mlx5_eth", "kmod": "* ib_uverbs & mlx5_core", "pci_ids": [[5555, 4115, 65535, 65535]]}"#;
        fake.write(
            &format!("{lib}/dpdk/pmds-23.0/librte_net_x.so"),
            format!("\0PMD_INFO_STRING= {uio}\0PMD_INFO_STRING= {mlx5}\0"),
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

    fn bind_to(fake: &Fake, driver: &str) {
        fake.link(&format!("sys/bus/pci/devices/{ADDRESS}/driver"), &format!("../../../bus/pci/drivers/{driver}"));
    }

    /// Gives the device an IOMMU group.
    fn add_iommu_group(fake: &Fake) {
        let link = format!("sys/bus/pci/devices/{ADDRESS}/iommu_group");
        fake.link(&link, "../../../../kernel/iommu_groups/7");
    }

    fn single_check(fake: &Fake) -> Check {
        let dpdk = Dpdk::find(&fake.machine);
        let mut checks = checks(&fake.machine, dpdk.as_ref(), &interfaces::list(&fake.machine));
        assert_eq!(checks.len(), 1);
        checks.remove(0)
    }

    #[test]
    fn device_bound_to_vfio_or_uio_is_ready() {
        for driver in PASS_THROUGH {
            let fake = machine();
            bind_to(&fake, driver);
            assert_eq!(
                (single_check(&fake).state, single_check(&fake).via),
                (State::Ok, vec![format!("pci:{ADDRESS}")])
            );
        }
    }

    #[test]
    fn device_of_the_kernel_is_to_be_bound_before_it_is_opened() {
        let fake = machine();
        bind_to(&fake, "virtio-pci");
        add_iommu_group(&fake);
        fake.loadable(&["vfio-pci"]);
        let advice = |address| pci_advice(&fake.machine, address);
        assert!(advice(ADDRESS).unwrap().contains("dpdk-devbind.py --bind=vfio-pci 0000:03:00.0"));
        assert!(advice("0000:09:00.0").unwrap().contains("no network device 0000:09:00.0"));
        bind_to(&fake, "uio_pci_generic");
        assert_eq!(advice(ADDRESS), None);
    }

    #[test]
    fn user_needs_access_to_vfio_files() {
        let fake = machine();
        fake.write("proc/self/status", "Uid:\t1000\t1000\t1000\t1000\n");
        bind_to(&fake, "vfio-pci");
        add_iommu_group(&fake);
        fake.write("dev/vfio/vfio", "");
        assert!(
            single_check(&fake).found.ends_with("this user cannot open /dev/vfio/7")
                && single_check(&fake).via.is_empty()
        );
        assert!(single_check(&fake).remedy.unwrap().starts_with("sudo chown $(id -u) /dev/vfio/7  #"));
        fake.write("dev/vfio/7", "");
        assert_eq!((single_check(&fake).state, single_check(&fake).via), (State::Ok, vec![format!("pci:{ADDRESS}")]));
    }

    #[test]
    fn uio_device_needs_root() {
        let fake = machine();
        fake.write("proc/self/status", "Uid:\t1000\t1000\t1000\t1000\n");
        bind_to(&fake, "uio_pci_generic");
        assert!(single_check(&fake).found.ends_with("uio_pci_generic needs root"), "{:?}", single_check(&fake));
    }

    #[test]
    fn device_behind_an_iommu_is_bound_to_vfio() {
        let fake = machine();
        bind_to(&fake, "virtio-pci");
        add_iommu_group(&fake);
        fake.write(&format!("sys/bus/pci/devices/{ADDRESS}/virtio1/net/eth1/mtu"), "1500\n");
        fake.write("usr/bin/dpdk-devbind.py", "");
        fake.loadable(&["vfio-pci", "uio_pci_generic"]);
        let remedy = single_check(&fake).remedy.unwrap();
        let now = "sudo modprobe vfio-pci && sudo ip link set dev eth1 down && \
                   sudo dpdk-devbind.py --bind=vfio-pci 0000:03:00.0  #";
        assert!(remedy.starts_with(now), "{remedy}");
        assert!(remedy.ends_with("sudo driverctl set-override 0000:03:00.0 vfio-pci"), "{remedy}");
    }

    #[test]
    fn device_without_an_iommu_is_bound_to_uio() {
        let fake = machine();
        fake.write("sys/module/uio_pci_generic/initstate", "live\n");
        let remedy = single_check(&fake).remedy.unwrap();
        let now = "sudo apt-get install dpdk && sudo dpdk-devbind.py --bind=uio_pci_generic 0000:03:00.0  #";
        assert!(remedy.starts_with(now), "{remedy}");
    }

    #[test]
    fn vfio_only_device_needs_an_iommu_or_unsafe_mode() {
        let fake = machine();
        device(&fake, "0x8086", "0x1592");
        let ice = r#"{"name": "net_ice", "kmod": "* vfio-pci", "pci_ids": [[32902, 5522, 65535, 65535]]}"#;
        let library = "usr/lib/x86_64-linux-gnu/dpdk/pmds-23.0/librte_net_ice.so";
        fake.write(library, format!("\0PMD_INFO_STRING= {ice}\0"));
        fake.loadable(&["vfio-pci", "uio_pci_generic"]);
        fake.cpu("GenuineIntel", "sse4_2");
        assert!(single_check(&fake).remedy.unwrap().contains("intel_iommu=on"));
        fake.write("sys/module/vfio/parameters/enable_unsafe_noiommu_mode", "Y\n");
        assert!(single_check(&fake).remedy.unwrap().contains("--bind=vfio-pci"));
    }

    #[test]
    fn kernel_without_vfio_and_uio_needs_replacing() {
        assert_eq!(single_check(&machine()).remedy.unwrap(), DEBIAN_KERNEL);
    }

    #[test]
    fn device_with_the_default_route_is_marked() {
        let fake = machine();
        bind_to(&fake, "virtio-pci");
        fake.write("sys/module/uio_pci_generic/initstate", "live\n");
        fake.write(&format!("sys/bus/pci/devices/{ADDRESS}/virtio1/net/eth0/mtu"), "1500\n");
        interfaces::tests::interface(&fake, "eth0", "0x1003", Some("virtio_net"));
        fake.write("proc/net/route", "eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n");
        assert!(single_check(&fake).found.contains("disconnects this host"));
    }

    #[test]
    fn bifurcated_driver_works_with_the_kernel_driver() {
        let fake = machine();
        device(&fake, "0x15b3", "0x1013");
        bind_to(&fake, "mlx5_core");
        assert_eq!((single_check(&fake).state, single_check(&fake).via), (State::Ok, vec![format!("pci:{ADDRESS}")]));
    }

    #[test]
    fn unsupported_device_has_no_remedy() {
        let fake = machine();
        device(&fake, "0x10ec", "0x8168");
        assert_eq!((single_check(&fake).state, single_check(&fake).remedy), (State::Warn, None));
        assert!(single_check(&fake).found.starts_with("10ec:8168, no driver; no installed DPDK driver"));
    }

    #[test]
    fn machine_without_devices_reports_none() {
        let fake = Fake::new();
        assert_eq!(single_check(&fake).found, "none");
    }
}
