//! External buffers: [`Bytes`] as the buffer of an mbuf, without a copy.
//!
//! The `rte_mbuf_ext_shared_info` and the `Bytes` lie in the private area of the mbuf, so attaching allocates nothing.
//! A clone by DPDK would point to the private area of the original mbuf, which may return to its pool first. Such mbufs
//! are therefore never cloned by DPDK: [`duplicate`] attaches a clone of the `Bytes` to another mbuf.

use super::segment::Segment;
use dpdk_sys as sys;
use linerate_service::{Bytes, Memory};
use std::ffi::c_void;

#[repr(C)]
struct Attached {
    shared_info: [u64; (sys::LR_SHINFO_SIZE as usize).div_ceil(8)],
    bytes: Bytes,
}

/// Minimum private area of an mbuf of this crate's pools, a multiple of 8 as DPDK requires.
pub(crate) const PRIVATE_SIZE: u16 = {
    assert!(align_of::<Attached>() <= 8);
    (size_of::<Attached>().div_ceil(8) * 8) as u16
};

/// Attaches `bytes` to `segment`, freshly allocated from a pool of this crate. Returns `bytes` if devices cannot access
/// them or they exceed one segment.
pub(crate) fn attach(segment: Segment, bytes: Bytes) -> Result<(), Bytes> {
    let (address, iova) = match reach(&bytes) {
        Some(found) => found,
        None => return Err(bytes),
    };
    let len = bytes.len() as u16;
    let attached = segment.private().cast::<Attached>();
    // SAFETY: the private area has `PRIVATE_SIZE` bytes aligned to 8 and is unused, because the mbuf is fresh. The
    // buffer stays in place until `release` drops the bytes, and is not written: the segment is not exclusive.
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

/// Returns the address of `bytes` in this process and for a device.
fn reach(bytes: &Bytes) -> Option<(*mut u8, u64)> {
    if bytes.memory() != Memory::Device || bytes.is_empty() || bytes.len() > usize::from(u16::MAX) {
        return None;
    }
    let address = bytes.as_ptr().cast_mut();
    // SAFETY: the bytes lie in EAL's memory (contract of `Memory::Device`).
    let iova = unsafe { sys::lr_iova(address.cast(), bytes.len()) };
    (iova != sys::LR_BAD_IOVA).then_some((address, iova))
}

pub(crate) fn attached(segment: &Segment) -> Option<&Bytes> {
    let is_attached = segment.is_external() && segment.shinfo() == segment.private();
    // SAFETY: `attach` wrote them, and they exist until the mbuf is freed. A driver that attaches its own buffer keeps
    // the shared info elsewhere.
    is_attached.then(|| unsafe { &(*segment.private().cast::<Attached>()).bytes })
}

/// Attaches the data of `segment`, which holds `bytes`, to `copy`, freshly allocated from a pool of this crate.
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
    // SAFETY: `opaque` is the private area that `attach` filled. DPDK calls this once, before it returns the mbuf.
    drop(unsafe { (&raw const (*opaque.cast::<Attached>()).bytes).read() });
}
