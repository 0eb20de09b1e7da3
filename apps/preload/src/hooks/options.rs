//! Options of sockets.

use super::{export, fail, tcp_info};
use crate::descriptors::{self, FileId};
use crate::real;
use crate::runtime::{self, Runtime, SocketFile};
use libc::{c_int, c_void, socklen_t};
use linerate_service::Keepalive;
use linerate_sockets::SocketId;
use rustix::io::Errno;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Returns an integer option of the kernel's socket.
pub fn kernel_option(fd: c_int, level: c_int, name: c_int) -> Option<c_int> {
    let mut value = 0;
    kernel_value(fd, level, name, &mut value).then_some(value)
}

/// Reads an option of the kernel's socket, of a type in which all values are valid. Returns whether it exists.
fn kernel_value<T: Copy>(fd: c_int, level: c_int, name: c_int, value: &mut T) -> bool {
    let mut len = size_of::<T>() as socklen_t;
    // SAFETY: `value` has `len` bytes.
    unsafe { real::getsockopt(fd, level, name, std::ptr::from_mut(value).cast(), &mut len) == 0 }
}

/// Returns the state of a socket, with the options that the kernel's socket has received.
pub fn socket_file(fd: c_int, id: SocketId, is_v6: bool, has_datagrams: bool) -> SocketFile {
    let packet_info = if is_v6 {
        kernel_option(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO)
    } else {
        kernel_option(fd, libc::IPPROTO_IP, libc::IP_PKTINFO)
    };
    SocketFile {
        id,
        is_v6,
        is_blocking: !runtime::is_nonblocking(fd),
        receive_timeout: timeout(fd, libc::SO_RCVTIMEO),
        send_timeout: timeout(fd, libc::SO_SNDTIMEO),
        linger: None,
        keeps_alive: false,
        kernel_listens: false,
        has_datagrams,
        has_packet_info: has_datagrams && packet_info == Some(1),
    }
}

/// Returns a time of the kernel's socket; zero is no timeout.
fn timeout(fd: c_int, name: c_int) -> Option<Duration> {
    let mut time = libc::timeval { tv_sec: 0, tv_usec: 0 };
    if !kernel_value(fd, libc::SOL_SOCKET, name, &mut time) {
        return None;
    }
    let (seconds, micros) = (u64::try_from(time.tv_sec).ok()?, u64::try_from(time.tv_usec).ok()?);
    Some(Duration::from_secs(seconds) + Duration::from_micros(micros)).filter(|time| !time.is_zero())
}

/// Returns the keepalive of the kernel's socket.
fn keepalive(fd: c_int) -> Option<Keepalive> {
    let seconds = |name| Some(Duration::from_secs(kernel_option(fd, libc::IPPROTO_TCP, name)?.try_into().ok()?));
    (kernel_option(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE)? != 0).then_some(())?;
    let probes = kernel_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPCNT)?.try_into().unwrap_or(u8::MAX);
    let (idle, interval) = (seconds(libc::TCP_KEEPIDLE)?, seconds(libc::TCP_KEEPINTVL)?);
    Some(Keepalive { idle, interval, probes })
}

/// Gives the kernel's socket of an accepted connection the option that it inherits.
pub fn inherit(fd: c_int, from: &SocketFile) {
    if from.keeps_alive {
        let one: c_int = 1;
        let len = size_of_val(&one) as socklen_t;
        // SAFETY: the option is an integer.
        unsafe { real::setsockopt(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, (&raw const one).cast(), len) };
    }
}

/// Options that have effect on a stream socket of the stack.
const EFFECTIVE: [(c_int, c_int); 5] = [
    (libc::SOL_SOCKET, libc::SO_LINGER),
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
    (libc::SOL_SOCKET, libc::SO_REUSEPORT),
    (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT),
    (libc::IPPROTO_TCP, libc::TCP_CORK),
];

