//! Enumerating and opening devices.

use super::answer::set_nonblocking;
use super::device;
use super::error::{Error, loads_modules};
use rdma_mummy_sys as sys;
use std::ffi::CStr;
use std::io;
use std::path::Path;
use std::ptr::NonNull;

/// Open device of this machine.
///
/// Two values of the same device share rdma-core's context, and each would take asynchronous events of the other:
/// open a device once, and share it.
pub struct RdmaCore {
    pub(super) context: NonNull<sys::ibv_context>,
    pub(super) name: String,
    pub(super) emulated_by: Option<String>,
    held: Held,
}

/// Owner of the context.
enum Held {
    /// librdmacm: the device list that contains the context keeps it open.
    Manager(NonNull<*mut sys::ibv_context>),
    /// This process, by `ibv_open_device`.
    Own,
}

// SAFETY: rdma-core's contexts and objects may be used by any thread (ibv_open_device(3) and others; the libraries
// lock where needed), and the other fields do not change.
unsafe impl Send for RdmaCore {}
// SAFETY: as above.
unsafe impl Sync for RdmaCore {}

impl RdmaCore {
    /// Returns the names of the devices.
    ///
    /// # Errors
    /// [`Error::NoLibraries`], [`Error::NoKernel`], and other failures to list them.
    pub fn devices() -> Result<Vec<String>, Error> {
        let list = List::new().map_err(|error| Error::of("*", error))?;
        // SAFETY: the devices belong to the list, which is live.
        Ok(list.devices().iter().map(|&device| unsafe { name_of(device) }).collect())
    }

    /// Opens the device `name`. With a connection manager, uses the context that librdmacm has opened, because a
    /// queue pair and its identifier must have the same context.
    ///
    /// # Errors
    /// [`Error`].
    pub fn open(name: &str) -> Result<RdmaCore, Error> {
        let error = |error| Error::of(name, error);
        // Unlike librdmacm, libibverbs reports the cause of an empty list.
        let list = List::new().map_err(error)?;
        // SAFETY: the devices belong to the list, which is live.
        let there: Vec<String> = list.devices().iter().map(|&device| unsafe { name_of(device) }).collect();
        let Some(index) = there.iter().position(|one| one == name) else {
            return Err(absent(name, there));
        };
        let (context, held) = match from_manager(name) {
            Ok(found) => found,
            Err(reason) if reason.raw_os_error() == Some(libc::EOPNOTSUPP) => return Err(Error::NoLibraries),
            Err(reason) => {
                let remedy = if loads_modules() { ": modprobe rdma_ucm" } else { "" };
                tracing::warn!("RDMA device {name} without the connection manager: {reason}{remedy}");
                // SAFETY: the device is in the list, which is live.
                let context = unsafe { sys::ibv_open_device(list.devices()[index]) };
                (NonNull::new(context).ok_or_else(|| error(io::Error::last_os_error()))?, Held::Own)
            }
        };
        let mut native = RdmaCore { context, name: name.to_owned(), emulated_by: None, held };
        // SAFETY: the open context keeps the descriptor open.
        unsafe { set_nonblocking((*context.as_ptr()).async_fd) }.map_err(error)?;
        native.emulated_by = device::emulated_by(&native).map_err(error)?;
        Ok(native)
    }

    /// Returns true if the connection manager (`rdma_cm`) is available.
    pub fn has_connection_manager(&self) -> bool {
        matches!(self.held, Held::Manager(_))
    }
}

impl Drop for RdmaCore {
    fn drop(&mut self) {
        match self.held {
            // SAFETY: the list was returned by `rdma_get_devices` and is freed once.
            Held::Manager(list) => unsafe { sys::rdma_free_devices(list.as_ptr()) },
            Held::Own => {
                // SAFETY: the context was opened by this process and is no longer in use: calls borrow `self`, and
                // objects were destroyed before.
                unsafe { sys::ibv_close_device(self.context.as_ptr()) };
            }
        }
    }
}

