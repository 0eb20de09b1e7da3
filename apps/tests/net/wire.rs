//! The wire between a Linux kernel and `linerate`: an AF_XDP port or a TAP port.

use super::namespace::{ip, ip_batch};
use super::program::{Program, linerate, linerate_in, wait_for};
use std::net::SocketAddr;
use std::path::Path;

/// Where `linerate` serves over IPv4 and over IPv6, whatever the service.
pub const V4: &str = "10.9.0.2:7";
pub const V6: &str = "[fd09::2]:7";
/// What a load is told besides its service and network. It sleeps when idle, for the kernel's sake.
const OURS: &str = "--ip 10.9.0.2/24 --ip fd09::2/64 --idle backoff --json";
/// Nobody else is on the wire who could have our address, and a second for each program is a minute for all.
const AT_ONCE: &str = "--no-dad";
/// What a server is told.
pub const ADDRESSES: &str =
    "--ip 10.9.0.2/24 --ip fd09::2/64 --listen 10.9.0.2:7 --listen [fd09::2]:7 --idle backoff --json";

/// Both of the server's addresses.
pub fn servers() -> [SocketAddr; 2] {
    [V4, V6].map(|address| address.parse().unwrap())
}

/// Gives the kernel's end of the wire its addresses, in one process: over TAP a load is already waiting for answers to its solicitations.
fn address(interface: &str) {
    ip_batch(&[
        &format!("addr add 10.9.0.1/24 dev {interface}"),
        &format!("addr add fd09::1/64 dev {interface} nodad"),
        &format!("link set {interface} up"),
    ]);
}

/// How the kernel is connected with `linerate`.
#[derive(Debug, Clone, Copy)]
pub enum Wire {
    /// A veth pair between two namespaces, the end of `linerate` by AF_XDP.
    AfXdp,
    /// A TAP interface of `linerate` in the kernel's namespace.
    Tap,
}

impl Wire {
    /// Connects this namespace, the kernel's, with `namespace`.
    pub fn connect(self, namespace: &str) {
        self.connect_queues(namespace, 1);
    }

    /// The same, for a server of so many workers.
    pub fn connect_queues(self, namespace: &str, queues: usize) {
        if let Wire::AfXdp = self {
            let queues = format!("numrxqueues {queues} numtxqueues {queues}");
            ip(&format!("link add lr0 {queues} type veth peer name lr1 {queues} netns {namespace}"));
            ip(&format!("-n {namespace} link set lr1 up"));
            address("lr0");
        }
    }

    /// Serves `service`, on the wire that was connected before; the words after its name are further arguments.
    pub fn serve(self, service: &str, namespace: &str) -> Program {
        let (service, more) = service.split_once(' ').unwrap_or((service, ""));
        match self {
            Wire::AfXdp => Program::serve(linerate_in(
                namespace,
                &format!("{service} serve --via af_xdp:lr1 {ADDRESSES} {AT_ONCE} {more}"),
            )),
            Wire::Tap => {
                let program =
                    Program::serve(linerate(&format!("{service} serve --via tap:lr0 {ADDRESSES} {AT_ONCE} {more}")));
                address("lr0");
                program
            }
        }
    }

    /// Starts a load of `service`, on the wire that was connected before; the words after its name are further
    /// arguments.
    pub fn load(self, service: &str, namespace: &str) -> Program {
        let (service, more) = service.split_once(' ').unwrap_or((service, ""));
        match self {
            Wire::AfXdp => Program::start(linerate_in(
                namespace,
                &format!("{service} load --via af_xdp:lr1 {OURS} {AT_ONCE} {more}"),
            )),
            Wire::Tap => {
                let load = Program::start(linerate(&format!("{service} load --via tap:lr0 {OURS} {AT_ONCE} {more}")));
                wait_for("the interface", || Path::new("/sys/class/net/lr0").exists());
                address("lr0");
                load
            }
        }
    }
}
