//! Operation as user `nobody` with only the capabilities that a network needs.

use crate::common::linerate;
use crate::links::{assert_no_errors, socket};
use linerate_harness::program::{Program, ip, turn};
use linerate_harness::rerun::{in_namespaces, is_root};
use linerate_harness::tests;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;

/// World-writable directory with the program: `nobody` may not have access to the checkout.
struct Nobody {
    directory: TempDir,
    program: PathBuf,
}

impl Nobody {
    /// Returns `None` without root, which is needed to change the user.
    fn new() -> Option<Nobody> {
        if !is_root() {
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), Permissions::from_mode(0o777)).unwrap();
        let program = directory.path().join("linerate");
        fs::copy(env!("CARGO_BIN_EXE_linerate"), &program).unwrap();
        Some(Nobody { directory, program })
    }

    /// Returns the command of `linerate` as nobody with these capabilities.
    fn linerate(&self, capabilities: &[&str], args: &str) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=nobody", "--regid=nogroup", "--clear-groups", "--no-new-privs"]);
        let capability_list: Vec<String> = capabilities.iter().map(|name| format!("+{name}")).collect();
        let capability_list = ["-all".to_owned()].into_iter().chain(capability_list).collect::<Vec<_>>().join(",");
        for set in ["--inh-caps", "--ambient-caps", "--bounding-set"] {
            command.args([set, &capability_list]);
        }
        command.arg(&self.program).args(args.split_whitespace());
        // Directory of EAL: another user's may be in /tmp.
        command.env_remove("RUST_LOG").env("XDG_RUNTIME_DIR", self.directory.path());
        command
    }
}

/// Runs two processes of nobody at the ends of a link, without capabilities. Uses hugepages if available.
fn test_link(serve: &str, load: &str) {
    let Some(nobody) = Nobody::new() else { return };
    let _turn = turn();
    let socket = socket(&nobody.directory);
    let [serve, load] = [serve, load].map(|via| via.replace("SOCKET", &socket));
    let args = "--ip 10.9.0.2/24 --listen 10.9.0.2:7 --idle wait";
    let server = Program::serve(nobody.linerate(&[], &format!("echo serve --via {serve} {args}")));
    let args = "--ip 10.9.0.1/24 --connect 10.9.0.2:7 --idle wait --connections 8 --duration 300ms --json";
    assert_no_errors(&Program::start(nobody.linerate(&[], &format!("echo load --via {load} {args}"))).wait());
    let ended = server.stop();
    assert!(ended.status.success(), "{ended:?}");
    let is_shortage = |line: &str| line.contains("MB of hugepages are free and");
    assert!(ended.stderr.lines().all(|line| !line.contains("hugepages") || is_shortage(line)), "{ended:?}");
}

/// Runs a server on an interface with the needed capabilities, and checks that it fails without any one of them.
fn test_interface(via: &str, needed: &[&'static str]) {
    in_namespaces(|_| {
        let Some(nobody) = Nobody::new() else { return };
        if via.starts_with("af_xdp") {
            ip("link add lr0 type veth peer name lr1");
            ip("link set lr1 up");
        }
        let serve = format!("echo serve --via {via} --ip 10.9.0.2/24 --listen 10.9.0.2:7 --idle wait");
        // ipc_lock stands in for a sufficient locked-memory limit.
        let with = |names: Vec<&'static str>| names.into_iter().chain(["ipc_lock"]).collect::<Vec<_>>();
        for missing in needed {
            let rest = with(needed.iter().copied().filter(|name| name != missing).collect());
            let ended = Program::start(nobody.linerate(&rest, &serve)).wait();
            assert_eq!(ended.status.code(), Some(1), "without {missing}: {ended:?}");
            let explains = ended.stderr.contains("no permission for") && ended.stderr.contains("run as root");
            assert!(explains || !via.ends_with(",share"), "{ended:?}");
        }
        let server = Program::serve(nobody.linerate(&with(needed.to_vec()), &serve));
        ip("addr add 10.9.0.1/24 dev lr0");
        ip("link set lr0 up");
        let load = "echo load --via kernel --connect 10.9.0.2:7 --connections 8 --duration 300ms --json";
        assert_no_errors(&Program::start(linerate(load)).wait());
        let ended = server.stop();
        assert!(ended.status.success(), "{ended:?}");
    });
}

const AF_XDP: &[&str] = &["net_admin", "net_raw", "sys_admin"];

tests! {
    vhost_user_link_needs_no_capability => test_link("vhost:SOCKET", "virtio-user:SOCKET");
    memif_link_needs_no_capability => test_link("memif:SOCKET,server", "memif:SOCKET");
    tap_needs_one_capability => test_interface("tap:lr0", &["net_admin"]);
    af_xdp_needs_three_capabilities => test_interface("af_xdp:lr1", AF_XDP);
    shared_af_xdp_needs_three_capabilities => test_interface("af_xdp:lr1,share", AF_XDP);
}

/// Returns state and finding of `doctor` for a network.
fn doctor_check(nobody: &Nobody, capabilities: &[&str], network: &str) -> (String, String) {
    let report = Program::start(nobody.linerate(capabilities, "doctor --json")).wait().json();
    let checks = report["checks"].as_array().unwrap();
    let check = checks.iter().find(|check| check["subject"] == "networks" && check["name"] == network).unwrap();
    (check["state"].as_str().unwrap().to_owned(), check["found"].as_str().unwrap().to_owned())
}

#[test]
fn doctor_names_the_missing_capabilities() {
    let Some(nobody) = Nobody::new() else { return };
    for network in ["kernel", "vhost", "virtio-user", "memif"] {
        assert_eq!(doctor_check(&nobody, &[], network).0, "ok", "{network}");
    }
    for (network, needed) in [("tap", &["net_admin"][..]), ("af_xdp", AF_XDP)] {
        for missing in needed {
            let rest: Vec<&str> = needed.iter().copied().filter(|name| name != missing).collect();
            let (state, found) = doctor_check(&nobody, &rest, network);
            assert!(state == "missing" && found.contains(&format!("cap_{missing}")), "{network}: {found}");
        }
        let (_, found) = doctor_check(&nobody, needed, network);
        assert!(!found.contains("cap_"), "{network}: {found}");
    }
}
