//! Command-line tests: refusals, output, and termination of servers and loads.

#[path = "../common/mod.rs"]
mod common;
mod defaults;
mod drain;
mod endings;
mod loads;
#[cfg(feature = "rdma")]
mod rdma;
mod servers;

use common::{ANY_PORT, linerate, run};
use linerate_harness::program::Program;
use linerate_harness::wait_for;
use rustix::process::{Pid, Signal, kill_process};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;

/// Starts a server over kernel sockets on a free loopback port.
fn serve(service: &str, more: &str) -> Program {
    common::serve(service, &format!("{ANY_PORT} {more}"))
}

fn connect(server: &Program) -> TcpStream {
    common::client::connect(server.address())
}

#[track_caller]
fn assert_refused(args: &str, status: i32, part: &str) {
    common::assert_refused(linerate(args), status, &[part]);
}

#[test]
fn wrong_usage_is_one_line_and_status_2() {
    let not_with_rdma =
        if cfg!(feature = "rdma") { "--ip has no effect with --via rdma" } else { "rdma:rxe0: not in this build" };
    for (args, part) in [
        ("echo", "subcommand is missing: add serve or load"),
        ("ecko", "use echo"),
        (
            "echo serve --lisen 127.0.0.1:7",
            "--lisen: unknown option: use --listen ADDR:PORT, as in linerate echo serve",
        ),
        ("echo serve --via kernel --listen", "--listen: the value is missing"),
        ("echo serve --via ethernet:eth0 --listen 127.0.0.1:7", "unknown network 'ethernet:eth0'"),
        ("echo serve --via af_xdp --listen 127.0.0.1:7", "af_xdp:eth0"),
        ("echo serve --via kernel --listen 127.0.0.1", "--listen"),
        ("echo serve --via kernel --listen 127.0.0.1:0 --workers 0", "--workers"),
        ("echo serve --via kernel --listen 127.0.0.1:0 --cores 3-1", "--cores"),
        ("echo serve --via kernel --listen 127.0.0.1:0 --workers 1 --cores 0", "--cores"),
        ("echo serve --via kernel --listen 127.0.0.1:0 --ip 10.0.0.2/24", "--ip"),
        ("echo serve --via tap:lr0 --ip 10.0.0.2/24 --listen 10.0.0.2:7 --linger 2", "--linger"),
        ("echo serve --via tap:lr0 --listen 10.0.0.2:7", "--ip ADDRESS/PREFIX"),
        ("echo serve --via tap:lr0 --ip 10.0.0.2 --listen 10.0.0.2:7", "prefix"),
        ("echo serve --via rdma:rxe0 --ip 10.0.0.2/24 --listen 10.0.0.2:7", not_with_rdma),
        ("echo load --via kernel --connect 127.0.0.1:7 --rdma-buffers 2", "--rdma-buffers"),
        ("echo serve --via kernel --listen 127.0.0.1:0 --service-time 20", "--service-time"),
        ("echo serve --via kernel --listen 127.0.0.1:0 --service-time bimodal:1us,2us,3", "from 0 to 1"),
        ("echo load --udp --via kernel --connect 127.0.0.1:7 --size 27", "--udp --size 27"),
        ("echo load --udp --via kernel --connect 127.0.0.1:7 --connections 257", "257"),
        ("echo load --udp --via tap:lr0 --dhcp --connect 10.0.0.2:7", "--ip"),
        ("echo load --udp --via rdma:rxe0 --connect 10.0.0.2:7", "--udp"),
        ("raw reflect --via kernel", "--via kernel: raw frames need a DPDK port"),
        ("raw load --via rdma:rxe0", "--via rdma:rxe0: raw frames need a DPDK port"),
        ("raw load --via tap:lr0 --ip 10.0.0.2/24", "--ip"),
        ("raw load --via tap:lr0 --size 45", "--size"),
        ("raw load --via tap:lr0 --depth 4097", "--depth"),
        ("raw reflect --via tap:lr0 --warm-up 1s", "--warm-up"),
        ("echo load --via tap:lr0 --ip 10.0.0.2/24", "--connect 127.0.0.1:7007: a loopback address"),
        ("echo serve --via tap:lr0 --ip 10.0.0.2/24", "give --listen 10.0.0.2:7007"),
        ("kv serve --via tap:lr0 --ip 10.0.0.2/24", "--memcached ADDR"),
        ("echo serve --ip 10.0.0.2/24", "choose another --via"),
        ("echo load --via kernel --connect 127.0.0.1:0", "port"),
        ("echo load --via kernel --connect 127.0.0.1:7 --duration 5", "--duration"),
        ("echo load --via kernel --connect 127.0.0.1:7 --warm-up 5", "--warm-up"),
        ("echo load --via kernel --connect 127.0.0.1:7 --histogram", "--histogram"),
        ("echo load --via kernel --connect 127.0.0.1:7 --rate 0", "--rate"),
        ("echo load --via kernel --connect 127.0.0.1:7 --arrivals even", "--rate"),
        ("echo load --via kernel --connect 127.0.0.1:7 --reconnect --depth 2", "--depth"),
        ("echo load --via kernel --connect 127.0.0.1:7 --incast --depth 2", "--depth"),
        ("echo load --via kernel --connect 127.0.0.1:7 --reconnect --rate 2", "--rate"),
        ("echo load --via kernel --connect 127.0.0.1:7 --rate 5 --arrivals never", "--arrivals"),
        ("echo load --via kernel --connect 127.0.0.1:7 --size 0", "--size"),
        ("echo load --via kernel --connect 127.0.0.1:7 --depth 0", "--depth"),
        ("echo load --via kernel --connect 127.0.0.1:7 --connections 0", "--connections"),
    ] {
        assert_refused(args, 2, part);
    }
}

