//! A network between two machines: how programs are run at its ends, and what they are told of it.

use super::way::Way;
use crate::place::Place;
use linerate_stack::IpCidr;
use std::process::Command;

/// What was done for kernel sockets over a network.
pub const TUNING: [&str; 4] = [
    "TCP_NODELAY on every connection.",
    "One edge-triggered epoll for each core, listening sockets with SO_REUSEPORT: workers share nothing.",
    "One read brings all requests that are there, and one write takes the answers to them.",
    "No sysctl was set: the kernels of other machines are left as they are.",
];

/// What a program may take longer than on this machine, to begin and to end: between two machines, and where one is
/// emulated.
const SLOWER: [u32; 2] = [2, 8];

/// Two machines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Network {
    /// Where servers run.
    pub server: End,
    /// Where loads do.
    pub load: End,
    /// What emulates one of the machines, and so the network between them, if that is so.
    pub emulated_by: Option<String>,
}

/// One machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    /// How programs are run there.
    pub place: Place,
    /// The address of its kernel, and of its verbs device.
    pub ip: Option<IpCidr>,
    /// That of ports which programs take over.
    pub port_ip: Option<IpCidr>,
    /// Whether its kernel has no connection manager for programs.
    pub without_manager: bool,
}

impl Network {
    /// By how much longer all takes, beside measuring, than on this machine.
    pub fn slower(&self) -> u32 {
        SLOWER[usize::from(self.emulated_by.is_some())]
    }

    /// What emulates a link of it whose `device`, if it has one, is emulated by that.
    pub fn emulated_by(&self, device: Option<&str>) -> Option<String> {
        match (device, &self.emulated_by) {
            (Some(device), Some(machine)) => Some(format!("{device} in {machine}")),
            (device, machine) => device.map(str::to_owned).or_else(|| machine.clone()),
        }
    }

    /// What is missing for `way`, in words.
    pub fn lacks(&self, way: &Way) -> Option<String> {
        let given = |option: &str, ip: &Option<IpCidr>| {
            ip.is_none().then(|| format!("--via {way}: say with {option} what address is there, such as 10.0.0.2/24"))
        };
        if way.has_frames() {
            return given("--server-port-ip", &self.server.port_ip)
                .or_else(|| given("--load-port-ip", &self.load.port_ip));
        }
        given("--server-ip", &self.server.ip)
    }
}

/// A network that is used in one way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Between {
    /// Which.
    pub network: Network,
    /// How.
    pub way: Way,
}

impl Between {
    /// A command that runs `linerate` at the server's end.
    pub fn at_server(&self) -> Command {
        self.network.server.place.command()
    }

    /// The same at the load's.
    pub fn at_load(&self) -> Command {
        self.network.load.place.command()
    }

    /// What the server is told of its network.
    pub fn server_words(&self) -> Vec<String> {
        self.words(&self.network.server, |ends| &ends.server)
    }

    /// The same for the load.
    pub fn load_words(&self) -> Vec<String> {
        self.words(&self.network.load, |ends| &ends.load)
    }

    fn words(&self, end: &End, name: impl Fn(&super::way::Ends) -> &String) -> Vec<String> {
        let words: Vec<String> = match &self.way {
            Way::Rdma(Some(devices)) => vec!["--via".to_owned(), format!("rdma:{}", name(devices))],
            Way::Port(form, ports) => {
                let via = ["--via".to_owned(), format!("{}:{}", form.name(), name(ports))];
                let ip = end.port_ip.map(|ip| ["--ip".to_owned(), ip.to_string()]);
                via.into_iter().chain(ip.into_iter().flatten()).collect()
            }
            _ => vec!["--via".to_owned(), "kernel".to_owned()],
        };
        // Both ends have to connect in the same way.
        let exchange = matches!(self.way, Way::Rdma(_))
            && (self.network.server.without_manager || self.network.load.without_manager);
        let exchange = exchange.then_some(["--rdma-connect", "tcp"]).into_iter().flatten().map(str::to_owned);
        words.into_iter().chain(exchange).collect()
    }

    /// Where to listen, with `port` where one has to be named.
    pub fn listen(&self, port: u16) -> String {
        let End { ip, port_ip, .. } = &self.network.server;
        let (ip, port) = match &self.way {
            Way::Port(..) => (port_ip, port),
            Way::Rdma(_) => (ip, port),
            _ => (ip, 0),
        };
        match ip.map(|ip| ip.address()) {
            Some(ip) => std::net::SocketAddr::new(ip, port).to_string(),
            None => format!("0.0.0.0:{port}"),
        }
    }

    /// Whether what is below our code copies each byte that the server receives or sends once, as the kernel does. A
    /// device fetches and puts bytes where they lie, except by AF_XDP where its driver cannot: that is not known here.
    pub fn copies(&self) -> bool {
        self.way.is_kernel()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::server::words;
    use super::*;

    /// Two machines, `a` and `b`.
    pub(in super::super) fn network() -> Network {
        let end = |host: &str, number: u8| End {
            place: Place::on(&format!("ssh {host}"), "/opt/linerate".into()).unwrap(),
            ip: Some(format!("10.1.0.{number}/24").parse().unwrap()),
            port_ip: Some(format!("10.2.0.{number}/24").parse().unwrap()),
            without_manager: false,
        };
        Network { server: end("a", 1), load: end("b", 2), emulated_by: None }
    }

    fn between(way: &str) -> Between {
        Between { network: network(), way: way.parse().unwrap() }
    }

    #[test]
    fn each_end_is_told_of_its_own_names_and_addresses() {
        for (way, server, load, listen) in [
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
            let between = between(way);
            assert_eq!((&*between.server_words().join(" "), &*between.load_words().join(" ")), (server, load));
            assert_eq!(between.listen(7), listen, "{way}");
            assert_eq!(between.copies(), way == "kernel");
        }
        assert_eq!(words(&between("kernel").at_load()), ["ssh", "b", "/opt/linerate", "--supervised"]);
    }

    #[test]
    fn where_one_kernel_has_no_manager_both_ends_exchange() {
        let mut between = between("rdma:x");
        between.network.load.without_manager = true;
        assert_eq!(between.server_words().join(" "), "--via rdma:x --rdma-connect tcp");
        assert_eq!(between.load_words(), between.server_words());
    }

    #[test]
    fn what_emulates_a_link_is_named_with_the_machine_below() {
        let mut network = network();
        assert_eq!((network.emulated_by(None), network.emulated_by(Some("rxe")).as_deref()), (None, Some("rxe")));
        let on_hardware = network.slower();
        network.emulated_by = Some("QEMU".to_owned());
        assert_eq!(network.emulated_by(None).as_deref(), Some("QEMU"));
        assert_eq!(network.emulated_by(Some("rxe")).as_deref(), Some("rxe in QEMU"));
        assert!(network.slower() > on_hardware);
    }

    #[test]
    fn an_address_that_is_needed_is_asked_for() {
        let mut network = network();
        let way = |text: &str| text.parse::<Way>().unwrap();
        assert_eq!(network.lacks(&way("pci:0000:03:00.0")), None);
        network.load.port_ip = None;
        assert!(network.lacks(&way("pci:0000:03:00.0")).unwrap().contains("--load-port-ip"));
        assert_eq!(network.lacks(&way("kernel")), None);
        network.server.ip = None;
        assert!(network.lacks(&way("rdma:x")).unwrap().contains("--server-ip"));
    }
}
