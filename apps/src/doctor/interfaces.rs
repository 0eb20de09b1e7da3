//! Network interfaces of the kernel and their suitability for AF_XDP.

use super::machine::DEBIAN_KERNEL;
use super::{AfXdpSocket, Check, Machine, State, Subject, cpu};

/// Drivers with native XDP support in Linux 6.1. With any other driver the kernel runs XDP programs after the driver
/// (generic XDP), which works on every interface but is slower.
const XDP_DRIVERS: [&str; 24] = [
    "atlantic",
    "bnxt_en",
    "bond",
    "ena",
    "fsl_dpaa2_eth",
    "fsl_enetc",
    "hv_netvsc",
    "i40e",
    "ice",
    "igb",
    "igc",
    "ixgbe",
    "ixgbevf",
    "mana",
    "mlx4_core",
    "mlx5_core",
    "mvneta",
    "mvpp2",
    "nfp",
    "qede",
    "sfc",
    "tun",
    "veth",
    "virtio_net",
];

/// Largest MTU of the AF_XDP driver: a page minus headroom.
const AF_XDP_MTU: u32 = 3542;

/// Interface of this network namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Interface {
    pub(super) name: String,
    /// Driver, or kind of virtual interface.
    driver: String,
    /// Ethernet, and not the loopback.
    pub(super) is_ethernet: bool,
    pub(super) is_up: bool,
    rx_queues: usize,
    mtu: Option<u32>,
    /// Has a default route. Binding the interface disconnects the host.
    pub(super) has_default_route: bool,
}

impl Interface {
    fn xdp_is_native(&self) -> bool {
        XDP_DRIVERS.contains(&self.driver.as_str())
    }
}

/// Lists the interfaces, sorted by name.
pub(super) fn list(machine: &Machine) -> Vec<Interface> {
    let default_routes = default_routes(machine);
    // Unlike /sys, /proc/net shows the network namespace of the reading process.
    let table = machine.read("proc/net/dev").unwrap_or_default();
    let names = table.lines().filter_map(|line| Some(line.split_once(':')?.0.trim()));
    let mut interfaces: Vec<Interface> = names.map(|name| read_interface(machine, name, &default_routes)).collect();
    interfaces.sort_by(|a, b| a.name.cmp(&b.name));
    interfaces
}

fn read_interface(machine: &Machine, name: &str, default_routes: &[String]) -> Interface {
    let directory = format!("sys/class/net/{name}");
    let read = |file: &str| machine.read(format!("{directory}/{file}"));
    let flags = read("flags").and_then(|flags| u32::from_str_radix(flags.strip_prefix("0x")?, 16).ok()).unwrap_or(0);
    // ARPHRD_ETHER; IFF_UP and IFF_LOOPBACK (linux/if_arp.h, linux/if.h).
    let is_ethernet = read("type").as_deref() == Some("1") && flags & 0x8 == 0;
    let queues = machine.list(format!("{directory}/queues"));
    Interface {
        name: name.to_owned(),
        driver: driver(machine, &directory),
        is_ethernet,
        is_up: flags & 0x1 != 0,
        rx_queues: queues.iter().filter(|queue| queue.starts_with("rx-")).count(),
        mtu: read("mtu").and_then(|mtu| mtu.parse().ok()),
        has_default_route: default_routes.iter().any(|route| route == name),
    }
}

/// Returns the name of the driver. A virtual interface has no device link; other entries of its directory show its
/// kind.
fn driver(machine: &Machine, directory: &str) -> String {
    if let Some(driver) = machine.link(format!("{directory}/device/driver")) {
        return driver;
    }
    let exists = |file: &str| machine.exists(format!("{directory}/{file}"));
    let index = |file: &str| machine.read(format!("{directory}/{file}"));
    let has_lower = machine.list(directory).iter().any(|name| name.starts_with("lower_"));
    let kind = if exists("tun_flags") {
        "tun"
    } else if exists("bridge") {
        "bridge"
    } else if exists("bonding") {
        "bond"
    } else if has_lower {
        "upper"
    } else if index("iflink") != index("ifindex") {
        // A veth is linked to its peer, but is not stacked on it.
        "veth"
    } else {
        "virtual"
    };
    kind.to_owned()
}

/// Returns the interfaces of the IPv4 and IPv6 default routes.
fn default_routes(machine: &Machine) -> Vec<String> {
    // RTF_UP and RTF_REJECT (linux/route.h).
    let usable = |flags: &str| u32::from_str_radix(flags, 16).is_ok_and(|flags| flags & 0x201 == 0x1);
    let ipv4 = machine.read("proc/net/route").unwrap_or_default();
    let ipv6 = machine.read("proc/net/ipv6_route").unwrap_or_default();
    let ipv4 = ipv4.lines().filter_map(|line| match line.split_whitespace().collect::<Vec<_>>()[..] {
        [name, "00000000", _, flags, _, _, _, "00000000", ..] if usable(flags) => Some(name.to_owned()),
        _ => None,
    });
    let ipv6 = ipv6.lines().filter_map(|line| match line.split_whitespace().collect::<Vec<_>>()[..] {
        [to, "00", _, _, _, _, _, _, flags, name] if to.bytes().all(|c| c == b'0') && usable(flags) => {
            Some(name.to_owned())
        }
        _ => None,
    });
    ipv4.chain(ipv6).collect()
}

