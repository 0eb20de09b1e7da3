//! `linerate compare` between two guests: verbs, the TCP stack and kernel sockets over the same emulated wire.
//!
//! Each guest has two network devices at one hub: one for its kernel, with Soft-RoCE on it, and one for DPDK's virtio
//! driver. All share the wire between the two hubs.

use super::Suite;
use super::pair::{DEVICE, INTERFACE, Pair, Provider, device};
use super::virtio_pci::bind;
use crate::error::{Context, Result, failed};
use crate::gate::Gate;
use crate::host::Lab;
use crate::machine::{Machine, Nic, Setup, Wire};
use crate::program::{Program, wait_for};
use crate::report::Report;
use std::process::Command;
use std::time::Duration;

pub const SUITE: Suite =
    Suite { name: "compare", about: "linerate compare between two guests, by every design, in short", run };

/// Driver of the DPDK devices.
const DRIVER: &str = "uio_pci_generic";
/// Memory of a guest, which includes a key-value server's export and hugepages.
const MEGABYTES: u32 = 1536;
/// Time limit of the comparison.
const WITHIN: Duration = Duration::from_secs(780);
/// Additional time, to inspect the machines and write the reports.
const PREPARATION: Duration = Duration::from_secs(120);
/// Addresses of the DPDK ports, of the server and the load.
const PORTS: [&str; 2] = ["10.83.0.11/24", "10.83.0.12/24"];

/// Designs of each application over DPDK ports, kernel sockets, and verbs.
const OVER_PORTS: [&str; 4] = ["datagrams", "native/inline", "native/split", "smoltcp"];
const OVER_SOCKETS: [&str; 2] = ["sleeping", "spinning"];
const BY_VERBS: [&str; 2] = ["send", "ud"];

/// Two guests with a gate into each.
struct Guests {
    server: Machine,
    client: Machine,
    /// DPDK ports.
    ports: [Nic; 2],
    _gates: [Gate; 2],
}

fn run(lab: &Lab, report: &mut Report) {
    let Some(guests) = report.case("two guests with a device for the kernel and one for DPDK", || boot(lab)) else {
        return;
    };
    let Some(results) = report.case("the comparison", || compare(lab, &guests)) else { return };
    drop(guests);
    println!("   {} has the report", lab.out.display());
    for id in rows() {
        report.case(&id, || ran(&results, &id));
    }
}

/// Returns the identifiers of all rows, without the names of the ports.
fn rows() -> Vec<String> {
    let mut rows = vec!["echo/pci/raw".to_owned()];
    for app in ["echo", "kv"] {
        rows.extend(OVER_PORTS.map(|design| format!("{app}/pci/{design}")));
        rows.extend(OVER_SOCKETS.map(|design| format!("{app}/kernel/{design}")));
        rows.extend(BY_VERBS.map(|design| format!("{app}/rdma/{design}")));
    }
    rows.push("kv/rdma/one-sided".to_owned());
    rows
}

fn boot(lab: &Lab) -> Result<Guests> {
    let wire = lab.socket("wire");
    let nic = |slot, uplink: Option<bool>| Nic::new(slot, Wire::Hub(uplink.map(|serves| (wire.clone(), serves))));
    let start = |name, nics: [&Nic; 2]| {
        let nics = nics.map(Clone::clone).to_vec();
        Machine::start(lab, &Setup { name, megabytes: MEGABYTES, cpus: 2, nics, ..Setup::default() })
    };
    let _ = std::fs::remove_file(&wire);
    let (kernels, ports) = ([nic(16, Some(true)), nic(18, Some(false))], [nic(17, None), nic(19, None)]);
    let server = start("server", [&kernels[0], &ports[0]])?;
    wait_for("the wire", || Ok(wire.exists()))?;
    let client = start("client", [&kernels[1], &ports[1]])?;
    for ((machine, address), port) in [(&server, Pair::SERVER), (&client, Pair::CLIENT)].into_iter().zip(&ports) {
        machine.wait_until_up()?;
        machine.bring_up(INTERFACE, Some(&format!("{address}/24")))?;
        machine.run("device", &device(Provider::Rxe))?;
        machine.run("bind", &bind(DRIVER, &[port.pci()]))?;
    }
    client.run("ping", &format!("ping -c 1 -w 60 {}", Pair::SERVER))?;
    let gate = |name: &str, machine: &Machine| Gate::open(&lab.socket(name), machine.starter());
    let gates = [gate("into-server", &server)?, gate("into-client", &client)?];
    Ok(Guests { server, client, ports, _gates: gates })
}

fn compare(lab: &Lab, guests: &Guests) -> Result<serde_json::Value> {
    let lab_program = std::env::current_exe().context("this program")?;
    let on = |name: &str| format!("{} --guest {}", lab_program.display(), lab.socket(name).display());
    let [server, load] = guests.ports.each_ref().map(Nic::pci);
    let mut command = Command::new(&lab.linerate);
    command.args(["-v", "compare", "--quick", "--no-sweeps", "--rounds", "1", "--round-time", "1s"]);
    // Under emulation, thousands of outstanding requests measure only their queueing.
    command.args(["--points", "4x2", "--keys", "1000", "--time-limit", &format!("{}s", WITHIN.as_secs())]);
    command.args(["--via", &format!("pci:{server}/{load},kernel,rdma:{DEVICE}")]);
    command.args(["--server-on", &on("into-server"), "--load-on", &on("into-client")]);
    command.args(["--server-ip", &format!("{}/24", Pair::SERVER), "--load-ip", &format!("{}/24", Pair::CLIENT)]);
    command.args(["--server-port-ip", PORTS[0], "--load-port-ip", PORTS[1]]);
    command.arg("--out").arg(&lab.out);
    Program::start("host: linerate compare", &command, &lab.log)?.succeed_within(WITHIN + PREPARATION)?;
    // Remote programs have ended with their connections.
    for machine in [&guests.server, &guests.client] {
        machine.run("end of remote programs", "until ! pgrep -x linerate; do sleep 0.05; done")?;
    }
    let results = lab.out.join("results.json");
    for report in ["report.html", "report.md"] {
        if !lab.out.join(report).exists() {
            return failed(format!("{report} was not written"));
        }
    }
    Ok(serde_json::from_slice(&std::fs::read(&results).context(results.to_string_lossy())?)?)
}

/// Checks that a row was measured, and names its emulation.
fn ran(results: &serde_json::Value, id: &str) -> Result<()> {
    let is_it = |row: &&serde_json::Value| {
        let parts: Vec<&str> = row["id"].as_str().unwrap_or_default().split('/').collect();
        let [app, .., _] = parts[..] else { return false };
        let network = parts.get(1).and_then(|network| network.split(':').next()).unwrap_or_default();
        // A port has a name at each end.
        let design = parts[if network == "pci" { 3 } else { 2 }..].join("/");
        format!("{app}/{network}/{design}") == id
    };
    let Some(row) = results["rows"].as_array().and_then(|rows| rows.iter().find(is_it)) else {
        return failed("the row is missing");
    };
    let by = row["link"]["emulated_by"].as_str().unwrap_or_default();
    if row["link"]["kind"] != "network" || !by.contains("QEMU") || id.contains("rdma") != by.contains("rxe") {
        return failed(format!("wrong link: {}", row["link"]));
    }
    let round = &row["outcome"]["ran"]["fixed"][0]["rounds"][0];
    if round["requests"].as_u64().unwrap_or(0) == 0 || round["server"]["cpu_seconds"].is_null() {
        return failed(format!("nothing was measured: {}", row["outcome"]));
    }
    Ok(())
}
