//! Queries of devices and ports.

use super::RdmaCore;
use super::answer::done;
use super::values;
use crate::provider::{DeviceLimits, Gid, Port, TransportKind};
use rdma_mummy_sys as sys;
use std::io;
use std::mem::{MaybeUninit, zeroed};

/// Soft-RoCE, the kernel module `rdma_rxe`.
pub(super) const RXE: &str = "rxe";
/// Soft-iWARP.
const SIW: &str = "siw";

fn attributes(native: &RdmaCore) -> io::Result<sys::ibv_device_attr> {
    // SAFETY: plain numbers, for which zero is valid.
    let mut attributes = unsafe { zeroed() };
    // SAFETY: `native` keeps the context open; the call writes the structure.
    done(unsafe { sys::ibv_query_device(native.context.as_ptr(), &mut attributes) })?;
    Ok(attributes)
}

pub(super) fn limits(native: &RdmaCore) -> io::Result<DeviceLimits> {
    Ok(values::limits(&attributes(native)?, transport(native)))
}

fn transport(native: &RdmaCore) -> TransportKind {
    // SAFETY: `native` keeps the context open, and the context its device.
    values::transport(unsafe { (*(*native.context.as_ptr()).device).transport_type })
}

/// Returns the software driver that emulates the device, if any.
///
/// Both drivers use fixed vendor numbers that no vendor has. `/sys/class/infiniband` does not reveal emulation: siw
/// has the NIC as its parent, like hardware.
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
    // SAFETY: plain numbers, for which zero is valid.
    let mut attributes = unsafe { zeroed() };
    // SAFETY: the context is open; the call writes the structure.
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
    // SAFETY: the call wrote that many entries, within the capacity.
    unsafe { entries.set_len(found.min(room)) };
    // SAFETY: these entries were written.
    let entries = entries.iter().map(|entry| unsafe { entry.assume_init_ref() });
    Ok(entries.filter(|entry| entry.port_num == u32::from(port)).filter_map(values::gid).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn emulation_is_detected_by_vendor_number() {
        assert_eq!([0x00ff_ffff, 0x0062_6d74].map(emulator), [Some("rxe"), Some("siw")]);
        // Mellanox, Broadcom.
        assert_eq!([0x02c9, 0x14e4, 0].map(emulator), [None; 3]);
    }
}
