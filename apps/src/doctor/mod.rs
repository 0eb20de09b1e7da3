//! Checks of this host, each with a command that fixes the problem it finds.
//!
//! Each module has a function from a [`Machine`] to the [`Check`]s of one subject. A [`Machine`] is a root directory
//! (`/`, or a fabricated tree in tests) and the few facts that no file states.

mod cpu;
mod dpdk;
mod facts;
mod interfaces;
mod iommu;
mod machine;
mod memory;
mod networks;
mod pci;
mod pmd;
mod privileges;
mod rdma;
mod tls;

pub use facts::facts;
pub use machine::{AfXdpSocket, Machine};
pub use pci::pci_advice;
pub use tls::{TlsCheckArgs, checks as tls_checks};

pub use linerate_compare::host_checks::{Check, Examined, Report, State, Subject};

/// Examines `machine`, which must be the machine that runs this process.
pub fn examine_here(machine: &Machine) -> Examined {
    let report = examine(machine);
    Examined { machine: facts(machine, &report), report, cores: linerate::usable_cores() }
}

/// Runs every check on a machine.
pub fn examine(machine: &Machine) -> Report {
    let dpdk = dpdk::Dpdk::find(machine);
    let interfaces = interfaces::list(machine);
    let mut details = Vec::new();
    details.extend(cpu::checks(machine));
    details.extend(memory::checks(machine));
    details.extend(iommu::checks(machine));
    details.extend(dpdk::checks(machine, dpdk.as_ref()));
    details.extend(interfaces::checks(machine, &interfaces));
    details.extend(pci::checks(machine, dpdk.as_ref(), &interfaces));
    details.extend(rdma::checks(machine, &interfaces));
    details.extend(privileges::checks(machine));
    let mut checks = networks::checks(&details);
    checks.append(&mut details);
    Report { checks }
}
