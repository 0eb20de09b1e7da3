//! A network between two machines: execution of programs at its ends, and their arguments.

use super::link_spec::{Ends, LinkSpec};
use crate::location::Location;
use linerate_stack::IpCidr;

/// Properties of kernel sockets over a network.
pub const TUNING: [&str; 4] = [
    "TCP_NODELAY on every connection.",
    "One edge-triggered epoll for each core, listening sockets with SO_REUSEPORT: workers share nothing.",
    "One read takes all available requests, and one write returns their answers.",
    "No sysctl was set: the kernels of other machines are left unchanged.",
];

/// Factors of timeouts relative to this machine: between two machines, and if one is emulated.
const SLOWER: [u32; 2] = [2, 8];

/// Two machines and the network between them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Network {
    /// The server's machine.
    pub server: EndMachine,
    /// The load's machine.
    pub load: EndMachine,
    /// Software that emulates one of the machines, and so the network, if any.
    pub emulated_by: Option<String>,
}

/// End of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Server,
    Load,
}

/// A machine at an end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndMachine {
    /// Location of its `linerate`.
    pub location: Location,
    /// Address of its kernel and of its verbs device.
    pub ip: Option<IpCidr>,
    /// Address of its ports that programs take over.
    pub port_ip: Option<IpCidr>,
    /// Set if its kernel lacks rdma_cm for programs.
    pub without_manager: bool,
}

impl Network {
    /// Returns the machine at an end.
    pub fn at(&self, end: End) -> &EndMachine {
        if end == End::Server { &self.server } else { &self.load }
    }

    /// Returns the factor of timeouts relative to this machine.
    pub fn slower(&self) -> u32 {
        SLOWER[usize::from(self.emulated_by.is_some())]
    }

    /// Returns the software that emulates a link over this network, whose device is emulated by `device`, if any.
    pub fn emulated_by(&self, device: Option<&str>) -> Option<String> {
        match (device, &self.emulated_by) {
            (Some(device), Some(machine)) => Some(format!("{device} in {machine}")),
            (device, machine) => device.map(str::to_owned).or_else(|| machine.clone()),
        }
    }

    /// Returns the option that is missing for `spec`, if any.
    pub fn lacks(&self, spec: &LinkSpec) -> Option<String> {
        let given = |option: &str, ip: &Option<IpCidr>| {
            ip.is_none().then(|| format!("--via {spec}: give the address there with {option}, such as 10.0.0.2/24"))
        };
        if spec.has_frames() {
            return given("--server-port-ip", &self.server.port_ip)
                .or_else(|| given("--load-port-ip", &self.load.port_ip));
        }
        given("--server-ip", &self.server.ip)
    }
}

/// A network used over one kind of link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Between {
    pub network: Network,
    /// The kind of link.
    pub spec: LinkSpec,
}

impl Between {
    /// Returns the network arguments of an end.
    pub fn args(&self, end: End) -> Vec<String> {
        let name = |ends: &Ends| if end == End::Server { ends.server.clone() } else { ends.load.clone() };
        let end = self.network.at(end);
        let args: Vec<String> = match &self.spec {
            LinkSpec::Rdma(Some(devices)) => vec!["--via".to_owned(), format!("rdma:{}", name(devices))],
            LinkSpec::Port(form, ports) => {
                let via = ["--via".to_owned(), format!("{}:{}", form.name(), name(ports))];
                let ip = end.port_ip.map(|ip| ["--ip".to_owned(), ip.to_string()]);
                via.into_iter().chain(ip.into_iter().flatten()).collect()
            }
            _ => vec!["--via".to_owned(), "kernel".to_owned()],
        };
        // Both ends must connect in the same way.
        let exchange = matches!(self.spec, LinkSpec::Rdma(_))
            && (self.network.server.without_manager || self.network.load.without_manager);
        let exchange = exchange.then_some(["--rdma-connect", "tcp"]).into_iter().flatten().map(str::to_owned);
        args.into_iter().chain(exchange).collect()
    }

