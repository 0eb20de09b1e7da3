//! Result of a run with the context that is necessary to interpret it.

use linerate::RunContext;
use serde::Serialize;
use std::fmt;

/// A result and its [`RunContext`]. JSON has the result's object with the context's fields added.
#[derive(Debug, Serialize)]
pub struct WithContext<T> {
    /// The result.
    #[serde(flatten)]
    pub result: T,
    /// The context.
    #[serde(flatten)]
    pub context: RunContext,
}

impl<T: Serialize> WithContext<T> {
    /// Returns the result as one JSON object.
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("a result consists of plain numbers")
    }
}

impl<T: fmt::Display> fmt::Display for WithContext<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.result)?;
        let RunContext { device, threading } = &self.context;
        device.iter().try_for_each(|device| write!(f, "\ndevice      {device}"))?;
        threading.iter().try_for_each(|threading| write!(f, "\nthreading   {threading}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate::{Device, Threading};

    #[derive(Serialize)]
    struct Count {
        requests: u64,
    }

    impl fmt::Display for Count {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "requests    {}", self.requests)
        }
    }

    fn over(device: Option<(&str, Option<&str>)>) -> WithContext<Count> {
        let device = device.map(|(name, by)| Device { name: name.to_owned(), emulated_by: by.map(str::to_owned) });
        WithContext { result: Count { requests: 3 }, context: RunContext { device, threading: None } }
    }

    #[test]
    fn device_and_its_emulator_are_part_of_the_result() {
        let rxe = over(Some(("rxe0", Some("rxe"))));
        assert_eq!(rxe.to_string(), "requests    3\ndevice      rxe0, emulated in software by rxe");
        assert_eq!(rxe.json(), r#"{"requests":3,"device":{"name":"rxe0","emulated_by":"rxe"}}"#);
        let real = over(Some(("mlx5_0", None)));
        assert_eq!(real.to_string(), "requests    3\ndevice      mlx5_0");
        assert_eq!(real.json(), r#"{"requests":3,"device":{"name":"mlx5_0","emulated_by":null}}"#);
    }

    #[test]
    fn co_scheduled_threads_are_part_of_the_result() {
        let split = |co_scheduled| {
            let context = RunContext { device: None, threading: Some(Threading { co_scheduled }) };
            WithContext { result: Count { requests: 3 }, context }
        };
        assert_eq!(split(false).json(), r#"{"requests":3,"threading":"split"}"#);
        assert_eq!(split(true).to_string(), "requests    3\nthreading   split, co-scheduled");
    }

    #[test]
    fn result_without_context_has_no_extra_fields() {
        assert_eq!((over(None).to_string(), over(None).json()), ("requests    3".into(), r#"{"requests":3}"#.into()));
    }
}
