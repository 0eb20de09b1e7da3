//! RDMA verbs over Soft-RoCE, between two guests: real RoCEv2 packets.

use super::Suite;
use super::counts;
use super::pair::{DEVICE, Pair, Provider};
use super::service::{ALL, ECHO, KV, Service};
use crate::error::{Result, failed};
use crate::host::Lab;
use crate::report::Report;

pub const SUITE: Suite = Suite { name: "rxe", about: "RDMA verbs over Soft-RoCE, between two guests", run };

/// The part of it that takes little time.
pub const QUICK: Suite = Suite { name: "rxe-quick", about: "the two services over Soft-RoCE, once each", run: quick };

/// How both ends connect and receive, as their arguments.
const WAYS: &[(&str, &str)] = &[("rdma_cm", "")];

/// What is exchanged in each of these ways.
const LOADS: [(&str, Service); 6] = [
    ("echo of 1 byte", Service { load: "--size 1 --depth 4", ..ECHO }),
    ("echo of 64 bytes", Service { load: "--size 64", connections: 1, ..ECHO }),
    ("echo of 4 kB", Service { load: "--size 4k --depth 4", ..ECHO }),
    ("echo of 1 MB", Service { load: "--size 1m", connections: 2, ..ECHO }),
    ("echo on 256 connections", Service { load: "--size 64", connections: 256, ..ECHO }),
    (
        "kv, values up to 48 kB",
        Service { load: "--keys 200 --value-size 8-48k --get-ratio 0.5 --verify --no-miss", ..KV },
    ),
];

/// A load that lasts until something happens to it.
const LASTING: Service = Service { seconds: 600, ..ECHO };

fn quick(lab: &Lab, report: &mut Report) {
    let Some(pair) = report.case("two guests", || Pair::boot(lab, Provider::Rxe)) else { return };
    for service in ALL {
        report.case(service.name, || pair.answers(lab, service, ""));
    }
}

fn run(lab: &Lab, report: &mut Report) {
    let Some(pair) = report.case("two guests", || Pair::boot(lab, Provider::Rxe)) else { return };
    report.case("rping", || pair.rping());
    for (way, words) in WAYS {
        for (what, service) in LOADS {
            report.case(&format!("{way}: {what}"), || pair.answers(lab, service, words));
        }
    }
    counts::run(lab, report, &pair);
    report.case("a server is killed and comes back", || server_killed(lab, &pair));
    report.case("a load is killed, and leaves nothing at its server", || load_killed(lab, &pair));
    report.case("the link goes down and up", || link_down(lab, &pair));
    report.case("rping is refused by a server", || rping_refused(lab, &pair));
    report.case("a load is refused by rping, or refuses it", || load_refused(lab, &pair));
}

/// The load ends and says why; the next one is served at the same address.
fn server_killed(lab: &Lab, pair: &Pair) -> Result<()> {
    let server = pair.serve(lab, ECHO, "")?;
    let mut load = pair.load(lab, LASTING, "")?;
    load.wait_for_line("measuring")?;
    server.kill()?;
    let load = load.end()?;
    if load.status == 0 || load.json()?["errors"] == 0 {
        return failed(format!("the load does not know that its server is gone: {load:?}"));
    }
    pair.answers(lab, ECHO, "")
}

fn load_killed(lab: &Lab, pair: &Pair) -> Result<()> {
    let server = pair.serve(lab, ECHO, "")?;
    let mut load = pair.load(lab, LASTING, "")?;
    load.wait_for_line("measuring")?;
    let pairs = |test: &str| {
        format!("until [ $(rdma resource show qp link {DEVICE} | grep -c 'type RC') {test} ]; do sleep 0.05; done")
    };
    pair.server.run("queue pairs", &pairs(&format!("-ge {}", LASTING.connections)))?;
    load.kill()?;
    pair.server.run("queue pairs", &pairs("-eq 0"))?;
    let load = pair.load(lab, ECHO, "")?.succeed()?;
    let told = server.stop()?.json()?;
    if told["broken"] != LASTING.connections || told["finished"] != ECHO.connections {
        return failed(format!("the next load tells {load:?}, the server {told}"));
    }
    Ok(())
}

/// Connections live through it, or end and say why; the server goes on.
fn link_down(lab: &Lab, pair: &Pair) -> Result<()> {
    let server = pair.serve(lab, ECHO, "")?;
    let mut load = pair.load(lab, Service { seconds: 10, ..ECHO }, "")?;
    load.wait_for_line("measuring")?;
    pair.link(false)?;
    pair.link(true)?;
    let load = load.end()?;
    if load.status != 0 && load.json()?["errors"] == 0 {
        return failed(format!("the load ends without a reason: {load:?}"));
    }
    let next = pair.load(lab, ECHO, "")?.succeed()?;
    let told = server.stop()?.json()?;
    if told["finished"].as_u64() < Some(ECHO.connections.into()) {
        return failed(format!("the next load tells {next:?}, the server {told}"));
    }
    Ok(())
}

/// What asks for a connection without saying that it is one of ours.
fn rping_refused(lab: &Lab, pair: &Pair) -> Result<()> {
    let server = pair.serve(lab, ECHO, "")?;
    let rping = format!("exec rping -c -a {} -p {} -C 1 -v", Pair::SERVER, ECHO.port);
    let rping = pair.client.start_script("rping", &rping)?.end()?;
    if rping.status == 0 || !rping.err.iter().chain(&rping.out).any(|line| line.contains("REJECTED")) {
        return failed(format!("it is not refused: {rping:?}"));
    }
    let load = pair.load(lab, ECHO, "")?.succeed()?;
    ECHO.check(&load, &server.stop()?)
}

fn load_refused(lab: &Lab, pair: &Pair) -> Result<()> {
    let rping = format!("exec rping -s -a {} -p {} -C 1 -v", Pair::SERVER, ECHO.port);
    let _rping = pair.server.start_script("rping", &rping)?;
    pair.server.run("listening", "until rdma resource show cm_id | grep -q LISTEN; do sleep 0.05; done")?;
    let load = pair.load(lab, Service { connections: 1, ..ECHO }, "")?.end()?;
    if load.status == 0 {
        return failed(format!("it takes rping for a server of its own: {load:?}"));
    }
    Ok(())
}