    /// Returns the listening address, with `port` where it must be given.
    pub fn listen(&self, port: u16) -> String {
        let EndMachine { ip, port_ip, .. } = &self.network.server;
        let (ip, port) = match &self.spec {
            LinkSpec::Port(..) => (port_ip, port),
            LinkSpec::Rdma(_) => (ip, port),
            _ => (ip, 0),
        };
        match ip.map(|ip| ip.address()) {
            Some(ip) => std::net::SocketAddr::new(ip, port).to_string(),
            None => format!("0.0.0.0:{port}"),
        }
    }

    /// Returns whether software below Linerate copies each byte that the server receives or sends once, as the kernel
    /// does. Devices use DMA. Whether AF_XDP copies depends on the driver, which is unknown here.
    pub fn copies(&self) -> bool {
        self.spec.is_kernel()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use linerate_process::child::words;

    /// Returns a network of two machines, `a` and `b`.
    pub(in super::super) fn network() -> Network {
        let end = |host: &str, number: u8| EndMachine {
            location: Location::on(&format!("ssh {host}"), "/opt/linerate".into()).unwrap(),
            ip: Some(format!("10.1.0.{number}/24").parse().unwrap()),
            port_ip: Some(format!("10.2.0.{number}/24").parse().unwrap()),
            without_manager: false,
        };
        Network { server: end("a", 1), load: end("b", 2), emulated_by: None }
    }

    fn between(spec: &str) -> Between {
        Between { network: network(), spec: spec.parse().unwrap() }
    }

    #[test]
    fn each_end_gets_its_own_names_and_addresses() {
        for (spec, server, load, listen) in [
            ("kernel", "--via kernel", "--via kernel", "10.1.0.1:0"),
            ("rdma:x/y", "--via rdma:x", "--via rdma:y", "10.1.0.1:7"),
            (
                "pci:0000:03:00.0/0000:41:00.1",
                "--via pci:0000:03:00.0 --ip 10.2.0.1/24",
                "--via pci:0000:41:00.1 --ip 10.2.0.2/24",
                "10.2.0.1:7",
            ),
            ("af_xdp:e", "--via af_xdp:e --ip 10.2.0.1/24", "--via af_xdp:e --ip 10.2.0.2/24", "10.2.0.1:7"),
        ] {
            let between = between(spec);
            assert_eq!((&*between.args(End::Server).join(" "), &*between.args(End::Load).join(" ")), (server, load));
            assert_eq!(between.listen(7), listen, "{spec}");
            assert_eq!(between.copies(), spec == "kernel");
        }
        assert_eq!(
            words(&between("kernel").network.load.location.command()),
            ["ssh", "b", "/opt/linerate", "--supervised"]
        );
    }

    #[test]
    fn both_ends_connect_over_tcp_if_one_lacks_rdma_cm() {
        let mut between = between("rdma:x");
        between.network.load.without_manager = true;
        assert_eq!(between.args(End::Server).join(" "), "--via rdma:x --rdma-connect tcp");
        assert_eq!(between.args(End::Load), between.args(End::Server));
    }

    #[test]
    fn emulation_names_the_device_and_the_machine() {
        let mut network = network();
        assert_eq!((network.emulated_by(None), network.emulated_by(Some("rxe")).as_deref()), (None, Some("rxe")));
        let on_hardware = network.slower();
        network.emulated_by = Some("QEMU".to_owned());
        assert_eq!(network.emulated_by(None).as_deref(), Some("QEMU"));
        assert_eq!(network.emulated_by(Some("rxe")).as_deref(), Some("rxe in QEMU"));
        assert!(network.slower() > on_hardware);
    }

    #[test]
    fn missing_addresses_are_reported() {
        let mut network = network();
        let spec = |text: &str| text.parse::<LinkSpec>().unwrap();
        assert_eq!(network.lacks(&spec("pci:0000:03:00.0")), None);
        network.load.port_ip = None;
        assert!(network.lacks(&spec("pci:0000:03:00.0")).unwrap().contains("--load-port-ip"));
        assert_eq!(network.lacks(&spec("kernel")), None);
        network.server.ip = None;
        assert!(network.lacks(&spec("rdma:x")).unwrap().contains("--server-ip"));
    }
}
