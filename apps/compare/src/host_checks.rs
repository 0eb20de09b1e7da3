//! Host checks: output of `linerate doctor --json`, which `linerate compare` reads.

use crate::results;
use serde::{Deserialize, Serialize};

/// Subject of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Subject {
    /// Forms of `--via`, with the requirements of each.
    Networks,
    /// Processor and cores.
    Cpu,
    /// NUMA nodes, hugepages, locked memory.
    Memory,
    /// IOMMU, VFIO and UIO, required for PCI devices.
    Iommu,
    /// DPDK and its drivers.
    Dpdk,
    /// Network interfaces of the kernel.
    Interfaces,
    /// PCI network devices.
    Pci,
    /// RDMA devices and libraries.
    Rdma,
    /// Privileges of this user.
    Privileges,
    /// A certificate for TLS.
    Tls,
}

/// Result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Correct, or not needed.
    Ok,
    /// Usable, but slower or only in part.
    Warn,
    /// Not usable until fixed.
    Missing,
}

/// One check. `--json` prints the fields under these names, which are stable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// Subject that the check belongs to.
    pub subject: Subject,
    /// Name, unique within the subject.
    pub name: String,
    /// Result.
    pub state: State,
    /// Description of the finding.
    pub found: String,
    /// Arguments of `--via` that the finding makes usable.
    pub via: Vec<String>,
    /// Command that fixes the problem. `None` if there is no problem, or if no command fixes it.
    pub remedy: Option<String>,
}

impl Check {
    /// Creates a check without `via` and remedy.
    pub fn new(subject: Subject, name: impl Into<String>, state: State, found: impl Into<String>) -> Check {
        Check { subject, name: name.into(), state, found: found.into(), via: Vec::new(), remedy: None }
    }

    /// Sets the remedy.
    pub fn remedy(self, remedy: impl Into<String>) -> Check {
        Check { remedy: Some(remedy.into()), ..self }
    }

    /// Sets the only `via`.
    pub fn via(self, via: impl Into<String>) -> Check {
        Check { via: vec![via.into()], ..self }
    }
}

/// Checks of a host, grouped by subject.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Checks in display order.
    pub checks: Vec<Check>,
}

impl Report {
    /// Returns the number of checks with a result.
    pub fn count(&self, state: State) -> usize {
        self.checks.iter().filter(|check| check.state == state).count()
    }
}

/// Output of `linerate doctor --json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Examined {
    /// Checks.
    #[serde(flatten)]
    pub report: Report,
    /// Description of the machine.
    pub machine: results::Machine,
    /// Cores available to a process.
    pub cores: Vec<usize>,
}

/// Name of a check that must not be missing.
pub type Need = (Subject, &'static str);

/// Forms of `--via`: name, syntax, and requirements.
pub const FORMS: [(&str, &str, &[Need]); 7] = [
    (
        "af_xdp",
        "af_xdp:INTERFACE",
        &[
            (Subject::Dpdk, "net_af_xdp"),
            (Subject::Interfaces, "af_xdp socket"),
            (Subject::Privileges, "cap_net_admin"),
            (Subject::Privileges, "cap_net_raw"),
            (Subject::Privileges, "cap_sys_admin"),
        ],
    ),
    (
        "tap",
        "tap:lr0",
        &[(Subject::Dpdk, "net_tap"), (Subject::Privileges, "cap_net_admin"), (Subject::Privileges, "/dev/net/tun")],
    ),
    ("virtio-user", "virtio-user:/tmp/a.sock", &[(Subject::Dpdk, "net_virtio_user")]),
    ("vhost", "vhost:/tmp/a.sock", &[(Subject::Dpdk, "net_vhost")]),
    ("memif", "memif:/tmp/a.sock", &[(Subject::Dpdk, "net_memif")]),
    ("pci", "pci:ADDRESS", &[]),
    ("eal", "eal", &[]),
];

/// Requirements of every form except `kernel`.
const DPDK: [Need; 3] = [(Subject::Dpdk, "support"), (Subject::Dpdk, "version"), (Subject::Cpu, "sse4.2")];

/// Returns the requirements of the `--via` form `name` that are missing according to `details`. Does not consider
/// whether a device or an interface exists.
pub fn missing_for<'a>(name: &str, details: &'a [Check]) -> Vec<&'a Check> {
    let needs = FORMS.iter().find(|(form, _, _)| *form == name).map_or(&[][..], |(_, _, needs)| *needs);
    missing(details, needs)
}

/// Returns the checks in `details` that report a requirement as missing: one of `needs`, or one common to all forms.
pub fn missing<'a>(details: &'a [Check], needs: &[Need]) -> Vec<&'a Check> {
    let of = |&(subject, name): &Need| {
        details.iter().find(|check| check.subject == subject && check.name == name && check.state == State::Missing)
    };
    DPDK.iter().chain(needs).filter_map(of).collect()
}
