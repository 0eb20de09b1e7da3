//! Network namespaces of this machine and links between them, which require root. Dropping a namespace removes it.
//! Creating namespaces removes the namespaces of processes that were killed. Functions return the error of a set-up
//! command that fails.

use crate::error::Error;
use crate::process::Process;
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

/// Prefix of namespace names, followed by the process ID of their owner.
const PREFIX: &str = "linerate-";
/// Timeout of a set-up command.
pub const TIMEOUT: Duration = Duration::from_secs(10);
/// Offloads that a kernel leaves to a network card. A program that takes frames from the other end would have to handle
/// them.
const OFFLOADS: [&str; 8] = ["tx", "off", "tso", "off", "gso", "off", "gro", "off"];

/// Network namespace. Dropping it kills the processes in it.
#[derive(Debug)]
pub struct Namespace(String);

impl Namespace {
    /// Creates a namespace whose name has the suffix `role`.
    pub fn new(role: &str) -> Result<Namespace, Error> {
        Ok(Namespace::all([role])?.into_iter().next().expect("one"))
    }

    /// Creates namespaces whose names have the suffixes `roles`.
    pub fn all<const N: usize>(roles: [&str; N]) -> Result<[Namespace; N], Error> {
        sweep();
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let begin = format!("{}{}", own_prefix(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let made: Vec<_> =
            roles.iter().map(|role| Namespace::create(format!("{begin}-{role}"))).collect::<Result<_, _>>()?;
        Ok(made.try_into().expect("one for each"))
    }

    fn create(name: String) -> Result<Namespace, Error> {
        ip(&format!("netns add {name}"))?;
        let namespace = Namespace(name);
        namespace.up("lo")?;
        Ok(namespace)
    }

    pub fn name(&self) -> &str {
        &self.0
    }

    /// Creates a veth pair from this namespace's `interface` to `other_interface` in `other`.
    pub fn connect(&self, interface: &str, other: &Namespace, other_interface: &str) -> Result<(), Error> {
        let (here, there) = (&self.0, &other.0);
        ip(&format!("link add {interface} netns {here} type veth peer name {other_interface} netns {there}")).map(drop)
    }

    pub fn disable_offloads(&self, interface: &str) -> Result<(), Error> {
        self.run("ethtool", &[&["-K", interface], &OFFLOADS[..]].concat()).map(drop)
    }

    /// Assigns an interface an address with its prefix length, without duplicate address detection.
    pub fn add_address(&self, interface: &str, address: &str) -> Result<(), Error> {
        let without_detection = if address.contains(':') { " nodad" } else { "" };
        self.ip(&format!("addr add {address} dev {interface}{without_detection}"))
    }

    /// Brings an interface up.
    pub fn up(&self, interface: &str) -> Result<(), Error> {
        self.ip(&format!("link set {interface} up"))
    }

    /// Runs `ip` in the namespace with the words of `arguments`.
    pub fn ip(&self, arguments: &str) -> Result<(), Error> {
        ip(&format!("-n {} {arguments}", self.0)).map(drop)
    }

    /// Runs a set-up command in the namespace and returns its output.
    pub fn run(&self, program: &str, arguments: &[&str]) -> Result<String, Error> {
        let mut command = self.command(program);
        command.args(arguments);
        Process::start(command)?.output(TIMEOUT)
    }

    /// Moves the calling thread into the namespace.
    pub fn enter(&self) -> io::Result<()> {
        let namespace = File::open(Path::new("/run/netns").join(&self.0))?;
        Ok(move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?)
    }

    /// Runs `action` on a thread in the namespace. Sockets opened there stay in it.
    pub fn within<T: Send>(&self, action: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        let there = || self.enter().and_then(|()| action());
        thread::scope(|scope| scope.spawn(there).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Creates a command that runs `program` in the namespace.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        command_in(&self.0, program)
    }

    /// Returns the processes in the namespace.
    pub fn processes(&self) -> Vec<Pid> {
        let listed = Command::new("ip").args(["netns", "pids", &self.0]).output();
        let listed = listed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
        listed.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        for pid in self.processes() {
            // The process may have ended by itself.
            let _ = kill_process(pid, Signal::KILL);
        }
        match Command::new("ip").args(["netns", "del", &self.0]).stderr(Stdio::null()).status() {
            Ok(status) if status.success() => {}
            _ => eprintln!("cannot remove the network namespace {}", self.0),
        }
    }
}

/// Returns the prefix of the names of this process's namespaces.
pub(crate) fn own_prefix() -> String {
    format!("{PREFIX}{}-", std::process::id())
}

/// Removes namespaces of processes that were killed.
fn sweep() {
    for entry in fs::read_dir("/run/netns").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            drop(Namespace(name));
        }
    }
}

/// Creates a command that runs `program` in the namespace `name`.
pub fn command_in(name: &str, program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", name]).arg(program).env_remove("RUST_LOG");
    command
}

/// Runs `ip` with the words of `arguments` and returns its output.
pub fn ip(arguments: &str) -> Result<String, Error> {
    let mut command = Command::new("ip");
    command.args(arguments.split_whitespace());
    Process::start(command)?.output(TIMEOUT)
}

/// Host with one interface, used by the namespace's kernel or taken over by a program.
#[derive(Debug)]
pub struct Host {
    namespace: Namespace,
    interface: &'static str,
    /// IPv4 address, in a /24 network.
    pub v4: Ipv4Addr,
    /// IPv6 address, in a /64 network.
    pub v6: Ipv6Addr,
}

impl Host {
    /// Creates host `number` (from 1 on) in the network of all these hosts.
    pub fn new(namespace: Namespace, interface: &'static str, number: u8) -> Self {
        let v6 = Ipv6Addr::new(0xfd99, 0, 0, 0, 0, 0, 0, number.into());
        Host { namespace, interface, v4: Ipv4Addr::new(10, 99, 0, number), v6 }
    }