pub(super) fn checks(machine: &Machine, interfaces: &[Interface]) -> Vec<Check> {
    let mut checks = vec![socket(machine)];
    checks.extend(interfaces.iter().filter(|interface| interface.is_ethernet).map(|one| describe(machine, one)));
    checks
}

fn socket(machine: &Machine) -> Check {
    let check = |state, found: &str| Check::new(Subject::Interfaces, "af_xdp socket", state, found);
    match &machine.af_xdp {
        AfXdpSocket::Opens => check(State::Ok, "opens"),
        AfXdpSocket::NotPermitted => {
            check(State::Missing, "not permitted").remedy(format!("sudo {} …", machine.program))
        }
        AfXdpSocket::Unsupported => {
            check(State::Missing, "this kernel was built without CONFIG_XDP_SOCKETS").remedy(DEBIAN_KERNEL)
        }
        AfXdpSocket::Fails(reason) => check(State::Missing, &format!("does not open: {reason}")),
    }
}

/// Returns the arguments with which a server shares an interface, after the commands that this requires.
fn share(machine: &Machine, interface: &Interface) -> String {
    let Interface { name, rx_queues, .. } = interface;
    let cores = cpu::online(machine).len();
    let (channels, workers) = match *rx_queues {
        0 | 1 => (String::new(), String::new()),
        queues if queues <= cores => (String::new(), format!(" --workers {queues}")),
        _ => (format!("sudo ethtool -L {name} combined 1 && "), String::new()),
    };
    let program = &machine.program;
    format!("{channels}sudo {program} echo serve --via af_xdp:{name},share{workers} --listen 0.0.0.0:7")
}

