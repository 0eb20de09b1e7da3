//! Server processes of rows.

use super::Setting;
use super::link::Link;
use super::network::End;
use super::plan::Planned;
use super::redis;
use crate::counters::{CpuUsage, ProcessCounters};
use crate::results::{App, Design, Threading};
use crate::supervised::Usage;
use linerate_load::services::ServiceTime;
use linerate_process::Error;
use linerate_process::child::words;
use linerate_process::process::{Process, TIMEOUT};
use serde::Deserialize;
use std::process::Command;
use std::time::Duration;

/// Default ports of discard and chargen, echo, Redis and memcached, for links without automatic ports.
const PORTS: [(ServiceKind, u16); 2] = [(ServiceKind::Discard, 9), (ServiceKind::Chargen, 19)];
const ECHO: u16 = 7;
const REDIS: u16 = 6379;
const MEMCACHED: u16 = 11211;
const HTTP: u16 = 8080;
/// Memory of a key-value server beyond its values: bytes per key, and in total.
const OVERHEAD: u64 = 96;
const MEMORY: u64 = 96 << 20;
/// Value of `--max-clients`, sufficient for every sweep.
const MOST_CLIENTS: &str = "1000000";

/// Service of a server process.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ServiceKind {
    /// The row's application, with a computation per request.
    App {
        /// Microseconds of computation per request.
        service_us: f64,
    },
    /// Discards all input.
    Discard,
    /// Sends without end.
    Chargen,
}

impl ServiceKind {
    /// The row's application without computation.
    pub const PLAIN: ServiceKind = ServiceKind::App { service_us: 0.0 };
}

/// Contents of a key-value server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Values {
    pub keys: u64,
    /// Bytes of each value.
    pub size: u32,
}

/// A running server.
#[derive(Debug)]
pub struct Server {
    /// The process.
    pub process: Process,
    /// Listening address, if it has one.
    pub address: String,
    /// Number of consecutive ports, starting with that of `address`.
    pub ports: u16,
    /// Its command line.
    pub command: Vec<String>,
    /// False for a program that prints no counters at its end.
    has_summary: bool,
    watched: UsageSource,
}

/// Source of a server's processor usage.
#[derive(Debug)]
enum UsageSource {
    /// Counters read from outside, on this machine.
    Local(Box<ProcessCounters>),
    /// Queries to a supervised server on another machine.
    Queried,
    /// No server.
    None,
}

/// Final summary of a server, as far as it is used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub struct Summary {
    /// Copied payload bytes.
    #[serde(default)]
    pub copied_bytes: Option<u64>,
    /// Received frames.
    #[serde(default)]
    pub rx_frames: Option<u64>,
    /// Sent frames.
    #[serde(default)]
    pub tx_frames: Option<u64>,
    /// Polls that returned frames.
    #[serde(default)]
    pub bursts: Option<u64>,
}

impl Summary {
    /// Returns the difference since `before`.
    pub fn since(self, before: Summary) -> Summary {
        let difference = |now: Option<u64>, then: Option<u64>| Some(now?.saturating_sub(then.unwrap_or(0)));
        Summary {
            copied_bytes: difference(self.copied_bytes, before.copied_bytes),
            rx_frames: difference(self.rx_frames, before.rx_frames),
            tx_frames: difference(self.tx_frames, before.tx_frames),
            bursts: difference(self.bursts, before.bursts),
        }
    }
}

impl Server {
    /// Starts the server of `row` over `link` on up to `ports` ports, and waits until it is ready.
    pub fn start(
        setting: &Setting,
        link: &Link,
        row: &Planned,
        (served, values): (ServiceKind, Values),
        ports: u16,
    ) -> Result<Server, Error> {
        let has_summary = row.app != App::Redis;
        let ports = if row.has_connections() && link.has_ports() && has_summary { ports } else { 1 };
        let command = if has_summary {
            command(setting, link, row, (served, values), ports)
        } else {
            redis::command(setting, link, row)
        };
        let line = words(&command);
        let mut process = link.start(command)?;
        let address = if has_summary {
            address(&process.wait_for_line("ready ")?)
        } else {
            process.read_until(TIMEOUT, |line| line.contains(redis::READY))?;
            link.listen_on(redis::PORT)
        };
        Ok(Server { process, address, ports, command: line, has_summary, watched: UsageSource::None })
    }

    /// Starts measuring processor usage.
    pub fn watch(&mut self) {
        self.watched = if self.process.is_supervised() {
            UsageSource::Queried
        } else {
            UsageSource::Local(Box::new(ProcessCounters::new(self.process.id())))
        };
        // A supervised server's counters start at the first query.
        self.used();
    }

