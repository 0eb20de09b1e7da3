//! Telling a service manager how the program is doing, as `sd_notify(3)` does.

use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Says that the program serves.
pub fn ready() {
    say("READY=1");
}

/// Says that it has begun to end.
pub fn stopping() {
    say("STOPPING=1");
}

/// Sends `state` to `$NOTIFY_SOCKET`. Without that there is nobody to tell.
fn say(state: &str) {
    let Some(socket) = env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(error) = send(&socket, state) {
        tracing::warn!("cannot tell the service manager {state}: NOTIFY_SOCKET={}: {error}", socket.display());
    }
}

fn send(socket: &OsStr, state: &str) -> io::Result<()> {
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(at: &UnixDatagram) -> String {
        let mut bytes = [0; 64];
        let n = at.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..n].to_vec()).unwrap()
    }

    #[test]
    fn a_manager_is_told_at_a_path_and_at_an_abstract_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        send(path.as_os_str(), "READY=1").unwrap();
        assert_eq!(received(&manager), "READY=1");
        let name = format!("linerate-{}", std::process::id());
        let manager = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        send(format!("@{name}").as_ref(), "STOPPING=1").unwrap();
        assert_eq!(received(&manager), "STOPPING=1");
    }

    #[test]
    fn a_manager_that_is_gone_is_an_error() {
        assert!(send("/no/such/socket".as_ref(), "READY=1").is_err());
    }
}