#[test]
fn missing_resource_is_one_line_and_status_1() {
    assert_refused("echo serve --via kernel --listen 127.0.0.1:0 --workers 1000", 1, "cores can be used");
    assert_refused("echo serve --via kernel --listen 127.0.0.1:0 --cores 1000", 1, "core 1000");
    assert_refused("echo serve --via kernel --listen 192.0.2.1:7", 1, "192.0.2.1:7");
}

#[test]
fn port_in_use_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listener.local_addr().unwrap().to_string();
    assert_refused(&format!("echo serve --via kernel --listen {taken}"), 1, &taken);
    assert_refused(&format!("echo serve --via kernel --workers 2 --listen {taken}"), 1, &taken);
}

#[cfg(not(feature = "dpdk"))]
#[test]
fn networks_other_than_kernel_need_dpdk() {
    assert_refused("echo serve --via tap:lr0 --ip 10.0.0.2/24 --listen 10.0.0.2:7", 2, "feature dpdk");
}

#[cfg(feature = "dpdk")]
#[test]
fn unknown_interface_is_named() {
    let args = "echo serve --via af_xdp:no-such-if --ip 10.0.0.2/24 --listen 10.0.0.2:7";
    assert_refused(args, 1, "no-such-if");
}

#[test]
fn help_and_version_go_to_standard_output() {
    for (args, part) in [("--help", "echo"), ("echo load --help", "--connections"), ("--version", "linerate 0.")] {
        let output = run(args);
        assert!(output.status.success() && output.stdout.contains(part), "{output:?}");
    }
}

#[test]
fn closed_pipes_cause_no_panic() {
    for (args, status) in [("--help", 0), ("no-such-command", 2), ("echo serve --via kernel --listen 192.0.2.1:7", 1)] {
        let mut child = linerate(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop((child.stdout.take(), child.stderr.take()));
        wait_for("the end", || child.try_wait().unwrap().is_some());
        assert_eq!(child.wait().unwrap().code(), Some(status), "{args}");
    }
    let mut command = linerate("echo serve --via kernel --listen 127.0.0.1:0 --json");
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    await_catching(child.id());
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    wait_for("the end", || child.try_wait().unwrap().is_some());
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && !stderr.contains("panicked"), "{stderr}");
}

/// Waits until process `id` catches SIGINT, according to the kernel. An earlier signal would kill the process.
fn await_catching(id: u32) {
    let catches = || {
        let caught = common::process_status(id, "SigCgt:");
        u64::from_str_radix(&caught, 16).unwrap() & 1 << (Signal::INT.as_raw() - 1) != 0
    };
    wait_for("the handler", catches);
}
