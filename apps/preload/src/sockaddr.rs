//! Addresses in the layout of C.

use libc::{sockaddr, sockaddr_in, sockaddr_in6, socklen_t};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// Reads an address of IP, or `None` for one of another family.
///
/// # Safety
/// `address` is null or points to `len` readable bytes.
pub unsafe fn read(address: *const sockaddr, len: socklen_t) -> Option<SocketAddr> {
    if address.is_null() || (len as usize) < size_of::<libc::sa_family_t>() {
        return None;
    }
    // SAFETY: the bytes of the family are readable. The address may be unaligned.
    let family = unsafe { address.cast::<libc::sa_family_t>().read_unaligned() };
    match i32::from(family) {
        libc::AF_INET if len as usize >= size_of::<sockaddr_in>() => {
            // SAFETY: `len` bytes are readable, and all values of the fields are valid.
            let v4 = unsafe { address.cast::<sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
        }
        libc::AF_INET6 if len as usize >= size_of::<sockaddr_in6>() => {
            // SAFETY: as above.
            let v6 = unsafe { address.cast::<sockaddr_in6>().read_unaligned() };
            let (ip, port) = (Ipv6Addr::from(v6.sin6_addr.s6_addr), u16::from_be(v6.sin6_port));
            Some(match ip.to_ipv4_mapped() {
                Some(ip) => SocketAddrV4::new(ip, port).into(),
                None => SocketAddrV6::new(ip, port, 0, v6.sin6_scope_id).into(),
            })
        }
        _ => None,
    }
}

/// Writes `address` to `out`, as much of it as `len` permits, and its full length to `len` (getsockname(2)). `v6` is
/// true for a socket of AF_INET6, which has IPv4 addresses in mapped form.
///
/// # Safety
/// `out` and `len` are null, or `len` points to the number of writable bytes at `out`.
pub unsafe fn write(address: SocketAddr, v6: bool, out: *mut sockaddr, len: *mut socklen_t) {
    if out.is_null() || len.is_null() {
        return;
    }
    let port = address.port().to_be();
    let put = |bytes: *const u8, full: usize| {
        // SAFETY: `bytes` has `full` bytes, and the caller vouches for `len` bytes at `out`.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes, out.cast(), full.min(*len as usize));
            *len = full as socklen_t;
        }
    };
    match address {
        SocketAddr::V4(v4) if !v6 => {
            let value = sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: port,
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                sin_zero: [0; 8],
            };
            put((&raw const value).cast(), size_of_val(&value));
        }
        _ => {
            let (ip, scope) = match address {
                SocketAddr::V4(v4) => (v4.ip().to_ipv6_mapped(), 0),
                SocketAddr::V6(v6) => (*v6.ip(), v6.scope_id()),
            };
            let value = sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: port,
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: ip.octets() },
                sin6_scope_id: scope,
            };
            put((&raw const value).cast(), size_of_val(&value));
        }
    }
}
