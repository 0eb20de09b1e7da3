//! Device arguments for a [`Via`], and checks before DPDK sees them.

use super::error::OpenError;
use super::interface::{self, LinuxCap};
use crate::{MacAddr, Via};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Device for DPDK to create or to take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DevArgs {
    pub bus: &'static str,
    /// Name on the bus, unique within the process.
    pub name: String,
    pub arguments: String,
}

/// Specification of a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PortSpec {
    /// Network, for messages.
    pub via: String,
    pub kind: PortKind,
    /// Devices, each with `queues / devices.len()` queues. Empty: the first port that EAL found.
    pub devices: Vec<DevArgs>,
    /// Total number of queue pairs.
    pub queues: u16,
    /// True if the interface is shared: the port receives only frames of its addresses, and the kernel all others.
    pub shared: bool,
    /// Ethernet address that the device is given or, if it keeps its own, that the port uses.
    pub mac: Option<MacAddr>,
}

/// Kinds of ports that are treated differently after creation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PortKind {
    /// Hardware or virtual device without special treatment, or the device of EAL's arguments.
    Other,
    /// Kernel interface.
    AfXdp(String),
    /// Kernel interface that the device creates.
    Tap(String),
    /// Connecting end of a link: created while the other end serves the socket, and again when it returns.
    Client { socket: PathBuf, peer: &'static str },
    /// Serving end of a vhost-user link.
    Vhost,
    /// Serving end of a memif link.
    MemifServer,
}

/// Requested properties of a port.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PortRequest {
    pub queues: u16,
    pub mac: Option<MacAddr>,
    pub force: bool,
}

/// Number of the next device: names must be unique in the process.
static NUMBERS: AtomicU32 = AtomicU32::new(0);

/// Maximum path of a `sockaddr_un`.
const SOCKET_PATH: usize = 107;
/// Maximum path of the memif driver.
const MEMIF_PATH: usize = 107;
/// Descriptors of a ring between two processes: enough for bursts, few enough to stay in the cache.
const RING_SIZE: u32 = 512;

/// Checks `via` and returns the devices to create.
pub(crate) fn port_spec(via: &Via, request: PortRequest) -> Result<PortSpec, OpenError> {
    let shared = matches!(via, Via::AfXdp { shared: true, .. });
    let build = |kind, devices, mac| {
        let (via, queues) = (via.to_string(), request.queues);
        PortSpec { via, kind, devices, queues, shared, mac }
    };
    let random = || request.mac.unwrap_or_else(random_mac);
    match via {
        Via::Kernel | Via::Rdma { .. } | Via::Roce { .. } => Err(OpenError::NotDpdk(via.to_string())),
        Via::Eal => Ok(build(PortKind::Other, Vec::new(), request.mac)),
        Via::Pci { address, options } => {
            let device = DevArgs { bus: "pci", name: address.clone(), arguments: options.join(",") };
            Ok(build(PortKind::Other, vec![device], request.mac))
        }
        Via::AfXdp { interface, shared, options } => {
            let devices = af_xdp(via, interface, *shared, options, request)?;
            Ok(build(PortKind::AfXdp(interface.clone()), devices, request.mac))
        }
        Via::Tap { interface, options } => {
            check_linux_caps(via, &[LinuxCap::NetAdmin])?;
            if !Path::new("/dev/net/tun").exists() {
                return Err(OpenError::NoTun);
            }
            if interface::index(interface).is_some() {
                return Err(OpenError::InterfaceExists(interface.clone()));
            }
            // The TAP driver reports the Ethernet address of the kernel's end.
            let device = device("net_tap", &[("iface", interface.clone())], options);
            Ok(build(PortKind::Tap(interface.clone()), vec![device], Some(random())))
        }
        Via::VirtioUser { socket, options } => {
            let path = socket_path(socket, SOCKET_PATH)?;
            let defaults = [
                ("path", path),
                ("queues", request.queues.to_string()),
                ("queue_size", RING_SIZE.to_string()),
                ("mac", random().to_string()),
            ];
            // With `server=1` the driver itself waits for the peer and reconnects.
            let kind = match option_value(options, "server") {
                Some("1") => PortKind::Other,
                _ => PortKind::Client { socket: socket.clone(), peer: "vhost" },
            };
            Ok(build(kind, vec![device("virtio_user", &defaults, options)], None))
        }
        Via::Vhost { socket, options } => {
            let path = socket_path(socket, SOCKET_PATH)?;
            if option_value(options, "client") != Some("1") {
                remove_stale_socket(socket, is_served)?;
            }
            let defaults = [("iface", path), ("queues", request.queues.to_string()), ("tso", "1".to_owned())];
            Ok(build(PortKind::Vhost, vec![device("net_vhost", &defaults, options)], request.mac))
        }
        Via::Memif { socket, server, options } => {
            let path = socket_path(socket, MEMIF_PATH)?;
            let role = if *server { "server" } else { "client" };
            let defaults = [
                ("socket", path),
                ("role", role.to_owned()),
                ("socket-abstract", "no".to_owned()),
                ("rsize", RING_SIZE.ilog2().to_string()),
                ("mac", random().to_string()),
            ];
            let kind = match server {
                true => {
                    remove_stale_socket(socket, is_served_by_memif)?;
                    PortKind::MemifServer
                }
                false => PortKind::Client { socket: socket.clone(), peer: "memif server" },
            };
            Ok(build(kind, vec![device("net_memif", &defaults, options)], None))
        }
    }
}

