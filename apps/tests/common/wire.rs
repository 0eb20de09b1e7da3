//! Wire between the Linux kernel and `linerate`: an AF_XDP port or a TAP port.

use super::linerate;
use linerate_harness::namespace::command_in;
use linerate_harness::program::{Program, ip};
use linerate_harness::wait_for;
use linerate_hugepages::{Host, PageSize};
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};

/// Addresses of every service.
pub const V4: &str = "10.9.0.2:7";
pub const V6: &str = "[fd09::2]:7";
/// Arguments of a load. It sleeps when idle, to leave a core to the kernel. No other host is on the wire, and duplicate
/// address detection would take a second per program.
const LOAD_ARGS: &str = "--ip 10.9.0.2/24 --ip fd09::2/64 --idle wait --json --no-dad";
/// Arguments of a server.
pub const ADDRESSES: &str =
    "--ip 10.9.0.2/24 --ip fd09::2/64 --listen 10.9.0.2:7 --listen [fd09::2]:7 --idle wait --json";

/// Returns the IPv4 and the IPv6 address of the server.
pub fn servers() -> [SocketAddr; 2] {
    [V4, V6].map(|address| address.parse().unwrap())
}

/// Assigns the addresses of the kernel's end in one process: over TAP, a load is already waiting for replies to its
/// solicitations.
fn address(interface: &str) {
    ip_batch(&[
        &format!("addr add 10.9.0.1/24 dev {interface}"),
        &format!("addr add fd09::1/64 dev {interface} nodad"),
        &format!("link set {interface} up"),
    ]);
}

/// Returns whether an interface exists and has the flag `IFF_UP`.
fn is_up(interface: &str) -> bool {
    let flags = std::fs::read_to_string(format!("/sys/class/net/{interface}/flags")).unwrap_or_default();
    u32::from_str_radix(flags.trim().trim_start_matches("0x"), 16).is_ok_and(|flags| flags & 1 == 1)
}

/// Runs several commands of `ip` in one process.
fn ip_batch(commands: &[&str]) {
    let mut command = Command::new("ip");
    command.args(["-batch", "-"]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(commands.join("\n").as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "ip {commands:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Waits until a quarter of the reserved hugepages is free. The kernel releases the pages of an AF_XDP socket some time
/// after the end of its process, so that programs in a row could find none.
fn wait_for_hugepages() {
    wait_for("hugepages of ended programs", || {
        let pool = Host::default().pool(PageSize::MB_2).unwrap();
        pool.free >= pool.reserved / 4
    });
}

/// Returns the command of `linerate` with the words of `args` in the network namespace `namespace`, once hugepages are
/// free.
pub fn linerate_in(namespace: &str, args: &str) -> Command {
    wait_for_hugepages();
    let mut command = command_in(namespace, env!("CARGO_BIN_EXE_linerate"));
    command.args(args.split_whitespace());
    command
}

/// Connection of the kernel with `linerate`.
#[derive(Debug, Clone, Copy)]
pub enum Wire {
    /// veth pair between two namespaces, with `linerate` on AF_XDP.
    AfXdp,
    /// TAP interface of `linerate` in the namespace of the kernel.
    Tap,
}

impl Wire {
    /// Connects this namespace, the kernel's, with `namespace`.
    pub fn connect(self, namespace: &str) {
        self.connect_queues(namespace, 1);
    }

    /// Like [`Wire::connect`], for a server with this number of workers.
    pub fn connect_queues(self, namespace: &str, queues: usize) {
        if let Wire::AfXdp = self {
            let queues = format!("numrxqueues {queues} numtxqueues {queues}");
            ip(&format!("link add lr0 {queues} type veth peer name lr1 {queues} netns {namespace}"));
            ip(&format!("-n {namespace} link set lr1 up"));
            address("lr0");
        }
    }

    /// Starts a server on the connected wire. `service` is a name followed by further arguments.
    pub fn serve(self, service: &str, namespace: &str) -> Program {
        let program = Program::serve(self.command("serve", service, &format!("{ADDRESSES} --no-dad"), namespace));
        if let Wire::Tap = self {
            address("lr0");
        }
        program
    }

    /// Starts a load on the connected wire. `service` is a name followed by further arguments.
    pub fn load(self, service: &str, namespace: &str) -> Program {
        if let Wire::Tap = self {
            wait_for("removal of the previous interface", || !Path::new("/sys/class/net/lr0").exists());
        }
        let load = Program::start(self.command("load", service, LOAD_ARGS, namespace));
        if let Wire::Tap = self {
            // The driver sets the flags of the interface in two steps, which could revert an earlier `up` and thus
            // remove the IPv6 address.
            wait_for("the interface to be up", || is_up("lr0"));
            address("lr0");
        }
        load
    }

    fn command(self, verb: &str, service: &str, args: &str, namespace: &str) -> Command {
        let (service, more) = service.split_once(' ').unwrap_or((service, ""));
        match self {
            Wire::AfXdp => linerate_in(namespace, &format!("{service} {verb} --via af_xdp:lr1 {args} {more}")),
            Wire::Tap => {
                wait_for_hugepages();
                linerate(&format!("{service} {verb} --via tap:lr0 {args} {more}"))
            }
        }
    }
}
