//! Links between two processes: how each is set up, and what both ends are told of it. What was set up goes when they
//! do.

use super::network::{Between, Network, TUNING};
use super::way::Way;
use crate::hosts::{Host, Namespace};
use crate::process::{Error, PATIENCE, Process};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The addresses of the two ends where there is nobody else.
const SERVER: &str = "10.0.0.2";
const LOAD: &str = "10.0.0.1";

/// What is set for the namespace that kernel sockets are in, of which nothing is the host's: room for connections that
/// come at once and for bytes on the way, all ports, and no new start of a window that was idle.
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

/// Files that a server or a load may have open, each connection being one.
const OPEN_FILES: u64 = 262_144;

/// What is done for kernel sockets anyway, and what is known to do nothing.
const ALWAYS: [&str; 4] = [
    "TCP_NODELAY on every connection.",
    "One edge-triggered epoll for each core, listening sockets with SO_REUSEPORT: workers share nothing.",
    "One read brings all requests that are there, and one write takes the answers to them.",
    "Busy polling (net.core.busy_poll) is left as it is: loopback and veth have no queue that could be polled.",
];

/// Two ends that are joined.
#[derive(Debug)]
pub enum Joint {
    /// By loopback, in a namespace of its own if there is one.
    Loopback(Option<Namespace>),
    /// By a veth pair, whose ends kernels have. The load is at the first.
    Veth([Host; 2]),
    /// By a veth pair, whose ends programs take over.
    AfXdp([Host; 2]),
    /// By a socket and memory, virtio-user and vhost.
    VirtioUser(PathBuf),
    /// By a socket and memory, memif.
    Memif(PathBuf),
    /// By a verbs device that has this address.
    Rdma {
        /// Its name.
        device: String,
        /// The address of its interface.
        address: String,
        /// Whether the kernel has no connection manager for programs.
        without_manager: bool,
    },
    /// By a network between two machines.
    Network(Box<Between>),
}

impl Joint {
    /// Two machines by `way`. Returns what was done for kernel sockets.
    pub fn of(network: &Network, way: &Way) -> (Joint, Vec<String>) {
        let tuning = if way.is_kernel() { TUNING.map(str::to_owned).to_vec() } else { Vec::new() };
        (Joint::Network(Box::new(Between { network: network.clone(), way: way.clone() })), tuning)
    }

    /// Joins two ends by `way`, with sockets in `scratch`; `tuned` as well as it can be for kernel sockets. Returns
    /// what was done for these.
    pub fn make(
        way: &Way,
        scratch: &Path,
        tuned: bool,
        interrupted: &AtomicBool,
    ) -> Result<(Joint, Vec<String>), Error> {
        let mut done = Vec::new();
        if way.is_kernel() {
            done.extend(ALWAYS.map(str::to_owned));
            if tuned && may_open(OPEN_FILES).is_ok() {
                done.push(format!("Servers and loads may have {OPEN_FILES} files open (RLIMIT_NOFILE)."));
            }
        }
        let joint = match way {
            Way::Kernel if tuned => match Namespace::all(["kernel"], interrupted) {
                Ok([namespace]) => {
                    done.extend(tune(&namespace, interrupted));
                    Joint::Loopback(Some(namespace))
                }
                Err(Error::Interrupted) => return Err(Error::Interrupted),
                Err(_) => {
                    done.push("No more: what else could be set needs a network namespace, and so root.".to_owned());
                    Joint::Loopback(None)
                }
            },
            Way::Kernel => Joint::Loopback(None),
            Way::Veth => {
                let hosts = Host::offloading_pair(interrupted)?;
                for host in &hosts {
                    host.address(interrupted)?;
                    if tuned {
                        done.extend(tune(host.namespace(), interrupted));
                    }
                }
                done.dedup();
                Joint::Veth(hosts)
            }
            Way::AfXdp => Joint::AfXdp(Host::pair(interrupted)?),
            Way::VirtioUser => Joint::VirtioUser(scratch.join("virtio.sock")),
            Way::Memif => Joint::Memif(scratch.join("memif.sock")),
            Way::Rdma(devices) => {
                let device = devices.as_ref().map(|devices| devices.server.clone()).unwrap_or_default();
                let address = address_of(Path::new("/"), &device).unwrap_or_else(|| "127.0.0.1".to_owned());
                let without_manager = !Path::new("/sys/class/misc/rdma_cm").exists();
                Joint::Rdma { device, address, without_manager }
            }
            Way::Port(..) => {
                let error = std::io::Error::other("a port of another machine");
                return Err(Error::Start { program: format!("--via {way}"), error });
            }
        };
        Ok((joint, done))
    }

