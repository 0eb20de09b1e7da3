//! Addresses for servers that have to be told theirs.

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

/// Ports below those that the kernel gives to who begins a connection (32768 on, by default): one of them could be taken
/// between now and when the server listens.
const PORTS: std::ops::Range<u32> = 12_000..32_000;

/// An address of the loopback interface that nobody serves on, another one each time.
pub fn free_address() -> SocketAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Other programs of tests, at the same time, look elsewhere.
    let first = std::process::id().wrapping_mul(97);
    let mut ports = PORTS.map(|_| first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % PORTS.len() as u32);
    let free = |port: u32| SocketAddr::from(([127, 0, 0, 1], (PORTS.start + port) as u16));
    ports.by_ref().map(free).find(|address| TcpListener::bind(address).is_ok()).unwrap()
}
