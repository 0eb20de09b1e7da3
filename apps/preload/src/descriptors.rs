//! Table of the descriptors that belong to the stack.

use libc::c_int;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Descriptors that can belong to the stack. Higher ones stay with the kernel.
const MOST: usize = 1 << 20;

/// Index of a file of the [runtime](crate::runtime), and whether it is a datagram socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileId(u32);

impl FileId {
    /// Bit of datagram sockets.
    const DATAGRAMS: u32 = 1 << 31;

    pub fn new(index: usize, has_datagrams: bool) -> Self {
        FileId(index as u32 | if has_datagrams { Self::DATAGRAMS } else { 0 })
    }

    pub fn index(self) -> usize {
        (self.0 & !Self::DATAGRAMS) as usize
    }

    #[inline]
    pub fn has_datagrams(self) -> bool {
        self.0 & Self::DATAGRAMS != 0
    }
}

/// File of each descriptor, plus one; 0 for the kernel's. Untouched pages occupy no memory.
static TABLE: [AtomicU32; MOST] = [const { AtomicU32::new(0) }; MOST];

/// Bound of the descriptors that have been in the table.
static END: AtomicU32 = AtomicU32::new(0);

/// Returns the file of `fd`, if it belongs to the stack.
#[inline]
pub fn file(fd: c_int) -> Option<FileId> {
    let entry = TABLE.get(usize::try_from(fd).ok()?)?.load(Ordering::Acquire);
    entry.checked_sub(1).map(FileId)
}

/// Enters `fd` into the table. Returns false if it is too high.
pub fn insert(fd: c_int, file: FileId) -> bool {
    let Some(entry) = usize::try_from(fd).ok().and_then(|fd| TABLE.get(fd)) else { return false };
    END.fetch_max(fd as u32 + 1, Ordering::Relaxed);
    entry.store(file.0 + 1, Ordering::Release);
    true
}

/// Removes `fd` and returns its file.
pub fn remove(fd: c_int) -> Option<FileId> {
    file(fd)?;
    TABLE[fd as usize].swap(0, Ordering::AcqRel).checked_sub(1).map(FileId)
}

/// Returns the descriptors of the table from `first` to `last`.
pub fn range(first: u32, last: u32) -> impl Iterator<Item = c_int> {
    let end = END.load(Ordering::Relaxed).min(last.saturating_add(1));
    (first..end).map(|fd| fd as c_int).filter(|fd| file(*fd).is_some())
}

/// True if a descriptor of the kernel has been duplicated, which may be that of an epoll set.
static HAS_KERNEL_DUPLICATES: AtomicBool = AtomicBool::new(false);

/// Records that a descriptor of the kernel has been duplicated.
pub fn kernel_duplicated() {
    HAS_KERNEL_DUPLICATES.store(true, Ordering::Relaxed);
}

/// Returns whether an epoll set of the kernel may have several descriptors.
pub fn has_kernel_duplicates() -> bool {
    HAS_KERNEL_DUPLICATES.load(Ordering::Relaxed)
}

/// Epoll sets whose items are counted. Higher ones count as sets with descriptors of the kernel.
const MOST_SETS: usize = 1 << 16;

/// Descriptors of the kernel in each epoll set. One that was closed without EPOLL_CTL_DEL stays counted.
static KERNEL_ITEMS: [AtomicU32; MOST_SETS] = [const { AtomicU32::new(0) }; MOST_SETS];

/// Threads that wait in the kernel for each epoll set, while it has no sockets of the stack.
static KERNEL_WAITERS: [AtomicU32; MOST_SETS] = [const { AtomicU32::new(0) }; MOST_SETS];

/// Returns the count of threads that wait in the kernel for the epoll set; `None` for a set with a high number.
pub fn kernel_waiters(set: c_int) -> Option<&'static AtomicU32> {
    KERNEL_WAITERS.get(usize::try_from(set).ok()?)
}

/// Returns whether a thread may wait in the kernel for the epoll set.
pub fn has_kernel_waiters(set: c_int) -> bool {
    kernel_waiters(set).is_none_or(|waiters| waiters.load(Ordering::SeqCst) > 0)
}

