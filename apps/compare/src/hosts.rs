//! Test hosts: network namespaces of this machine, which require root. Dropping a host removes it; creating hosts
//! removes the remains of killed processes.

use super::process::{Error, Process};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::ffi::OsStr;
use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use std::{fs, io, thread};

/// Prefix of namespace names, followed by the process ID of their owner.
const PREFIX: &str = "lrpath-";
/// Timeout of a set-up command.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// Offloads that a kernel leaves to a network card. A program that takes frames from the other end would have to handle
/// them.
const OFFLOADS: [&str; 8] = ["tx", "off", "tso", "off", "gso", "off", "gro", "off"];

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
    pub fn pair(interrupted: &AtomicBool) -> Result<[Host; 2], Error> {
        let hosts = Host::pair_with_offloads(interrupted)?;
        for Host { namespace, interface, .. } in &hosts {
            namespace.disable_offloads(interface, interrupted)?;
        }
        Ok(hosts)
    }

    /// Creates two hosts joined by a veth pair, with the offloads that kernels use between each other.
    pub fn pair_with_offloads(interrupted: &AtomicBool) -> Result<[Host; 2], Error> {
        let [near, far] = Namespace::all(["near", "far"], interrupted)?;
        near.cable("lr0", &far, "lr1", interrupted)?;
        for (namespace, interface) in [(&near, "lr0"), (&far, "lr1")] {
            namespace.up(interface, interrupted)?;
        }
        Ok([Host::new(near, "lr0", 1), Host::new(far, "lr1", 2)])
    }

    /// Creates a host whose interface is created later by the process at its other end: a TAP device.
    pub fn alone(interrupted: &AtomicBool) -> Result<Host, Error> {
        let [namespace] = Namespace::all(["near"], interrupted)?;
        Ok(Host::new(namespace, "lr0", 1))
    }

    /// Disables offloads of the interface, which now exists, and brings it up.
    pub fn plug(&self, interrupted: &AtomicBool) -> Result<(), Error> {
        self.namespace.disable_offloads(self.interface, interrupted)?;
        self.namespace.up(self.interface, interrupted)
    }

    /// Returns the namespace.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Returns the interface's name.
    pub fn interface(&self) -> &'static str {
        self.interface
    }

    /// Assigns the interface its addresses, for use by the kernel.
    pub fn address(&self, interrupted: &AtomicBool) -> Result<(), Error> {
        let Host { namespace, interface, v4, v6 } = self;
        let add = ["-n", &namespace.0, "addr", "add"];
        ip(&[&add[..], &[&format!("{v4}/24"), "dev", interface]].concat(), interrupted)?;
        ip(&[&add[..], &[&format!("{v6}/64"), "dev", interface, "nodad"]].concat(), interrupted)?;
        Ok(())
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
        self.namespace.command(program.as_os_str())
    }

    /// Runs `what` on a thread in this host's network namespace. Sockets opened there stay in it.
    pub fn within<T: Send>(&self, what: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        let there = || self.namespace.enter().and_then(|()| what());
        thread::scope(|scope| scope.spawn(there).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// Network namespace. Processes started in it must end before it is dropped.
#[derive(Debug)]
pub struct Namespace(String);

impl Namespace {
    /// Creates namespaces whose names have the suffixes `ends`.
    pub fn all<const N: usize>(ends: [&str; N], interrupted: &AtomicBool) -> Result<[Namespace; N], Error> {
        sweep();
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let begin = format!("{PREFIX}{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let made: Vec<_> =
            ends.iter().map(|end| Namespace::new(format!("{begin}-{end}"), interrupted)).collect::<Result<_, _>>()?;
        Ok(made.try_into().expect("one for each"))
    }

    /// Creates a veth pair from this namespace's `interface` to `other_interface` in `other`.
    pub fn cable(
        &self,
        interface: &str,
        other: &Namespace,
        other_interface: &str,
        interrupted: &AtomicBool,
    ) -> Result<(), Error> {
        let here = ["link", "add", interface, "netns", &self.0, "type", "veth"];
        ip(&[&here[..], &["peer", "name", other_interface, "netns", &other.0]].concat(), interrupted).map(drop)
    }

    /// Disables the offloads of an interface.
    pub fn disable_offloads(&self, interface: &str, interrupted: &AtomicBool) -> Result<(), Error> {
        self.run(&[&["ethtool", "-K", interface], &OFFLOADS[..]].concat(), interrupted).map(drop)
    }

    /// Brings an interface up.
    pub fn up(&self, interface: &str, interrupted: &AtomicBool) -> Result<(), Error> {
        ip(&["-n", &self.0, "link", "set", interface, "up"], interrupted).map(drop)
    }

    fn new(name: String, interrupted: &AtomicBool) -> Result<Namespace, Error> {
        ip(&["netns", "add", &name], interrupted)?;
        let namespace = Namespace(name);
        ip(&["-n", &namespace.0, "link", "set", "lo", "up"], interrupted)?;
        Ok(namespace)
    }

    /// Moves the calling thread into the namespace.
    pub fn enter(&self) -> io::Result<()> {
        let namespace = File::open(Path::new("/run/netns").join(&self.0))?;
        Ok(move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?)
    }

    /// Creates a command that runs `program` in the namespace.
    pub fn command(&self, program: &OsStr) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0]).arg(program).env_remove("RUST_LOG");
        command
    }

    fn processes(&self) -> Vec<Pid> {
        let listed = Command::new("ip").args(["netns", "pids", &self.0]).output();
        let listed = listed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
        listed.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
    }

    /// Runs a set-up command in the namespace and returns its output.
    pub fn run(&self, words: &[&str], interrupted: &AtomicBool) -> Result<String, Error> {
        ip(&[&["netns", "exec", &self.0], words].concat(), interrupted)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        match Command::new("ip").args(["netns", "del", &self.0]).stderr(Stdio::null()).status() {
            Ok(status) if status.success() => {}
            _ => eprintln!("cannot remove the network namespace {}", self.0),
        }
    }
}

/// Removes namespaces of processes that were killed.
fn sweep() {
    for entry in fs::read_dir("/run/netns").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            let namespace = Namespace(name);
            for pid in namespace.processes() {
                // The process may have ended by itself.
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}

fn ip(words: &[&str], interrupted: &AtomicBool) -> Result<String, Error> {
    let mut command = Command::new("ip");
    command.args(words);
    Process::start(command)?.output(PATIENCE, interrupted)
}
