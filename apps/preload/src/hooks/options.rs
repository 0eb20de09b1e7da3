//! Options of sockets.

use super::{export, fail};
use crate::descriptors;
use crate::real;
use crate::runtime::{self, SocketFile};
use libc::{c_int, c_void, socklen_t};
use linerate_sockets::SocketId;
use rustix::io::Errno;
use std::time::Duration;

/// Returns an integer option of the kernel's socket.
pub fn kernel_option(fd: c_int, level: c_int, name: c_int) -> Option<c_int> {
    kernel_value(fd, level, name)
}

/// Returns an option of the kernel's socket, of a type without invalid values.
fn kernel_value<T: Copy>(fd: c_int, level: c_int, name: c_int) -> Option<T> {
    let mut value = std::mem::MaybeUninit::<T>::zeroed();
    let mut len = size_of::<T>() as socklen_t;
    // SAFETY: `value` has `len` bytes, and all its bytes are initialized.
    unsafe {
        (real::getsockopt(fd, level, name, value.as_mut_ptr().cast(), &mut len) == 0).then(|| value.assume_init())
    }
}

/// Returns the state of a socket, with the options that the kernel's socket has received.
pub fn socket_file(fd: c_int, id: SocketId, is_v6: bool, has_datagrams: bool) -> SocketFile {
    let timeout = |name| kernel_value::<libc::timeval>(fd, libc::SOL_SOCKET, name).and_then(duration);
    let packet_info = if is_v6 {
        kernel_option(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO)
    } else {
        kernel_option(fd, libc::IPPROTO_IP, libc::IP_PKTINFO)
    };
    SocketFile {
        id,
        is_v6,
        is_blocking: !runtime::is_nonblocking(fd),
        receive_timeout: timeout(libc::SO_RCVTIMEO),
        send_timeout: timeout(libc::SO_SNDTIMEO),
        kernel_listens: false,
        has_datagrams,
        has_packet_info: has_datagrams && packet_info == Some(1),
    }
}

/// Returns a time of SO_RCVTIMEO; zero is no timeout.
fn duration(time: libc::timeval) -> Option<Duration> {
    let (seconds, micros) = (u64::try_from(time.tv_sec).ok()?, u64::try_from(time.tv_usec).ok()?);
    Some(Duration::from_secs(seconds) + Duration::from_micros(micros)).filter(|time| !time.is_zero())
}

export! {
    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int {
        let own = descriptors::file(fd).filter(|_| level == libc::SOL_SOCKET);
        let result = own.and_then(|file| {
            let answer = runtime::enter(|runtime| {
                let id = runtime.socket(file)?.id;
                let sockets = runtime.bound()?;
                Ok(match name {
                    libc::SO_ERROR => Some(sockets.take_error(id).map_or(0, Errno::raw_os_error)),
                    libc::SO_ACCEPTCONN => Some(sockets.is_listening(id).into()),
                    _ => None,
                })
            });
            answer.ok().flatten()
        });
        let Some(result) = result else {
            // SAFETY: the arguments of the program. The kernel's socket has the options that were set.
            return unsafe { real::getsockopt(fd, level, name, value, len) };
        };
        if value.is_null() || len.is_null() {
            return fail(Errno::FAULT);
        }
        // SAFETY: the program passes `len` writable bytes at `value`.
        unsafe {
            let n = size_of::<c_int>().min(*len as usize);
            std::ptr::copy_nonoverlapping((&raw const result).cast::<u8>(), value.cast(), n);
            *len = n as socklen_t;
        }
        0
    }

    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int {
        // The kernel's socket checks and keeps all options.
        // SAFETY: the arguments of the program.
        let result = unsafe { real::setsockopt(fd, level, name, value, len) };
        let Some(file) = descriptors::file(fd).filter(|_| result == 0 && level == libc::SOL_SOCKET) else {
            return result;
        };
        let _ = runtime::enter(|runtime| {
            let socket = runtime.socket(file)?;
            // SAFETY: the kernel has read `len` bytes at `value`.
            unsafe {
                match name {
                    libc::SO_RCVTIMEO => socket.receive_timeout = duration(value.cast::<libc::timeval>().read_unaligned()),
                    libc::SO_SNDTIMEO => socket.send_timeout = duration(value.cast::<libc::timeval>().read_unaligned()),
                    libc::SO_LINGER => {
                        let linger = value.cast::<libc::linger>().read_unaligned();
                        let id = socket.id;
                        runtime.bound()?.reset_on_close(id, linger.l_onoff != 0 && linger.l_linger == 0);
                    }
                    _ => {}
                }
            }
            Ok(())
        });
        result
    }
}
