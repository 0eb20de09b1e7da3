//! Interface that a port shares with the kernel, at the kernel's own addresses.

mod control;

pub use control::ControlThread;

use crate::config::{Listen, NetConfig, PortRange};
use crate::error::Error;
use linerate_bypass::Via;
use linerate_bypass::dpdk::Endpoints;
use linerate_bypass::rtnetlink::{InterfaceAddress, InterfaceMonitor, InterfaceNetwork};
use linerate_stack::{Config, HostNetwork, IpCidr, Route};
use std::net::IpAddr;
use std::sync::Arc;

/// Maximum routes through an interface. Each lookup of a next hop reads them in order.
const MOST_ROUTES: usize = 1024;

/// Kernel's state of the interface, before the workers run.
pub struct SharedHost {
    monitor: InterfaceMonitor,
    listen: Listen,
    interface: String,
    network: Arc<HostNetwork>,
    /// Local ports of outgoing connections, if there are any.
    pub outgoing: Option<PortRange>,
}

impl SharedHost {
    /// Reads the kernel's state of the shared interface; returns `None` unless the network uses the kernel's addresses.
    pub fn open(options: &NetConfig, listen: &Listen) -> Result<Option<Self>, Error> {
        let Via::AfXdp { interface, shared: true, .. } = &options.via else { return Ok(None) };
        if !options.uses_kernel_addresses() {
            return Ok(None);
        }
        let failed = |source| Error::Rtnetlink { interface: interface.clone(), source };
        let monitor = InterfaceMonitor::open(interface).map_err(failed)?;
        let network = network_of(monitor.network(), listen);
        if network.addresses.is_empty() {
            return Err(Error::NoKernelAddress(interface.clone()));
        }
        if network.routes.len() > MOST_ROUTES {
            return Err(Error::TooManyRoutes { interface: interface.clone(), most: MOST_ROUTES });
        }
        let own = || network.addresses.clone();
        let is_local = |ip: IpAddr| network.addresses.iter().any(|cidr| cidr.address() == ip);
        for address in listen.tcp.iter().chain(&listen.udp) {
            if !address.ip().is_unspecified() && !is_local(address.ip()) {
                return Err(Error::NotLocal { address: *address, own: own() });
            }
        }
        if let Some(from) = options.from.iter().find(|from| !is_local(**from)) {
            return Err(Error::SourceNotLocal { address: *from, own: own() });
        }
        let outgoing = outgoing_ports(options.outgoing_ports, listen)?;
        let (listen, interface, network) = (listen.clone(), interface.clone(), Arc::new(network));
        Ok(Some(SharedHost { monitor, listen, interface, network, outgoing }))
    }

    /// Returns the addresses and routes.
    pub fn network(&self) -> Arc<HostNetwork> {
        self.network.clone()
    }

    pub fn endpoints(&self) -> Endpoints {
        let Listen { tcp, udp, .. } = self.listen.clone();
        // A network without listening addresses may receive some while it runs.
        let may_grow = tcp.is_empty();
        Endpoints { tcp, udp, outgoing: self.outgoing.map(PortRange::into), may_grow }
    }
}

/// Refuses a local address that the kernel has on an interface that is not shared. The port refuses it otherwise.
pub fn check_own_addresses(options: &NetConfig) -> Result<(), Error> {
    match (&options.via, address_of_kernel(options)) {
        (Via::AfXdp { interface, shared: false, .. }, Some(address)) => {
            Err(Error::AddressOfKernel { address, interface: interface.clone() })
        }
        _ => Ok(()),
    }
}

/// Returns a local address that the kernel has on the interface of `af_xdp:`, too.
pub fn address_of_kernel(options: &NetConfig) -> Option<IpAddr> {
    let Via::AfXdp { interface, .. } = &options.via else { return None };
    // Opening the port reports a missing interface.
    let monitor = InterfaceMonitor::open(interface).ok()?;
    let is_kernels = |ip: &IpAddr| monitor.network().addresses.iter().any(|own| own.ip == *ip);
    options.ip.iter().map(IpCidr::address).find(is_kernels)
}