    /// Returns the usage so far, if known.
    pub fn used(&mut self) -> Option<CpuUsage> {
        match &mut self.watched {
            UsageSource::Local(observed) => Some(observed.used()),
            UsageSource::None => None,
            UsageSource::Queried => {
                let usage = self.process.query().ok();
                let used = usage.and_then(|line| serde_json::from_str::<Usage>(&line).ok()).map(CpuUsage::from);
                if used.is_none() {
                    // A late answer would be taken for the answer to a later query.
                    self.watched = UsageSource::None;
                }
                used
            }
        }
    }

    /// Stops the server and returns its counters.
    pub fn stop(self) -> Result<Summary, Error> {
        let command = self.process.command().to_owned();
        let printed = self.process.stop()?;
        if !self.has_summary {
            return Ok(Summary::default());
        }
        let last = printed.lines().last().unwrap_or_default();
        serde_json::from_str(last).map_err(|_| Error::Unexpected { command, printed })
    }
}

fn command(
    setting: &Setting,
    link: &Link,
    row: &Planned,
    (served, values): (ServiceKind, Values),
    ports: u16,
) -> Command {
    let mut command = link.command(End::Server, &setting.linerate);
    let app = row.app.without_tls();
    let port = match (served, app) {
        (ServiceKind::App { .. }, App::Echo) => ECHO,
        (ServiceKind::App { .. }, App::Kv) if row.design == Design::Datagrams => MEMCACHED,
        (ServiceKind::App { .. }, App::Kv | App::Redis) => REDIS,
        (ServiceKind::App { .. }, App::Http) => HTTP,
        _ => PORTS.iter().find(|(other, _)| *other == served).map_or(ECHO, |(_, port)| *port),
    };
    command.args(match (served, app, &row.design) {
        (_, _, Design::Raw) => ["raw", "reflect"],
        (ServiceKind::Discard, ..) => ["discard", "serve"],
        (ServiceKind::Chargen, ..) => ["chargen", "serve"],
        (_, App::Kv | App::Redis, _) => ["kv", "serve"],
        (_, App::Http, _) => ["http", "serve"],
        _ => ["echo", "serve"],
    });
    command.args(["--json", "--cores", &setting.cores.worker.to_string()]);
    if row.design == Design::Raw {
        command.args(&link.args(End::Server)[..2]);
        return command;
    }
    command.args(link.args(End::Server)).args(&row.server);
    if row.app.has_tls() {
        let [chain, key] = &setting.certificate;
        command.arg("--tls-cert").arg(chain).arg("--tls-key").arg(key);
    }
    let listen = if port == MEMCACHED { "--memcached" } else { "--listen" };
    if ports > 1 {
        for port in port..port + ports {
            command.args([listen, &link.listen_on(port)]);
        }
    } else {
        command.args([listen, &link.listen(port)]);
    }
    if row.threading == Some(Threading::Split) {
        command.args(["--threading", "split", "--service-cores", &setting.cores.service.to_string()]);
    }
    let time = match served {
        ServiceKind::App { service_us } if service_us > 0.0 => {
            ServiceTime::Fixed(Duration::from_micros(service_us as u64))
        }
        ServiceKind::App { .. } => setting.service_time,
        ServiceKind::Discard | ServiceKind::Chargen => ServiceTime::NONE,
    };
    if time != ServiceTime::NONE {
        command.args(["--service-time", &time.to_string()]);
    }
    if let (ServiceKind::App { .. }, App::Kv) = (served, app) {
        let memory = values.keys * (u64::from(values.size) + OVERHEAD) + MEMORY;
        command.args(["--memory", &memory.to_string()]);
    }
    if let (ServiceKind::App { .. }, App::Kv | App::Http) = (served, app) {
        command.args(setting.many_clients.then_some(["--max-clients", MOST_CLIENTS]).into_iter().flatten());
    }
    command
}

