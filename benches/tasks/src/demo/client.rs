//! Ordinary client in a network namespace, and the server on an AF_XDP or TAP port.

use super::{end, serve};
use crate::error::Error;
use crate::output::note;
use linerate_harness::namespace::Namespace;
use linerate_harness::process::Process;
use std::path::{Path, absolute};
use std::time::Duration;

/// Arguments of the server, after `--via`.
const ADDRESSES: &str = "--ip 10.77.0.2/24 --ip fd77::2/64 --listen 10.77.0.2:7 --listen [fd77::2]:7";
/// Echo through bash.
const ECHO: &str = r#"exec 3<>/dev/tcp/10.77.0.2/7; echo "hello from a kernel socket" >&3
    read -r -t 5 line <&3; echo "$line""#;
/// Load by kernel sockets.
const LOAD: &str = "echo load --via kernel --connect [fd77::2]:7 --connections 64 --size 1000 --duration 2s";

/// Runs the server on AF_XDP, on one end of a veth pair in its own namespace, or else on TAP. The client uses the
/// kernel's sockets in another namespace.
pub fn run(linerate: &Path) -> Result<(), Error> {
    let linerate = absolute(linerate)?;
    let [client, there] = Namespace::all(["client", "server"])?;
    client.connect("lr0", &there, "lr1")?;
    there.up("lr1")?;
    let (server, ready) = match serve(there.command(&linerate), &format!("--via af_xdp:lr1 {ADDRESSES}")) {
        Err(Error::Failed(why)) => {
            note(&format!("the server did not start: {}", why.lines().last().unwrap_or_default()));
            note("TAP is used instead, in the client's namespace");
            client.ip("link del lr0")?;
            serve(client.command(&linerate), &format!("--via tap:lr0 {ADDRESSES}"))?
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
    let mut load = client.command(&linerate);
    load.args(LOAD.split_whitespace());
    indent(Process::start(load)?.output(Duration::from_secs(60))?.lines());
    note("the server's summary:");
    indent(end(server)?.lines());
    Ok(())
}

fn indent<'a>(lines: impl Iterator<Item = &'a str>) {
    lines.for_each(|line| note(&format!("  {line}")));
}
