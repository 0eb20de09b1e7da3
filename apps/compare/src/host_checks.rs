//! What `linerate doctor` found on a host, as `doctor --json` prints it and `compare` reads it.

use crate::results;
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

/// The name of a check that must not be missing.
pub type Need = (Subject, &'static str);

/// Forms by name, how each is written, and what it needs.
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
    ("virtio-user", "virtio-user:/run/a.sock", &[(Subject::Dpdk, "net_virtio_user")]),
    ("vhost", "vhost:/run/a.sock", &[(Subject::Dpdk, "net_vhost")]),
    ("memif", "memif:/run/a.sock", &[(Subject::Dpdk, "net_memif")]),
    ("pci", "pci:ADDRESS", &[]),
    ("eal", "eal", &[]),
];

/// What every form but `kernel` needs.
const DPDK: [Need; 3] = [(Subject::Dpdk, "support"), (Subject::Dpdk, "version"), (Subject::Cpu, "sse4.2")];

/// What the form of `--via` called `name` needs and is missing among `details`. Whether there is a device or an interface to use it with
/// is not asked.
pub fn missing_for<'a>(name: &str, details: &'a [Check]) -> Vec<&'a Check> {
    let needs = FORMS.iter().find(|(form, _, _)| *form == name).map_or(&[][..], |(_, _, needs)| *needs);
    missing(details, needs)
}

/// Returns the checks among `details` that report one of `needs`, or of what every form needs, as missing.
pub fn missing<'a>(details: &'a [Check], needs: &[Need]) -> Vec<&'a Check> {
    let of = |&(subject, name): &Need| {
        details.iter().find(|check| check.subject == subject && check.name == name && check.state == State::Missing)
    };
    DPDK.iter().chain(needs).filter_map(of).collect()
}
