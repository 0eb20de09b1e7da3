//! Servers of rows, each on its core until it is stopped.

use super::Setting;
use super::counters::{Observed, Used};
use super::joint::Joint;
use super::plan::Planned;
use crate::process::{Error, Process};
use crate::results::{App, Design, Threading};
use crate::supervised::Usage;
use serde::Deserialize;
use std::process::Command;
use std::sync::atomic::AtomicBool;

/// The ports of echo, discard, chargen, Redis and memcached where one has to be named.
const PORTS: [(Served, u16); 2] = [(Served::Discard, 9), (Served::Chargen, 19)];
const ECHO: u16 = 7;
const REDIS: u16 = 6379;
const MEMCACHED: u16 = 11211;
/// Bytes that a key-value server is given beside each value, for the key and all that is kept of it, and beside all.
const BESIDE: u64 = 96;
const MEMORY: u64 = 96 << 20;
/// Clients that it takes: all that a sweep has.
const MOST_CLIENTS: &str = "1000000";

/// What a server does for a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Served {
    /// The row's application; it computes for so many microseconds for each request.
    App {
        /// See there.
        service_us: f64,
    },
    /// Takes what comes.
    Discard,
    /// Sends without end.
    Chargen,
}

impl Served {
    /// The row's application as it is.
    pub const PLAIN: Served = Served::App { service_us: 0.0 };
}

/// How many values a key-value server is to hold, and of what size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Values {
    /// How many keys.
    pub keys: u64,
    /// Bytes of each value.
    pub size: u32,
}

/// A server that is ready.
#[derive(Debug)]
pub struct Server {
    process: Process,
    /// Where it listens, if it has an address.
    pub address: String,
    /// On how many ports, from that of `address` on.
    pub ports: u16,
    /// Its command line.
    pub command: Vec<String>,
    watched: Watched,
}

/// How it is seen what a server has of the processors.
#[derive(Debug)]
enum Watched {
    /// From outside, on this machine.
    Here(Box<Observed>),
    /// It is asked, on another.
    Asked,
    /// It is not.
    Not,
}

/// What a server prints in the end, as far as it is used here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub struct Summary {
    /// Bytes of payload that were copied.
    #[serde(default)]
    pub copied_bytes: Option<u64>,
    /// Frames.
    #[serde(default)]
    pub rx_frames: Option<u64>,
    /// Frames.
    #[serde(default)]
    pub tx_frames: Option<u64>,
    /// Polls that brought frames.
    #[serde(default)]
    pub bursts: Option<u64>,
}

impl Summary {
    /// What was added since `before`.
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
    /// Starts what serves `row` over `joint` on so many ports, where there may be several, and waits until it is ready.
    pub fn start(
        setting: &Setting,
        joint: &Joint,
        row: &Planned,
        (served, values): (Served, Values),
        ports: u16,
        interrupted: &AtomicBool,
    ) -> Result<Server, Error> {
        let ports = if row.has_connections() && joint.has_ports() { ports } else { 1 };
        let command = command(setting, joint, row, (served, values), ports);
        let line = words(&command);
        let mut process = joint.start(command)?;
        let ready = process.wait_for_line("ready ", interrupted)?;
        Ok(Server { process, address: address(&ready), ports, command: line, watched: Watched::Not })
    }

    /// Begins to watch what it has of the processors.
    pub fn watch(&mut self, interrupted: &AtomicBool) {
        self.watched = if self.process.is_supervised() {
            Watched::Asked
        } else {
            Watched::Here(Box::new(Observed::new(self.process.id())))
        };
        // Another's counters begin to count when it is first asked.
        self.used(interrupted);
    }

    /// What it has had until now, if that is known.
    pub fn used(&mut self, interrupted: &AtomicBool) -> Option<Used> {
        match &mut self.watched {
            Watched::Here(observed) => Some(observed.used()),
            Watched::Not => None,
            Watched::Asked => {
                let told = self.process.ask(interrupted).ok();
                let used = told.and_then(|line| serde_json::from_str::<Usage>(&line).ok()).map(Used::from);
                if used.is_none() {
                    // What it might answer later would be taken for the answer to another question.
                    self.watched = Watched::Not;
                }
                used
            }
        }
    }

    /// Stops it, and returns what it counted.
    pub fn stop(self) -> Result<Summary, Error> {
        let command = self.process.command().to_owned();
        let printed = self.process.stop()?;
        let last = printed.lines().last().unwrap_or_default();
        serde_json::from_str(last).map_err(|_| Error::Unexpected { command, printed })
    }
}