impl std::fmt::Debug for RdmaCore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Native")
            .field("name", &self.name)
            .field("emulated_by", &self.emulated_by)
            .finish_non_exhaustive()
    }
}

/// Returns the error for a device that rdma-core does not list.
fn absent(name: &str, there: Vec<String>) -> Error {
    let name = name.to_owned();
    // A device name is a single path component.
    let is_in_kernel = !name.is_empty()
        && !name.contains('/')
        && !name.starts_with('.')
        && Path::new("/sys/class/infiniband").join(&name).exists();
    if is_in_kernel {
        return Error::NoProvider { name };
    }
    if there.is_empty() { Error::NoDevices } else { Error::NoDevice { name, there } }
}

/// Returns librdmacm's context of the device, or the cause of its absence.
fn from_manager(name: &str) -> io::Result<(NonNull<sys::ibv_context>, Held)> {
    let mut count = 0;
    // SAFETY: the call writes the number.
    let list = unsafe { sys::rdma_get_devices(&mut count) };
    let list = NonNull::new(list).ok_or_else(io::Error::last_os_error)?;
    // SAFETY: the list has that many contexts, which are open as long as it lives.
    let contexts = unsafe { std::slice::from_raw_parts(list.as_ptr(), usize::try_from(count).unwrap_or(0)) };
    for &context in contexts {
        let Some(context) = NonNull::new(context) else { continue };
        // SAFETY: as above; a context has a device.
        if unsafe { name_of((*context.as_ptr()).device) } == name {
            return Ok((context, Held::Manager(list)));
        }
    }
    // SAFETY: the list is freed once, and none of its contexts is kept.
    unsafe { sys::rdma_free_devices(list.as_ptr()) };
    Err(io::Error::other("the connection manager has no such device"))
}

/// Returns the name of a device.
///
/// # Safety
/// The device is in a live list or of an open context.
unsafe fn name_of(device: *mut sys::ibv_device) -> String {
    // SAFETY: guaranteed by the caller.
    let name = unsafe { sys::ibv_get_device_name(device) };
    if name.is_null() {
        return String::new();
    }
    // SAFETY: the name is a terminated string that lives as long as the device.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}

/// Device list of `ibv_get_device_list`.
struct List {
    start: NonNull<*mut sys::ibv_device>,
    len: usize,
}

impl List {
    fn new() -> io::Result<List> {
        let mut count = 0;
        // SAFETY: the call writes the number.
        let start = unsafe { sys::ibv_get_device_list(&mut count) };
        let start = NonNull::new(start).ok_or_else(io::Error::last_os_error)?;
        Ok(List { start, len: usize::try_from(count).unwrap_or(0) })
    }

    fn devices(&self) -> &[*mut sys::ibv_device] {
        // SAFETY: the list has that many entries and lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: the list is freed once.
        unsafe { sys::ibv_free_device_list(self.start.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_device_and_missing_provider_are_distinguished() {
        assert!(matches!(absent("none0", vec![]), Error::NoDevices));
        assert!(matches!(absent("none0", vec!["rxe0".into()]), Error::NoDevice { .. }));
        for odd in ["", ".", "..", "../net", "a/b"] {
            assert!(matches!(absent(odd, vec![]), Error::NoDevices), "{odd}");
        }
    }

    #[test]
    fn missing_kernel_support_is_reported() {
        let has = Path::new("/sys/class/infiniband_verbs/abi_version").exists();
        let listed = RdmaCore::devices();
        let opened = RdmaCore::open("none0");
        match (has, &listed) {
            (true, Ok(_)) => {
                assert!(matches!(opened, Err(Error::NoDevice { .. } | Error::NoDevices)), "{opened:?}")
            }
            (false, Err(Error::NoKernel)) => assert!(matches!(opened, Err(Error::NoKernel)), "{opened:?}"),
            (_, Err(Error::NoLibraries)) => assert!(matches!(opened, Err(Error::NoLibraries)), "{opened:?}"),
            _ => panic!("{listed:?}"),
        }
    }
}
