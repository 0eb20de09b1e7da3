//! Return values and errors of the libraries.

use super::Handle;
use std::ffi::c_int;
use std::io;
use std::os::fd::RawFd;

/// Converts a return code. Manual pages promise an error number, or -1 with `errno`; some providers negate the
/// number.
pub(super) fn done(returned: c_int) -> io::Result<()> {
    match returned {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        number => Err(io::Error::from_raw_os_error(number.saturating_abs())),
    }
}

/// Converts a returned object; null means that `errno` has the reason.
pub(super) fn made<T>(object: *mut T) -> io::Result<Handle> {
    if object.is_null() { Err(io::Error::last_os_error()) } else { Ok(Handle(object.expose_provenance())) }
}

/// Returns the object of a handle. The caller ensures that the object is a `T`.
pub(super) fn object<T>(handle: Handle) -> *mut T {
    std::ptr::with_exposed_provenance_mut(handle.0)
}

/// Makes a descriptor non-blocking.
///
/// # Safety
/// The descriptor is open.
pub(super) unsafe fn set_nonblocking(descriptor: RawFd) -> io::Result<()> {
    // SAFETY: the descriptor is open; `fcntl` with these commands accesses no memory.
    let flags = unsafe { libc::fcntl(descriptor, libc::F_GETFL) };
    if flags < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as above.
    done(unsafe { libc::fcntl(descriptor, libc::F_SETFL, flags | libc::O_NONBLOCK) })
}

/// Returns true if a non-blocking read found nothing or was interrupted. The descriptor stays readable if there is
/// more.
pub(super) fn is_nothing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn error_numbers_of_either_sign_are_errors() {
        assert!(done(0).is_ok());
        for returned in [libc::ENOMEM, -libc::ENOMEM] {
            assert_eq!(done(returned).unwrap_err().raw_os_error(), Some(libc::ENOMEM));
        }
        assert_eq!(done(c_int::MIN).unwrap_err().raw_os_error(), Some(c_int::MAX));
        // SAFETY: closes no descriptor; sets `errno`.
        let returned = unsafe { libc::close(-1) };
        assert_eq!(done(returned).unwrap_err().raw_os_error(), Some(libc::EBADF));
    }

    #[test]
    fn handles_are_addresses() {
        let mut value = 7_u32;
        let handle = made(&raw mut value).unwrap();
        assert_eq!(object::<u32>(handle), &raw mut value);
        // SAFETY: closes no descriptor; sets `errno`.
        unsafe { libc::close(-1) };
        assert_eq!(made(std::ptr::null_mut::<u32>()).unwrap_err().raw_os_error(), Some(libc::EBADF));
    }

    #[test]
    fn set_nonblocking_makes_reads_return_at_once() {
        let (end, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        // SAFETY: the descriptor is open.
        unsafe { set_nonblocking(end.as_raw_fd()) }.unwrap();
        let error = std::io::Read::read(&mut &end, &mut [0]).unwrap_err();
        assert!(is_nothing(&error), "{error}");
        // SAFETY: no descriptor is affected; the error is tested.
        assert_eq!(unsafe { set_nonblocking(-1) }.unwrap_err().raw_os_error(), Some(libc::EBADF));
    }
}