/// Parses the first address of a line such as `ready echo on 127.0.0.1:7, [::1]:7 via kernel, 1 worker`.
fn address(ready: &str) -> String {
    ready.split([' ', ',']).nth(3).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::super::tests::setting;
    use super::*;
    use crate::run::plan::tests::row;

    fn line(id: &str, served: ServiceKind) -> String {
        let link = if id.contains("virtio") { Link::VirtioUser("/s".into()) } else { Link::Loopback(None) };
        if id.starts_with("redis") {
            return words(&redis::command(&setting(), &link, &row(id))).join(" ");
        }
        words(&command(&setting(), &link, &row(id), (served, Values { keys: 1000, size: 64 }), 1)).join(" ")
    }

    #[test]
    fn each_row_has_its_server() {
        let stack = "--via vhost:/s --ip 10.0.0.2/24";
        for (id, expected) in [
            ("echo/virtio-user/raw", "linerate raw reflect --json --cores 0 --via vhost:/s".to_owned()),
            (
                "echo/virtio-user/smoltcp",
                format!("linerate echo serve --json --cores 0 {stack} --engine smoltcp --listen 10.0.0.2:7"),
            ),
            (
                "echo/virtio-user/native/split",
                format!(
                    "linerate echo serve --json --cores 0 {stack} --engine native --listen 10.0.0.2:7 --threading split \
                     --service-cores 0"
                ),
            ),
            (
                "kv/virtio-user/datagrams",
                format!(
                    "linerate kv serve --json --cores 0 {stack} --udp --memcached 10.0.0.2:11211 --memory 100823296 \
                     --max-clients 1000000"
                ),
            ),
            (
                "http/virtio-user/native/inline",
                format!(
                    "linerate http serve --json --cores 0 {stack} --engine native --listen 10.0.0.2:8080 \
                     --max-clients 1000000"
                ),
            ),
            (
                "kv/kernel/spinning",
                "linerate kv serve --json --cores 0 --via kernel --spin --listen 127.0.0.1:0 --memory 100823296 --max-clients 1000000".to_owned(),
            ),
            (
                "echo-tls/kernel/sleeping",
                "linerate echo serve --json --cores 0 --via kernel --tls-cert server.pem --tls-key server.key --listen \
                 127.0.0.1:0"
                    .to_owned(),
            ),
            (
                "redis/virtio-user/native/inline",
                format!(
                    "linerate run --cores 0 {stack} --engine native -- redis-server --bind 10.0.0.2 --port 16379 \
                     --protected-mode no --save  --server_cpulist 0"
                ),
            ),
            (
                "redis/kernel/sleeping",
                "redis-server --bind 127.0.0.1 --port 16379 --protected-mode no --save  --server_cpulist 0".to_owned(),
            ),
        ] {
            assert_eq!(line(id, ServiceKind::PLAIN), expected);
        }
    }

    #[test]
    fn server_reserves_room_for_the_expected_clients() {
        let link = Link::Loopback(None);
        let served = (ServiceKind::PLAIN, Values { keys: 1000, size: 64 });
        let few = Setting { many_clients: false, ..setting() };
        let line = |setting: &Setting| words(&command(setting, &link, &row("kv/kernel/sleeping"), served, 1)).join(" ");
        assert!(line(&setting()).contains("--max-clients") && !line(&few).contains("--max-clients"));
    }

    #[test]
    fn service_time_applies_to_every_server_that_answers_requests() {
        let link = Link::Loopback(None);
        let setting = Setting { service_time: "bimodal:10us,100us,0.1".parse().unwrap(), ..setting() };
        let line = |id: &str, served| {
            let served = (served, Values { keys: 1000, size: 64 });
            words(&command(&setting, &link, &row(id), served, 1)).join(" ")
        };
        for id in ["echo/kernel/sleeping", "kv/virtio-user/datagrams", "kv/virtio-user/native/split"] {
            assert!(line(id, ServiceKind::PLAIN).contains("--service-time bimodal:10us,100us,0.1"), "{id}");
        }
        assert!(line("echo/kernel/sleeping", ServiceKind::App { service_us: 20.0 }).ends_with("--service-time 20us"));
        for (id, served) in
            [("echo/virtio-user/raw", ServiceKind::PLAIN), ("echo/kernel/sleeping", ServiceKind::Discard)]
        {
            assert!(!line(id, served).contains("--service-time"), "{id}");
        }
    }

    #[test]
    fn sweeps_use_other_services() {
        let id = "echo/virtio-user/native/inline";
        assert!(
            line(id, ServiceKind::Discard).starts_with("linerate discard serve")
                && line(id, ServiceKind::Discard).ends_with(":9")
        );
        assert!(
            line(id, ServiceKind::Chargen).starts_with("linerate chargen serve")
                && line(id, ServiceKind::Chargen).ends_with(":19")
        );
        assert!(line(id, ServiceKind::App { service_us: 20.0 }).ends_with("--service-time 20us"));
    }

    #[test]
    fn server_of_many_connections_has_several_ports() {
        let link = Link::VirtioUser("/s".into());
        let served = (ServiceKind::PLAIN, Values { keys: 1000, size: 64 });
        let line = words(&command(&setting(), &link, &row("echo/virtio-user/smoltcp"), served, 2)).join(" ");
        assert!(line.ends_with("--listen 10.0.0.2:7 --listen 10.0.0.2:8"), "{line}");
    }

    #[test]
    fn server_output_is_parsed() {
        assert_eq!(address("ready echo on 127.0.0.1:7007, [::1]:7007 via kernel, 1 worker"), "127.0.0.1:7007");
        let summary: Summary = serde_json::from_str(r#"{"rx_frames":9,"copied_bytes":4,"drops":{}}"#).unwrap();
        let before = Summary { rx_frames: Some(2), copied_bytes: Some(4), ..Summary::default() };
        let expected = Summary { rx_frames: Some(7), copied_bytes: Some(0), tx_frames: None, bursts: None };
        assert_eq!(summary.since(before), expected);
    }
}
