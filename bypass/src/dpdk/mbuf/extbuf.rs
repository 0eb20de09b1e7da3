//! [`Bytes`] as the buffer of an mbuf, without a copy.
//!
//! What DPDK needs to know of an external buffer (`rte_mbuf_ext_shared_info`) and the `Bytes` themselves lie in the
//! private area of the mbuf that holds them, so that attaching allocates nothing. DPDK would let a clone of such an
//! mbuf point to the same private area, which goes back to the pool with its own mbuf, perhaps first: so we never let
//! it clone one; [`duplicate`] attaches a clone of the `Bytes` to another mbuf instead.

use super::segment::Segment;
use crate::{Bytes, Memory};
use dpdk_sys as sys;
use std::ffi::c_void;

#[repr(C)]
struct Attached {
    shared_info: [u64; (sys::LR_SHINFO_SIZE as usize).div_ceil(8)],
    bytes: Bytes,
}

/// Bytes of private area that every mbuf of our pools has at least, a multiple of the 8 that DPDK demands.
pub(crate) const PRIVATE_SIZE: u16 = {
    assert!(align_of::<Attached>() <= 8);
    (size_of::<Attached>().div_ceil(8) * 8) as u16
};

/// Makes `segment`, fresh from one of our pools, hold `bytes`. They come back when no device could reach them, or
/// there are too many for one segment.
pub(crate) fn attach(segment: Segment, bytes: Bytes) -> Result<(), Bytes> {
    let (address, iova) = match reach(&bytes) {
        Some(found) => found,
        None => return Err(bytes),
    };
    let len = bytes.len() as u16;
    let attached = segment.private().cast::<Attached>();
    // SAFETY: the private area has `PRIVATE_SIZE` bytes aligned to 8, and nobody uses it: the mbuf is fresh. The
    // buffer stays where it is until `release` drops the bytes, and nobody writes it: it is not exclusive.
    unsafe {
        (&raw mut (*attached).bytes).write(bytes);
        sys::lr_attach_external(
            segment.as_ptr(),
            address.cast(),
            iova,
            len,
            (&raw mut (*attached).shared_info).cast(),
            Some(release),
            attached.cast(),
        );
    }
    Ok(())
}

/// The address of `bytes` in this process and for a device.
fn reach(bytes: &Bytes) -> Option<(*mut u8, u64)> {
    if bytes.memory() != Memory::Device || bytes.is_empty() || bytes.len() > usize::from(u16::MAX) {
        return None;
    }
    let address = bytes.as_ptr().cast_mut();
    // SAFETY: the bytes lie in EAL's memory (contract of `Memory::Device`).
    let iova = unsafe { sys::lr_iova(address.cast(), bytes.len()) };
    (iova != sys::LR_BAD_IOVA).then_some((address, iova))
}

/// The bytes that [`attach`] put into `segment`, if it was `attach` that did.
pub(crate) fn attached(segment: &Segment) -> Option<&Bytes> {
    let ours = segment.is_external() && segment.shinfo() == segment.private();
    // SAFETY: `attach` wrote them, and they are there until the mbuf is freed; a driver that attaches a buffer of its
    // own keeps its shared information elsewhere.
    ours.then(|| unsafe { &(*segment.private().cast::<Attached>()).bytes })
}

/// Makes `copy`, fresh from one of our pools, hold the same data as `segment`, which holds `bytes`.
pub(crate) fn duplicate(segment: Segment, bytes: &Bytes, copy: Segment) -> bool {
    if attach(copy, bytes.clone()).is_err() {
        return false;
    }
    copy.set_data_off(segment.data_off());
    copy.set_data_len(segment.data_len());
    copy.set_pkt_len(segment.data_len());
    true
}

unsafe extern "C" fn release(_address: *mut c_void, opaque: *mut c_void) {
    // SAFETY: `opaque` is the private area that `attach` filled; DPDK calls this once, before the mbuf goes back.
    drop(unsafe { (&raw const (*opaque.cast::<Attached>()).bytes).read() });
}
