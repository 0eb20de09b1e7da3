//! Properties of kernel interfaces, in the network namespace of the calling thread.

use std::ffi::CString;
use std::fs::read_to_string;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::num::NonZeroU32;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Port of the discard service (RFC 863).
const DISCARD: u16 = 9;

/// ioctl request about an interface, and a socket in the namespace.
struct Query {
    socket: OwnedFd,
    request: libc::ifreq,
}

impl Query {
    fn new(name: &str) -> Option<Query> {
        // SAFETY: there are no pointer arguments.
        let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        if socket < 0 {
            return None;
        }
        // SAFETY: a new descriptor, which this value owns.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        // SAFETY: an `ifreq` consists of bytes and a union of plain values, for which zero is valid.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        if name.len() >= request.ifr_name.len() {
            return None;
        }
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        Some(Query { socket, request })
    }

    fn ask(&mut self, request_code: libc::Ioctl) -> bool {
        // SAFETY: the kernel reads and writes an `ifreq`, and the memory it points to, for the requests used here.
        unsafe { libc::ioctl(self.socket.as_raw_fd(), request_code, &mut self.request) == 0 }
    }

    /// Executes an ethtool command. `about` starts with the number of the command.
    fn ethtool<T>(&mut self, about: &mut T) -> bool {
        self.request.ifr_ifru.ifru_data = std::ptr::from_mut(about).cast();
        self.ask(libc::SIOCETHTOOL as libc::Ioctl)
    }
}

/// Returns the number of the interface, if it exists.
pub(crate) fn index(name: &str) -> Option<NonZeroU32> {
    let name = CString::new(name).ok()?;
    // SAFETY: a string.
    NonZeroU32::new(unsafe { libc::if_nametoindex(name.as_ptr()) })
}

/// Returns whether any interface of the kernel has the address. The kernel sends packets to an own address from that
/// address.
pub(crate) fn is_kernel_address(ip: IpAddr) -> bool {
    let any: IpAddr = if ip.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    // Connecting a datagram socket selects the source address and sends nothing.
    let source = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((ip, DISCARD))?;
        socket.local_addr()
    });
    source.is_ok_and(|source| source.ip() == ip)
}

pub(crate) fn mtu(name: &str) -> Option<u32> {
    let mut query = Query::new(name)?;
    query.ask(libc::SIOCGIFMTU as libc::Ioctl).then_some(())?;
    // SAFETY: the successful request has filled this member.
    u32::try_from(unsafe { query.request.ifr_ifru.ifru_mtu }).ok()
}

/// Sets the transmit queue length of the interface in frames. Returns whether the kernel accepted it.
pub(crate) fn set_transmit_queue(name: &str, length: u16) -> bool {
    const SIOCSIFTXQLEN: libc::Ioctl = 0x8943;
    let Some(mut query) = Query::new(name) else { return false };
    // The kernel names this integer of the union `ifr_qlen`.
    query.request.ifr_ifru.ifru_mtu = length.into();
    query.ask(SIOCSIFTXQLEN)
}

/// Returns whether the interface is up and has a carrier.
pub(crate) fn is_running(name: &str) -> bool {
    let Some(mut query) = Query::new(name) else { return false };
    let both = libc::IFF_UP | libc::IFF_RUNNING;
    // SAFETY: the successful request has filled this member.
    query.ask(libc::SIOCGIFFLAGS as libc::Ioctl)
        && unsafe { i32::from(query.request.ifr_ifru.ifru_flags) } & both == both
}

/// Returns the name of the interface's driver.
pub(crate) fn driver(name: &str) -> Option<String> {
    const ETHTOOL_GDRVINFO: u32 = 3;
    #[repr(C)]
    struct DriverInfo {
        command: u32,
        driver: [u8; 32],
        rest: [u8; 160],
    }
    let mut info = DriverInfo { command: ETHTOOL_GDRVINFO, driver: [0; 32], rest: [0; 160] };
    Query::new(name)?.ethtool(&mut info).then_some(())?;
    let end = info.driver.iter().position(|&byte| byte == 0).unwrap_or(info.driver.len());
    Some(String::from_utf8_lossy(&info.driver[..end]).into_owned())
}

/// Numbers of receive queues of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Channels {
    /// Receive-only queues.
    pub rx: usize,
    /// Queues that receive and send.
    pub combined: usize,
}

/// Returns the queues of the interface, or one receive queue if its driver does not report them.
pub(crate) fn channels(name: &str) -> Channels {
    const ETHTOOL_GCHANNELS: u32 = 0x3c;
    #[repr(C)]
    #[derive(Default)]
    struct EthtoolChannels {
        command: u32,
        /// Maximum numbers of receive, transmit, other and combined channels; current numbers follow.
        max: [u32; 4],
        now: [u32; 4],
    }
    let mut channels = EthtoolChannels { command: ETHTOOL_GCHANNELS, ..EthtoolChannels::default() };
    if Query::new(name).is_some_and(|mut query| query.ethtool(&mut channels)) {
        Channels { rx: channels.now[0] as usize, combined: channels.now[3] as usize }
    } else {
        Channels { rx: 1, combined: 0 }
    }
}

