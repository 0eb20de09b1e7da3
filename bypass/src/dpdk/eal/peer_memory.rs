//! Memory that the other end of a link shares with this process, and may truncate.
//!
//! A vhost-user front end and a memif client pass files whose pages hold rings and packets. They may truncate such a
//! file while this process has it mapped, after which an access raises SIGBUS (`mmap(2)`). The vhost library holds a
//! lock of the virtqueue at that moment, so a burst cannot be left by a jump. The handler maps zeros in place of the
//! file, and the access is repeated. A ring of zeros carries no packets: the link is silent until the other end
//! connects again, which unmaps the memory.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Number of mappings replaced since the process started.
static REPLACED: AtomicUsize = AtomicUsize::new(0);

/// Action of SIGBUS before [`guard`].
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Returns the number of mappings that another process truncated and that were replaced by zeros.
pub(crate) fn replaced() -> usize {
    REPLACED.load(Ordering::Relaxed)
}

/// Installs a SIGBUS handler for the rest of the process's life.
pub(crate) fn guard() {
    if BEFORE.get().is_some() {
        return;
    }
    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_bus_error;
    // SAFETY: a `sigaction` of zeros is valid: the default action with an empty mask.
    let (mut action, mut before): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as libc::sighandler_t;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: reads the current action into `before`.
    let known = unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &mut before) };
    // The handler reads the action, so it is stored first. If two ports are opened at once, one of them installs the
    // handler.
    if known == 0 && BEFORE.set(before).is_err() {
        return;
    }
    // SAFETY: the handler calls async-signal-safe functions only and allocates nothing.
    if known != 0 || unsafe { libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut()) } != 0 {
        tracing::warn!("cannot install a SIGBUS handler: a peer that truncates its shared memory ends this process");
    }
}

/// Handler of SIGBUS.
extern "C" fn on_bus_error(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a valid `siginfo_t` to a handler installed with SA_SIGINFO. `si_addr` is defined for
    // SIGBUS.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr()) };
    if code == libc::BUS_ADRERR && replace(address as usize) {
        REPLACED.fetch_add(1, Ordering::Relaxed);
        return;
    }
    let Some(before) = BEFORE.get() else { return };
    let is_function = before.sa_sigaction != libc::SIG_DFL && before.sa_sigaction != libc::SIG_IGN;
    if is_function && before.sa_flags & libc::SA_SIGINFO != 0 {
        // SAFETY: with SA_SIGINFO the field holds a function of this type, and it is called as the kernel would call
        // it.
        unsafe {
            let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                std::mem::transmute(before.sa_sigaction);
            handler(signal, info, context);
        }
    } else {
        // The access is repeated, and the previous action applies.
        // SAFETY: `before` is an action that the kernel reported.
        unsafe { libc::sigaction(signal, before, std::ptr::null_mut()) };
    }
}

