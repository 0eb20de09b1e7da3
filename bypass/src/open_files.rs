//! How many files this process may have open.

use std::io;

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
