//! What this host can do for Linerate, and for every shortfall the command that mends it.
//!
//! Each subject has its file with a function from a [`Machine`] to [`Check`]s. A machine is a root directory (the real
//! `/`, or a fabricated tree in tests) and the answers of the few questions that no file answers.

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

pub use facts::facts;
pub use machine::{AfXdpSocket, Machine};
pub use networks::missing_for;

use crate::compare::results;
use serde::{Deserialize, Serialize};

/// What a check is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Subject {
    /// The forms of `--via`, each with what it needs.
    Networks,
    /// The processor and its cores.
    Cpu,
    /// NUMA nodes, hugepages, locked memory.
    Memory,
    /// IOMMU, VFIO and UIO, which PCI devices need.
    Iommu,
    /// DPDK and its drivers.
    Dpdk,
    /// The kernel's network interfaces.
    Interfaces,
    /// Network devices on PCI.
    Pci,
    /// RDMA devices and libraries.
    Rdma,
    /// What this user may do.
    Privileges,
}

/// How it stands with what was checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// As it should be, or not needed.
    Ok,
    /// It works, but slower, or not for everything.
    Warn,
    /// Something cannot be used until this is mended.
    Missing,
}

/// One thing that was looked at. The field names are those of `--json` and stay as they are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// What it belongs to.
    pub subject: Subject,
    /// What was looked at: unique within its subject.
    pub name: String,
    /// How it stands.
    pub state: State,
    /// What is there, in words.
    pub found: String,
    /// What to give `--via` to use it.
    pub via: Vec<String>,
    /// The command that mends it; absent where nothing is to be mended, or no command can.
    pub remedy: Option<String>,
}

impl Check {
    fn new(subject: Subject, name: impl Into<String>, state: State, found: impl Into<String>) -> Check {
        Check { subject, name: name.into(), state, found: found.into(), via: Vec::new(), remedy: None }
    }

    fn remedy(self, remedy: impl Into<String>) -> Check {
        Check { remedy: Some(remedy.into()), ..self }
    }

    fn via(self, via: impl Into<String>) -> Check {
        Check { via: vec![via.into()], ..self }
    }
}

/// Everything that was looked at, by subject.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// In the order in which people read it.
    pub checks: Vec<Check>,
}

impl Report {
    /// How many checks are in a state.
    pub fn count(&self, state: State) -> usize {
        self.checks.iter().filter(|check| check.state == state).count()
    }
}

/// All that is known of a machine, as `--json` has it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Examined {
    /// What was looked at.
    #[serde(flatten)]
    pub report: Report,
    /// What it is.
    pub machine: results::Machine,
    /// The cores that a process may use.
    pub cores: Vec<usize>,
}

impl Examined {
    /// `machine`, which is the one that this runs on.
    pub fn new(machine: &Machine) -> Examined {
        let report = examine(machine);
        Examined { machine: facts(machine, &report), report, cores: crate::net::usable_cores() }
    }
}

/// Looks at all of a machine.
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
