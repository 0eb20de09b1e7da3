//! Hosts of an attack, each a network namespace, and the server on one of them.
//!
//! ```text
//! clients:   br0 ─┬─ lr0 ── lr1   server, by AF_XDP
//!                 ├─ at0 ── at1   attackers
//!                 └─ sk0 ── sk1   sink, whose kernel discards everything
//! ```

use super::frames::Link;
use super::{Service, Target};
use crate::echo_pair::Measured;
use linerate_apps::inspect::{Value, with_pid};
use linerate_harness::Error;
use linerate_harness::namespace::Namespace;
use linerate_harness::process::Process;
use rustix::thread::{CpuSet, sched_setaffinity};
use smoltcp::wire::EthernetAddress;
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Address of the metrics on the server's host.
pub const METRICS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9107);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 2);
const SERVER_V6: Ipv6Addr = Ipv6Addr::new(0xfd99, 0, 0, 0, 0, 0, 0, 2);
/// Address of the attackers' kernel, which is the server's gateway: it receives the replies to forged addresses.
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 3);
const SINK: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 4);
const SERVER_MAC: &str = "02:00:00:00:00:02";
const ATTACKER_MAC: &str = "02:00:00:00:00:03";
const SINK_MAC: &str = "02:00:00:00:00:04";
/// Time of a load in addition to its duration.
const AROUND: Duration = Duration::from_secs(20);
/// Maximum time of a reply.
const PATIENCE: Duration = Duration::from_secs(3);
/// Key of a long value, and its size.
const LONG_KEY: &str = "long";
const LONG: usize = 3000;
/// Number of client connections, and size of a request or value.
const CONNECTIONS: &str = "4";
const SIZE: &str = "1024";

/// Programs and cores of all sites.
#[derive(Debug, Clone)]
pub struct Setting {
    /// `linerate` executable.
    pub linerate: PathBuf,
    /// Core of the server.
    pub server_core: usize,
    /// Core of the clients and the attackers.
    pub load_core: usize,
    /// Duration of one measurement.
    pub duration: Duration,
}

/// Hosts and a server.
#[derive(Debug)]
pub struct Site<'a> {
    // Dropped before its namespace. In a mutex because threads of a measurement share the site.
    server: Mutex<Option<Process>>,
    clients: Namespace,
    attackers: Namespace,
    served: Namespace,
    _sink: Namespace,
    service: Service,
    setting: &'a Setting,
}

/// Counters of the server by name and cause.
pub type Counters = BTreeMap<String, u64>;

impl<'a> Site<'a> {
    /// Creates the hosts, and starts the server of `service`.
    pub fn new(setting: &'a Setting, service: Service) -> Result<Self, Error> {
        let ends = ["clients", "server", "attackers", "sink"];
        let [clients, served, attackers, sink] = Namespace::all(ends)?;
        clients.ip("link add br0 type bridge")?;
        let far = [("lr", &served, SERVER_MAC), ("at", &attackers, ATTACKER_MAC), ("sk", &sink, SINK_MAC)];
        for (name, namespace, mac) in far {
            let (near, far) = (format!("{name}0"), format!("{name}1"));
            clients.connect(&near, namespace, &far)?;
            namespace.ip(&format!("link set {far} address {mac}"))?;
            clients.disable_offloads(&near)?;
            namespace.disable_offloads(&far)?;
            clients.ip(&format!("link set {near} master br0"))?;
            clients.up(&near)?;
            namespace.up(&far)?;
            // Frames for the sink never reach the server.
            clients.run("bridge", &["fdb", "add", mac, "dev", &near, "master", "static"])?;
        }
        clients.disable_offloads("br0")?;
        clients.up("br0")?;
        clients.ip(&format!("addr add {CLIENT}/16 dev br0"))?;
        attackers.ip(&format!("addr add {GATEWAY}/16 dev at1"))?;
        sink.ip(&format!("addr add {SINK}/16 dev sk1"))?;
        let mut site = Site { server: Mutex::new(None), clients, attackers, served, _sink: sink, service, setting };
        site.serve()?;
        Ok(site)
    }

    fn serve(&mut self) -> Result<(), Error> {
        let mut command = self.served.command(&self.setting.linerate);
        command.args([self.service.name(), "serve", "--via", "af_xdp:lr1", "--no-dad"]);
        command.args(["--ip", &format!("{SERVER}/16"), "--ip", &format!("{SERVER_V6}/64")]);
        command.args(["--gateway", &GATEWAY.to_string(), "--metrics", &METRICS.to_string()]);
        command.args(["--listen", &self.address().to_string(), &format!("--cores={}", self.setting.server_core)]);
        let mut server = Process::start(command)?;
        server.wait_for_line("ready ")?;
        self.server = Mutex::new(Some(server));
        if self.service == Service::Kv {
            self.load("100ms", true)?;
            let set =
                format!("*3\r\n$3\r\nSET\r\n${}\r\n{LONG_KEY}\r\n${LONG}\r\n{}\r\n", LONG_KEY.len(), "v".repeat(LONG));
            let address = self.address();
            self.within(&self.clients, || {
                let mut stream = TcpStream::connect(address)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.write_all(set.as_bytes())?;
                stream.read_exact(&mut [0; 5])
            })?;
        }
        Ok(())
    }

