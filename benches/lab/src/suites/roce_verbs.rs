//! RoCEv2 in software against foreign programs: every verb of libibverbs, `rping` and `ucmatose` in a guest with
//! Soft-RoCE, each end once as the requester, and `tshark` on captures of the packets.

use super::Suite;
use super::pair::LISTENING;
use super::roce::{GUEST, HOST, boot, host};
use crate::capture;
use crate::error::{Context, Result};
use crate::host::Lab;
use crate::program::Program;
use crate::report::Report;
use linerate_harness::process::sibling;
use std::path::PathBuf;
use std::process::Command;

pub const SUITE: Suite =
    Suite { name: "roce-verbs", about: "RoCEv2 of linerate on the host with programs of rdma-core in a guest", run };

/// Name of the capture of the responder.
const RESPONDER: &str = "responder";
/// Program of the guest.
const SOURCE: &str = include_str!("verbs.c");

/// Cases of the guest's program, which requests.
const GUEST_CASES: [(&str, &str); 8] = [
    ("transfers", "SEND, WRITE and READ of 0 bytes to 1 MB, with and without immediate data"),
    ("atomics", "compare-and-swap and fetch-and-add"),
    ("pipeline", "128 requests of four kinds at once"),
    ("invalidation", "a memory window, and SEND with invalidate"),
    ("errors", "refused requests"),
    ("shared", "a shared receive queue"),
    ("datagrams", "datagrams, with GRH"),
    ("many", "1000 queue pairs"),
];

/// Cases of the host's program, which requests.
const HOST_CASES: [(&str, &str); 5] = [
    ("transfers", "SEND, WRITE and READ of 0 bytes to 1 MB, and WRITE with immediate data"),
    ("atomics", "compare-and-swap and fetch-and-add"),
    ("pipeline", "128 requests of four kinds at once"),
    ("errors", "refused requests"),
    ("many", "1000 queue pairs"),
];

fn run(lab: &Lab, report: &mut Report) {
    let Some(program) = report.case("a program on libibverbs", || compile(lab)) else { return };
    let booted = report.case("a guest with Soft-RoCE", || {
        let mut server = peer(lab, None)?;
        server.wait_for_line("ready")?;
        Ok((boot(lab)?, server))
    });
    let Some((machine, server)) = booted else { return };
    let verbs = |case: &str, address: &str| format!("exec '{}' {case} {address}", program.display());
    for (case, about) in GUEST_CASES {
        report.case(&format!("the guest requests: {about}"), || machine.run(case, &verbs(case, HOST)));
    }
    for client in [format!("rping -c -a {HOST} -C 10 -S 3000 -V"), format!("ucmatose -s {HOST} -c 4 -S 3000")] {
        report.case(&format!("the guest requests: {client}"), || machine.run("client", &format!("exec {client}")));
    }
    report.case("the server ends without connections", || server.stop());
    report.case("the packets are well-formed", || check(lab, RESPONDER));
    let responder = report.case("a responder in the guest", || {
        let mut responder = machine.start_script("verbs", &verbs("serve", GUEST))?;
        responder.wait_for_line("ready")?;
        Ok(responder)
    });
    for (case, about) in HOST_CASES {
        report.case(&format!("the host requests: {about}"), || request(lab, case));
    }
    // The next cases wait for the only listener.
    drop(responder);
    for (case, server) in
        [("rping", format!("rping -s -a {GUEST} -C 10")), ("ucmatose", format!("ucmatose -b {GUEST}"))]
    {
        report.case(&format!("the host requests: {case}"), || {
            let server = machine.start_script(case, &format!("exec {server}"))?;
            machine.run("listening", LISTENING)?;
            request(lab, case)?;
            server.succeed()
        });
    }
}

/// Compiles the guest's program on the host, whose files the guest reads.
fn compile(lab: &Lab) -> Result<PathBuf> {
    let [program, source] = ["verbs", "verbs.c"].map(|name| lab.file(name));
    std::fs::write(&source, SOURCE).context("the source")?;
    let mut gcc = Command::new("gcc");
    gcc.args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program).arg(&source);
    gcc.args(["-libverbs", "-lrdmacm"]);
    Program::start("gcc", &gcc, &lab.log)?.succeed()?;
    Ok(program)
}

/// Returns the capture of the host's program with these requests.
fn captured(lab: &Lab, requests: &str) -> PathBuf {
    lab.file(&format!("{requests}.pcapng"))
}

/// Starts the host's program, which sends `requests`, or responds if there are none.
fn peer(lab: &Lab, requests: Option<&str>) -> Result<Program> {
    let mut command = Command::new(sibling("verbs-peer", "build linerate-lab with the features of linerate-apps")?);
    command.args(host(lab, "").arguments().split_whitespace());
    command.arg("--pcap").arg(captured(lab, requests.unwrap_or(RESPONDER)));
    requests.iter().for_each(|requests| _ = command.args(["--request", requests, "--to", GUEST]));
    Program::start("host: verbs-peer", &command, &lab.log)
}

/// Sends requests from the host, and checks the packets.
fn request(lab: &Lab, requests: &str) -> Result<()> {
    peer(lab, Some(requests))?.succeed()?;
    check(lab, requests)
}

/// Checks the packets of the host's program, and removes the capture.
fn check(lab: &Lab, requests: &str) -> Result<()> {
    let file = captured(lab, requests);
    capture::check(lab, &file)?;
    std::fs::remove_file(file).context("a capture")
}