/// Bound of the epoll sets that have had descriptors of the kernel.
static SETS_END: AtomicU32 = AtomicU32::new(0);

fn kernel_items(set: c_int) -> Option<&'static AtomicU32> {
    KERNEL_ITEMS.get(usize::try_from(set).ok()?)
}

/// Returns whether the epoll set may have descriptors of the kernel.
pub fn has_kernel_items(set: c_int) -> bool {
    kernel_items(set).is_none_or(|items| items.load(Ordering::Relaxed) > 0)
}

/// Returns whether descriptors of the kernel are counted in the epoll set.
pub fn has_counted_items(set: c_int) -> bool {
    kernel_items(set).is_some_and(|items| items.load(Ordering::Relaxed) > 0)
}

/// Counts a descriptor of the kernel that was added to the epoll set.
pub fn kernel_item_added(set: c_int) {
    if let Some(items) = kernel_items(set) {
        items.fetch_add(1, Ordering::Relaxed);
        SETS_END.fetch_max(set as u32 + 1, Ordering::Relaxed);
    }
}

/// Counts a descriptor of the kernel that was removed from the epoll set.
pub fn kernel_item_removed(set: c_int) {
    if let Some(items) = kernel_items(set) {
        let _ = items.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |items| items.checked_sub(1));
    }
}

/// True for a descriptor of the network, which the program does not know.
static PROTECTED: [AtomicBool; MOST] = [const { AtomicBool::new(false) }; MOST];

/// Bound of the descriptors that have been protected.
static PROTECTED_END: AtomicU32 = AtomicU32::new(0);

/// Keeps `fd` open when the program closes descriptors that it does not own.
pub fn protect(fd: c_int) {
    if let Some(protected) = usize::try_from(fd).ok().and_then(|fd| PROTECTED.get(fd)) {
        PROTECTED_END.fetch_max(fd as u32 + 1, Ordering::Relaxed);
        protected.store(true, Ordering::Relaxed);
    }
}

/// Returns whether `fd` is protected.
pub fn is_protected(fd: c_int) -> bool {
    let protected = usize::try_from(fd).ok().and_then(|fd| PROTECTED.get(fd));
    protected.is_some_and(|protected| protected.load(Ordering::Relaxed))
}

/// Forgets a protected descriptor that is closed.
pub fn unprotect(fd: c_int) {
    if is_protected(fd) {
        PROTECTED[fd as usize].store(false, Ordering::Relaxed);
    }
}

/// Returns the protected descriptors from `first` to `last`.
pub fn protected(first: u32, last: u32) -> impl Iterator<Item = u32> {
    let end = PROTECTED_END.load(Ordering::Relaxed).min(last.saturating_add(1));
    (first..end).filter(|fd| PROTECTED[*fd as usize].load(Ordering::Relaxed))
}

/// Returns the epoll sets that have descriptors of the kernel.
pub fn kernel_sets() -> impl Iterator<Item = c_int> {
    let end = SETS_END.load(Ordering::Relaxed).min(MOST_SETS as u32);
    (0..end).map(|set| set as c_int).filter(|set| has_counted_items(*set))
}

/// True for a descriptor of the kernel that was added to an epoll set.
static REGISTERED: [AtomicBool; MOST] = [const { AtomicBool::new(false) }; MOST];

/// Records that a descriptor of the kernel was added to an epoll set.
pub fn register(fd: c_int) {
    if let Some(registered) = usize::try_from(fd).ok().and_then(|fd| REGISTERED.get(fd)) {
        registered.store(true, Ordering::Relaxed);
    }
}

/// Returns whether [`register`] was called for `fd` since the last call.
pub fn take_registered(fd: c_int) -> bool {
    let registered = usize::try_from(fd).ok().and_then(|fd| REGISTERED.get(fd));
    registered.is_some_and(|registered| registered.load(Ordering::Relaxed) && registered.swap(false, Ordering::Relaxed))
}

/// Forgets the items of an epoll set that is closed.
pub fn set_closed(set: c_int) {
    if let Some(items) = kernel_items(set) {
        items.store(0, Ordering::Relaxed);
    }
}
