//! Exclusive use of a kernel interface, of a socket by one client, or of a queue by one process.
//!
//! If the AF_XDP driver cannot open a queue because another process uses it, the driver removes the XDP program from
//! the interface, which stops the traffic of the other process. A vhost port accepts a second client, which then
//! displaces the first without a message to it. A process therefore locks the interface or the socket before it opens
//! the port.

use super::error::OpenError;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;

/// Maximum bytes of a path in the name of a lock. The name of an abstract socket has at most 107 bytes.
const PATH: usize = 80;

/// Lock on an interface, a socket or a queue, until it is dropped or the process exits.
#[derive(Debug)]
pub struct PortLock {
    /// Abstract socket, whose name exists in the network namespace, as the interface does, and not in the file system.
    _socket: UnixListener,
}

impl PortLock {
    /// Locks the interface `name` of this network namespace.
    pub(crate) fn of_interface(name: &str) -> Result<PortLock, OpenError> {
        PortLock::new("af_xdp", name.as_bytes()).ok_or_else(|| OpenError::InterfaceInUse(name.to_owned()))
    }

    /// Locks the client end of a vhost socket for the clients of this network namespace.
    pub(crate) fn of_client(socket: &Path) -> Result<PortLock, OpenError> {
        let path = socket.canonicalize().unwrap_or_else(|_| socket.to_owned());
        let path = path.as_os_str().as_bytes();
        // The end of a long path distinguishes it.
        let name = &path[path.len().saturating_sub(PATH)..];
        PortLock::new("virtio-user", name).ok_or_else(|| OpenError::ClientConnected(socket.to_owned()))
    }

    /// Takes the first free one of `most` locks on `what` that the processes of the family with this random number
    /// share.
    pub fn of_family(family: u64, what: &str, most: u16) -> Option<(PortLock, u16)> {
        let lock = |index| PortLock::new("process", format!("{family:x}/{what}/{index}").as_bytes());
        (0..most).find_map(|index| Some((lock(index)?, index)))
    }

    fn new(kind: &str, name: &[u8]) -> Option<PortLock> {
        let name = [b"linerate/", kind.as_bytes(), b"/", name].concat();
        let listener = SocketAddr::from_abstract_name(name).and_then(|address| UnixListener::bind_addr(&address));
        listener.ok().map(|_socket| PortLock { _socket })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_is_locked_once_until_unlocked() {
        let lock = PortLock::of_interface("lr-claim0").unwrap();
        let second = PortLock::of_interface("lr-claim0").unwrap_err();
        assert_eq!(second, OpenError::InterfaceInUse("lr-claim0".to_owned()));
        PortLock::of_interface("lr-claim1").unwrap();
        drop(lock);
        PortLock::of_interface("lr-claim0").unwrap();
    }

    #[test]
    fn processes_of_a_family_take_different_locks() {
        let take = || PortLock::of_family(u64::MAX, "queue", 2);
        let (first, second) = (take().unwrap(), take().unwrap());
        assert_eq!((first.1, second.1), (0, 1));
        assert!(take().is_none());
        drop(first);
        assert_eq!(take().unwrap().1, 0);
    }

    #[test]
    fn socket_has_one_client_by_any_path() {
        let long = std::env::temp_dir().join("a".repeat(100));
        let [first, second] = ["lr-client0", "lr-client1"].map(|name| long.join(name));
        let lock = PortLock::of_client(&first).unwrap();
        assert_eq!(PortLock::of_client(&first).unwrap_err(), OpenError::ClientConnected(first.clone()));
        let _other = PortLock::of_client(&second).unwrap();
        drop(lock);
        PortLock::of_client(&first).unwrap();
        let _lock = PortLock::of_client(&std::env::temp_dir()).unwrap();
        PortLock::of_client(&std::env::temp_dir().join(".")).unwrap_err();
    }
}
