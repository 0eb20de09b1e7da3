//! Resources of this process and its threads: CPU time, open files, and free memory of the heap.

use std::io;
use std::mem::MaybeUninit;
use std::sync::Once;
use std::time::Duration;

/// Interval at which the free memory of the heap is checked.
const TRIM_PERIOD: Duration = Duration::from_secs(5);
/// Growth of the resident free memory that is returned to the system, in bytes.
const TRIM_MIN: usize = 16 << 20;

/// CPU time of this process with all its threads, or of one thread (getrusage(2)).
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct CpuTime {
    /// Time in user mode.
    pub user: Duration,
    /// Time in kernel mode.
    pub system: Duration,
}

impl CpuTime {
    /// Returns the time that this process has used so far.
    pub fn now() -> Self {
        Self::of(libc::RUSAGE_SELF)
    }

    /// Returns the time that this thread has used so far.
    pub fn of_thread() -> Self {
        Self::of(libc::RUSAGE_THREAD)
    }

    /// Returns the sum of both in microseconds.
    pub fn micros(&self) -> u64 {
        u64::try_from((self.user + self.system).as_micros()).unwrap_or(u64::MAX)
    }

    fn of(whose: libc::c_int) -> Self {
        let mut usage = MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: the pointer is valid for a `rusage`.
        unsafe { libc::getrusage(whose, usage.as_mut_ptr()) };
        // SAFETY: `rusage` consists of integers, which were zeroed.
        let usage = unsafe { usage.assume_init() };
        let time = |time: libc::timeval| {
            let (seconds, micros) = (u64::try_from(time.tv_sec), u64::try_from(time.tv_usec));
            Duration::from_secs(seconds.unwrap_or(0)) + Duration::from_micros(micros.unwrap_or(0))
        };
        CpuTime { user: time(usage.ru_utime), system: time(usage.ru_stime) }
    }
}

/// Raises the limit of open files, sockets included, to `wanted`, or to the hard limit if that is lower or `wanted` is
/// `None` (getrlimit(2), RLIMIT_NOFILE). Never lowers the limit. Returns the limit.
///
/// # Errors
/// The error of getrlimit(2) or setrlimit(2).
pub fn raise_open_files(wanted: Option<u64>) -> io::Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is valid for a `rlimit`.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let raised = wanted.map_or(limit.rlim_max, |wanted| wanted.min(limit.rlim_max));
    if limit.rlim_cur < raised {
        limit.rlim_cur = raised;
        // SAFETY: the pointer is valid; the kernel only reads it.
        if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(limit.rlim_cur)
}

/// Starts a thread, once per process, that returns free memory of the heap to the system when its resident part has
/// grown by 16 MB.
///
/// glibc keeps free memory below the end of the heap, and on all threads but the first it keeps most of it
/// (malloc_trim(3)), so that the memory of a backlog would stay resident after the backlog. Allocations of other
/// threads wait while the memory is returned. Does nothing with another C library.
pub fn trim_heap() {
    static STARTED: Once = Once::new();
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    STARTED.call_once(|| {
        // Without the thread the memory stays resident.
        let _ = std::thread::Builder::new().name("heap".into()).spawn(|| {
            let mut least = Heap::now().unused();
            loop {
                std::thread::sleep(TRIM_PERIOD);
                let before = Heap::now();
                least = least.min(before.unused());
                if before.free >= TRIM_MIN && before.unused() - least >= TRIM_MIN {
                    // SAFETY: takes no pointers, locks the heap, and releases only pages of free blocks.
                    unsafe { libc::malloc_trim(0) };
                    let after = Heap::now();
                    // Memory that other threads freed meanwhile is not returned yet.
                    least = Heap { used: before.used.max(after.used), ..after }.unused();
                }
            }
        });
    });
}

/// Memory of the heap and of the process in bytes.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
struct Heap {
    used: usize,
    /// Free in the heap, resident or not.
    free: usize,
    /// Resident memory of the process.
    resident: usize,
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
impl Heap {
    fn now() -> Self {
        // SAFETY: takes no arguments, and locks the heap.
        let heap = unsafe { libc::mallinfo2() };
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
        let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0);
        let resident = pages.saturating_mul(rustix::param::page_size());
        Heap { used: heap.uordblks + heap.hblkhd, free: heap.fordblks, resident }
    }

    /// Returns the resident memory that is not allocated from the heap. It grows with the resident part of the free
    /// memory, which is not known.
    fn unused(&self) -> usize {
        self.resident.saturating_sub(self.used)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no getrusage(2)")]
    fn cpu_time_grows_with_computation() {
        let before = CpuTime::now();
        let mut number = 1_u64;
        while CpuTime::now().user <= before.user {
            (0..100_000_u64).for_each(|n| number = std::hint::black_box(number.wrapping_mul(n | 1)));
        }
        assert!(CpuTime::now().system >= before.system);
        assert!(CpuTime::of_thread().micros() > 0 && CpuTime::of_thread().user <= CpuTime::now().user);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no getrlimit(2)")]
    fn open_file_limit_is_raised_up_to_the_hard_limit_and_never_lowered() {
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
