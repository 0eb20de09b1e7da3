//! What the kernel's error numbers mean for a connection.

use linerate_bypass::{CloseReason, ConnectError};
use rustix::io::Errno;
use std::io;

/// Why an outgoing connection could not be made, from what `connect` or `SO_ERROR` said.
pub(crate) fn connect_error(error: &io::Error) -> ConnectError {
    match Errno::from_io_error(error) {
        Some(Errno::CONNREFUSED | Errno::CONNRESET) => ConnectError::Refused,
        Some(Errno::TIMEDOUT) => ConnectError::TimedOut,
        Some(Errno::ADDRNOTAVAIL | Errno::AFNOSUPPORT | Errno::ADDRINUSE | Errno::AGAIN) => {
            ConnectError::NoLocalAddress
        }
        Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM | Errno::NOSPC) => ConnectError::TooMany,
        // No route, no neighbour, a firewall that says so, an address that cannot be connected to.
        _ => ConnectError::Unreachable,
    }
}

/// Why a connection broke, from what an operation on it or `SO_ERROR` said.
pub(crate) fn close_reason(error: &io::Error) -> CloseReason {
    match Errno::from_io_error(error) {
        Some(Errno::TIMEDOUT | Errno::HOSTUNREACH | Errno::NETUNREACH | Errno::HOSTDOWN | Errno::NETDOWN) => {
            CloseReason::TimedOut
        }
        _ => CloseReason::Reset,
    }
}

/// Whether `accept` failed for want of something of ours, which a moment later may be there again.
pub(crate) fn is_shortage(error: Errno) -> bool {
    matches!(error, Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)
}