/// Maps zeros in place of the shared file mapping at `address`. Returns whether there is one.
///
/// EAL's memory is excluded: a fault there means that a hugepage is missing, and zeros would destroy packets of every
/// port.
fn replace(address: usize) -> bool {
    // SAFETY: the function compares addresses with EAL's list of memory and dereferences nothing of `address`.
    if unsafe { dpdk_sys::lr_is_eal_memory(address as *const c_void) } != 0 {
        return false;
    }
    let Some(range) = shared_mapping(address) else { return false };
    // SAFETY: the range is one mapping, as the kernel listed it. It is shared, writable and not EAL's, so it belongs to
    // a library that reads memory of another process, whose contents may change at any time; zeros are such a change.
    // The thread accesses the mapping at this moment, so no other thread unmaps it: the vhost library takes the lock of
    // the virtqueue for both.
    let mapped = unsafe {
        libc::mmap(
            range.start as *mut c_void,
            range.end - range.start,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    mapped != libc::MAP_FAILED
}

/// Finds the shared, writable mapping at `address` in `/proc/self/maps`. Allocates nothing.
fn shared_mapping(address: usize) -> Option<Range<usize>> {
    let mut mappings = Mappings::default();
    let mut buffer = [0; 1024];
    // SAFETY: the path ends with NUL.
    let file = unsafe { libc::open(c"/proc/self/maps".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if file < 0 {
        return None;
    }
    let found = loop {
        // SAFETY: the buffer is valid for its length.
        let read = unsafe { libc::read(file, buffer.as_mut_ptr().cast(), buffer.len()) };
        let Some(read) = usize::try_from(read).ok().filter(|read| *read > 0) else { break None };
        let mut ends = buffer[..read].iter().filter_map(|byte| mappings.read(*byte));
        if let Some((range, is_shared)) = ends.find(|(range, _)| range.contains(&address)) {
            break is_shared.then_some(range);
        }
    };
    // SAFETY: opened above.
    unsafe { libc::close(file) };
    found
}

/// Parser of `/proc/PID/maps` (`proc_pid_maps(5)`), whose lines begin with `START-END rw-s`.
#[derive(Default)]
struct Mappings {
    /// Number of complete fields of the line.
    field: usize,
    start: usize,
    end: usize,
    /// Position in the permissions, and whether all so far match a shared, writable mapping.
    at: usize,
    is_shared: bool,
}

impl Mappings {
    /// Reads a byte. At the end of a line's permissions, returns the range and whether it is shared and writable.
    fn read(&mut self, byte: u8) -> Option<(Range<usize>, bool)> {
        const PERMISSIONS: &[u8] = b"rw-s";
        if byte == b'\n' {
            *self = Mappings::default();
            return None;
        }
        match self.field {
            0 | 1 => {
                let value = if self.field == 0 { &mut self.start } else { &mut self.end };
                match char::from(byte).to_digit(16) {
                    Some(digit) => *value = value.wrapping_mul(16).wrapping_add(digit as usize),
                    None => self.field += 1,
                }
                self.is_shared = true;
            }
            2 if byte == b' ' => {
                self.field += 1;
                return Some((self.start..self.end, self.is_shared && self.at == PERMISSIONS.len()));
            }
            2 => {
                self.is_shared &= PERMISSIONS.get(self.at) == Some(&byte);
                self.at += 1;
            }
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::{AsRawFd, FromRawFd};

    const LEN: usize = 1 << 16;

    /// Creates a file in memory and maps it with `flags`.
    fn map(flags: c_int) -> (File, *mut u8) {
        // SAFETY: the name ends with NUL; the descriptor is new and belongs to the file alone.
        let file = unsafe { File::from_raw_fd(libc::memfd_create(c"peer".as_ptr(), libc::MFD_CLOEXEC)) };
        file.set_len(LEN as u64).unwrap();
        // SAFETY: a new mapping, of a file of that length.
        let start = unsafe {
            libc::mmap(std::ptr::null_mut(), LEN, libc::PROT_READ | libc::PROT_WRITE, flags, file.as_raw_fd(), 0)
        };
        assert_ne!(start, libc::MAP_FAILED);
        (file, start.cast())
    }

    #[test]
    fn truncated_shared_memory_reads_as_zeros() {
        guard();
        let (file, start) = map(libc::MAP_SHARED);
        // SAFETY: within the mapping.
        unsafe { start.add(LEN - 1).write_volatile(7) };
        file.set_len(0).unwrap();
        let before = replaced();
        // SAFETY: within the mapping, which is replaced on the first access.
        unsafe {
            assert_eq!(start.add(LEN - 1).read_volatile(), 0);
            start.write_volatile(9);
            assert_eq!(start.read_volatile(), 9);
        }
        assert_eq!(replaced() - before, 1, "one mapping is replaced whole");
        // SAFETY: mapped above and not used afterwards.
        unsafe { libc::munmap(start.cast(), LEN) };
    }

    #[test]
    fn shared_mappings_are_distinguished_from_private_ones() {
        let (_file, private) = map(libc::MAP_PRIVATE);
        let (_other, shared) = map(libc::MAP_SHARED);
        assert_eq!(shared_mapping(private as usize), None);
        let range = shared_mapping(shared as usize + 1).unwrap();
        assert!(range.start <= shared as usize && range.end >= shared as usize + LEN, "{range:x?}");
        assert_eq!(shared_mapping(0), None);
        // SAFETY: mapped above and not used afterwards.
        unsafe {
            libc::munmap(private.cast(), LEN);
            libc::munmap(shared.cast(), LEN);
        }
    }
}
