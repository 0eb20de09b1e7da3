//! `./run demo`: an echo server on a DPDK port with an ordinary client, and a comparison with kernel sockets.

mod client;
mod side_by_side;

pub use side_by_side::{measure, table};

use crate::cargo::{build_demo, demo_linerate};
use crate::error::Error;
use crate::machine::{Machine, reserve_hugepages};
use crate::output::{note, say};
use crate::process;
use linerate_harness::process::{PATIENCE, Process};
use rustix::process::Signal;
use std::process::Command;

/// Builds `linerate`, and runs the demonstration and the comparison.
pub fn run(machine: &Machine) -> Result<(), Error> {
    say("building linerate with a short compile time (profile demo)");
    process::run(build_demo(machine))?;
    let linerate = demo_linerate();
    let _hugepages = reserve_hugepages(512);

    say("an ordinary client and an echo server on a DPDK port");
    if !machine.dpdk() {
        note("left out: it needs DPDK");
    } else if !machine.has_namespaces() {
        note("left out: network namespaces, AF_XDP and TAP need root");
    } else {
        client::run(&linerate)?;
    }

    say("three seconds of 64-byte echoes between two processes, on 64 connections and on one");
    let rows = measure(machine, &linerate, 3)?;
    print!("\n{}", table(&rows));
    say("requests/s");
    note(&side_by_side::chart(&rows));
    say("next");
    let demo = linerate.display();
    note(&format!("{demo} doctor              checks this machine and prints a fix for each problem"));
    note(&format!("{demo} kv serve --help     serves keys and values to clients of Redis and memcached"));
    note("cargo build --release && target/release/linerate compare --quick");
    note("                           optimises further, and compares all transports of this machine, in two minutes");
    note("./run book    builds the documentation");
    note("./run test    runs every check and test");
    Ok(())
}

/// Starts `linerate echo serve` by the command `linerate` and waits until it is ready. Returns the server and its
/// first line.
fn serve(mut linerate: Command, arguments: &str) -> Result<(Process, String), Error> {
    linerate.args(["echo", "serve"]).args(arguments.split_whitespace());
    let mut server = Process::start(linerate)?;
    let ready = server.wait_for_line("ready")?;
    Ok((server, ready))
}

/// Ends the server and returns its summary.
fn end(server: Process) -> Result<String, Error> {
    server.signal(Signal::TERM);
    Ok(server.end(PATIENCE)?.stderr)
}
