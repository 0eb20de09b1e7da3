//! Links between two processes: their set-up, and the arguments of both ends. Dropping a link removes it.

use super::link_spec::LinkSpec;
use super::network::{Between, End, Network, TUNING};
use linerate_process::Error;
use linerate_process::namespace::{Host, Namespace};
use linerate_process::process::{Process, TIMEOUT};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Addresses of the two ends of a private link.
const SERVER: &str = "10.0.0.2";
const LOAD: &str = "10.0.0.1";

/// Setting of the kernel's local ports at the load's end of a shared interface, and the ports of the load.
const KERNEL_PORTS: &str = "net.ipv4.ip_local_port_range=1024 1031";
const LOAD_PORTS: &str = "1032-65535";

/// Settings of the namespace of kernel sockets, which leave the host unchanged: room for simultaneous connections and
/// for bytes in flight, all ports, and no slow start after idle periods.
const SYSCTLS: [&str; 8] = [
    "net.core.somaxconn=65535",
    "net.ipv4.tcp_max_syn_backlog=65535",
    "net.ipv4.ip_local_port_range=1024 65535",
    "net.ipv4.tcp_tw_reuse=1",
    "net.ipv4.tcp_slow_start_after_idle=0",
    "net.ipv4.tcp_rmem=4096 131072 33554432",
    "net.ipv4.tcp_wmem=4096 131072 33554432",
    "net.ipv4.tcp_max_tw_buckets=400000",
];

/// Open files of a server or a load; each connection is one.
const OPEN_FILES: u64 = 262_144;

/// Properties of kernel sockets without tuning, and settings known to have no effect.
const ALWAYS: [&str; 4] = [
    "TCP_NODELAY on every connection.",
    "One edge-triggered epoll for each core, listening sockets with SO_REUSEPORT: workers share nothing.",
    "One read takes all available requests, and one write returns their answers.",
    "Busy polling (net.core.busy_poll) is unchanged: loopback and veth have no queue to poll.",
];

/// Link between two processes.
#[derive(Debug)]
pub enum Link {
    /// Loopback, in its own namespace if there is one.
    Loopback(Option<Namespace>),
    /// A veth pair used by kernels. The load is at the first end.
    Veth([Host; 2]),
    /// A veth pair whose ends are taken over by programs.
    AfXdp([Host; 2]),
    /// A veth pair whose ends are shared by kernels and programs.
    AfXdpShared([Host; 2]),
    /// A socket and shared memory: virtio-user and vhost.
    VirtioUser(PathBuf),
    /// A socket and shared memory: memif.
    Memif(PathBuf),
    /// RoCEv2 in software on the ports of a virtio-user link.
    Roce(PathBuf),
    /// A verbs device.
    Rdma {
        /// Device name.
        device: String,
        /// Address of its interface.
        address: String,
        /// Set if the kernel lacks rdma_cm for programs.
        without_manager: bool,
    },
    /// A network between two machines.
    Network(Box<Between>),
}

impl Link {
    /// Creates the link of two machines. Returns the kernel tuning that applies.
    pub fn over(network: &Network, spec: &LinkSpec) -> (Link, Vec<String>) {
        let tuning = if spec.is_kernel() { TUNING.map(str::to_owned).to_vec() } else { Vec::new() };
        (Link::Network(Box::new(Between { network: network.clone(), spec: spec.clone() })), tuning)
    }

    /// Sets up the link `spec`, with sockets in `scratch`; tunes kernel sockets if `tuned`. Returns the kernel tuning
    /// that was applied.
    pub fn make(spec: &LinkSpec, scratch: &Path, tuned: bool) -> Result<(Link, Vec<String>), Error> {
        let mut done = Vec::new();
        if spec.is_kernel() {
            done.extend(ALWAYS.map(str::to_owned));
            if tuned && may_open(OPEN_FILES).is_ok() {
                done.push(format!("Servers and loads may have {OPEN_FILES} files open (RLIMIT_NOFILE)."));
            }
        }
        let link = match spec {
            LinkSpec::Kernel if tuned => match Namespace::new("kernel") {
                Ok(namespace) => {
                    done.extend(tune(&namespace));
                    Link::Loopback(Some(namespace))
                }
                Err(Error::Interrupted) => return Err(Error::Interrupted),
                Err(_) => {
                    done.push("No further settings: they require a network namespace, and so root.".to_owned());
                    Link::Loopback(None)
                }
            },
            LinkSpec::Kernel => Link::Loopback(None),
            LinkSpec::Veth => {
                let hosts = Host::pair_with_offloads()?;
                for host in &hosts {
                    host.address()?;
                    if tuned {
                        done.extend(tune(host.namespace()));
                    }
                }
                done.dedup();
                Link::Veth(hosts)
            }
            LinkSpec::AfXdp => Link::AfXdp(Host::pair()?),
            LinkSpec::AfXdpShared => {
                let hosts = Host::pair()?;
                hosts.iter().try_for_each(Host::address)?;
                // All other ports are for the load.
                hosts[0].namespace().run("sysctl", &["-q", "-w", KERNEL_PORTS])?;
                Link::AfXdpShared(hosts)
            }
            LinkSpec::VirtioUser => Link::VirtioUser(scratch.join("virtio.sock")),
            LinkSpec::Memif => Link::Memif(scratch.join("memif.sock")),
            LinkSpec::Roce => Link::Roce(scratch.join("roce.sock")),
            LinkSpec::Rdma(devices) => {
                let device = devices.as_ref().map(|devices| devices.server.clone()).unwrap_or_default();
                let address = address_of(Path::new("/"), &device).unwrap_or_else(|| "127.0.0.1".to_owned());
                let without_manager = !Path::new("/sys/class/misc/rdma_cm").exists();
                Link::Rdma { device, address, without_manager }
            }
            LinkSpec::Port(..) => {
                let error = std::io::Error::other("a port of another machine");
                return Err(Error::Start { program: format!("--via {spec}"), error });
            }
        };
        Ok((link, done))
    }