    fn address(&self) -> SocketAddrV4 {
        SocketAddrV4::new(SERVER, self.service.port())
    }

    /// Returns the addresses of the server, or of the sink if `is_control` is true.
    pub fn target(&self, is_control: bool) -> Target {
        let mac = |text: &str| text.parse::<EthernetAddress>().expect("an Ethernet address");
        let (to, ip) = if is_control { (SINK_MAC, SINK) } else { (SERVER_MAC, SERVER) };
        let request = match self.service {
            Service::Echo => vec![b'e'; 1000],
            Service::Kv => format!("*2\r\n$3\r\nGET\r\n${}\r\n{LONG_KEY}\r\n", LONG_KEY.len()).into_bytes(),
        };
        Target {
            link: Link { from: mac(ATTACKER_MAC), to: mac(to) },
            address: SocketAddrV4::new(ip, self.service.port()),
            neighbor: SocketAddrV4::new(CLIENT, 9),
            v6: SERVER_V6,
            request,
        }
    }

    /// Measures the well-behaved clients; `None` if they fail.
    pub fn measure(&self) -> Result<Option<Measured>, Error> {
        self.load(&format!("{}ms", self.setting.duration.as_millis()), false)
    }

    fn load(&self, duration: &str, fills: bool) -> Result<Option<Measured>, Error> {
        let mut command = self.clients.command(&self.setting.linerate);
        command.args([self.service.name(), "load", "--via", "kernel", "--json", "--no-inspect", "--depth", "1"]);
        command.args(["--connect", &self.address().to_string(), "--connections", CONNECTIONS]);
        command.args(["--warm-up", "100ms", "--duration", duration, &format!("--cores={}", self.setting.load_core)]);
        match self.service {
            Service::Echo => command.args(["--size", SIZE]),
            Service::Kv => command.args(["--value-size", SIZE, "--keys", "1000", "--get-ratio", "1"]),
        };
        if self.service == Service::Kv && !fills {
            command.arg("--no-fill");
        }
        let ended = Process::start(command)?.end(self.setting.duration + AROUND)?;
        let measured: Option<Measured> = serde_json::from_str(&ended.stdout).ok();
        if !ended.status.success() {
            eprintln!("hostile: the clients: {}", ended.stderr.trim());
        }
        Ok(measured.filter(|measured| measured.rate > 0.0))
    }

    /// Returns the counters of the server; `None` if it does not answer.
    pub fn counters(&self) -> Option<Counters> {
        let pid = self.server.lock().unwrap_or_else(PoisonError::into_inner).as_ref()?.id();
        let workers = with_pid(pid).and_then(|mut server| server.counters()).ok()?.workers;
        Some(added(workers.into_iter().collect::<Option<Vec<_>>>()?))
    }

    /// Runs `attack` on a thread in the network of the attackers, or of the server if it is local.
    pub fn attack<T: Send>(&self, is_local: bool, attack: impl FnOnce() -> io::Result<T> + Send) -> Result<T, Error> {
        self.within(if is_local { &self.served } else { &self.attackers }, attack)
    }

    /// Runs `action` on a thread in the network of `namespace` on the core of the clients.
    fn within<T: Send>(
        &self,
        namespace: &Namespace,
        action: impl FnOnce() -> io::Result<T> + Send,
    ) -> Result<T, Error> {
        let there = || {
            namespace.enter()?;
            let mut cores = CpuSet::new();
            cores.set(self.setting.load_core);
            sched_setaffinity(None, &cores)?;
            action()
        };
        std::thread::scope(|scope| scope.spawn(there).join())
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            .map_err(|error| Error::Start { program: "hostile".to_owned(), error })
    }

    /// Cuts the link of the attackers, so that not even a RST arrives.
    pub fn cut(&self) -> Result<(), Error> {
        self.clients.ip("link set at0 down")
    }
}

/// Returns the sums over workers: counters by name, drops by cause.
fn added(workers: Vec<BTreeMap<String, Value>>) -> Counters {
    let mut counters = Counters::new();
    let values = workers.into_iter().flatten().flat_map(|(name, value)| match value {
        Value::One(n) => BTreeMap::from([(name, n)]),
        Value::Each(by_cause) => by_cause,
    });
    for (name, n) in values {
        *counters.entry(name).or_default() += n;
    }
    counters
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_added_over_workers_and_named_by_cause() {
        let drops = BTreeMap::from([("truncated frame".to_owned(), 5)]);
        let worker = |held| {
            let held = ("linerate_packets_held".to_owned(), Value::One(held));
            BTreeMap::from([held, ("linerate_drops_total".to_owned(), Value::Each(drops.clone()))])
        };
        let counters = added(vec![worker(3), worker(4)]);
        assert_eq!((counters["linerate_packets_held"], counters["truncated frame"]), (7, 10));
    }
}