/// Flags of offloads in the requests `ETHTOOL_GFLAGS` and `ETHTOOL_SFLAGS`.
const FLAG_LRO: u32 = 1 << 15;
const FLAG_RX_VLAN: u32 = 1 << 8;

/// Gets the flags of the interface's offloads or, with `new` flags, sets them.
fn offloads(name: &str, new: Option<u32>) -> Option<u32> {
    const ETHTOOL_GFLAGS: u32 = 0x25;
    const ETHTOOL_SFLAGS: u32 = 0x26;
    #[repr(C)]
    struct Value {
        command: u32,
        data: u32,
    }
    let command = if new.is_some() { ETHTOOL_SFLAGS } else { ETHTOOL_GFLAGS };
    let mut flags = Value { command, data: new.unwrap_or(0) };
    Query::new(name)?.ethtool(&mut flags).then_some(flags.data)
}

/// Returns whether the interface merges received segments (LRO), which most drivers do not combine with XDP.
pub fn has_lro(name: &str) -> bool {
    offloads(name, None).is_some_and(|flags| flags & FLAG_LRO != 0)
}

/// Removal of VLAN tags from received frames, which is switched off on an interface until this value is dropped: XDP
/// does not see a removed tag, and would take the frame for one without a tag.
#[derive(Debug)]
pub(crate) struct VlanTagsKept {
    /// Name of the interface, if the removal was on.
    interface: Option<String>,
}

impl VlanTagsKept {
    /// Switches the removal off. Fails if the driver does not support that.
    pub fn on(name: &str) -> Option<Self> {
        let flags = offloads(name, None).unwrap_or(0);
        if flags & FLAG_RX_VLAN == 0 {
            return Some(VlanTagsKept { interface: None });
        }
        offloads(name, Some(flags & !FLAG_RX_VLAN))?;
        let is_off = offloads(name, None).is_some_and(|flags| flags & FLAG_RX_VLAN == 0);
        is_off.then(|| VlanTagsKept { interface: Some(name.to_owned()) })
    }
}

impl Drop for VlanTagsKept {
    fn drop(&mut self) {
        let Some(name) = &self.interface else { return };
        if let Some(flags) = offloads(name, None)
            && offloads(name, Some(flags | FLAG_RX_VLAN)).is_none()
        {
            tracing::warn!("'ethtool -K {name} rxvlan on' restores the interface, which this program could not");
        }
    }
}

/// Returns whether an IPv4 or IPv6 default route uses the interface.
pub(crate) fn carries_default_route(name: &str) -> bool {
    // The thread may be in another namespace than its process.
    let read = |table| read_to_string(format!("/proc/thread-self/net/{table}")).unwrap_or_default();
    default_route_v4(&read("route"), name) || default_route_v6(&read("ipv6_route"), name)
}

fn default_route_v4(table: &str, name: &str) -> bool {
    table.lines().skip(1).any(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        fields.len() > 7 && fields[0] == name && fields[1] == "00000000" && fields[7] == "00000000"
    })
}

fn default_route_v6(table: &str, name: &str) -> bool {
    table.lines().any(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        fields.len() > 9 && fields[9] == name && fields[0].bytes().all(|digit| digit == b'0') && fields[1] == "00"
    })
}

/// Linux capability, with its number (`capabilities(7)`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinuxCap {
    NetAdmin = 12,
    NetRaw = 13,
}

/// Returns whether the calling thread has the capability.
pub(crate) fn has(cap: LinuxCap) -> bool {
    let status = read_to_string("/proc/thread-self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).is_some_and(|set| set >> cap as u32 & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_queries_distinguish_loopback_from_missing_interfaces() {
        assert!(index("lo").is_some());
        assert!(!has_lro("lo") && !has_lro("nonsense0"));
        assert!(mtu("lo").is_some_and(|mtu| mtu >= 1280));
        assert_eq!(index("nonsense0"), None);
        assert_eq!((mtu("nonsense0"), is_running("nonsense0"), driver("nonsense0")), (None, false, None));
        assert_eq!(channels("nonsense0"), Channels { rx: 1, combined: 0 });
        assert_eq!(mtu("a-name-that-is-longer-than-any"), None);
    }

    #[test]
    fn default_route_has_no_destination_and_no_mask() {
        let v4 = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
                  eth0\t00000000\t010010AC\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
                  eth1\t000010AC\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n";
        assert!(default_route_v4(v4, "eth0"));
        assert!(!default_route_v4(v4, "eth1"));
        let zero = "0".repeat(32);
        let v6 = format!(
            "{zero} 00 {zero} 00 fe800000000000000000000000000001 00000400 00000001 00000000 00000003     eth0\n\
             fe800000000000000000000000000000 40 {zero} 00 {zero} 00000100 00000001 00000000 00000001     eth1\n"
        );
        assert!(default_route_v6(&v6, "eth0"));
        assert!(!default_route_v6(&v6, "eth1"));
    }
}
