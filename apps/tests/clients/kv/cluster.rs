//! Cluster clients over kernel sockets: two processes that share a map, and a change of the map.

use super::clients::{Client, Server, bounded, cluster_script, output_of};
use super::redis_cli::redis_cli;
use crate::common::stop;
use crate::tls::certificates::Certificates;
use linerate_harness::address::unused_address;
use linerate_harness::program::Program;
use linerate_harness::rerun::has_cores;
use linerate_harness::{tests, wait_for};
use rustix::process::Signal;
use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

/// Slots of the nodes, of which the first two belong to the first process, before and after a change.
const BEFORE: [&str; 3] = ["0-4999", "5000-9999", "10000-16383"];
const AFTER: [&str; 3] = ["0-2999", "5000-8000", "3000-4999, 8001-16383"];

/// Returns addresses with consecutive ports.
fn consecutive<const N: usize>() -> [SocketAddr; N] {
    loop {
        let all = [(); N].map(|()| unused_address());
        if (0..).zip(all).all(|(at, address)| address.port() == all[0].port() + at) {
            return all;
        }
    }
}

/// Writes a map. The ports with TLS follow the others.
fn write_map(path: &Path, nodes: &[SocketAddr], slots: &[&str]) {
    let mut text = String::new();
    for (node, slots) in nodes.iter().zip(slots) {
        let ranges: Vec<String> = slots.split(", ").map(|range| format!("\"{range}\"")).collect();
        let (host, port, tls_port) = (node.ip(), node.port(), node.port() + nodes.len() as u16);
        writeln!(text, "[[node]]\nhost = \"{host}\"\nport = {port}\ntls-port = {tls_port}").unwrap();
        writeln!(text, "slots = [{}]", ranges.join(", ")).unwrap();
    }
    fs::write(path, text).unwrap();
}

/// Fleet of two processes, the first of which has two workers.
struct Fleet {
    nodes: [SocketAddr; 3],
    /// Addresses with TLS.
    tls_nodes: [SocketAddr; 3],
    processes: [Program; 2],
    directory: tempfile::TempDir,
}

impl Fleet {
    /// Starts the processes, with TLS if there are certificates.
    fn start(certificates: Option<&Certificates>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let map = directory.path().join("map.toml");
        let all: [SocketAddr; 6] = consecutive();
        let (nodes, tls_nodes) = ([all[0], all[1], all[2]], [all[3], all[4], all[5]]);
        write_map(&map, &nodes, &BEFORE);
        let serve = |first: usize, workers: usize| {
            let (listen, map) = (nodes[first], map.display());
            let tls = certificates.map(|of| format!("--listen-tls {} {}", tls_nodes[first], of.server()));
            let args = format!("--via kernel --listen {listen} --cluster-map {map} --memory 64m --workers {workers}");
            crate::common::serve("kv", &format!("{args} --json {}", tls.unwrap_or_default()))
        };
        Fleet { nodes, tls_nodes, processes: [serve(0, 2), serve(2, 1)], directory }
    }

    fn server(&self, node: usize) -> Server {
        Server { redis: self.nodes[node], memcached: self.nodes[node], password: None }
    }

    /// Changes the map file and makes both processes read it.
    fn change_map(&self, change: impl FnOnce(&Path)) {
        change(&self.directory.path().join("map.toml"));
        self.processes.iter().for_each(|process| process.signal(Signal::HUP));
    }

    /// Waits until both processes use the map with `slots`.
    fn wait_for_slots(&self, slots: &[&str; 3]) {
        let expected: Vec<String> =
            slots.iter().map(|slots| format!("connected {}", slots.replace(", ", " "))).collect();
        for node in 0..3 {
            wait_for("the map on each node", || {
                let nodes = redis_cli(&self.server(node), "CLUSTER NODES");
                expected.iter().all(|expected| nodes.contains(&format!("{expected}\n")))
            });
        }
    }

    fn stop(self) {
        self.processes.into_iter().for_each(|process| _ = stop(process));
    }
}

/// Runs `act` on a fleet, unless the client is not installed.
fn on_fleet(client: Client, certificates: Option<&Certificates>, act: impl FnOnce(&Fleet)) {
    if !client.is_installed() || !has_cores(2) {
        return;
    }
    let fleet = Fleet::start(certificates);
    act(&fleet);
    fleet.stop();
}

/// Runs a script that uses the cluster, requests a change of the map, and goes on.
fn script_works(client: Client, is_tls: bool) {
    let certificates = is_tls.then(Certificates::new).flatten();
    if is_tls && certificates.is_none() {
        return;
    }
    on_fleet(client, certificates.as_ref(), |fleet| {
        let mut command = cluster_script(client, if is_tls { fleet.tls_nodes[0] } else { fleet.nodes[0] });
        command.envs(certificates.as_ref().map(|of| ("TLS_CA", of.file("ca.pem"))));
        let mut script = Program::start(command);
        script.wait_for_line("ready for another map");
        fleet.change_map(|path| write_map(path, &fleet.nodes, &AFTER));
        fleet.wait_for_slots(&AFTER);
        // The script looks for this key.
        redis_cli(&fleet.server(2), "SET {map}changed yes");
        let ended = script.wait();
        assert!(ended.status.success() && ended.stdout.ends_with("all is well\n"), "{ended:?}");
    });
}

