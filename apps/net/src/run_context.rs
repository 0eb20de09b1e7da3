//! What a result came about by, where its figures say nothing without it: a device that may be emulated in software, and threads that
//! may have shared a core.

use serde::Serialize;
use std::fmt;

/// An RDMA device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// The driver that emulates it, if it is emulated.
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

/// Services run on threads of their own, beside their workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Threading {
    /// For want of cores, some of them share one.
    pub co_scheduled: bool,
}

impl fmt::Display for Threading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.co_scheduled { "split, co-scheduled" } else { "split" })
    }
}

impl Serialize for Threading {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// What a result came about by. As JSON what there is of `"device":{"name":…,"emulated_by":…}` and `"threading":"split"` or
/// `"split, co-scheduled"`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Basis {
    /// The device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<Device>,
    /// Where services ran, if not on their workers' threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threading: Option<Threading>,
}

impl From<Device> for Basis {
    fn from(device: Device) -> Basis {
        Basis { device: Some(device), threading: None }
    }
}

/// A result, and what it came about by. As JSON the result's object, with the [`Basis`] in it.
#[derive(Debug, Serialize)]
pub struct Over<T> {
    /// The result.
    #[serde(flatten)]
    pub result: T,
    /// What it came about by.
    #[serde(flatten)]
    pub basis: Basis,
}

impl<T: Serialize> Over<T> {
    /// One JSON object.
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("a result is made of plain numbers")
    }
}

impl<T: fmt::Display> fmt::Display for Over<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.result)?;
        let Basis { device, threading } = &self.basis;
        device.iter().try_for_each(|device| write!(f, "\ndevice      {device}"))?;
        threading.iter().try_for_each(|threading| write!(f, "\nthreading   {threading}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    struct Count {
        requests: u64,
    }

    impl fmt::Display for Count {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "requests    {}", self.requests)
        }
    }

    fn over(device: Option<(&str, Option<&str>)>) -> Over<Count> {
        let device = device.map(|(name, by)| Device { name: name.to_owned(), emulated_by: by.map(str::to_owned) });
        Over { result: Count { requests: 3 }, basis: Basis { device, threading: None } }
    }

    #[test]
    fn a_result_names_its_device_and_what_emulates_it() {
        let rxe = over(Some(("rxe0", Some("rxe"))));
        assert_eq!(rxe.to_string(), "requests    3\ndevice      rxe0, emulated in software by rxe");
        assert_eq!(rxe.json(), r#"{"requests":3,"device":{"name":"rxe0","emulated_by":"rxe"}}"#);
        let real = over(Some(("mlx5_0", None)));
        assert_eq!(real.to_string(), "requests    3\ndevice      mlx5_0");
        assert_eq!(real.json(), r#"{"requests":3,"device":{"name":"mlx5_0","emulated_by":null}}"#);
    }

    #[test]
    fn a_result_of_threads_that_shared_a_core_says_so() {
        let split = |co_scheduled| {
            let basis = Basis { device: None, threading: Some(Threading { co_scheduled }) };
            Over { result: Count { requests: 3 }, basis }
        };
        assert_eq!(split(false).json(), r#"{"requests":3,"threading":"split"}"#);
        assert_eq!(split(true).to_string(), "requests    3\nthreading   split, co-scheduled");
    }

    #[test]
    fn a_result_over_no_device_is_as_it_was() {
        assert_eq!((over(None).to_string(), over(None).json()), ("requests    3".into(), r#"{"requests":3}"#.into()));
    }
}
