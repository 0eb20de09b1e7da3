//! Asking the processor for memory before it is needed.

/// Bytes that come together.
pub(crate) const CACHE_LINE: usize = 64;

/// Begins to load the cache line at which `value` begins. It only ever costs or saves time.
///
/// ```
/// let table = vec![0u64; 1024];
/// let wanted = [7, 1000, 512];
/// wanted.iter().for_each(|at| linerate_bypass::prefetch(&table[*at]));
/// let sum: u64 = wanted.iter().map(|at| table[*at]).sum();
/// ```
#[inline(always)]
pub fn prefetch<T: ?Sized>(value: &T) {
    line(std::ptr::from_ref(value).cast());
}

/// Begins to load all cache lines of `value`.
#[inline(always)]
pub fn prefetch_whole<T>(value: &T) {
    let start: *const u8 = std::ptr::from_ref(value).cast();
    for offset in (0..size_of::<T>()).step_by(CACHE_LINE) {
        line(start.wrapping_add(offset));
    }
}

/// Begins to load the first cache line of `bytes`; nothing happens when there are none.
#[inline(always)]
pub fn prefetch_slice(bytes: &[u8]) {
    if !bytes.is_empty() {
        line(bytes.as_ptr());
    }
}

/// Begins to load all cache lines that the `len` bytes at `next` are in, whatever is there.
#[inline(always)]
pub(crate) fn prefetch_range(mut next: *const u8, len: usize) {
    let Some(last) = len.checked_sub(1) else { return };
    if last <= 2 * CACHE_LINE {
        // One to three lines: how many could not be predicted.
        return [0, last / 2, last].into_iter().for_each(|at| line(next.wrapping_add(at)));
    }
    let end = next.wrapping_add(len);
    next = next.wrapping_sub(next.addr() % CACHE_LINE);
    while next < end {
        line(next);
        next = next.wrapping_add(CACHE_LINE);
    }
}

/// Begins to load the cache line that the byte at `address` is in, so that it can be written when it is there: other cores
/// lose it. The address may be anything.
#[cfg(feature = "dpdk")]
#[inline(always)]
pub(crate) fn prefetch_to_write(address: *const u8) {
    // The intrinsic makes this instruction only where the processor is known to have it, and another, which leaves the line
    // shared, elsewhere.
    #[cfg(target_arch = "x86_64")]
    // SAFETY: it neither faults nor changes anything a program can see, whatever the address; processors that do not have
    // it take it for no operation.
    unsafe {
        std::arch::asm!("prefetchw byte ptr [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    line(address);
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn line(address: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: SSE, which has the instruction, is part of x86-64; and it neither faults nor changes anything a
    // program can see, whatever the address.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
}

/// There is no stable way to ask other processors.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn line(_address: *const u8) {}
