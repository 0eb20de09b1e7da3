//! From a [`Via`] to the devices that DPDK is to make, and what is to be checked before.

use super::error::OpenError;
use super::interface::{self, Right};
use crate::{MacAddr, Via};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// One device for DPDK to make or take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Device {
    /// Its bus.
    pub bus: &'static str,
    /// Its name there, which no other device of the process has.
    pub name: String,
    /// Its arguments.
    pub arguments: String,
}

/// What a network is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The network, for messages.
    pub via: String,
    /// Its kind, as far as it makes a difference later.
    pub kind: Kind,
    /// Its devices; each has `queues / devices.len()` queues. Empty: the first port that EAL found.
    pub devices: Vec<Device>,
    /// Queue pairs in all.
    pub queues: u16,
    /// The Ethernet address that the device is told or, if it keeps its own, that we use.
    pub mac: Option<MacAddr>,
}

/// The kinds that differ after the device is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A device of its own, or whatever EAL was told.
    Other,
    /// A kernel interface.
    AfXdp(String),
    /// A kernel interface that the device makes.
    Tap(String),
    /// The end of a link that connects to a socket: made when the other end is there, and again when it is back.
    Client { socket: PathBuf, peer: &'static str },
    /// The end of a vhost-user link that serves.
    Vhost,
    /// The end of a memif link that serves.
    MemifServer,
}

/// What is asked of a network besides its name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wish {
    pub queues: u16,
    pub mac: Option<MacAddr>,
    pub force: bool,
}

/// Numbers of devices, unique in the process: DPDK's names must be.
static NUMBERS: AtomicU32 = AtomicU32::new(0);

/// The longest path that fits a `sockaddr_un`.
const SOCKET_PATH: usize = 107;
/// The longest path that the memif driver takes.
const MEMIF_PATH: usize = 107;
/// Descriptors of a ring between two processes: enough for bursts, few enough to stay in the cache.
const RING: u32 = 512;

/// Checks what can be checked, and says which devices to make.
pub(crate) fn plan(via: &Via, wish: Wish) -> Result<Plan, OpenError> {
    let build = |kind, devices, mac| Plan { via: via.to_string(), kind, devices, queues: wish.queues, mac };
    let random = || wish.mac.unwrap_or_else(random_mac);
    match via {
        Via::Kernel | Via::Rdma { .. } => Err(OpenError::NotDpdk(via.to_string())),
        Via::Eal => Ok(build(Kind::Other, Vec::new(), wish.mac)),
        Via::Pci { address, options } => {
            let device = Device { bus: "pci", name: address.clone(), arguments: options.join(",") };
            Ok(build(Kind::Other, vec![device], wish.mac))
        }
        Via::AfXdp { interface, options } => {
            let devices = af_xdp(via, interface, options, wish)?;
            Ok(build(Kind::AfXdp(interface.clone()), devices, wish.mac))
        }
        Via::Tap { interface, options } => {
            permitted(via, &[Right::NetAdmin])?;
            if !Path::new("/dev/net/tun").exists() {
                return Err(OpenError::NoTun);
            }
            if interface::exists(interface) {
                return Err(OpenError::InterfaceExists(interface.clone()));
            }
            // The address that TAP reports is the kernel's end's.
            let device = device("net_tap", &[("iface", interface.clone())], options);
            Ok(build(Kind::Tap(interface.clone()), vec![device], Some(random())))
        }
        Via::VirtioUser { socket, options } => {
            let path = socket_path(socket, SOCKET_PATH)?;
            let ours = [
                ("path", path),
                ("queues", wish.queues.to_string()),
                ("queue_size", RING.to_string()),
                ("mac", random().to_string()),
            ];
            // As a server it waits in the driver, which also connects again.
            let kind = match given(options, "server") {
                Some("1") => Kind::Other,
                _ => Kind::Client { socket: socket.clone(), peer: "vhost" },
            };
            Ok(build(kind, vec![device("virtio_user", &ours, options)], None))
        }
        Via::Vhost { socket, options } => {
            let path = socket_path(socket, SOCKET_PATH)?;
            if given(options, "client") != Some("1") {
                free_socket(socket, is_served)?;
            }
            let ours = [("iface", path), ("queues", wish.queues.to_string()), ("tso", "1".to_owned())];
            Ok(build(Kind::Vhost, vec![device("net_vhost", &ours, options)], wish.mac))
        }
        Via::Memif { socket, server, options } => {
            let path = socket_path(socket, MEMIF_PATH)?;
            let role = if *server { "server" } else { "client" };
            let ours = [
                ("socket", path),
                ("role", role.to_owned()),
                ("socket-abstract", "no".to_owned()),
                ("rsize", RING.ilog2().to_string()),
                ("mac", random().to_string()),
            ];
            let kind = match server {
                true => {
                    free_socket(socket, is_served_by_memif)?;
                    Kind::MemifServer
                }
                false => Kind::Client { socket: socket.clone(), peer: "memif server" },
            };
            Ok(build(kind, vec![device("net_memif", &ours, options)], None))
        }
    }
}