    /// A command that runs `program` at the server's end.
    pub fn at_server(&self, program: &Path) -> Command {
        match self {
            Joint::Veth([_, far]) | Joint::AfXdp([_, far]) => far.command(program),
            Joint::Network(between) => between.at_server(),
            _ => self.within(program),
        }
    }

    /// The same at the load's.
    pub fn at_load(&self, program: &Path) -> Command {
        match self {
            Joint::Veth([near, _]) | Joint::AfXdp([near, _]) => near.command(program),
            Joint::Network(between) => between.at_load(),
            _ => self.within(program),
        }
    }

    fn within(&self, program: &Path) -> Command {
        if let Joint::Loopback(Some(namespace)) = self {
            return namespace.command(OsStr::new(program));
        }
        let mut command = Command::new(program);
        command.env_remove("RUST_LOG");
        command
    }

    /// What the server is told of its network.
    pub fn server_words(&self) -> Vec<String> {
        match self {
            Joint::AfXdp([_, far]) => far.taken_over()[..4].to_vec(),
            Joint::Network(between) => between.server_words(),
            Joint::VirtioUser(socket) => {
                words(["--via", &format!("vhost:{}", socket.display()), "--ip", &cidr(SERVER)])
            }
            Joint::Memif(socket) => {
                words(["--via", &format!("memif:{},server", socket.display()), "--ip", &cidr(SERVER)])
            }
            _ => self.of_both(),
        }
    }

    /// The same for the load.
    pub fn load_words(&self) -> Vec<String> {
        match self {
            Joint::AfXdp([near, _]) => near.taken_over()[..4].to_vec(),
            Joint::Network(between) => between.load_words(),
            Joint::VirtioUser(socket) => {
                words(["--via", &format!("virtio-user:{}", socket.display()), "--ip", &cidr(LOAD)])
            }
            Joint::Memif(socket) => words(["--via", &format!("memif:{}", socket.display()), "--ip", &cidr(LOAD)]),
            _ => self.of_both(),
        }
    }

    fn of_both(&self) -> Vec<String> {
        match self {
            Joint::Rdma { device, without_manager, .. } => {
                let exchange = without_manager.then_some(["--rdma-connect", "tcp"]);
                let via = words(["--via", &format!("rdma:{device}")]);
                via.into_iter().chain(words(exchange.into_iter().flatten())).collect()
            }
            _ => words(["--via", "kernel"]),
        }
    }

    /// Where to listen, with `port` where one has to be named.
    pub fn listen(&self, port: u16) -> String {
        match self {
            Joint::Loopback(_) => "127.0.0.1:0".to_owned(),
            Joint::Veth([_, far]) => format!("{}:0", far.v4),
            Joint::AfXdp([_, far]) => format!("{}:{port}", far.v4),
            Joint::VirtioUser(_) | Joint::Memif(_) => format!("{SERVER}:{port}"),
            Joint::Rdma { address, .. } => format!("{address}:{port}"),
            Joint::Network(between) => between.listen(port),
        }
    }

    /// The same with just this `port`, whoever else may have it.
    pub fn listen_on(&self, port: u16) -> String {
        let any = self.listen(port);
        match any.strip_suffix(":0") {
            Some(address) => format!("{address}:{port}"),
            None => any,
        }
    }

    /// Whether all ports are free there: what joins the two has no other user. Verbs have no ports that could run out.
    pub fn has_ports(&self) -> bool {
        !matches!(self, Joint::Loopback(None) | Joint::Rdma { .. } | Joint::Network(_))
    }

    /// Whether what is below our code copies each byte that the server receives or sends once: the kernel copies to and
    /// from its own memory; vhost and memif copy each frame, and so does AF_XDP on a veth pair, whose driver cannot do
    /// without. Of verbs it depends on the device.
    pub fn copies(&self) -> bool {
        match self {
            Joint::Network(between) => between.copies(),
            Joint::Rdma { .. } => false,
            _ => true,
        }
    }

    /// The network between two machines, if it is one.
    pub fn network(&self) -> Option<&Network> {
        match self {
            Joint::Network(between) => Some(&between.network),
            _ => None,
        }
    }

