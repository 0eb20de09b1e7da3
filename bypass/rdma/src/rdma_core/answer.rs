//! How the libraries say that something went wrong.

use super::Handle;
use std::ffi::c_int;
use std::io;
use std::os::fd::RawFd;

/// What a call returned. Manual pages promise an error's number, or -1 and `errno`; some providers negate the number.
pub(super) fn done(returned: c_int) -> io::Result<()> {
    match returned {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        number => Err(io::Error::from_raw_os_error(number.saturating_abs())),
    }
}

/// What a call made; null says that `errno` has the reason.
pub(super) fn made<T>(object: *mut T) -> io::Result<Handle> {
    if object.is_null() { Err(io::Error::last_os_error()) } else { Ok(Handle(object.expose_provenance())) }
}

/// What a handle stands for. Only the one who made it knows that it is a `T`.
pub(super) fn object<T>(handle: Handle) -> *mut T {
    std::ptr::with_exposed_provenance_mut(handle.0)
}

/// Makes reads of `descriptor` return at once.
///
/// # Safety
/// It is open.
pub(super) unsafe fn set_nonblocking(descriptor: RawFd) -> io::Result<()> {
    // SAFETY: it is open, and `fcntl` with these commands touches no memory.
    let flags = unsafe { libc::fcntl(descriptor, libc::F_GETFL) };
    if flags < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as above.
    done(unsafe { libc::fcntl(descriptor, libc::F_SETFL, flags | libc::O_NONBLOCK) })
}

/// Whether a read that may not block found nothing, or was interrupted: the descriptor stays readable if there is more.
pub(super) fn is_nothing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn numbers_are_errors_whichever_their_sign() {
        assert!(done(0).is_ok());
        for returned in [libc::ENOMEM, -libc::ENOMEM] {
            assert_eq!(done(returned).unwrap_err().raw_os_error(), Some(libc::ENOMEM));
        }
        assert_eq!(done(c_int::MIN).unwrap_err().raw_os_error(), Some(c_int::MAX));
        // SAFETY: closes nothing, to set `errno`.
        let returned = unsafe { libc::close(-1) };
        assert_eq!(done(returned).unwrap_err().raw_os_error(), Some(libc::EBADF));
    }

    #[test]
    fn handles_are_addresses() {
        let mut value = 7_u32;
        let handle = made(&raw mut value).unwrap();
        assert_eq!(object::<u32>(handle), &raw mut value);
        // SAFETY: closes nothing, to set `errno`.
        unsafe { libc::close(-1) };
        assert_eq!(made(std::ptr::null_mut::<u32>()).unwrap_err().raw_os_error(), Some(libc::EBADF));
    }

    #[test]
    fn descriptors_cease_to_block() {
        let (end, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        // SAFETY: it is open.
        unsafe { set_nonblocking(end.as_raw_fd()) }.unwrap();
        let error = std::io::Read::read(&mut &end, &mut [0]).unwrap_err();
        assert!(is_nothing(&error), "{error}");
        // SAFETY: no descriptor, which is what is tried.
        assert_eq!(unsafe { set_nonblocking(-1) }.unwrap_err().raw_os_error(), Some(libc::EBADF));
    }
}
