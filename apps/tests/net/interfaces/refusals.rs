//! Refused configurations: one error line with the remedy, the correct exit status, and no remains.

use crate::common::{assert_refusal, linerate};
use crate::links::{Link, assert_no_errors, assert_nothing_left, load, socket};
use linerate_harness::process::Ended;
use linerate_harness::program::{Program, ip, turn};
use linerate_harness::rerun::{in_namespaces, is_root};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

const ADDRESSES: &str = "--ip 10.9.0.2/24 --listen 10.9.0.2:7 --idle wait";

/// Returns the command of an echo server on `via`.
fn serve(via: &str, more: &str) -> Command {
    linerate(&format!("echo serve --via {via} {ADDRESSES} {more}"))
}

/// Like [`crate::common::assert_refused`], and asserts that nothing remains of the process.
#[track_caller]
pub fn assert_refused(command: Command, status: i32, parts: &[&str]) {
    let program = Program::start(command);
    let pid = program.pid();
    assert_refusal(&program.wait(), status, parts);
    assert_nothing_left(pid);
}

/// Stops a server, which must succeed.
#[track_caller]
fn stop(server: Program) -> Ended {
    let pid = server.pid();
    let ended = server.stop();
    assert!(ended.status.success(), "{ended:?}");
    assert_nothing_left(pid);
    ended
}

/// Returns the description of an interface by `ip`.
fn interface(name: &str) -> String {
    let output = Command::new("ip").args(["-o", "link", "show", "dev", name]).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn unsuitable_interface_is_refused_with_the_remedy() {
    in_namespaces(|_| {
        ip("link add lr0 type veth peer name lr1");
        ip("link set lr0 up");
        ip("link set lr1 up");
        ip("addr add 10.8.0.1/24 dev lr1");
        ip("addr add fd08::1/64 dev lr0 nodad");
        ip("route add default via 10.8.0.254 dev lr1");
        ip("-6 route add default via fd08::2 dev lr0");
        assert_refused(serve("af_xdp:lr9", ""), 1, &["'lr9'", "ip link"]);
        for name in ["lr0", "lr1"] {
            let via = format!("af_xdp:{name}");
            assert_refused(serve(&via, ""), 1, &[&format!("'{name}'"), "default route", "--force"]);
            assert!(!interface(name).contains("xdp"), "an XDP program remains on {name}");
        }
        stop(Program::serve(serve("af_xdp:lr1", "--force")));
        assert!(!interface("lr1").contains("xdp"), "an XDP program remains");
        ip("route del default");
        assert_refused(serve("tap:lr0", ""), 1, &["'lr0'", "already", "ip link del lr0"]);
        assert_refused(serve("af_xdp:lr1", "--workers 1000"), 1, &["--workers 1000", "cores"]);
        if std::thread::available_parallelism().unwrap().get() >= 2 {
            assert_refused(serve("af_xdp:lr1", "--workers 2"), 1, &["af_xdp:lr1", "1 queue", "numrxqueues 2"]);
        }
        assert_refused(serve("af_xdp:lr1", "--mtu 9000"), 1, &["af_xdp:lr1", "9000", "ip link set dev lr1 mtu"]);
        assert_refused(serve("af_xdp:lr1", "--listen 10.9.0.3:7"), 2, &["10.9.0.3:7", "--ip"]);
        assert_refused(serve("tap:lr2", "-- --no-such-argument"), 1, &["no-such-argument"]);
        assert!(interface("lr2").is_empty(), "an interface remains");
    });
}

#[test]
fn tap_interface_is_removed_with_its_server() {
    in_namespaces(|_| {
        let server = Program::serve(serve("tap:lr0", ""));
        // The kernel's default of 1000 is too short for many connections.
        assert!(interface("lr0").contains("qlen 16384"), "{}", interface("lr0"));
        stop(server);
        assert!(interface("lr0").is_empty(), "an interface remains");
    });
}

#[test]
fn socket_of_a_running_server_is_refused() {
    let _turn = turn();
    for link in [Link::vhost(), Link::memif()] {
        let first = Program::serve(link.server());
        assert_refused(link.server(), 1, &["another process serves", &link.socket, "choose another path"]);
        assert_no_errors(&Program::start(link.load("200ms")).wait());
        link.stop(first);
    }
}

#[test]
fn invalid_socket_path_is_refused() {
    let _turn = turn();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    for kind in ["vhost", "memif"] {
        let via = |path: &str| format!("{kind}:{path}{}", if kind == "memif" { ",server" } else { "" });
        assert_refused(serve(&via("/no/such/directory/a.sock"), ""), 1, &["/no/such/directory", "create it"]);
        assert_refused(serve(&via(file.to_str().unwrap()), ""), 1, &["not a socket", "another path"]);
        assert_refused(serve(&via(&format!("/tmp/{}", "a".repeat(120))), ""), 1, &["107 bytes", "shorter"]);
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
}

#[test]
fn missing_privileges_are_named() {
    in_namespaces(|_| {
        assert!(is_root());
        ip("link add lr0 type veth peer name lr1");
        // A directory accessible to the other user.
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("linerate");
        std::fs::copy(env!("CARGO_BIN_EXE_linerate"), &program).unwrap();
        std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let unprivileged = |via: &str| {
            let mut command = Command::new("setpriv");
            command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]).arg(&program);
            command.args(format!("echo serve --via {via} {ADDRESSES}").split_whitespace()).env_remove("RUST_LOG");
            command.env_remove("XDG_RUNTIME_DIR");
            command
        };
        assert_refused(unprivileged("af_xdp:lr0"), 1, &["no permission for af_xdp:lr0", "CAP_NET_ADMIN", "root"]);
        let socket = directory.path().join("a.sock").display().to_string();
        for via in [format!("vhost:{socket}"), format!("memif:{socket},server")] {
            assert_refused(unprivileged(&via), 1, &["no permission to create the socket", &socket, "/tmp"]);
        }
        assert_refused(unprivileged("tap:lr2"), 1, &["no permission for tap:lr2", "CAP_NET_ADMIN", "root"]);
    });
}

#[test]
fn server_without_hugepages_warns_and_serves() {
    let _turn = turn();
    let directory = tempfile::tempdir().unwrap();
    let socket = socket(&directory);
    let server = Program::serve(serve(&format!("vhost:{socket}"), "-- --no-huge"));
    assert_no_errors(&Program::start(load(&format!("virtio-user:{socket}"), "--duration 200ms -- --no-huge")).wait());
    let ended = stop(server);
    let warnings = ended.stderr.lines().filter(|line| line.contains("ordinary pages instead of hugepages")).count();
    assert_eq!(warnings, 1, "{ended:?}");
}