/// Returns the local ports of outgoing connections, and an error if the kernel uses some of them. A server has none
/// unless they are `given`: the kernel would lose its segments to these ports.
fn outgoing_ports(given: Option<PortRange>, listen: &Listen) -> Result<Option<PortRange>, Error> {
    let serves = !(listen.tcp.is_empty() && listen.udp.is_empty());
    let Some(wanted) = given.or((!serves).then_some(PortRange::SHARED)) else { return Ok(None) };
    match PortRange::of_kernel() {
        Some(kernel) if wanted.overlaps(kernel) => Err(Error::KernelPorts { wanted, kernel }),
        _ => Ok(Some(wanted)),
    }
}

/// Returns the state of the interface for the stack. Addresses beyond the supported number are omitted: listening
/// addresses take precedence, then preferred over deprecated and permanent over temporary addresses.
fn network_of(network: &InterfaceNetwork, listen: &Listen) -> HostNetwork {
    let is_listened = |ip: IpAddr| listen.tcp.iter().chain(&listen.udp).any(|address| address.ip() == ip);
    let mut own: Vec<&InterfaceAddress> = network.addresses.iter().collect();
    own.sort_by_key(|own| (!is_listened(own.ip), own.is_deprecated, own.is_temporary));
    if own.len() > Config::MAX_ADDRESSES {
        let unused: Vec<_> = own[Config::MAX_ADDRESSES..].iter().map(|own| own.ip.to_string()).collect();
        tracing::warn!("more than {} addresses: the kernel keeps {}", Config::MAX_ADDRESSES, unused.join(", "));
        own.truncate(Config::MAX_ADDRESSES);
    }
    let route = |route: &linerate_bypass::rtnetlink::InterfaceRoute| Route {
        destination: route.destination,
        prefix: route.prefix_len,
        gateway: route.gateway,
        source: route.source,
    };
    HostNetwork {
        mac: network.mac,
        addresses: own.iter().filter_map(|own| IpCidr::new(own.ip, own.prefix_len).ok()).collect(),
        deprecated: own.iter().filter(|own| own.is_deprecated).map(|own| own.ip).collect(),
        routes: network.routes.iter().map(route).collect(),
    }
}

pub fn ips(network: &HostNetwork) -> Vec<IpAddr> {
    network.addresses.iter().map(IpCidr::address).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(ip: &str, is_deprecated: bool, is_temporary: bool) -> InterfaceAddress {
        InterfaceAddress { ip: ip.parse().unwrap(), prefix_len: 64, is_deprecated, is_temporary }
    }

    #[test]
    fn addresses_beyond_the_limit_are_the_least_useful() {
        let temporary = (1..=6).map(|n| own(&format!("2001:db8::{n}"), false, true));
        let rest = [own("2001:db8::d", true, false), own("2001:db8::f", false, false), own("fe80::1", false, false)];
        let network = InterfaceNetwork { addresses: temporary.chain(rest).collect(), ..InterfaceNetwork::default() };
        let listen = Listen { tcp: vec!["[2001:db8::6]:7".parse().unwrap()], ..Listen::default() };
        let ips: Vec<_> = ips(&network_of(&network, &listen)).iter().map(IpAddr::to_string).collect();
        let hosts = ["6", "f", "", "1", "2", "3", "4", "5"];
        let expected: Vec<_> =
            hosts.iter().map(|n| if n.is_empty() { "fe80::1".to_owned() } else { format!("2001:db8::{n}") }).collect();
        assert_eq!(ips, expected);
        let all = network_of(&network, &Listen::default());
        assert_eq!(all.addresses.len(), Config::MAX_ADDRESSES);
        assert_eq!(all.deprecated, Vec::<IpAddr>::new(), "the deprecated one is left out");
    }

    #[test]
    fn outgoing_ports_of_the_kernel_are_refused_and_a_server_has_none_by_default() {
        let kernel = PortRange::of_kernel().unwrap();
        let server = Listen { tcp: vec!["192.0.2.1:7".parse().unwrap()], ..Listen::default() };
        assert_eq!(outgoing_ports(None, &server).unwrap(), None);
        let taken = PortRange::new(kernel.first(), kernel.first());
        let refused = outgoing_ports(Some(taken), &Listen::default()).unwrap_err().to_string();
        assert!(refused.contains("ip_local_port_range") && refused.contains(&taken.to_string()), "{refused}");
        if !kernel.overlaps(PortRange::SHARED) {
            assert_eq!(outgoing_ports(None, &Listen::default()).unwrap(), Some(PortRange::SHARED));
            assert_eq!(outgoing_ports(Some(PortRange::SHARED), &server).unwrap(), Some(PortRange::SHARED));
        }
    }
}