/// Applies the options that differ from their defaults to a stream socket that has become one of the stack.
pub fn adopt_all(runtime: &mut Runtime, fd: c_int, file: FileId) -> Result<(), Errno> {
    for (level, name) in EFFECTIVE {
        // The first member of the structure of SO_LINGER is whether it is on.
        if kernel_option(fd, level, name).is_some_and(|value| value != 0) {
            apply(runtime, fd, file, (level, name))?;
        }
    }
    Ok(())
}

/// Applies an option of the kernel's socket to the socket of the stack.
fn apply(runtime: &mut Runtime, fd: c_int, file: FileId, option: (c_int, c_int)) -> Result<(), Errno> {
    let socket = runtime.socket(file)?;
    let id = socket.id;
    match option {
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => socket.receive_timeout = timeout(fd, libc::SO_RCVTIMEO),
        (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => socket.send_timeout = timeout(fd, libc::SO_SNDTIMEO),
        (libc::IPPROTO_IP, libc::IP_PKTINFO) | (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO) => {
            socket.has_packet_info = socket.has_datagrams && kernel_option(fd, option.0, option.1) == Some(1);
        }
        (libc::SOL_SOCKET, libc::SO_RCVBUF | libc::SO_RCVBUFFORCE) if socket.has_datagrams => {
            let limit = kernel_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUF).unwrap_or(0);
            runtime.bound()?.set_receive_limit(id, limit as usize);
        }
        (libc::SOL_SOCKET, libc::SO_LINGER) if !socket.has_datagrams => {
            let mut linger = libc::linger { l_onoff: 0, l_linger: 0 };
            let is_on = kernel_value(fd, libc::SOL_SOCKET, libc::SO_LINGER, &mut linger) && linger.l_onoff != 0;
            let time = Duration::from_secs(linger.l_linger.try_into().unwrap_or(0));
            socket.linger = Some(time).filter(|time| is_on && !time.is_zero());
            runtime.bound()?.reset_on_close(id, is_on && time.is_zero());
        }
        (libc::SOL_SOCKET, libc::SO_REUSEPORT) => {
            let reuses = kernel_option(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT) == Some(1);
            runtime.bound()?.reuse_port(id, reuses);
        }
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE)
        | (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE | libc::TCP_KEEPINTVL | libc::TCP_KEEPCNT) => {
            socket.keeps_alive = keepalive(fd).is_some();
            runtime.bound()?.set_keepalive(id, keepalive(fd));
            runtime.apply_limits(id);
        }
        (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT) => {
            let millis = kernel_option(fd, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT).unwrap_or(0);
            let timeout = u64::try_from(millis).ok().filter(|millis| *millis > 0).map(Duration::from_millis);
            runtime.bound()?.set_user_timeout(id, timeout);
            runtime.apply_limits(id);
        }
        (libc::IPPROTO_TCP, libc::TCP_CORK) => {
            let corked = kernel_option(fd, libc::IPPROTO_TCP, libc::TCP_CORK) == Some(1);
            runtime.bound()?.set_corked(id, corked);
            runtime.apply_limits(id);
        }
        _ => {}
    }
    Ok(())
}

