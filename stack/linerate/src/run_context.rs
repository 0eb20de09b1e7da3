//! Facts that qualify the measurements of a run: a device emulated in software, or threads that shared a core.

use std::fmt;

/// RDMA device of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Device {
    /// Device name.
    pub name: String,
    /// Driver that emulates the device in software, if any.
    pub emulated_by: Option<String>,
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.emulated_by {
            Some(driver) => write!(f, "{}, emulated in software by {driver}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

/// `--threading split`: services run on their own threads, apart from their workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Threading {
    /// Set if some of these threads share a core, because there are too few cores.
    pub co_scheduled: bool,
}

impl fmt::Display for Threading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.co_scheduled { "split, co-scheduled" } else { "split" })
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for Threading {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Context of a run. JSON (feature `serde`) has the fields that are present: `"device":{"name":…,"emulated_by":…}`, and
/// `"threading":"split"` or `"split, co-scheduled"`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct RunContext {
    /// The RDMA device.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub device: Option<Device>,
    /// Present if services did not run on their workers' threads.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub threading: Option<Threading>,
}

impl From<Device> for RunContext {
    fn from(device: Device) -> RunContext {
        RunContext { device: Some(device), threading: None }
    }
}
