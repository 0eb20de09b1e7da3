//! What runs a server for others: a file of options, and systemd's unit.

#[expect(dead_code, reason = "each target of tests uses a part of it")]
mod common;
#[path = "../../benches/src/unused_address.rs"]
mod unused_address;

use common::{PATIENCE, Program, Server, linerate, run, text};
use rustix::process::Signal;
use std::fs;
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use unused_address::unused_address;

/// A directory with `linerate.toml`, and the file's path.
fn config(text: &str) -> (tempfile::TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("linerate.toml");
    fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap().to_owned();
    (directory, file)
}

#[test]
fn a_server_takes_its_options_from_a_file_and_from_the_command_line() {
    let text =
        "via = 'kernel'\njson = true\n[echo.serve]\nlisten = ['127.0.0.1:0', '[::1]:0']\n[kv.serve]\nmemory = '64m'\n";
    let (_directory, file) = config(text);
    let server = Server::start("echo", &format!("--config {file}"));
    assert!(server.ready.contains("127.0.0.1:") && server.ready.contains("[::1]:"), "{}", server.ready);
    let output = server.stop();
    serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap();
    // The addresses of the file go when others are given.
    let server = Server::start("echo", &format!("--listen 127.0.0.1:0 --config {file}"));
    assert!(!server.ready.contains("[::1]"), "{}", server.ready);
    server.stop();
}

#[test]
fn what_is_wrong_in_the_file_is_one_line_with_its_place_and_status_2() {
    for (text, part) in [
        ("via = 'kernel'\nlisten_on = '127.0.0.1:0'\n", ":2: listen_on: linerate has no such option"),
        ("via = 'kernel'\nlisten = '127.0.0.1:0'\nspin = 1\n", ":3: spin: it takes true or false"),
        ("[kv.serve]\nmemory = '64m'\n[echo.serve]\nmemory = '1g'\n", ":4: memory: linerate echo serve has no such"),
        ("via = 'kernel'\nlisten = '127.0.0.1'\n", ":2: invalid value '127.0.0.1' for '--listen"),
        ("via = kernel\n", ":1: "),
    ] {
        let (_directory, file) = config(text);
        let output = run(&format!("echo serve --config {file}"));
        let said = common::text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.starts_with(&format!("linerate: {file}{part}")) && said.lines().count() == 1, "{said}");
    }
    let output = run("echo serve --config /no/such.toml");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(text(&output.stderr).starts_with("linerate: --config /no/such.toml: "), "{output:?}");
}

#[test]
fn a_service_manager_is_told_when_a_server_serves_and_when_it_ends() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("notify");
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut bytes = [0; 64];
    let mut heard = || {
        let n = manager.recv(&mut bytes).unwrap();
        text(&bytes[..n]).to_owned()
    };
    let address = unused_address();
    let mut command = linerate(&format!("echo serve --via kernel --listen {address} --drain 5m"));
    let program = Program::of(command.env("NOTIFY_SOCKET", &socket).spawn().unwrap());
    assert_eq!(heard(), "READY=1");
    let client = TcpStream::connect(address).unwrap();
    program.signal(Signal::TERM);
    assert_eq!(heard(), "STOPPING=1");
    drop(client);
    assert!(program.wait().status.success());
}

fn packaging() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging")
}

/// The unit as systemd's tools take it: with the program that is tested. `None` where there is no systemd.
fn unit(directory: &Path) -> Option<PathBuf> {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        eprintln!("skipped: there is no systemd-analyze");
        return None;
    }
    let text = fs::read_to_string(packaging().join("linerate@.service")).unwrap();
    let unit = directory.join("linerate@test.service");
    fs::write(&unit, text.replace("/usr/bin/linerate", env!("CARGO_BIN_EXE_linerate"))).unwrap();
    Some(unit)
}

/// The unit with one of the drop-ins, as systemd's tools take it.
fn unit_with(directory: &Path, drop_in: Option<&str>) -> Option<PathBuf> {
    let unit = unit(directory)?;
    if let Some(name) = drop_in {
        let place = directory.join("linerate@test.service.d");
        fs::create_dir(&place).unwrap();
        fs::copy(packaging().join(format!("drop-ins/{name}.conf")), place.join("drop-in.conf")).unwrap();
    }
    Some(unit)
}

/// The drop-ins, and what `systemd-analyze security` gives the unit with each at most, in tenths: 10 of 10 is everything exposed. The
/// first is the unit as it is.
const EXPOSED: [(Option<&str>, u32); 6] =
    [(None, 19), (Some("link"), 17), (Some("tap"), 21), (Some("af_xdp"), 25), (Some("vfio"), 19), (Some("rdma"), 19)];

#[test]
fn each_drop_in_is_known() {
    let drop_ins = fs::read_dir(packaging().join("drop-ins")).unwrap();
    let mut there: Vec<String> = drop_ins.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    there.sort();
    let mut known: Vec<String> = EXPOSED.iter().filter_map(|(name, _)| Some(format!("{}.conf", (*name)?))).collect();
    known.sort();
    assert_eq!(there, known);
}

#[test]
fn systemd_finds_nothing_wrong_in_the_unit() {
    for (drop_in, _) in EXPOSED {
        let directory = tempfile::tempdir().unwrap();
        let Some(unit) = unit_with(directory.path(), drop_in) else { return };
        let output = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&unit).output().unwrap();
        let said = text(&output.stderr);
        assert!(
            output.status.success() && !said.contains("linerate@") && !said.contains("drop-in"),
            "{drop_in:?}: {said}"
        );
    }
}

#[test]
fn what_the_unit_exposes_is_little() {
    for (drop_in, most) in EXPOSED {
        let directory = tempfile::tempdir().unwrap();
        let Some(unit) = unit_with(directory.path(), drop_in) else { return };
        let args = ["security", "--offline=true", "--no-pager", &format!("--threshold={most}")];
        let output = Command::new("systemd-analyze").args(args).arg(&unit).output().unwrap();
        assert!(output.status.success(), "{drop_in:?}: {}\n{}", text(&output.stdout), text(&output.stderr));
    }
}

/// The value of a key of a file of `key = value` or `key=value`.
fn value<'a>(text: &'a str, key: &str) -> &'a str {
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.trim_start().strip_prefix('='));
    line.unwrap().trim().trim_matches('"')
}

#[test]
fn the_program_takes_the_packages_configurations_and_drains_before_systemd_kills_it() {
    let unit = fs::read_to_string(packaging().join("linerate@.service")).unwrap();
    let seconds = |time: &str| time.strip_suffix('s').unwrap().parse::<u32>().unwrap();
    let memcached = format!("--memcached {} --memory 64m", unused_address());
    for (service, ours) in [("echo", ""), ("kv", &memcached)] {
        let file = packaging().join(format!("config/{service}.toml"));
        let config = fs::read_to_string(&file).unwrap();
        assert!(seconds(value(&config, "drain")) < seconds(value(&unit, "TimeoutStopSec")), "{service}");
        for key in ["listen", "metrics"] {
            assert!(value(&config, key).contains("127.0.0.1:"), "{service}: {key}");
        }
        let ours = format!("--config {} --listen 127.0.0.1:0 --metrics 127.0.0.1:0 {ours}", file.display());
        let server = Server::start(service, &ours);
        assert!(server.ready.contains("metrics at"), "{}", server.ready);
        assert!(server.stop().status.success());
    }
}