/// Options that the stack does not have, and that would mislead a program.
const REFUSED: [(c_int, c_int, Errno, &str); 12] = [
    (libc::SOL_SOCKET, libc::SO_ZEROCOPY, Errno::OPNOTSUPP, "SO_ZEROCOPY"),
    (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, Errno::NOPROTOOPT, "SO_ATTACH_FILTER"),
    (libc::SOL_SOCKET, libc::SO_ATTACH_BPF, Errno::NOPROTOOPT, "SO_ATTACH_BPF"),
    (libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF, Errno::NOPROTOOPT, "SO_ATTACH_REUSEPORT_CBPF"),
    (libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_EBPF, Errno::NOPROTOOPT, "SO_ATTACH_REUSEPORT_EBPF"),
    (libc::SOL_SOCKET, libc::SO_TXTIME, Errno::NOPROTOOPT, "SO_TXTIME"),
    (libc::IPPROTO_TCP, libc::TCP_ULP, Errno::NOENT, "TCP_ULP"),
    (libc::IPPROTO_TCP, libc::TCP_MD5SIG, Errno::NOPROTOOPT, "TCP_MD5SIG"),
    (libc::IPPROTO_TCP, libc::TCP_REPAIR, Errno::PERM, "TCP_REPAIR"),
    (libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT, Errno::OPNOTSUPP, "TCP_FASTOPEN_CONNECT"),
    (libc::IPPROTO_UDP, libc::UDP_SEGMENT, Errno::NOPROTOOPT, "UDP_SEGMENT"),
    (libc::IPPROTO_UDP, libc::UDP_GRO, Errno::NOPROTOOPT, "UDP_GRO"),
];

/// Returns the error of an option that is refused, and logs its name once.
fn refusal(level: c_int, name: c_int) -> Option<Errno> {
    static LOGGED: AtomicU32 = AtomicU32::new(0);
    let at = REFUSED.iter().position(|refused| (refused.0, refused.1) == (level, name))?;
    if LOGGED.fetch_or(1 << at, Ordering::Relaxed) & 1 << at == 0 {
        tracing::warn!("{} is not available on the stack", REFUSED[at].3);
    }
    Some(REFUSED[at].2)
}

/// Returns the value of an integer option that the stack knows.
fn own_option(file: FileId, level: c_int, name: c_int) -> Option<c_int> {
    let answer = runtime::enter(|runtime| {
        let id = runtime.socket(file)?.id;
        let sockets = runtime.bound()?;
        Ok(match (level, name) {
            (libc::SOL_SOCKET, libc::SO_ERROR) => Some(sockets.take_error(id).map_or(0, Errno::raw_os_error)),
            (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => Some(sockets.is_listening(id).into()),
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) if sockets.is_connected(id) => {
                let (sockets, net) = runtime.sockets()?;
                sockets.info(net, id).and_then(|info| info.tcp.mss).map(c_int::from)
            }
            _ => None,
        })
    });
    answer.ok().flatten()
}

export! {
    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int {
        let own = descriptors::file(fd).filter(|_| matches!(level, libc::SOL_SOCKET | libc::IPPROTO_TCP));
        let (info, option);
        let bytes = match own {
            Some(file) if (level, name) == (libc::IPPROTO_TCP, libc::TCP_INFO) && !file.has_datagrams() => {
                info = match tcp_info::of(file) {
                    Ok(info) => info,
                    Err(error) => return fail(error),
                };
                Some(&info[..])
            }
            Some(file) => {
                option = own_option(file, level, name).map(c_int::to_ne_bytes);
                option.as_ref().map(|bytes| &bytes[..])
            }
            None => None,
        };
        let Some(bytes) = bytes else {
            // SAFETY: the arguments of the program. The kernel's socket has the options that were set.
            return unsafe { real::getsockopt(fd, level, name, value, len) };
        };
        if value.is_null() || len.is_null() {
            return fail(Errno::FAULT);
        }
        // SAFETY: the program passes `len` writable bytes at `value`.
        unsafe {
            let n = bytes.len().min(*len as usize);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), value.cast(), n);
            *len = n as socklen_t;
        }
        0
    }

    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int {
        let own = descriptors::file(fd);
        if own.is_some()
            && let Some(error) = refusal(level, name)
        {
            return fail(error);
        }
        // The kernel's socket checks and keeps all options.
        // SAFETY: the arguments of the program.
        let result = unsafe { real::setsockopt(fd, level, name, value, len) };
        if let Some(file) = own.filter(|_| result == 0) {
            let _ = runtime::enter(|runtime| apply(runtime, fd, file, (level, name)));
        }
        result
    }
}