/// A virtual device with our arguments, less those that the user's options give, and the options as they are.
fn device(driver: &str, ours: &[(&str, String)], options: &[String]) -> Device {
    let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
    let ours =
        ours.iter().filter(|(key, _)| given(options, key).is_none()).map(|(key, value)| format!("{key}={value}"));
    let arguments = ours.chain(options.iter().cloned()).collect::<Vec<_>>().join(",");
    Device { bus: "vdev", name: format!("{driver}{number}"), arguments }
}

/// The value that the options give `key`; empty when they give it none.
fn given<'a>(options: &'a [String], key: &str) -> Option<&'a str> {
    options.iter().find_map(|option| match option.split_once('=') {
        Some((name, value)) => (name == key).then_some(value),
        None => (option == key).then_some(""),
    })
}

fn af_xdp(via: &Via, name: &str, options: &[String], wish: Wish) -> Result<Vec<Device>, OpenError> {
    if !interface::exists(name) {
        return Err(OpenError::NoInterface(name.to_owned()));
    }
    if !wish.force && interface::carries_default_route(name) {
        return Err(OpenError::DefaultRoute(name.to_owned()));
    }
    permitted(via, &[Right::NetAdmin, Right::NetRaw])?;
    let iface = ("iface", name.to_owned());
    if given(options, "start_queue").is_some() || given(options, "queue_count").is_some() {
        return Ok(vec![device("net_af_xdp", &[iface], options)]);
    }
    let channels = interface::channels(name);
    let has = channels.rx + channels.combined;
    if usize::from(wish.queues) > has.max(1) {
        return Err(OpenError::TooManyQueues {
            via: via.to_string(),
            asked: wish.queues.into(),
            has: has.max(1),
            remedy: more_queues(name, channels, wish.queues),
        });
    }
    if channels.combined >= usize::from(wish.queues) {
        let queues = ("queue_count", wish.queues.to_string());
        return Ok(vec![device("net_af_xdp", &[iface, queues], options)]);
    }
    // The driver counts combined channels only; one device for each queue needs none.
    Ok((0..wish.queues)
        .map(|queue| device("net_af_xdp", &[iface.clone(), ("start_queue", queue.to_string())], options))
        .collect())
}

fn more_queues(name: &str, channels: interface::Channels, queues: u16) -> String {
    if interface::driver(name).as_deref() == Some("veth") {
        format!(
            "make it with 'ip link add {name} numrxqueues {queues} numtxqueues {queues} type veth', or use fewer workers"
        )
    } else {
        let kind = if channels.combined > 0 { "combined" } else { "rx" };
        format!("'ethtool -L {name} {kind} {queues}' may give it more; or use fewer workers")
    }
}

fn permitted(via: &Via, rights: &[Right]) -> Result<(), OpenError> {
    match rights.iter().find(|&&right| !interface::has(right)) {
        None => Ok(()),
        Some(Right::NetAdmin) => Err(OpenError::NoPermission { via: via.to_string(), needs: "CAP_NET_ADMIN" }),
        Some(Right::NetRaw) => Err(OpenError::NoPermission { via: via.to_string(), needs: "CAP_NET_RAW" }),
    }
}

/// A socket's path as an argument, if its directory is there and it is short enough.
fn socket_path(socket: &Path, max: usize) -> Result<String, OpenError> {
    let parent = socket.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !parent.is_dir() {
        return Err(OpenError::NoDirectory(parent.to_owned()));
    }
    match socket.to_str() {
        Some(path) if path.len() <= max => Ok(path.to_owned()),
        _ => Err(OpenError::PathTooLong { path: socket.to_owned(), max }),
    }
}

/// Makes way for a socket of ours: one that a dead process left is removed.
fn free_socket(socket: &Path, is_served: fn(&Path) -> bool) -> Result<(), OpenError> {
    match std::fs::symlink_metadata(socket) {
        Err(_) => Ok(()),
        Ok(found) if !found.file_type().is_socket() => Err(OpenError::NotASocket(socket.to_owned())),
        Ok(_) if is_served(socket) => Err(OpenError::SocketInUse(socket.to_owned())),
        Ok(_) => {
            tracing::info!("removing '{}', which a process left behind", socket.display());
            std::fs::remove_file(socket).map_err(|error| OpenError::Device {
                via: socket.display().to_string(),
                step: "removed",
                reason: error.to_string(),
            })
        }
    }
}

