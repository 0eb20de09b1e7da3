//! Meaning of the kernel's error numbers for a connection.

use linerate_service::{CloseReason, ConnectError};
use rustix::io::Errno;
use std::io;

/// Returns the reason of a failed connection attempt, from the error of `connect` or `SO_ERROR`.
pub(crate) fn connect_error(error: &io::Error) -> ConnectError {
    match Errno::from_io_error(error) {
        Some(Errno::CONNREFUSED | Errno::CONNRESET) => ConnectError::Refused,
        Some(Errno::TIMEDOUT) => ConnectError::TimedOut,
        Some(Errno::ADDRNOTAVAIL | Errno::AFNOSUPPORT | Errno::ADDRINUSE | Errno::AGAIN) => {
            ConnectError::NoLocalAddress
        }
        Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM | Errno::NOSPC) => ConnectError::TooMany,
        // No route, no neighbour, a firewall's rejection, or an invalid remote address.
        _ => ConnectError::Unreachable,
    }
}

/// Returns the reason of a broken connection, from the error of an operation or `SO_ERROR`.
pub(crate) fn close_reason(error: &io::Error) -> CloseReason {
    match Errno::from_io_error(error) {
        Some(Errno::TIMEDOUT | Errno::HOSTUNREACH | Errno::NETUNREACH | Errno::HOSTDOWN | Errno::NETDOWN) => {
            CloseReason::TimedOut
        }
        _ => CloseReason::Reset,
    }
}

/// Returns whether `accept` failed for a temporary lack of local resources.
pub(crate) fn is_shortage(error: Errno) -> bool {
    matches!(error, Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)
}
