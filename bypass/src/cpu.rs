//! What this process has had of the processors.

use std::mem::MaybeUninit;
use std::time::Duration;

/// How long processors were busy with this process, on all of its threads since it began (getrusage(2)).
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct CpuTime {
    /// In its own code.
    pub user: Duration,
    /// In the kernel, on its behalf.
    pub system: Duration,
}

impl CpuTime {
    /// Until now.
    pub fn now() -> Self {
        let mut usage = MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: the place is one for what is written there.
        unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) };
        // SAFETY: it is numbers, which were all 0 before and are whatever was written since.
        let usage = unsafe { usage.assume_init() };
        let time = |time: libc::timeval| {
            let (seconds, micros) = (u64::try_from(time.tv_sec), u64::try_from(time.tv_usec));
            Duration::from_secs(seconds.unwrap_or(0)) + Duration::from_micros(micros.unwrap_or(0))
        };
        CpuTime { user: time(usage.ru_utime), system: time(usage.ru_stime) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no getrusage(2)")]
    fn who_computes_is_seen_to_have_computed() {
        let before = CpuTime::now();
        let mut number = 1_u64;
        while CpuTime::now().user <= before.user {
            (0..100_000_u64).for_each(|n| number = std::hint::black_box(number.wrapping_mul(n | 1)));
        }
        assert!(CpuTime::now().system >= before.system);
    }
}