fn is_served(socket: &Path) -> bool {
    UnixStream::connect(socket).is_ok()
}

/// memif's sockets carry messages (SOCK_SEQPACKET), which the standard library does not connect to: a listener
/// refuses a stream for its type, and a socket without one refuses for having none.
fn is_served_by_memif(socket: &Path) -> bool {
    match UnixStream::connect(socket) {
        Ok(_) => true,
        Err(error) => error.raw_os_error() == Some(libc::EPROTOTYPE),
    }
}

/// A locally administered address of our own.
fn random_mac() -> MacAddr {
    let mut mac = [0; 6];
    fastrand::Rng::new().fill(&mut mac);
    mac[0] = 0x02;
    MacAddr(mac)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(queues: u16) -> Wish {
        Wish { queues, mac: Some(MacAddr([2, 0, 0, 0, 0, 1])), force: false }
    }

    fn planned(via: &str, queues: u16) -> Result<Plan, OpenError> {
        plan(&via.parse().unwrap(), wish(queues))
    }

    #[test]
    fn virtio_user_connects_with_our_defaults() {
        let plan = planned("virtio-user:/tmp/lr-none.sock", 2).unwrap();
        assert_eq!(plan.devices[0].arguments, "path=/tmp/lr-none.sock,queues=2,queue_size=512,mac=02:00:00:00:00:01");
        assert!(matches!(plan.kind, Kind::Client { .. }));
    }

    #[test]
    fn the_users_options_replace_ours_and_reach_the_driver_as_they_are() {
        let plan = planned("virtio-user:/tmp/lr-none.sock,queue_size=1024,packed_vq=1,server=1", 1).unwrap();
        assert_eq!(
            plan.devices[0].arguments,
            "path=/tmp/lr-none.sock,queues=1,mac=02:00:00:00:00:01,queue_size=1024,packed_vq=1,server=1"
        );
        assert_eq!(plan.kind, Kind::Other);
    }

    #[test]
    fn vhost_serves_and_offers_segmentation() {
        let plan = planned("vhost:/tmp/lr-none.sock", 3).unwrap();
        assert_eq!(plan.devices[0].arguments, "iface=/tmp/lr-none.sock,queues=3,tso=1");
    }

    #[test]
    fn memif_uses_a_socket_in_the_file_system() {
        let plan = planned("memif:/tmp/lr-none.sock,server,id=3", 1).unwrap();
        assert_eq!(
            plan.devices[0].arguments,
            "socket=/tmp/lr-none.sock,role=server,socket-abstract=no,rsize=9,mac=02:00:00:00:00:01,id=3"
        );
        assert_eq!(plan.kind, Kind::MemifServer);
    }

    #[test]
    fn two_devices_never_share_a_name() {
        let name = || planned("vhost:/tmp/lr-none.sock", 1).unwrap().devices[0].name.clone();
        assert_ne!(name(), name());
    }

    #[test]
    fn what_cannot_work_is_refused_before_dpdk_sees_it() {
        let error = |via| planned(via, 1).unwrap_err();
        assert_eq!(error("kernel"), OpenError::NotDpdk("kernel".to_owned()));
        assert_eq!(error("af_xdp:nonsense0"), OpenError::NoInterface("nonsense0".to_owned()));
        assert_eq!(error("vhost:/nonsense/a.sock"), OpenError::NoDirectory("/nonsense".into()));
        assert_eq!(error("vhost:/dev/null"), OpenError::NotASocket("/dev/null".into()));
        assert!(matches!(error(&format!("vhost:/tmp/{}", "a".repeat(120))), OpenError::PathTooLong { .. }));
    }

    #[test]
    fn a_socket_that_is_served_is_left_alone_and_a_stale_one_is_removed() {
        let path = std::env::temp_dir().join(format!("lr-vdev-{}.sock", std::process::id()));
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert_eq!(free_socket(&path, is_served), Err(OpenError::SocketInUse(path.clone())));
        assert_eq!(free_socket(&path, is_served_by_memif), Err(OpenError::SocketInUse(path.clone())));
        drop(listener);
        assert!(path.exists());
        assert_eq!(free_socket(&path, is_served), Ok(()));
        assert!(!path.exists());
    }
}
