//! `./run demo`: an echo server on a DPDK port with an ordinary client, and a comparison with kernel sockets.

use crate::machine::{Machine, reserve_hugepages};
use crate::process::{self, built, cargo, command};
use crate::{Error, note, say};
use linerate_harness::namespace::Namespace;
use linerate_harness::process::{Process, TIMEOUT};
use rustix::process::Signal;
use std::path::{Path, absolute};
use std::process::Command;
use std::time::Duration;

/// Arguments of the server after `--via`; an echo through bash; a load by kernel sockets; and a comparison of two
/// processes over virtio-user and over kernel sockets.
const ADDRESSES: &str = "--ip 10.77.0.2/24 --ip fd77::2/64 --listen 10.77.0.2:7 --listen [fd77::2]:7";
const ECHO: &str = r#"exec 3<>/dev/tcp/10.77.0.2/7; echo "hello from a kernel socket" >&3
    read -r -t 5 line <&3; echo "$line""#;
const LOAD: &str = "echo load --via kernel --connect [fd77::2]:7 --connections 64 --size 1000 --duration 2s";
const COMPARE: &str = "compare --apps echo --engines native --threading inline --points 64x1,1x1 --no-sweeps \
                       --rounds 1 --round-time 3s --via";

/// Builds `linerate`, and runs the demonstration and the comparison.
pub fn run(machine: &Machine) -> Result<(), Error> {
    say("building linerate with a short compile time (profile demo)");
    let features = if machine.dpdk() { "--features linerate-apps/dpdk" } else { "" };
    process::run(cargo(&format!(
        "build --profile demo -p linerate-apps --bin linerate --no-default-features {features}"
    )))?;
    let linerate = built("demo", "linerate");
    let _hugepages = reserve_hugepages(512);

    say("an ordinary client and an echo server on a DPDK port");
    if !machine.dpdk() {
        note("left out: it needs DPDK");
    } else if !machine.has_namespaces {
        note("left out: network namespaces, AF_XDP and TAP need root");
    } else {
        client(&absolute(&linerate)?)?;
    }

    say("three seconds of 64-byte echoes between two processes, on 64 connections and on one");
    let reports = built("demo", "reports");
    let via = if machine.dpdk() { "virtio-user,kernel" } else { "kernel" };
    process::run(command(&format!("{linerate} {COMPARE} {via} --out {reports}")))?;
    say("next");
    note(&format!(
        "{linerate} doctor              checks this machine and prints a fix for each problem\n\
         {linerate} kv serve --help     serves keys and values to clients of Redis and memcached\n\
         cargo build --release && target/release/linerate compare --quick\n\
         \x20                          optimises further, and compares all transports of this machine, in two minutes\n\
         ./run book    builds the documentation\n./run test    runs every check and test"
    ));
    Ok(())
}

/// Runs the server on AF_XDP, on one end of a veth pair in its own namespace, or else on TAP. The client uses the
/// kernel's sockets in another namespace.
fn client(linerate: &Path) -> Result<(), Error> {
    let [client, there] = Namespace::all(["client", "server"])?;
    client.connect("lr0", &there, "lr1")?;
    there.up("lr1")?;
    let (server, ready) = match serve(there.command(linerate), "af_xdp:lr1") {
        Err(Error::Failed(reason)) => {
            note(&format!("the server did not start: {}", reason.lines().last().unwrap_or_default()));
            note("TAP is used instead, in the client's namespace");
            client.ip("link del lr0")?;
            serve(client.command(linerate), "tap:lr0")?
        }
        served => served?,
    };
    client.add_address("lr0", "10.77.0.1/24")?;
    client.add_address("lr0", "fd77::1/64")?;
    client.up("lr0")?;
    note(&ready);
    note("ping from the kernel in the other namespace:");
    let replies = client.run("ping", &["-c", "3", "-i", "0.2", "-w", "8", "10.77.0.2"])?;
    indent(replies.lines().filter(|line| line.contains("time=") || line.contains("received")));
    note("a line through bash's /dev/tcp comes back:");
    indent(client.run("bash", &["-c", ECHO])?.lines());
    note("64 kernel sockets over IPv6, every byte checked:");
    let mut load = client.command(linerate);
    load.args(LOAD.split_whitespace());
    indent(Process::start(load)?.output(Duration::from_secs(60))?.lines());
    note("the server's summary:");
    server.signal(Signal::TERM);
    indent(server.end(TIMEOUT)?.stderr.lines());
    Ok(())
}

/// Starts an echo server on `port` by the command `linerate`. Returns it with its first line when it is ready.
fn serve(mut linerate: Command, port: &str) -> Result<(Process, String), Error> {
    linerate.args(["echo", "serve", "--via", port]).args(ADDRESSES.split_whitespace());
    let mut server = Process::start(linerate)?;
    let ready = server.wait_for_line("ready")?;
    Ok((server, ready))
}

fn indent<'a>(lines: impl Iterator<Item = &'a str>) {
    lines.for_each(|line| note(&format!("  {line}")));
}