    /// Returns the host of an end, if the ends are hosts.
    fn host(&self, end: End) -> Option<&Host> {
        match self {
            Link::Veth([load, server]) | Link::AfXdp([load, server]) | Link::AfXdpShared([load, server]) => {
                Some(if end == End::Server { server } else { load })
            }
            _ => None,
        }
    }

    /// Creates a command that runs `program` at an end.
    pub fn command(&self, end: End, program: &Path) -> Command {
        match (self, self.host(end)) {
            (_, Some(host)) => host.command(program),
            (Link::Network(between), _) => between.network.at(end).location.command(),
            (Link::Loopback(Some(namespace)), _) => namespace.command(program),
            _ => {
                let mut command = Command::new(program);
                command.env_remove("RUST_LOG");
                command
            }
        }
    }

    /// Returns the network arguments of an end.
    pub fn args(&self, end: End) -> Vec<String> {
        let is_server = end == End::Server;
        let in_memory = |via: String| args(["--via", &via, "--ip", &cidr(if is_server { SERVER } else { LOAD })]);
        let port_of =
            |socket: &PathBuf| format!("{}:{}", if is_server { "vhost" } else { "virtio-user" }, socket.display());
        match (self, self.host(end)) {
            (Link::AfXdp(_), Some(host)) => host.via_args()[..4].to_vec(),
            (Link::AfXdpShared(_), Some(host)) => {
                let ports: &[&str] = if is_server { &[] } else { &["--outgoing-ports", LOAD_PORTS] };
                args([&["--via", &format!("af_xdp:{},share", host.interface())], ports].concat())
            }
            (Link::Network(between), _) => between.args(end),
            (Link::VirtioUser(socket), _) => in_memory(port_of(socket)),
            (Link::Roce(socket), _) => in_memory(format!("roce:{}", port_of(socket))),
            (Link::Memif(socket), _) => {
                in_memory(format!("memif:{}{}", socket.display(), if is_server { ",server" } else { "" }))
            }
            (Link::Rdma { device, without_manager, .. }, _) => {
                let exchange: &[&str] = if *without_manager { &["--rdma-connect", "tcp"] } else { &[] };
                args([&["--via", &format!("rdma:{device}")], exchange].concat())
            }
            _ => args(["--via", "kernel"]),
        }
    }

    /// Returns the listening address, with `port` where it must be given.
    pub fn listen(&self, port: u16) -> String {
        match self {
            Link::Loopback(_) => "127.0.0.1:0".to_owned(),
            Link::Veth([_, far]) => format!("{}:0", far.v4),
            Link::AfXdp([_, far]) | Link::AfXdpShared([_, far]) => format!("{}:{port}", far.v4),
            Link::VirtioUser(_) | Link::Memif(_) | Link::Roce(_) => format!("{SERVER}:{port}"),
            Link::Rdma { address, .. } => format!("{address}:{port}"),
            Link::Network(between) => between.listen(port),
        }
    }

    /// Returns the listening address with exactly this `port`.
    pub fn listen_on(&self, port: u16) -> String {
        let any = self.listen(port);
        match any.strip_suffix(":0") {
            Some(address) => format!("{address}:{port}"),
            None => any,
        }
    }

    /// Returns whether a server may use further ports: the link has no other users. False for verbs, which have no
    /// ports that could run out.
    pub fn has_ports(&self) -> bool {
        !matches!(self, Link::Loopback(None) | Link::Rdma { .. } | Link::Roce(_) | Link::Network(_))
    }

    /// Returns whether software below Linerate copies each byte that the server receives or sends once. The kernel
    /// copies to and from its own memory; vhost and memif copy each frame, as does AF_XDP on a veth pair, whose driver
    /// has no zero-copy mode. For verbs it depends on the device.
    pub fn copies(&self) -> bool {
        match self {
            Link::Network(between) => between.copies(),
            Link::Rdma { .. } => false,
            _ => true,
        }
    }

    /// Returns the network between two machines, if the link is one.
    pub fn network(&self) -> Option<&Network> {
        match self {
            Link::Network(between) => Some(&between.network),
            _ => None,
        }
    }

