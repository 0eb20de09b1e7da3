//! `linerate rdma connect-bench` and `connections-bench` on a guest's device: all steps complete. Connections per
//! second between two guests.

use super::Suite;
use super::pair::{DEVICE, INTERFACE, Pair, Provider};
use super::service::{ECHO, End, Service};
use crate::error::{Result, failed};
use crate::host::Lab;
use crate::report::Report;

/// Part that can be run alone.
pub const SUITE: Suite = Suite { name: "rxe-connect", about: "rdma connect-bench on Soft-RoCE", run: alone };

/// Numbers of connections compared.
const FEW: u64 = 4;
const MORE: u64 = 16;
/// Rounds of each step.
const ROUNDS: u64 = 20;
/// Steps of each connection.
const STEPS: [&str; 6] = ["create", "INIT", "post buffers", "RTR", "RTS", "destroy"];
/// Arguments of both ends over verbs, by method.
const METHODS: [(&str, &str); 5] = [
    ("rdma_cm", ""),
    ("rdma_cm, prepared", "--rdma-pool 64"),
    ("TCP exchange", "--rdma-connect tcp"),
    ("TCP exchange, prepared", "--rdma-connect tcp --rdma-pool 64"),
    ("datagrams", "--rdma-mode ud"),
];
/// Numbers of connections that are opened at a time between the guests.
const AT_ONCE: [u32; 2] = [1, 16];
/// Kinds of connections.
const CONNECTIONS: [&str; 6] = [
    "rdma_cm",
    "rdma_cm, prepared",
    "TCP exchange",
    "TCP exchange, prepared",
    "kernel sockets",
    "TCP stack, in memory",
];

fn alone(lab: &Lab, report: &mut Report) {
    let Some(pair) = report.case("two guests", || Pair::boot(lab, Provider::Rxe)) else { return };
    run(lab, report, &pair);
}

/// Runs the case.
pub fn run(lab: &Lab, report: &mut Report, pair: &Pair) {
    report.case("connect-bench reports all steps", || reports_all_steps(lab, pair));
    report.case("connections-bench measures all variants", || reports_all_variants(lab, pair));
    for (method, args) in METHODS {
        let end = |ip: &str| End { args: args.to_owned(), ..End::new(format!("rdma:{DEVICE}"), ip) };
        rates(lab, report, pair, method, end);
    }
    rates(lab, report, pair, "kernel sockets", |ip| End { ip: ip.to_owned(), ..End::kernel() });
    rates(lab, report, pair, "TCP stack over AF_XDP", |ip| End::new(format!("af_xdp:{INTERFACE},share"), ip));
}

/// Measures connections with one request of one byte each between the guests, and prints their rate.
fn rates(lab: &Lab, report: &mut Report, pair: &Pair, method: &str, end: impl Fn(&str) -> End) {
    for connections in AT_ONCE {
        let service = Service { load: "--reconnect --size 1", connections, seconds: 2, ..ECHO };
        let measured = report.case(&format!("{method}: {connections} at a time"), || {
            let serve = lab.in_guest(&service.serve(&end(Pair::SERVER)));
            let mut server = pair.server.start_script("serve", &serve)?;
            server.wait_for_line("ready ")?;
            let load = lab.in_guest(&service.load(&end(Pair::CLIENT), Pair::SERVER));
            let load = pair.client.start_script("load", &load)?.succeed()?.last_json()?;
            server.stop()?;
            match load["connections"].as_f64() {
                Some(rate) if rate > 0.0 && load["errors"] == 0 => Ok(rate),
                _ => failed(format!("connections fail: {load}")),
            }
        });
        if let Some(rate) = measured {
            println!("   {rate:.0} connections per second");
        }
    }
}

fn reports_all_variants(lab: &Lab, pair: &Pair) -> Result<()> {
    let script = lab.in_guest(&format!("rdma connections-bench {DEVICE} -c {FEW},{MORE} -n 5 --json"));
    let report_json = pair.server.run("connections-bench", &script)?.last_json()?;
    let rows = report_json["rows"].as_array().map(Vec::as_slice).unwrap_or_default();
    let is_complete = |row: &serde_json::Value| {
        ["open_us", "echo_us"].iter().all(|field| row[field].as_f64() > Some(0.0)) && row["process_kb"].is_number()
    };
    let counts: Vec<_> = rows.iter().filter_map(|row| row["connections"].as_u64()).collect();
    if counts == [FEW, MORE].repeat(3) && rows.iter().all(is_complete) {
        Ok(())
    } else {
        failed(format!("unexpected report: {report_json}"))
    }
}

fn reports_all_steps(lab: &Lab, pair: &Pair) -> Result<()> {
    let script = lab.in_guest(&format!("rdma connect-bench {DEVICE} -n {ROUNDS} --json"));
    let report_json = pair.server.run("connect-bench", &script)?.last_json()?;
    for (rows, names) in [("steps", &STEPS[..]), ("connections", &CONNECTIONS)] {
        for name in names {
            let is_it = |row: &&serde_json::Value| row["what"] == *name && row["times"] == ROUNDS;
            let found = report_json[rows].as_array().and_then(|rows| rows.iter().find(is_it));
            if found.is_none_or(|row| row["p50_us"].as_f64() <= Some(0.0)) {
                return failed(format!("{name} is missing among {rows}: {report_json}"));
            }
        }
    }
    let device = &report_json["device"];
    if device["name"] == DEVICE && device["emulated_by"] == "rxe" {
        return Ok(());
    }
    failed(format!("the report does not name the emulation: {report_json}"))
}
