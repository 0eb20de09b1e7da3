//! What a device and its ports say about themselves.

use super::RdmaCore;
use super::answer::done;
use super::values;
use crate::provider::{DeviceLimits, Gid, Port, TransportKind};
use rdma_mummy_sys as sys;
use std::io;
use std::mem::{MaybeUninit, zeroed};

/// Soft-RoCE, the kernel's module `rdma_rxe`.
pub(super) const RXE: &str = "rxe";
/// Soft-iWARP.
const SIW: &str = "siw";

fn attributes(native: &RdmaCore) -> io::Result<sys::ibv_device_attr> {
    // SAFETY: a structure of numbers, for which zero is a value.
    let mut attributes = unsafe { zeroed() };
    // SAFETY: the context is open as long as `native` lives, and the structure is written.
    done(unsafe { sys::ibv_query_device(native.context.as_ptr(), &mut attributes) })?;
    Ok(attributes)
}

pub(super) fn limits(native: &RdmaCore) -> io::Result<DeviceLimits> {
    Ok(values::limits(&attributes(native)?, transport(native)))
}

fn transport(native: &RdmaCore) -> TransportKind {
    // SAFETY: the context is open, and has its device as long.
    values::transport(unsafe { (*(*native.context.as_ptr()).device).transport_type })
}

/// The driver in software that emulates the device, if one does.
///
/// Both have numbers of vendors that no vendor has, and which nobody can change. Whether there is hardware below cannot be
/// seen from `/sys/class/infiniband`: siw has the NIC for its parent, as NICs themselves do.
pub(super) fn emulated_by(native: &RdmaCore) -> io::Result<Option<String>> {
    let vendor = attributes(native)?.vendor_id;
    Ok(emulator(vendor).map(str::to_owned))
}

fn emulator(vendor: u32) -> Option<&'static str> {
    match vendor {
        0x00ff_ffff => Some(RXE),
        0x0062_6d74 => Some(SIW),
        _ => None,
    }
}

fn port_attributes(native: &RdmaCore, port: u8) -> io::Result<sys::ibv_port_attr> {
    // SAFETY: a structure of numbers, for which zero is a value.
    let mut attributes = unsafe { zeroed() };
    // SAFETY: the context is open, and the structure is written.
    done(unsafe { sys::ibv_query_port(native.context.as_ptr(), port, &mut attributes) })?;
    Ok(attributes)
}

pub(super) fn port(native: &RdmaCore, port: u8) -> io::Result<Port> {
    values::port(&port_attributes(native, port)?)
}

pub(super) fn gids(native: &RdmaCore, port: u8) -> io::Result<Vec<Gid>> {
    let ports = attributes(native)?.phys_port_cnt;
    let mut room = 0;
    for port in 1..=ports {
        room += usize::try_from(port_attributes(native, port)?.gid_tbl_len).unwrap_or(0);
    }
    let mut entries: Vec<MaybeUninit<sys::ibv_gid_entry>> = Vec::with_capacity(room.max(1));
    let start = entries.spare_capacity_mut().as_mut_ptr().cast();
    // SAFETY: there is room for that many entries, and the context is open.
    let found = unsafe { sys::ibv_query_gid_table(native.context.as_ptr(), start, room, 0) };
    let Ok(found) = usize::try_from(found) else {
        return Err(io::Error::from_raw_os_error(i32::try_from(found.unsigned_abs()).unwrap_or(libc::EIO)));
    };
    // SAFETY: as many entries were written as it says, which is no more than there was room for.
    unsafe { entries.set_len(found.min(room)) };
    // SAFETY: these were written.
    let entries = entries.iter().map(|entry| unsafe { entry.assume_init_ref() });
    Ok(entries.filter(|entry| entry.port_num == u32::from(port)).filter_map(values::gid).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn emulation_is_told_by_numbers_that_no_vendor_has() {
        assert_eq!([0x00ff_ffff, 0x0062_6d74].map(emulator), [Some("rxe"), Some("siw")]);
        // Mellanox, Broadcom.
        assert_eq!([0x02c9, 0x14e4, 0].map(emulator), [None; 3]);
    }
}
