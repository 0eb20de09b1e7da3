//! Prefetching into the CPU cache.

pub(crate) const CACHE_LINE: usize = 64;

/// Prefetches the first cache line of `value`. Affects performance only.
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

/// Prefetches all cache lines of `value`.
#[inline(always)]
pub fn prefetch_whole<T>(value: &T) {
    let start: *const u8 = std::ptr::from_ref(value).cast();
    for offset in (0..size_of::<T>()).step_by(CACHE_LINE) {
        line(start.wrapping_add(offset));
    }
}

/// Prefetches the first cache line of `bytes`, if there is one.
#[inline(always)]
pub fn prefetch_slice(bytes: &[u8]) {
    if !bytes.is_empty() {
        line(bytes.as_ptr());
    }
}

/// Prefetches all cache lines of the `len` bytes at `next`. The address need not be valid.
#[inline(always)]
pub(crate) fn prefetch_range(mut next: *const u8, len: usize) {
    let Some(last) = len.checked_sub(1) else { return };
    if last <= 2 * CACHE_LINE {
        // One to three lines, without a branch on their number, which would be mispredicted.
        return [0, last / 2, last].into_iter().for_each(|at| line(next.wrapping_add(at)));
    }
    let end = next.wrapping_add(len);
    next = next.wrapping_sub(next.addr() % CACHE_LINE);
    while next < end {
        line(next);
        next = next.wrapping_add(CACHE_LINE);
    }
}

/// Prefetches the cache line at `address` for writing, which invalidates it in other cores. The address need not be
/// valid.
#[cfg(feature = "dpdk")]
#[inline(always)]
pub(crate) fn prefetch_for_write(address: *const u8) {
    // The intrinsic emits this instruction only for target CPUs that are known to have it, and otherwise one that
    // leaves the line shared.
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction neither faults nor has architectural effects, whatever the address. CPUs without it
    // execute a no-op.
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
    // SAFETY: SSE, which has the instruction, is part of x86-64. The instruction neither faults nor has architectural
    // effects, whatever the address.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
}

/// Does nothing: other CPUs have no stable prefetch intrinsic.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn line(_address: *const u8) {}
