//! IOMMU, VFIO and UIO checks: the means of giving a PCI device to a process.

use super::machine::{DEBIAN_KERNEL, Module};
use super::{Check, Machine, State, Subject};

pub(super) fn checks(machine: &Machine) -> Vec<Check> {
    vec![
        iommu(machine),
        driver(machine, "vfio-pci", "drives PCI devices behind an IOMMU"),
        driver(machine, "uio_pci_generic", "drives PCI devices without an IOMMU"),
    ]
}

fn check(name: &str, state: State, found: impl Into<String>) -> Check {
    Check::new(Subject::Iommu, name, state, found)
}

/// Returns whether VFIO accepts devices without an IOMMU.
pub(super) fn is_unsafe(machine: &Machine) -> bool {
    machine.read("sys/module/vfio/parameters/enable_unsafe_noiommu_mode").is_some_and(|mode| mode == "Y")
}

pub(super) fn iommu(machine: &Machine) -> Check {
    let groups = machine.list("sys/kernel/iommu_groups").len();
    if groups > 0 {
        return check("iommu", State::Ok, format!("{groups} groups"));
    }
    if is_unsafe(machine) {
        return check("iommu", State::Warn, "none: VFIO is in unsafe no-IOMMU mode");
    }
    let check = check("iommu", State::Warn, "none: vfio-pci binds no device, and devices can write to all memory");
    if machine.is_guest() {
        return check.remedy(format!(
            "qemu-system-x86_64 -machine q35,kernel-irqchip=split -device intel-iommu,intremap=on,caching-mode=on  \
             # on the host of this guest; then, in the guest: {}",
            machine.boot_with("intel_iommu=on iommu=pt")
        ));
    }
    match machine.cpuinfo("vendor_id").as_deref() {
        Some("GenuineIntel") => check.remedy(machine.boot_with("intel_iommu=on iommu=pt")),
        Some("AuthenticAMD") => {
            check.remedy(format!("enable the IOMMU (AMD-Vi) in the firmware; then {}", machine.boot_with("iommu=pt")))
        }
        _ => check,
    }
}

fn driver(machine: &Machine, name: &str, purpose: &str) -> Check {
    match machine.module(&name.replace('-', "_")) {
        Module::Present => check(name, State::Ok, "loaded"),
        Module::Loadable => check(name, State::Warn, format!("not loaded: it {purpose}"))
            .remedy(format!("sudo modprobe {name} && echo {name} | sudo tee /etc/modules-load.d/{name}.conf")),
        Module::Absent => check(name, State::Warn, format!("not in this kernel: it {purpose}")).remedy(DEBIAN_KERNEL),
    }
}

#[cfg(test)]
mod tests {
    use super::super::machine::tests::Fake;
    use super::*;

    fn find(fake: &Fake, name: &str) -> Check {
        checks(&fake.machine).into_iter().find(|check| check.name == name).unwrap()
    }

    #[test]
    fn iommu_groups_show_an_iommu() {
        let fake = Fake::new();
        fake.write("sys/kernel/iommu_groups/0/type", "DMA\n");
        fake.write("sys/kernel/iommu_groups/1/type", "DMA\n");
        assert_eq!((find(&fake, "iommu").state, find(&fake, "iommu").found), (State::Ok, "2 groups".into()));
    }

    #[test]
    fn missing_iommu_remedy_depends_on_the_processor() {
        let fake = Fake::new();
        fake.write("etc/default/grub", "");
        fake.cpu("GenuineIntel", "sse4_2");
        assert!(find(&fake, "iommu").remedy.unwrap().contains("$GRUB_CMDLINE_LINUX intel_iommu=on iommu=pt"));
        fake.cpu("AuthenticAMD", "sse4_2");
        assert!(find(&fake, "iommu").remedy.unwrap().contains("firmware"));
        fake.cpu("AuthenticAMD", "sse4_2 hypervisor");
        assert!(find(&fake, "iommu").remedy.unwrap().contains("-device intel-iommu"));
    }

    #[test]
    fn unsafe_mode_is_a_warning() {
        let fake = Fake::new();
        fake.write("sys/module/vfio/parameters/enable_unsafe_noiommu_mode", "Y\n");
        assert_eq!((find(&fake, "iommu").state, find(&fake, "iommu").remedy), (State::Warn, None));
    }

    #[test]
    fn missing_driver_is_loaded_or_needs_another_kernel() {
        let fake = Fake::new();
        fake.loadable(&["vfio-pci"]);
        fake.write("sys/module/uio_pci_generic/initstate", "live\n");
        assert!(find(&fake, "vfio-pci").remedy.unwrap().starts_with("sudo modprobe vfio-pci &&"));
        assert_eq!(find(&fake, "uio_pci_generic").state, State::Ok);
        assert_eq!(find(&Fake::new(), "vfio-pci").remedy.unwrap(), DEBIAN_KERNEL);
    }
}