/// Creates a virtual device with `defaults`, except those that `options` replace, followed by `options`.
fn device(driver: &str, defaults: &[(&str, String)], options: &[String]) -> DevArgs {
    let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
    let defaults = defaults
        .iter()
        .filter(|(key, _)| option_value(options, key).is_none())
        .map(|(key, value)| format!("{key}={value}"));
    let arguments = defaults.chain(options.iter().cloned()).collect::<Vec<_>>().join(",");
    DevArgs { bus: "vdev", name: format!("{driver}{number}"), arguments }
}

/// Returns the value of `key` in `options`; empty for an option without a value.
fn option_value<'a>(options: &'a [String], key: &str) -> Option<&'a str> {
    options.iter().find_map(|option| match option.split_once('=') {
        Some((name, value)) => (name == key).then_some(value),
        None => (option == key).then_some(""),
    })
}

fn af_xdp(
    via: &Via,
    name: &str,
    shared: bool,
    options: &[String],
    request: PortRequest,
) -> Result<Vec<DevArgs>, OpenError> {
    if interface::index(name).is_none() {
        return Err(OpenError::NoInterface(name.to_owned()));
    }
    if !shared && !request.force && interface::carries_default_route(name) {
        return Err(OpenError::DefaultRoute(name.to_owned()));
    }
    if shared && request.mac.is_some() {
        return Err(OpenError::SharedMac(name.to_owned()));
    }
    check_linux_caps(via, &[LinuxCap::NetAdmin, LinuxCap::NetRaw])?;
    let iface = ("iface", name.to_owned());
    if option_value(options, "start_queue").is_some() || option_value(options, "queue_count").is_some() {
        return Ok(vec![device("net_af_xdp", &[iface], options)]);
    }
    let channels = interface::channels(name);
    let has = channels.rx + channels.combined;
    if usize::from(request.queues) > has.max(1) {
        return Err(OpenError::TooManyQueues {
            via: via.to_string(),
            requested: request.queues.into(),
            has: has.max(1),
            remedy: more_queues(name, channels, request.queues),
        });
    }
    if shared && usize::from(request.queues) < has {
        return Err(OpenError::SharedQueues { interface: name.to_owned(), queues: has, workers: request.queues });
    }
    if channels.combined >= usize::from(request.queues) {
        let queues = ("queue_count", request.queues.to_string());
        return Ok(vec![device("net_af_xdp", &[iface, queues], options)]);
    }
    // The driver counts combined channels only, so an interface with too few of them gets one device per queue.
    Ok((0..request.queues)
        .map(|queue| device("net_af_xdp", &[iface.clone(), ("start_queue", queue.to_string())], options))
        .collect())
}

fn more_queues(name: &str, channels: interface::Channels, queues: u16) -> String {
    if interface::driver(name).as_deref() == Some("veth") {
        format!(
            "create it with 'ip link add {name} numrxqueues {queues} numtxqueues {queues} type veth', or use \
             fewer workers"
        )
    } else {
        let kind = if channels.combined > 0 { "combined" } else { "rx" };
        format!("try 'ethtool -L {name} {kind} {queues}', or use fewer workers")
    }
}

fn check_linux_caps(via: &Via, caps: &[LinuxCap]) -> Result<(), OpenError> {
    match caps.iter().find(|&&cap| !interface::has(cap)) {
        None => Ok(()),
        Some(LinuxCap::NetAdmin) => Err(OpenError::NoPermission { via: via.to_string(), needs: "CAP_NET_ADMIN" }),
        Some(LinuxCap::NetRaw) => Err(OpenError::NoPermission { via: via.to_string(), needs: "CAP_NET_RAW" }),
    }
}

/// Returns the directory of a socket.
fn parent_of(socket: &Path) -> &Path {
    socket.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Returns whether this process may create files in `directory`.
fn is_writable(directory: &Path) -> bool {
    let Ok(path) = CString::new(directory.as_os_str().as_bytes()) else { return false };
    let wanted = libc::W_OK | libc::X_OK;
    // SAFETY: the path ends with a NUL byte and outlives the call.
    unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), wanted, libc::AT_EACCESS) == 0 }
}

/// Returns a socket's path as an argument, if its directory exists and it is short enough.
fn socket_path(socket: &Path, max: usize) -> Result<String, OpenError> {
    let parent = parent_of(socket);
    if !parent.is_dir() {
        return Err(OpenError::NoDirectory(parent.to_owned()));
    }
    match socket.to_str() {
        Some(path) if path.len() <= max => Ok(path.to_owned()),
        _ => Err(OpenError::PathTooLong { path: socket.to_owned(), max }),
    }
}