    /// Creates two hosts joined by a veth pair without offloads. They have no addresses yet.
    pub fn pair() -> Result<[Host; 2], Error> {
        let hosts = Host::pair_with_offloads()?;
        for Host { namespace, interface, .. } in &hosts {
            namespace.disable_offloads(interface)?;
        }
        Ok(hosts)
    }

    /// Creates two hosts joined by a veth pair, with the offloads that kernels use between each other.
    pub fn pair_with_offloads() -> Result<[Host; 2], Error> {
        let [near, far] = Namespace::all(["near", "far"])?;
        near.connect("lr0", &far, "lr1")?;
        near.up("lr0")?;
        far.up("lr1")?;
        Ok([Host::new(near, "lr0", 1), Host::new(far, "lr1", 2)])
    }

    /// Creates a host whose interface is created later by the process at its other end: a TAP device.
    pub fn alone() -> Result<Host, Error> {
        Ok(Host::new(Namespace::new("near")?, "lr0", 1))
    }

    /// Disables offloads of the interface, which now exists, and brings it up.
    pub fn plug(&self) -> Result<(), Error> {
        self.namespace.disable_offloads(self.interface)?;
        self.namespace.up(self.interface)
    }

    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Returns the interface's name.
    pub fn interface(&self) -> &'static str {
        self.interface
    }

    /// Assigns the interface its addresses, for use by the kernel.
    pub fn address(&self) -> Result<(), Error> {
        self.namespace.add_address(self.interface, &format!("{}/24", self.v4))?;
        self.namespace.add_address(self.interface, &format!("{}/64", self.v6))
    }

    /// Returns `--via` and `--ip` arguments of a program that takes over the interface.
    pub fn via_args(&self) -> [String; 6] {
        let Host { interface, v4, v6, .. } = self;
        let words = ["--via", &format!("af_xdp:{interface}"), "--ip", &format!("{v4}/24"), "--ip", &format!("{v6}/64")];
        words.map(str::to_owned)
    }

    /// Returns the IPv6 or IPv4 address of the host.
    pub fn ip(&self, v6: bool) -> IpAddr {
        if v6 { self.v6.into() } else { self.v4.into() }
    }

    /// Creates a command that runs `program` on this host.
    pub fn command(&self, program: &Path) -> Command {
        self.namespace.command(program)
    }

    /// Runs `action` on a thread on this host. Sockets opened there stay on it.
    pub fn within<T: Send>(&self, action: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        self.namespace.within(action)
    }
}
