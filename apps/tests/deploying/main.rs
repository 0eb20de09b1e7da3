//! Deployment: configuration file, systemd unit, Grafana dashboard, Kubernetes manifest, and several servers.

#[path = "../common/mod.rs"]
mod common;
mod dashboard;
mod kubernetes;
mod scaling_out;

use common::{linerate, run, serve};
use linerate_harness::TIMEOUT;
use linerate_harness::address::unused_address;
use linerate_harness::program::{self, Program};
use linerate_harness::rerun::is_installed;
use rustix::process::Signal;
use std::fs;
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Writes `linerate.toml` to a directory and returns both.
fn config(text: &str) -> (tempfile::TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("linerate.toml");
    fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap().to_owned();
    (directory, file)
}

#[test]
fn options_come_from_the_file_and_the_command_line() {
    let text =
        "via = 'kernel'\njson = true\n[echo.serve]\nlisten = ['127.0.0.1:0', '[::1]:0']\n[kv.serve]\nmemory = '64m'\n";
    let (_directory, file) = config(text);
    let server = serve("echo", &format!("--config {file}"));
    assert!(server.ready.contains("127.0.0.1:") && server.ready.contains("[::1]:"), "{}", server.ready);
    assert!(server.stop().json().is_object());
    // Addresses on the command line replace those of the file.
    let server = serve("echo", &format!("--listen 127.0.0.1:0 --config {file}"));
    assert!(!server.ready.contains("[::1]"), "{}", server.ready);
    server.stop();
}

#[test]
fn error_in_the_file_is_one_line_with_its_location_and_status_2() {
    for (text, part) in [
        ("via = 'kernel'\nlisten_on = '127.0.0.1:0'\n", ":2: listen_on: linerate has no such option"),
        ("via = 'kernel'\nlisten = '127.0.0.1:0'\nspin = 1\n", ":3: spin: expected true or false"),
        ("[kv.serve]\nmemory = '64m'\n[echo.serve]\nmemory = '1g'\n", ":4: memory: linerate echo serve has no such"),
        ("via = 'kernel'\nlisten = '127.0.0.1'\n", ":2: --listen 127.0.0.1: the port is missing: write 127.0.0.1:7"),
        ("via = 'kernel'\n\nip = '10.0.0.2/24'\n", ":3: --ip has no effect with --via kernel"),
        ("via = kernel\n", ":1: "),
    ] {
        let (_directory, file) = config(text);
        let output = run(&format!("echo serve --config {file}"));
        let stderr = &output.stderr;
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.starts_with(&format!("linerate: {file}{part}")) && stderr.lines().count() == 1, "{stderr}");
    }
    let output = run("echo serve --config /no/such.toml");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(output.stderr.starts_with("linerate: --config /no/such.toml: "), "{output:?}");
}

#[test]
fn service_manager_is_notified_of_start_and_stop() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("notify");
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut bytes = [0; 64];
    let mut receive = || {
        let n = manager.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..n].to_vec()).unwrap()
    };
    let address = unused_address();
    let mut command = linerate(&format!("echo serve --via kernel --listen {address} --drain 5m"));
    let program = Program::start(command.env("NOTIFY_SOCKET", &socket));
    assert_eq!(receive(), "READY=1");
    let client = TcpStream::connect(address).unwrap();
    program.signal(Signal::TERM);
    assert_eq!(receive(), "STOPPING=1");
    drop(client);
    assert!(program.wait().status.success());
}

fn packaging() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging")
}

/// Writes the unit with the path of the tested program. Returns `None` if systemd is not installed.
fn unit(directory: &Path) -> Option<PathBuf> {
    if !is_installed("systemd-analyze", &["--version"], "systemd") {
        return None;
    }
    let text = fs::read_to_string(packaging().join("linerate@.service")).unwrap();
    let unit = directory.join("linerate@test.service");
    fs::write(&unit, text.replace("/usr/bin/linerate", env!("CARGO_BIN_EXE_linerate"))).unwrap();
    Some(unit)
}

/// Writes the unit with one of the drop-ins.
fn unit_with(directory: &Path, drop_in: Option<&str>) -> Option<PathBuf> {
    let unit = unit(directory)?;
    if let Some(name) = drop_in {
        let overrides = directory.join("linerate@test.service.d");
        fs::create_dir(&overrides).unwrap();
        fs::copy(packaging().join(format!("examples/drop-ins/{name}.conf")), overrides.join("drop-in.conf")).unwrap();
    }
    Some(unit)
}

/// Drop-ins with the maximum exposure reported by `systemd-analyze security`, in tenths of its scale of 10. The first
/// entry is the unit without drop-in.
const EXPOSURE: [(Option<&str>, u32); 6] =
    [(None, 19), (Some("link"), 17), (Some("tap"), 21), (Some("af_xdp"), 25), (Some("vfio"), 19), (Some("rdma"), 19)];

#[test]
fn every_drop_in_is_listed() {
    let drop_ins = fs::read_dir(packaging().join("examples/drop-ins")).unwrap();
    let mut existing: Vec<String> = drop_ins.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    existing.sort();
    let mut listed: Vec<String> = EXPOSURE.iter().filter_map(|(name, _)| Some(format!("{}.conf", (*name)?))).collect();
    listed.sort();
    assert_eq!(existing, listed);
}

#[test]
fn systemd_accepts_the_unit() {
    for (drop_in, _) in EXPOSURE {
        let directory = tempfile::tempdir().unwrap();
        let Some(unit) = unit_with(directory.path(), drop_in) else { return };
        let output = program::run(Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&unit));
        let stderr = &output.stderr;
        assert!(
            output.status.success() && !stderr.contains("linerate@") && !stderr.contains("drop-in"),
            "{drop_in:?}: {stderr}"
        );
    }
}

#[test]
fn unit_exposure_is_limited() {
    for (drop_in, most) in EXPOSURE {
        let directory = tempfile::tempdir().unwrap();
        let Some(unit) = unit_with(directory.path(), drop_in) else { return };
        let args = ["security", "--offline=true", "--no-pager", &format!("--threshold={most}")];
        let output = program::run(Command::new("systemd-analyze").args(args).arg(&unit));
        assert!(output.status.success(), "{drop_in:?}: {}\n{}", output.stdout, output.stderr);
    }
}

/// Returns the value of a key in a file of `key = value` or `key=value` lines.
fn value<'a>(text: &'a str, key: &str) -> &'a str {
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.trim_start().strip_prefix('='));
    line.unwrap().trim().trim_matches('"')
}

#[test]
fn packaged_configurations_are_valid_and_drain_within_the_stop_timeout() {
    let unit = fs::read_to_string(packaging().join("linerate@.service")).unwrap();
    let seconds = |time: &str| time.strip_suffix('s').unwrap().parse::<u32>().unwrap();
    let memcached = format!("--memcached {} --memory 64m", unused_address());
    for (service, args) in [("echo", ""), ("kv", &memcached)] {
        let file = packaging().join(format!("config/{service}.toml"));
        let config = fs::read_to_string(&file).unwrap();
        assert!(seconds(value(&config, "drain")) < seconds(value(&unit, "TimeoutStopSec")), "{service}");
        for key in ["listen", "metrics"] {
            assert!(value(&config, key).contains("127.0.0.1:"), "{service}: {key}");
        }
        let args = format!("--config {} --listen 127.0.0.1:0 --metrics 127.0.0.1:0 {args}", file.display());
        let server = serve(service, &args);
        assert!(server.ready.contains("metrics at"), "{}", server.ready);
        assert!(server.stop().status.success());
    }
}