    /// Starts a [`command`](Self::command).
    pub fn start(&self, command: Command) -> Result<Process, Error> {
        match self.network() {
            Some(_) => Process::supervised(command, self.timeout(TIMEOUT)),
            // A killed comparison leaves no servers, which would poll forever.
            None => Process::dependent(&command),
        }
    }

    /// Returns the timeout on this link of an operation with timeout `time` on this machine.
    pub fn timeout(&self, time: Duration) -> Duration {
        time * self.network().map_or(1, Network::slower)
    }
}

fn tune(namespace: &Namespace) -> Vec<String> {
    let set = |sysctl: &&str| namespace.run("sysctl", &["-q", "-w", sysctl]).is_ok();
    let set: Vec<&str> = SYSCTLS.into_iter().filter(|sysctl| set(sysctl)).collect();
    if set.is_empty() {
        return vec!["No sysctl could be set in the namespace of kernel sockets.".to_owned()];
    }
    vec![format!("In a separate network namespace, removed at the end: {}.", set.join(", "))]
}

/// Raises the limit of open files of this process and its children to at least `files`.
fn may_open(files: u64) -> rustix::io::Result<()> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let at_least = |limit: Option<u64>| limit.map(|limit| limit.max(files));
    setrlimit(Resource::Nofile, Rlimit { current: at_least(current), maximum: at_least(maximum) })
}

fn args<'a>(args: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    args.into_iter().map(str::to_owned).collect()
}

fn cidr(address: &str) -> String {
    format!("{address}/24")
}

/// Returns the first IPv4 address among a device's GIDs.
fn address_of(root: &Path, device: &str) -> Option<String> {
    let directory = root.join("sys/class/infiniband").join(device).join("ports/1/gids");
    let mut files: Vec<PathBuf> = fs::read_dir(directory).ok()?.flatten().map(|entry| entry.path()).collect();
    files.sort();
    let gid = |path: &PathBuf| fs::read_to_string(path).ok()?.trim().parse::<std::net::Ipv6Addr>().ok();
    files.iter().filter_map(gid).find_map(|gid| gid.to_ipv4_mapped()).map(|address| address.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_of_a_memory_link_share_a_socket() {
        let link = Link::VirtioUser("/a/b.sock".into());
        assert_eq!(link.args(End::Server), ["--via", "vhost:/a/b.sock", "--ip", "10.0.0.2/24"]);
        assert_eq!(link.args(End::Load), ["--via", "virtio-user:/a/b.sock", "--ip", "10.0.0.1/24"]);
        assert_eq!(link.listen(7), "10.0.0.2:7");
        let link = Link::Roce("/a/b.sock".into());
        assert_eq!(link.args(End::Server), ["--via", "roce:vhost:/a/b.sock", "--ip", "10.0.0.2/24"]);
        assert_eq!((&*link.args(End::Load)[1], &*link.listen(7)), ("roce:virtio-user:/a/b.sock", "10.0.0.2:7"));
        let link = Link::Memif("/a/b.sock".into());
        assert_eq!(
            (&*link.args(End::Server)[1], &*link.args(End::Load)[1]),
            ("memif:/a/b.sock,server", "memif:/a/b.sock")
        );
        let link = Link::Loopback(None);
        assert_eq!((link.args(End::Load), link.listen(7)), (args(["--via", "kernel"]), "127.0.0.1:0".to_owned()));
    }

    #[test]
    fn device_is_addressed_by_ip_and_without_rdma_cm_connects_over_tcp() {
        let link =
            |without_manager| Link::Rdma { device: "rxe0".to_owned(), address: "10.1.0.1".to_owned(), without_manager };
        assert_eq!(link(false).args(End::Server), ["--via", "rdma:rxe0"]);
        assert_eq!(link(true).args(End::Load), ["--via", "rdma:rxe0", "--rdma-connect", "tcp"]);
        assert_eq!(link(true).listen(7), "10.1.0.1:7");
    }

    #[test]
    fn device_address_comes_from_its_gids() {
        let tree = tempfile::tempdir().unwrap();
        let gids = tree.path().join("sys/class/infiniband/rxe0/ports/1/gids");
        fs::create_dir_all(&gids).unwrap();
        fs::write(gids.join("0"), "fe80:0000:0000:0000:5054:00ff:fe12:3456\n").unwrap();
        assert_eq!(address_of(tree.path(), "rxe0"), None);
        fs::write(gids.join("1"), "0000:0000:0000:0000:0000:ffff:0a01:0001\n").unwrap();
        assert_eq!(address_of(tree.path(), "rxe0").as_deref(), Some("10.1.0.1"));
    }

    #[test]
    fn timeouts_are_longer_on_networks_only() {
        let network = super::super::network::tests::network();
        let (link, tuning) = Link::over(&network, &LinkSpec::Kernel);
        assert!(link.timeout(TIMEOUT) > TIMEOUT && tuning.iter().any(|note| note.contains("No sysctl")));
        assert_eq!((link.listen(7), link.copies()), ("10.1.0.1:0".to_owned(), true));
        assert_eq!(Link::Loopback(None).timeout(TIMEOUT), TIMEOUT);
        assert!(Link::Loopback(None).network().is_none());
    }
}
