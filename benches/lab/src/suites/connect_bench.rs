//! `linerate rdma connect-bench` and `connections-bench` on a guest's device: all steps complete.

use super::Suite;
use super::pair::{DEVICE, Pair, Provider};
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
/// Kinds of connections.
const CONNECTIONS: [&str; 5] =
    ["rdma_cm", "rdma_cm, prepared", "TCP exchange", "TCP exchange, prepared", "TCP stack, in memory"];

fn alone(lab: &Lab, report: &mut Report) {
    let Some(pair) = report.case("two guests", || Pair::boot(lab, Provider::Rxe)) else { return };
    run(lab, report, &pair);
}

/// Runs the case.
pub fn run(lab: &Lab, report: &mut Report, pair: &Pair) {
    report.case("connect-bench reports all steps", || reports_all_steps(lab, pair));
    report.case("connections-bench measures all variants", || reports_all_variants(lab, pair));
}

fn reports_all_variants(lab: &Lab, pair: &Pair) -> Result<()> {
    let script = lab.in_guest(&format!("rdma connections-bench {DEVICE} -c {FEW},{MORE} -n 5 --json"));
    let report_json = pair.server.run("connections-bench", &script)?.last_json()?;
    let rows = report_json["rows"].as_array().map(Vec::as_slice).unwrap_or_default();
    let is_complete = |row: &serde_json::Value| {
        ["open_us", "echo_us"].iter().all(|figure| row[figure].as_f64() > Some(0.0)) && row["process_kb"].is_number()
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