/// Prepares the path of a socket to be created: checks that its directory is writable, and removes a socket that a dead
/// process left.
fn remove_stale_socket(socket: &Path, is_served: fn(&Path) -> bool) -> Result<(), OpenError> {
    if !is_writable(parent_of(socket)) {
        return Err(OpenError::DirectoryNotWritable(socket.to_owned()));
    }
    match std::fs::symlink_metadata(socket) {
        Err(_) => Ok(()),
        Ok(found) if !found.file_type().is_socket() => Err(OpenError::NotASocket(socket.to_owned())),
        Ok(_) if is_served(socket) => Err(OpenError::SocketInUse(socket.to_owned())),
        Ok(_) => {
            tracing::info!("removing the stale socket '{}'", socket.display());
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

/// Returns whether a memif socket is served. The socket is of type SOCK_SEQPACKET, to which the standard library cannot
/// connect: a stream connection fails with EPROTOTYPE if the socket has a listener, and with ECONNREFUSED otherwise.
fn is_served_by_memif(socket: &Path) -> bool {
    match UnixStream::connect(socket) {
        Ok(_) => true,
        Err(error) => error.raw_os_error() == Some(libc::EPROTOTYPE),
    }
}

/// Returns a random locally administered address.
fn random_mac() -> MacAddr {
    let mut mac = [0; 6];
    fastrand::Rng::new().fill(&mut mac);
    mac[0] = 0x02;
    MacAddr(mac)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(queues: u16) -> PortRequest {
        PortRequest { queues, mac: Some(MacAddr([2, 0, 0, 0, 0, 1])), force: false }
    }

    fn spec_of(via: &str, queues: u16) -> Result<PortSpec, OpenError> {
        port_spec(&via.parse().unwrap(), request(queues))
    }

    #[test]
    fn virtio_user_connects_with_default_arguments() {
        let spec = spec_of("virtio-user:/tmp/lr-none.sock", 2).unwrap();
        assert_eq!(spec.devices[0].arguments, "path=/tmp/lr-none.sock,queues=2,queue_size=512,mac=02:00:00:00:00:01");
        assert!(matches!(spec.kind, PortKind::Client { .. }));
    }

    #[test]
    fn user_options_replace_defaults_and_reach_the_driver_unchanged() {
        let spec = spec_of("virtio-user:/tmp/lr-none.sock,queue_size=1024,packed_vq=1,server=1", 1).unwrap();
        assert_eq!(
            spec.devices[0].arguments,
            "path=/tmp/lr-none.sock,queues=1,mac=02:00:00:00:00:01,queue_size=1024,packed_vq=1,server=1"
        );
        assert_eq!(spec.kind, PortKind::Other);
    }

    #[test]
    fn vhost_serves_and_offers_segmentation() {
        let spec = spec_of("vhost:/tmp/lr-none.sock", 3).unwrap();
        assert_eq!(spec.devices[0].arguments, "iface=/tmp/lr-none.sock,queues=3,tso=1");
    }

    #[test]
    fn memif_uses_a_socket_in_the_file_system() {
        let spec = spec_of("memif:/tmp/lr-none.sock,server,id=3", 1).unwrap();
        assert_eq!(
            spec.devices[0].arguments,
            "socket=/tmp/lr-none.sock,role=server,socket-abstract=no,rsize=9,mac=02:00:00:00:00:01,id=3"
        );
        assert_eq!(spec.kind, PortKind::MemifServer);
    }

    #[test]
    fn device_names_are_unique() {
        let name = || spec_of("vhost:/tmp/lr-none.sock", 1).unwrap().devices[0].name.clone();
        assert_ne!(name(), name());
    }

    #[test]
    fn invalid_ports_are_rejected_before_dpdk_sees_them() {
        let error = |via| spec_of(via, 1).unwrap_err();
        assert_eq!(error("kernel"), OpenError::NotDpdk("kernel".to_owned()));
        assert_eq!(error("af_xdp:nonsense0"), OpenError::NoInterface("nonsense0".to_owned()));
        assert_eq!(error("vhost:/nonsense/a.sock"), OpenError::NoDirectory("/nonsense".into()));
        assert_eq!(error("vhost:/dev/null"), OpenError::NotASocket("/dev/null".into()));
        assert!(matches!(error(&format!("vhost:/tmp/{}", "a".repeat(120))), OpenError::PathTooLong { .. }));
    }

    #[test]
    fn served_socket_is_kept_and_stale_socket_is_removed() {
        let path = std::env::temp_dir().join(format!("lr-vdev-{}.sock", std::process::id()));
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert_eq!(remove_stale_socket(&path, is_served), Err(OpenError::SocketInUse(path.clone())));
        assert_eq!(remove_stale_socket(&path, is_served_by_memif), Err(OpenError::SocketInUse(path.clone())));
        drop(listener);
        assert!(path.exists());
        assert_eq!(remove_stale_socket(&path, is_served), Ok(()));
        assert!(!path.exists());
    }
}