fn command(setting: &Setting, joint: &Joint, row: &Planned, (served, values): (Served, Values), ports: u16) -> Command {
    let mut command = joint.at_server(&setting.linerate);
    let port = match (served, row.app) {
        (Served::App { .. }, App::Echo) => ECHO,
        (Served::App { .. }, App::Kv) if row.design == Design::Datagrams => MEMCACHED,
        (Served::App { .. }, App::Kv) => REDIS,
        _ => PORTS.iter().find(|(other, _)| *other == served).map_or(ECHO, |(_, port)| *port),
    };
    command.args(match (served, row.app, &row.design) {
        (_, _, Design::Raw) => ["raw", "reflect"],
        (Served::Discard, ..) => ["discard", "serve"],
        (Served::Chargen, ..) => ["chargen", "serve"],
        (_, App::Echo, _) => ["echo", "serve"],
        (_, App::Kv, _) => ["kv", "serve"],
    });
    command.args(["--json", "--cores", &setting.cores.worker.to_string()]);
    if row.design == Design::Raw {
        command.args(&joint.server_words()[..2]);
        return command;
    }
    command.args(joint.server_words()).args(&row.server);
    let listen = if port == MEMCACHED { "--memcached" } else { "--listen" };
    if ports > 1 {
        for port in port..port + ports {
            command.args([listen, &joint.listen_on(port)]);
        }
    } else {
        command.args([listen, &joint.listen(port)]);
    }
    if row.threading == Some(Threading::Split) {
        command.args(["--threading", "split", "--service-cores", &setting.cores.service.to_string()]);
    }
    if let Served::App { service_us } = served
        && service_us > 0.0
    {
        command.args(["--service-time", &format!("{service_us:.0}us")]);
    }
    if let (Served::App { .. }, App::Kv) = (served, row.app) {
        let memory = values.keys * (u64::from(values.size) + BESIDE) + MEMORY;
        command.args(["--memory", &memory.to_string()]);
        command.args(setting.many_clients.then_some(["--max-clients", MOST_CLIENTS]).into_iter().flatten());
    }
    command
}

/// A command line, word by word.
pub fn words(command: &Command) -> Vec<String> {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect()
}

/// The first address in `ready echo on 127.0.0.1:7, [::1]:7 via kernel, 1 worker`.
fn address(ready: &str) -> String {
    ready.split([' ', ',']).nth(3).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::super::tests::setting;
    use super::*;
    use crate::run::plan::tests::row;

    fn line(id: &str, served: Served) -> String {
        let joint = if id.contains("virtio") { Joint::VirtioUser("/s".into()) } else { Joint::Loopback(None) };
        words(&command(&setting(), &joint, &row(id), (served, Values { keys: 1000, size: 64 }), 1)).join(" ")
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
                "kv/kernel/spinning",
                "linerate kv serve --json --cores 0 --via kernel --spin --listen 127.0.0.1:0 --memory 100823296 --max-clients 1000000".to_owned(),
            ),
        ] {
            assert_eq!(line(id, Served::PLAIN), expected);
        }
    }

    #[test]
    fn a_server_makes_room_for_as_many_clients_as_will_come() {
        let joint = Joint::Loopback(None);
        let served = (Served::PLAIN, Values { keys: 1000, size: 64 });
        let few = Setting { many_clients: false, ..setting() };
        let line =
            |setting: &Setting| words(&command(setting, &joint, &row("kv/kernel/sleeping"), served, 1)).join(" ");
        assert!(line(&setting()).contains("--max-clients") && !line(&few).contains("--max-clients"));
    }

    #[test]
    fn sweeps_have_servers_of_other_kinds() {
        let id = "echo/virtio-user/native/inline";
        assert!(
            line(id, Served::Discard).starts_with("linerate discard serve")
                && line(id, Served::Discard).ends_with(":9")
        );
        assert!(
            line(id, Served::Chargen).starts_with("linerate chargen serve")
                && line(id, Served::Chargen).ends_with(":19")
        );
        assert!(line(id, Served::App { service_us: 20.0 }).ends_with("--service-time 20us"));
    }

    #[test]
    fn a_server_of_many_connections_has_several_ports() {
        let joint = Joint::VirtioUser("/s".into());
        let served = (Served::PLAIN, Values { keys: 1000, size: 64 });
        let line = words(&command(&setting(), &joint, &row("echo/virtio-user/smoltcp"), served, 2)).join(" ");
        assert!(line.ends_with("--listen 10.0.0.2:7 --listen 10.0.0.2:8"), "{line}");
    }

    #[test]
    fn what_a_server_says_is_read() {
        assert_eq!(address("ready echo on 127.0.0.1:7007, [::1]:7007 via kernel, 1 worker"), "127.0.0.1:7007");
        let summary: Summary = serde_json::from_str(r#"{"rx_frames":9,"copied_bytes":4,"drops":{}}"#).unwrap();
        let before = Summary { rx_frames: Some(2), copied_bytes: Some(4), ..Summary::default() };
        let expected = Summary { rx_frames: Some(7), copied_bytes: Some(0), tx_frames: None, bursts: None };
        assert_eq!(summary.since(before), expected);
    }
}
