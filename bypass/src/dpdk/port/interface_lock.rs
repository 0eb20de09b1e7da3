//! Exclusive use of a kernel interface.
//!
//! If the AF_XDP driver cannot open a queue because another process uses it, the driver removes the XDP program from
//! the interface, which stops the traffic of the other process. A process therefore locks the interface before it opens
//! a queue.

use super::error::OpenError;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

/// Lock on an interface, until it is dropped or the process exits.
#[derive(Debug)]
pub(crate) struct InterfaceLock {
    /// Abstract socket, whose name exists in the network namespace, as the interface does, and not in the file system.
    _socket: UnixListener,
}

impl InterfaceLock {
    /// Locks the interface `name` of this network namespace.
    pub fn new(name: &str) -> Result<InterfaceLock, OpenError> {
        SocketAddr::from_abstract_name(format!("linerate/af_xdp/{name}"))
            .and_then(|address| UnixListener::bind_addr(&address))
            .map(|_socket| InterfaceLock { _socket })
            .map_err(|_| OpenError::InterfaceInUse(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_is_locked_once_until_unlocked() {
        let interface_lock = InterfaceLock::new("lr-claim0").unwrap();
        assert_eq!(InterfaceLock::new("lr-claim0").unwrap_err(), OpenError::InterfaceInUse("lr-claim0".to_owned()));
        InterfaceLock::new("lr-claim1").unwrap();
        drop(interface_lock);
        InterfaceLock::new("lr-claim0").unwrap();
    }
}
