//! What a result came over, where that may be a device that is emulated in software: figures of one say nothing of others.

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

/// A result, and the device that it came over. As JSON the result's object, with `"device":{"name":…,"emulated_by":…}` in it
/// where there is one.
#[derive(Debug, Serialize)]
pub struct Over<T> {
    /// The result.
    #[serde(flatten)]
    pub result: T,
    /// The device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<Device>,
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
        self.device.iter().try_for_each(|device| write!(f, "\ndevice      {device}"))
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
        Over { result: Count { requests: 3 }, device }
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
    fn a_result_over_no_device_is_as_it_was() {
        assert_eq!((over(None).to_string(), over(None).json()), ("requests    3".into(), r#"{"requests":3}"#.into()));
    }
}
