//! Addresses of servers that neither choose a port nor report readiness.

use crate::{Error, until};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

/// Maximum time until a server listens.
const TIMEOUT: Duration = Duration::from_secs(10);

pub fn wait_until_listening(address: SocketAddr, program: &str) -> Result<(), Error> {
    until(&format!("{program} at {address}"), TIMEOUT, || Ok(TcpStream::connect(address).is_ok()))
}

/// Returns a loopback address on which no program listens, a different one on each call.
///
/// The IP address belongs to this process alone: the lower 24 bits of 127.0.0.0/8 hold the process id, which has at
/// most 22 bits (`PID_MAX_LIMIT` of Linux), followed by binary 10, so that neither a network nor a broadcast address
/// results. Therefore no port has to be probed, and a server that is started later finds it free. The ports are below
/// those that Linux chooses for outgoing connections (`ip_local_port_range`).
pub fn unused_address() -> SocketAddr {
    static NEXT_PORT: AtomicU16 = AtomicU16::new(12_000);
    let ip = Ipv4Addr::from(0x7f00_0002 | (std::process::id() & 0x3f_ffff) << 2);
    let port = NEXT_PORT.fetch_add(1, Ordering::Relaxed);
    assert!(port < 32_000, "all addresses of this process were handed out");
    SocketAddr::from((ip, port))
}