fn describe(machine: &Machine, interface: &Interface) -> Check {
    let Interface { name, driver, rx_queues, .. } = interface;
    let via = format!("af_xdp:{name}");
    let xdp = if interface.xdp_is_native() { "native" } else { "generic" };
    let queues = if *rx_queues == 1 { "1 queue".to_owned() } else { format!("{rx_queues} queues") };
    let found = format!("{driver}, {queues}, XDP {xdp}");
    let check = |state, found: String| Check::new(Subject::Interfaces, name, state, found);
    if !interface.is_up {
        return check(State::Warn, format!("{found}, down")).remedy(format!("sudo ip link set dev {name} up"));
    }
    if let Some(mtu) = interface.mtu.filter(|&mtu| mtu > AF_XDP_MTU) {
        let found = format!("{found}, MTU {mtu}: AF_XDP supports at most {AF_XDP_MTU}");
        return check(State::Warn, found).remedy(format!("sudo ip link set dev {name} mtu 1500"));
    }
    if (machine.has_lro)(name) {
        let found = format!("{found}, LRO on, which most drivers do not combine with XDP");
        return check(State::Warn, found).remedy(format!("sudo ethtool -K {name} lro off"));
    }
    if interface.has_default_route {
        let found = format!("{found}, carries the default route: share it with the kernel");
        return check(State::Warn, found).via(format!("{via},share")).remedy(share(machine, interface));
    }
    check(State::Ok, found).via(via)
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::machine::tests::Fake;
    use super::*;

    /// Adds an interface with values as in `/sys/class/net`.
    pub(in super::super) fn interface(fake: &Fake, name: &str, flags: &str, driver: Option<&str>) {
        let table = fake.machine.read("proc/net/dev").unwrap_or_else(|| "Inter-| Receive\n face |bytes".into());
        fake.write("proc/net/dev", format!("{table}\n  {name}:  10  1 0 0\n"));
        let directory = format!("sys/class/net/{name}");
        for (file, content) in [("type", "1"), ("flags", flags), ("mtu", "1500"), ("ifindex", "4"), ("iflink", "4")] {
            fake.write(&format!("{directory}/{file}"), content);
        }
        fake.write(&format!("{directory}/queues/rx-0/rps_cpus"), "0");
        fake.write(&format!("{directory}/queues/tx-0/tx_timeout"), "0");
        if let Some(driver) = driver {
            fake.link(&format!("{directory}/device/driver"), &format!("../../../bus/virtio/drivers/{driver}"));
        }
    }

    fn find(fake: &Fake, name: &str) -> Check {
        checks(&fake.machine, &list(&fake.machine)).into_iter().find(|check| check.name == name).unwrap()
    }

    #[test]
    fn interface_that_is_up_is_usable() {
        let fake = Fake::new();
        interface(&fake, "eth1", "0x1003", Some("virtio_net"));
        let check = find(&fake, "eth1");
        assert_eq!((check.state, check.via), (State::Ok, vec!["af_xdp:eth1".to_owned()]));
        assert_eq!(check.found, "virtio_net, 1 queue, XDP native");
    }

    #[test]
    fn interface_that_is_down_or_has_a_large_mtu_needs_ip_link() {
        let fake = Fake::new();
        interface(&fake, "eth1", "0x1002", Some("e1000e"));
        interface(&fake, "eth2", "0x1003", Some("ice"));
        fake.write("sys/class/net/eth2/mtu", "9000\n");
        assert_eq!(find(&fake, "eth1").remedy.unwrap(), "sudo ip link set dev eth1 up");
        assert!(find(&fake, "eth1").found.contains("XDP generic"));
        assert_eq!(find(&fake, "eth2").remedy.unwrap(), "sudo ip link set dev eth2 mtu 1500");
        assert!(find(&fake, "eth2").via.is_empty());
    }

    #[test]
    fn interface_that_merges_segments_needs_ethtool() {
        let mut fake = Fake::new();
        interface(&fake, "eth1", "0x1003", Some("ixgbe"));
        fake.machine.has_lro = |name| name == "eth1";
        assert_eq!(find(&fake, "eth1").remedy.unwrap(), "sudo ethtool -K eth1 lro off");
    }

    #[test]
    fn interface_of_the_default_route_is_to_be_shared() {
        let fake = Fake::new();
        interface(&fake, "eth0", "0x1003", Some("virtio_net"));
        interface(&fake, "eth1", "0x1003", Some("virtio_net"));
        assert_eq!(find(&fake, "eth0").state, State::Ok);
        let head = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n";
        let default = "eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n";
        let on_link = "eth1\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n";
        fake.write("proc/net/route", format!("{head}{default}{on_link}"));
        assert!(find(&fake, "eth0").remedy.unwrap().ends_with("--via af_xdp:eth0,share --listen 0.0.0.0:7"));
        fake.write("sys/class/net/eth0/queues/rx-1/rps_cpus", "0");
        fake.write("sys/devices/system/cpu/online", "0-1");
        assert!(find(&fake, "eth0").remedy.unwrap().contains("--via af_xdp:eth0,share --workers 2 --listen"));
        fake.write("sys/devices/system/cpu/online", "0");
        assert!(find(&fake, "eth0").remedy.unwrap().starts_with("sudo ethtool -L eth0 combined 1 && sudo"));
        assert_eq!(find(&fake, "eth1").state, State::Ok);

        let zeros = "0".repeat(32);
        let route = |flags, name| format!("{zeros} 00 {zeros} 00 {zeros} 00000400 00000002 00000000 {flags} {name}\n");
        // The second route is the unreachable route that every kernel has.
        fake.write("proc/net/ipv6_route", route("00000003", "eth1") + &route("00200200", "lo"));
        assert_eq!(find(&fake, "eth1").state, State::Warn);
        assert_eq!(default_routes(&fake.machine), ["eth0", "eth1"]);
    }

    #[test]
    fn loopback_and_non_ethernet_interfaces_are_skipped() {
        let fake = Fake::new();
        interface(&fake, "lo", "0x9", None);
        fake.write("sys/class/net/lo/type", "772\n");
        interface(&fake, "wg0", "0x1003", None);
        fake.write("sys/class/net/wg0/type", "65534\n");
        assert_eq!(checks(&fake.machine, &list(&fake.machine)).len(), 1);
    }

    #[test]
    fn virtual_interfaces_are_classified() {
        let fake = Fake::new();
        for name in ["v0", "t0", "b0", "vlan0", "d0"] {
            interface(&fake, name, "0x1003", None);
        }
        fake.write("sys/class/net/v0/iflink", "7\n");
        fake.write("sys/class/net/t0/tun_flags", "0x1002\n");
        fake.write("sys/class/net/b0/bridge/ageing_time", "0\n");
        fake.write("sys/class/net/vlan0/iflink", "2\n");
        fake.write("sys/class/net/vlan0/lower_eth0/ifindex", "2\n");
        let kinds: Vec<String> = list(&fake.machine).into_iter().map(|interface| interface.driver).collect();
        assert_eq!(kinds, ["bridge", "virtual", "tun", "veth", "upper"]);
    }

    #[test]
    fn af_xdp_socket_error_selects_the_remedy() {
        let mut fake = Fake::new();
        assert_eq!(find(&fake, "af_xdp socket").state, State::Ok);
        for (result, remedy) in [
            (AfXdpSocket::NotPermitted, Some("sudo linerate …")),
            (AfXdpSocket::Unsupported, Some(DEBIAN_KERNEL)),
            (AfXdpSocket::Fails("too many".into()), None),
        ] {
            fake.machine.af_xdp = result;
            let check = find(&fake, "af_xdp socket");
            assert_eq!((check.state, check.remedy.as_deref()), (State::Missing, remedy));
        }
    }
}
