//! Either end is killed while messages are in flight, in every mode: the other end keeps working and releases all
//! resources.

use super::Suite;
use super::pair::{DEVICE, Pair, Provider, objects};
use super::service::{ECHO, ONE_SIDED, Service};
use crate::error::{Result, failed};
use crate::host::Lab;
use crate::program::{Program, wait_for};
use crate::report::Report;
use linerate_harness::process::Ended;

/// Part that can be run alone.
pub const SUITE: Suite =
    Suite { name: "rxe-kills", about: "kills of either end over Soft-RoCE, in every mode", run: alone };

/// Cases: name, common arguments of both ends, and service.
const KILLED: [(&str, &str, Service); 5] = [
    ("rdma_cm, send", "--rdma-connect cm --rdma-mode send", ECHO),
    ("rdma_cm, one-sided", "--rdma-connect cm", ONE_SIDED),
    ("TCP, send", "--rdma-connect tcp --rdma-mode send", ECHO),
    ("TCP, one-sided", "--rdma-connect tcp", ONE_SIDED),
    ("TCP, datagrams", "--rdma-mode ud", ECHO),
];

/// Maximum duration of a load in seconds.
const LASTING: u32 = 600;

fn alone(lab: &Lab, report: &mut Report) {
    let Some(pair) = report.case("two guests", || Pair::boot(lab, Provider::Rxe)) else { return };
    run(lab, report, &pair, KILLED);
}

/// Runs each mode once.
pub fn some(lab: &Lab, report: &mut Report, pair: &Pair) {
    let [sent, _, _, read, datagrams] = KILLED;
    run(lab, report, pair, [sent, read, datagrams]);
}

fn run<const N: usize>(lab: &Lab, report: &mut Report, pair: &Pair, killed: [(&str, &str, Service); N]) {
    for (case, words, service) in killed {
        report.case(&format!("{case}: the server is killed, then a load"), || kills(lab, pair, service, words));
    }
}

/// Starts a load and waits until its messages are in flight.
fn lasting(lab: &Lab, pair: &Pair, service: Service, words: &str) -> Result<Program> {
    let mut load = pair.load(lab, Service { seconds: LASTING, ..service }, words)?;
    load.wait_for_line("measuring")?;
    // Sessions share one queue pair, so only other modes can be waited for by number.
    if !words.contains("ud") {
        let count = format!("rdma resource show qp link {DEVICE} | grep -c 'type RC'");
        let all = format!("until [ $({count}) -ge {} ]; do sleep 0.05; done", service.connections);
        pair.server.run("queue pairs", &all)?;
    }
    Ok(load)
}

/// Kills the server: its load ends with a reason, and both devices have no objects left. Then kills a load of the next
/// server, at the same address: that server releases the objects of the load and serves another load.
fn kills(lab: &Lab, pair: &Pair, service: Service, words: &str) -> Result<()> {
    let nothing = both(pair)?;
    let server = pair.serve(lab, service, words)?;
    let load = lasting(lab, pair, service, words)?;
    server.kill()?;
    check_lost_server(&load.end()?, service)?;
    wait_for("release of all objects of both devices", || Ok(both(pair)? == nothing))?;

    let server = pair.serve(lab, service, words)?;
    let idle = pair.held()?.0;
    lasting(lab, pair, service, words)?.kill()?;
    wait_for("release of the load's objects by the server", || Ok(pair.held()?.0 == idle))?;
    let [_, client] = &nothing;
    wait_for("release of all objects of the load's device", || Ok(objects(&pair.client)? == *client))?;
    let load = pair.load(lab, service, words)?.succeed()?;
    let counted = server.stop()?.last_json()?;
    // The killed load had made all its requests except the final ones.
    let finished = service.connections + service.asks + service.asks.saturating_sub(1);
    let is_well =
        load.last_json()?["errors"] == 0 && counted["broken"] == service.connections && counted["finished"] == finished;
    if is_well { Ok(()) } else { failed(format!("the next load reports {load:?}, the server {counted}")) }
}

/// Returns the objects of both devices.
fn both(pair: &Pair) -> Result<[String; 2]> {
    Ok([objects(&pair.server)?, objects(&pair.client)?])
}

/// Checks that a load without its server counts its connections as errors and names the reason last.
fn check_lost_server(load: &Ended, service: Service) -> Result<()> {
    let has_reason = load.stderr.lines().any(|line| line.contains("check the server and the network path"));
    let lost = load.last_json()?["errors"].as_u64();
    if load.status.code() == Some(1) && lost >= Some(service.connections.into()) && has_reason {
        return Ok(());
    }
    failed(format!("the load does not report the loss of its server: {load:?}"))
}
