//! One user for each kernel interface.
//!
//! The AF_XDP driver, when it fails because another process has the interface's queue, takes the XDP program off the
//! interface as it leaves, and with it the other's traffic. So a process claims the interface before it tries.

use super::error::OpenError;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

/// The claim on an interface, until it is dropped or the process ends.
#[derive(Debug)]
pub(crate) struct Claim {
    /// Its name exists in the network namespace, as the interface does, and not in the file system.
    _socket: UnixListener,
}

impl Claim {
    /// Claims the interface `name` of this network namespace.
    pub fn new(name: &str) -> Result<Claim, OpenError> {
        SocketAddr::from_abstract_name(format!("linerate/af_xdp/{name}"))
            .and_then(|address| UnixListener::bind_addr(&address))
            .map(|_socket| Claim { _socket })
            .map_err(|_| OpenError::InterfaceInUse(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_is_claimed_once_until_it_is_let_go() {
        let claim = Claim::new("lr-claim0").unwrap();
        assert_eq!(Claim::new("lr-claim0").unwrap_err(), OpenError::InterfaceInUse("lr-claim0".to_owned()));
        Claim::new("lr-claim1").unwrap();
        drop(claim);
        Claim::new("lr-claim0").unwrap();
    }
}