tests! {
    redis_py_cluster_follows_the_map => script_works(Client::RedisPy, false);
    redis_py_cluster_follows_the_map_over_tls => script_works(Client::RedisPy, true);
    node_redis_cluster_follows_the_map => script_works(Client::NodeRedis, false);
    node_redis_cluster_follows_the_map_over_tls => script_works(Client::NodeRedis, true);
}

/// Returns the command of redis-cli that follows redirections.
fn following(server: SocketAddr) -> Command {
    let mut command = bounded("redis-cli");
    command.args(["-c", "-h", &server.ip().to_string(), "-p", &server.port().to_string()]);
    command
}

#[test]
fn redis_cli_follows_redirections() {
    on_fleet(Client::RedisCli, None, |fleet| {
        for (node, address) in fleet.nodes.iter().enumerate() {
            for n in 0..30 {
                let run = |args: &[&str]| {
                    let output = following(*address).args(args).output().unwrap();
                    assert!(output.status.success(), "{}", output_of(&output));
                    String::from_utf8(output.stdout).unwrap()
                };
                let (key, value) = (format!("key:{n}"), format!("{node}"));
                assert_eq!(
                    (run(&["SET", &key, &value]), run(&["GET", &key])),
                    ("OK\n".to_owned(), format!("{node}\n"))
                );
            }
        }
        // `foo` has slot 12182, which belongs to the other process. `bar` has slot 5061.
        let of_other = format!("(error) MOVED 12182 {}\n", fleet.nodes[2]);
        assert_eq!(redis_cli(&fleet.server(0), "GET foo"), of_other);
        assert_eq!(redis_cli(&fleet.server(0), "SET bar 1"), "OK\n");
        assert_eq!(redis_cli(&fleet.server(1), "GET bar"), "\"1\"\n");
        let of_first = format!("(error) MOVED 5061 {}\n", fleet.nodes[1]);
        assert_eq!(redis_cli(&fleet.server(2), "GET bar"), of_first);
        let sum = [0, 1, 2].map(|node| redis_cli(&fleet.server(node), "DBSIZE"));
        let sum: u64 = sum.iter().map(|size| size["(integer) ".len()..].trim().parse::<u64>().unwrap()).sum();
        assert_eq!(sum, 31);
        let check =
            following(fleet.nodes[0]).args(["--cluster", "check", &fleet.nodes[0].to_string()]).output().unwrap();
        let report = output_of(&check);
        assert!(report.contains("[OK] All 16384 slots covered.") && report.contains("[OK] 31 keys in 3 masters."));
    });
}

#[test]
fn redis_benchmark_loads_all_nodes() {
    on_fleet(Client::RedisBenchmark, None, |fleet| {
        let mut command = bounded("redis-benchmark");
        let (ip, port) = (fleet.nodes[0].ip().to_string(), fleet.nodes[0].port().to_string());
        command.args(["--cluster", "-h", &ip, "-p", &port, "-n", "20000", "-r", "10000", "-c", "12", "-P", "8"]);
        let output = command.args(["--threads", "2", "-t", "set,get,incr", "--csv"]).output().unwrap();
        let report = output_of(&output);
        assert!(output.status.success() && !report.contains("rror"), "{report}");
        assert_eq!(["\"SET\"", "\"GET\"", "\"INCR\""].map(|name| report.matches(name).count()), [1, 1, 1], "{report}");
        for node in 0..3 {
            let size = redis_cli(&fleet.server(node), "DBSIZE");
            assert!(size.trim() != "(integer) 0", "{size}");
            // The client sends each key to the port of its node.
            assert!(redis_cli(&fleet.server(node), "INFO stats").contains("total_error_replies:0"), "no redirection");
        }
    });
}

#[test]
fn wrong_map_on_sighup_leaves_the_previous_map_in_force() {
    if !Client::RedisCli.is_installed() || !has_cores(2) {
        return;
    }
    let mut fleet = Fleet::start(None);
    for (slots, part) in [
        (["0-4999", "5000-9999", "10000-16382"], "slots 16383-16383 belong to no node"),
        (["0-5000", "5000-9999", "10000-16383"], "slot 5000 belongs to node"),
        (["0-4999", "5000-9999", "10000-16384"], "slots from 0 to 16383"),
        (["0-4999", "5000-9999", "x"], "line 15"),
    ] {
        let nodes = fleet.nodes;
        fleet.change_map(|path| write_map(path, &nodes, &slots));
        for process in &mut fleet.processes {
            let line = process.wait_for_log(part);
            let parts = ["--cluster-map", "the previous map stays in force"];
            assert!(parts.iter().all(|part| line.contains(part)), "{line}");
        }
        fleet.wait_for_slots(&BEFORE);
    }
    fleet.change_map(|path| fs::remove_file(path).unwrap());
    for process in &mut fleet.processes {
        process.wait_for_log("No such file");
    }
    assert_eq!(redis_cli(&fleet.server(2), "SET foo 1"), "OK\n");
    fleet.stop();
}
