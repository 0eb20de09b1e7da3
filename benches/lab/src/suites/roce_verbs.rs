//! RoCEv2 in software against foreign programs: every verb of libibverbs, `rping` and `ucmatose` in a guest with
//! Soft-RoCE, each end once as the requester, and `tshark` on captures of the packets.

use super::Suite;
use super::pair::INTERFACE;
use super::roce::{GUEST, HOST, await_carrier, boot, host};
use crate::capture;
use crate::error::{Context, Result, failed};
use crate::host::Lab;
use crate::program::Program;
use crate::report::Report;
use linerate_harness::process::sibling;
use std::path::PathBuf;
use std::process::Command;

pub const SUITE: Suite =
    Suite { name: "roce-verbs", about: "RoCEv2 of linerate on the host with programs of rdma-core in a guest", run };

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

/// Requests of the host's program.
const HOST_CASES: [(&str, &str); 8] = [
    ("transfers", "SEND, WRITE and READ of 0 bytes to 1 MB, with and without immediate data"),
    ("atomics", "compare-and-swap and fetch-and-add"),
    ("pipeline", "128 requests of four kinds at once"),
    ("invalidation", "a memory window, and SEND with invalidate"),
    ("errors", "refused requests"),
    ("many", "1000 queue pairs"),
    ("rping", "rping"),
    ("ucmatose", "ucmatose"),
];

/// Cases that are repeated while packets of the guest are lost and duplicated.
const LOSSY: [&str; 3] = ["transfers", "atomics", "pipeline"];
/// Impairment of the guest's packets: requests, responses and acknowledgements. Few are lost and none reordered,
/// because Soft-RoCE ignores a second NAK until its time-out of two seconds.
const NETEM: &str = "loss 0.2% duplicate 1% limit 100000";

fn run(lab: &Lab, report: &mut Report) {
    let Some(program) = report.case("a program on libibverbs", || compile(lab)) else { return };
    let booted = report.case("a guest with Soft-RoCE", || {
        let mut server = peer(lab, &[])?;
        server.wait_for_line("ready")?;
        let machine = boot(lab)?;
        await_carrier(&machine)?;
        Ok((machine, server))
    });
    let Some((machine, server)) = booted else { return };
    let verbs = |case: &str, address: &str| format!("exec '{}' {case} {address}", program.display());
    for (case, about) in GUEST_CASES {
        report.case(&format!("the guest requests: {about}"), || machine.run(case, &verbs(case, HOST)));
    }
    for client in [format!("rping -c -a {HOST} -C 10 -S 3000 -V"), format!("ucmatose -s {HOST} -c 4 -S 3000")] {
        report.case(&format!("the guest requests: {client}"), || machine.run("client", &format!("exec {client}")));
    }
    let impair =
        || machine.run("netem", &format!("modprobe sch_netem; tc qdisc add dev {INTERFACE} root netem {NETEM}"));
    report.case("packets of the guest are lost and duplicated", impair);
    for case in LOSSY {
        report.case(&format!("the guest requests, with loss: {case}"), || machine.run(case, &verbs(case, HOST)));
    }
    report.case("the server ends without connections", || server.stop());
    report.case("its packets are well-formed", || check(lab));

    let started = report.case("servers in the guest", || {
        machine.run("netem", &format!("tc qdisc del dev {INTERFACE} root"))?;
        let (rping, ucmatose) =
            (format!("exec rping -s -a {GUEST} -C 10"), format!("exec ucmatose -b {GUEST} -S 3000"));
        let start = |script: &String| machine.start_script("server", script);
        let servers: Vec<_> = [verbs("serve", GUEST), rping, ucmatose].iter().map(start).collect::<Result<_>>()?;
        let listening = format!("[ $(rdma resource show cm_id | grep -c LISTEN) = {} ]", servers.len());
        machine.run("listening", &format!("until {listening}; do sleep 0.05; done"))?;
        Ok(servers)
    });
    let Some(servers) = started else { return };
    request(lab, report, "the host requests", HOST_CASES);
    report.case("packets of the guest are lost and duplicated", impair);
    request(lab, report, "the host requests, with loss", LOSSY.map(|case| (case, case)));
    // The first one serves without end.
    let ended = || servers.into_iter().skip(1).try_for_each(|server| server.succeed().map(drop));
    report.case("rping and ucmatose end", ended);
}

/// Sends requests from the host, and checks the packets.
fn request<const N: usize>(lab: &Lab, report: &mut Report, title: &str, cases: [(&str, &str); N]) {
    let names = cases.map(|(case, _)| case).join(",");
    let Some(mut requester) =
        report.case(&format!("{title}: {names}"), || peer(lab, &["--to", GUEST, "--request", &names]))
    else {
        return;
    };
    for (case, about) in cases {
        report.case(&format!("{title}: {about}"), || {
            let line = requester.wait_for_line(&format!("{case}: "))?;
            if line.ends_with(": ok") { Ok(()) } else { failed(line) }
        });
    }
    report.case("its packets are well-formed", || {
        requester.succeed()?;
        check(lab)
    });
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

/// Returns the capture of the host's program.
fn captured(lab: &Lab) -> PathBuf {
    lab.file("captured.pcapng")
}

/// Starts the host's program.
fn peer(lab: &Lab, arguments: &[&str]) -> Result<Program> {
    let mut command = Command::new(sibling("verbs-peer", "build linerate-lab with the features of linerate-apps")?);
    command.args(host(lab, "").arguments().split_whitespace()).args(arguments);
    command.arg("--pcap").arg(captured(lab));
    Program::start("host: verbs-peer", &command, &lab.log)
}

/// Checks the packets of the host's last program.
fn check(lab: &Lab) -> Result<()> {
    capture::check(lab, &captured(lab)).map(drop)
}
