//! Resources of this process: processor time and open files.

use std::io;
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

/// Lets this process have `wanted` files open, each socket being one, or as many as it may if that is fewer or if none is named
/// (getrlimit(2), RLIMIT_NOFILE). It is never let have fewer than before. Returns how many it may have open.
///
/// # Errors
/// What the system says.
pub fn raise_open_files(wanted: Option<u64>) -> io::Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the place is one for what is written there.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let raised = wanted.map_or(limit.rlim_max, |wanted| wanted.min(limit.rlim_max));
    if limit.rlim_cur < raised {
        limit.rlim_cur = raised;
        // SAFETY: it is a limit, which is only read.
        if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(limit.rlim_cur)
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

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no getrlimit(2)")]
    fn the_limit_is_raised_as_far_as_it_may_be_and_never_lowered() {
        let before = raise_open_files(Some(0)).unwrap();
        assert!(before > 0);
        assert_eq!(raise_open_files(Some(before)).unwrap(), before);
        assert_eq!(raise_open_files(Some(before - 1)).unwrap(), before);
        let most = raise_open_files(None).unwrap();
        assert!(most >= before);
        let now = std::fs::read_to_string("/proc/self/limits").unwrap();
        let line = now.lines().find(|line| line.starts_with("Max open files")).unwrap();
        let numbers: Vec<_> = line.split_whitespace().skip(3).take(2).collect();
        assert_eq!(numbers[0], numbers[1], "{line}");
        assert_eq!(raise_open_files(Some(u64::MAX)).unwrap(), most);
    }
}