    /// Starts a command of [`at_server`](Self::at_server) or [`at_load`](Self::at_load).
    pub fn start(&self, command: Command) -> Result<Process, Error> {
        match self.network() {
            Some(_) => Process::supervised(command, self.patience(PATIENCE)),
            None => Process::start(command),
        }
    }

    /// How long something may take here that takes no longer than `time` on this machine.
    pub fn patience(&self, time: Duration) -> Duration {
        time * self.network().map_or(1, Network::slower)
    }
}

fn tune(namespace: &Namespace, interrupted: &AtomicBool) -> Vec<String> {
    let set = |sysctl: &&str| namespace.run(&["sysctl", "-q", "-w", sysctl], interrupted).is_ok();
    let set: Vec<&str> = SYSCTLS.into_iter().filter(|sysctl| set(sysctl)).collect();
    if set.is_empty() {
        return vec!["Nothing could be set by sysctl(8) in the namespace that they are in.".to_owned()];
    }
    vec![format!("In a network namespace of their own, which goes when all is done: {}.", set.join(", "))]
}

/// Lets what is started from now on have so many files open, or as many as it could before if that was more.
fn may_open(files: u64) -> rustix::io::Result<()> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let at_least = |limit: Option<u64>| limit.map(|limit| limit.max(files));
    setrlimit(Resource::Nofile, Rlimit { current: at_least(current), maximum: at_least(maximum) })
}

fn words<'a>(words: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    words.into_iter().map(str::to_owned).collect()
}

fn cidr(address: &str) -> String {
    format!("{address}/24")
}

/// The first IPv4 address among a device's GIDs.
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
    fn the_ends_of_a_link_in_memory_are_told_of_one_socket() {
        let joint = Joint::VirtioUser("/a/b.sock".into());
        assert_eq!(joint.server_words(), ["--via", "vhost:/a/b.sock", "--ip", "10.0.0.2/24"]);
        assert_eq!(joint.load_words(), ["--via", "virtio-user:/a/b.sock", "--ip", "10.0.0.1/24"]);
        assert_eq!(joint.listen(7), "10.0.0.2:7");
        let joint = Joint::Memif("/a/b.sock".into());
        assert_eq!((&*joint.server_words()[1], &*joint.load_words()[1]), ("memif:/a/b.sock,server", "memif:/a/b.sock"));
        let joint = Joint::Loopback(None);
        assert_eq!((joint.load_words(), joint.listen(7)), (words(["--via", "kernel"]), "127.0.0.1:0".to_owned()));
    }

    #[test]
    fn a_device_is_reached_by_its_address_and_without_a_manager_by_the_exchange() {
        let joint = |without_manager| Joint::Rdma {
            device: "rxe0".to_owned(),
            address: "10.1.0.1".to_owned(),
            without_manager,
        };
        assert_eq!(joint(false).server_words(), ["--via", "rdma:rxe0"]);
        assert_eq!(joint(true).load_words(), ["--via", "rdma:rxe0", "--rdma-connect", "tcp"]);
        assert_eq!(joint(true).listen(7), "10.1.0.1:7");
    }

    #[test]
    fn the_address_of_a_device_is_in_its_gids() {
        let tree = tempfile::tempdir().unwrap();
        let gids = tree.path().join("sys/class/infiniband/rxe0/ports/1/gids");
        fs::create_dir_all(&gids).unwrap();
        fs::write(gids.join("0"), "fe80:0000:0000:0000:5054:00ff:fe12:3456\n").unwrap();
        assert_eq!(address_of(tree.path(), "rxe0"), None);
        fs::write(gids.join("1"), "0000:0000:0000:0000:0000:ffff:0a01:0001\n").unwrap();
        assert_eq!(address_of(tree.path(), "rxe0").as_deref(), Some("10.1.0.1"));
    }

    #[test]
    fn a_network_is_given_time_and_this_machine_no_more_than_was_said() {
        let network = super::super::network::tests::network();
        let (joint, tuning) = Joint::of(&network, &Way::Kernel);
        assert!(joint.patience(PATIENCE) > PATIENCE && tuning.iter().any(|said| said.contains("No sysctl")));
        assert_eq!((joint.listen(7), joint.copies()), ("10.1.0.1:0".to_owned(), true));
        assert_eq!(Joint::Loopback(None).patience(PATIENCE), PATIENCE);
        assert!(Joint::Loopback(None).network().is_none());
    }
}
