//! RDMA verbs over Soft-RoCE between two guests, with real RoCEv2 packets.

use super::pair::{DEVICE, Pair, Provider};
use super::service::{ALL, ECHO, KV, Service};
use super::{Suite, connect_bench, kills, one_sided};
use crate::error::{Result, failed};
use crate::host::Lab;
use crate::program::wait_for;
use crate::report::Report;

pub const SUITE: Suite = Suite { name: "rxe", about: "RDMA verbs over Soft-RoCE, between two guests", run };

/// Short part.
pub const QUICK: Suite = Suite { name: "rxe-quick", about: "the two services over Soft-RoCE, once each", run: quick };

/// Common arguments of both ends.
const MODES: &[(&str, &str)] = &[
    ("rdma_cm", ""),
    ("TCP", "--rdma-connect tcp"),
    ("shared buffers", "--srq 1024"),
    ("datagrams", "--rdma-mode ud"),
];

/// Loads for each mode.
const LOADS: [(&str, Service); 6] = [
    ("echo of 1 byte", Service { load: "--size 1 --depth 4", seconds: 1, ..ECHO }),
    ("echo of 64 bytes", Service { load: "--size 64", connections: 1, seconds: 1, ..ECHO }),
    ("echo of 4 kB", Service { load: "--size 4k --depth 4", seconds: 1, ..ECHO }),
    ("echo of 1 MB", Service { load: "--size 1m", connections: 1, seconds: 1, ..ECHO }),
    ("echo on 256 connections", Service { load: "--size 64", connections: 256, ..ECHO }),
    (
        "kv, values up to 48 kB",
        Service { load: "--keys 200 --value-size 8-48k --get-ratio 0.5 --verify --fail-on-miss", ..KV },
    ),
];

fn quick(lab: &Lab, report: &mut Report) {
    let Some(pair) = report.case("two guests", || Pair::boot(lab, Provider::Rxe)) else { return };
    for service in ALL {
        report.case(service.name, || pair.answers(lab, service, ""));
    }
}

fn run(lab: &Lab, report: &mut Report) {
    let Some(pair) = report.case("two guests", || Pair::boot(lab, Provider::Rxe)) else { return };
    report.case("rping", || pair.rping());
    report.case("the device's tests", || device_tests(lab, &pair));
    for (mode, words) in MODES {
        for (load, service) in LOADS {
            report.case(&format!("{mode}: {load}"), || pair.answers(lab, service, words));
        }
    }
    connect_bench::run(lab, report, &pair);
    one_sided::run(lab, report, &pair);
    kills::some(lab, report, &pair);
    report.case("a thousand connections leave nothing", || thousand(lab, &pair));
    report.case("the link goes down and up", || link_down(lab, &pair));
    report.case("rping is refused by a server", || pair.rping_is_refused(lab));
    report.case("rping is not taken for a server", || pair.rping_is_not_taken_for_a_server(lab));
}

/// Runs the adapter's device tests in one guest.
fn device_tests(lab: &Lab, pair: &Pair) -> Result<()> {
    let tests = lab.linerate.with_file_name("rdma-device-tests");
    if !tests.exists() {
        return failed(format!("{}: ./run lab builds it", tests.display()));
    }
    let script = format!("LINERATE_RDMA_DEVICE={DEVICE} exec '{}' --test-threads=1", tests.display());
    pair.server.run("the device's tests", &script).map(drop)
}

/// Checks that a server's resources after a thousand connections equal those before. Allocators keep their peak
/// memory, which may rise when more connections overlap, but not with every thousand.
fn thousand(lab: &Lab, pair: &Pair) -> Result<()> {
    const MANY: Service = Service { load: "--size 64", connections: 250, seconds: 1, ..ECHO };
    /// Tolerance in kB: 64 bytes per connection.
    const SPARE: u64 = 64;
    const MOST_THOUSANDS: u32 = 4;
    let server = pair.serve(lab, MANY, "")?;
    // The server keeps slots for the peak number of connections, so that this load reaches the peak first.
    pair.load(lab, MANY, "")?.succeed()?;
    let (before, mut resident) = pair.held()?;
    let mut sizes = vec![resident];
    let mut thousands = 0;
    loop {
        for _ in 0..4 {
            pair.load(lab, MANY, "")?.succeed()?;
            wait_for("release of the load's objects by the server", || Ok(pair.held()?.0 == before))?;
        }
        thousands += 1;
        let now = pair.held()?.1;
        sizes.push(now);
        if now <= resident + SPARE {
            break;
        }
        if thousands == MOST_THOUSANDS {
            return failed(format!("memory in kB grows with every thousand connections: {sizes:?}"));
        }
        resident = now;
    }
    let finished = server.stop()?.last_json()?["finished"].as_u64();
    let made = u64::from((1 + 4 * thousands) * MANY.connections);
    if finished == Some(made) { Ok(()) } else { failed(format!("{finished:?} of {made} connections have finished")) }
}

/// Takes the link down: connections survive or end with a reason, and the server keeps working.
fn link_down(lab: &Lab, pair: &Pair) -> Result<()> {
    let server = pair.serve(lab, ECHO, "")?;
    let mut load = pair.load(lab, Service { seconds: 10, ..ECHO }, "")?;
    load.wait_for_line("measuring")?;
    pair.link(false)?;
    pair.link(true)?;
    let load = load.end()?;
    if !load.status.success() && load.last_json()?["errors"] == 0 {
        return failed(format!("the load ends without a reason: {load:?}"));
    }
    let next = pair.load(lab, ECHO, "")?.succeed()?;
    let summary = server.stop()?.last_json()?;
    if summary["finished"].as_u64() < Some(ECHO.connections.into()) {
        return failed(format!("the next load reports {next:?}, the server {summary}"));
    }
    Ok(())
}
