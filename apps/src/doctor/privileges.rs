//! Privileges of this user.

use super::machine::capability::{IPC_LOCK, NET_ADMIN, NET_RAW, SYS_ADMIN};
use super::machine::{DEBIAN_KERNEL, Module};
use super::{Check, Machine, State, Subject};

/// Fix for root in a container without capabilities.
const CONTAINER: &str = "docker run --privileged --network host …  # on the host of this container";

pub(super) fn checks(machine: &Machine) -> Vec<Check> {
    let is_root = machine.user() == Some(0);
    let user = match machine.user() {
        Some(0) => check("user", State::Ok, "root"),
        Some(user) => {
            let found = format!("user {user}: only root reserves hugepages and binds PCI devices");
            check("user", State::Ok, found)
        }
        None => check("user", State::Warn, "unknown: /proc is not mounted").remedy("sudo mount -t proc proc /proc"),
    };
    let needed = [
        ("cap_net_admin", NET_ADMIN, "--via tap: and af_xdp: need it"),
        ("cap_net_raw", NET_RAW, "--via af_xdp: needs it"),
        // libxdp looks up its program by id, which CAP_BPF does not permit.
        ("cap_sys_admin", SYS_ADMIN, "--via af_xdp: needs it"),
        ("cap_ipc_lock", IPC_LOCK, "device memory counts against the locked-memory limit"),
    ];
    let capabilities = needed.into_iter().map(|(name, capability, without)| {
        if machine.capable(capability) {
            return check(name, State::Ok, "available");
        }
        let state = if name == "cap_ipc_lock" { State::Warn } else { State::Missing };
        let remedy =
            if is_root { CONTAINER.to_owned() } else { setpriv_command(machine, needed.map(|(name, ..)| name)) };
        check(name, state, format!("missing: {without}")).remedy(remedy)
    });
    std::iter::once(user).chain(capabilities).chain([tun(machine)]).collect()
}

/// Returns the command that runs the program as this user with these capabilities.
fn setpriv_command(machine: &Machine, capabilities: [&str; 4]) -> String {
    let kept = capabilities.map(|name| format!("+{}", name.trim_start_matches("cap_"))).join(",");
    format!(
        "sudo setpriv --reuid $(id -u) --regid $(id -g) --init-groups --inh-caps {kept} --ambient-caps {kept} {} …",
        machine.program
    )
}

fn tun(machine: &Machine) -> Check {
    if machine.may_use("dev/net/tun") {
        return check("/dev/net/tun", State::Ok, "available");
    }
    if machine.exists("dev/net/tun") {
        let found = "this user cannot open it: --via tap: needs it";
        return check("/dev/net/tun", State::Missing, found)
            .remedy("sudo chmod 666 /dev/net/tun  # until the next boot");
    }
    let remedy = if machine.module("tun") == Module::Absent { DEBIAN_KERNEL } else { "sudo modprobe tun" };
    check("/dev/net/tun", State::Missing, "missing: --via tap: needs it").remedy(remedy)
}

fn check(name: &str, state: State, found: impl Into<String>) -> Check {
    Check::new(Subject::Privileges, name, state, found)
}

#[cfg(test)]
mod tests {
    use super::super::machine::tests::Fake;
    use super::*;

    fn states(fake: &Fake) -> Vec<(String, State)> {
        checks(&fake.machine).into_iter().map(|check| (check.name, check.state)).collect()
    }

    #[test]
    fn root_with_all_capabilities_needs_no_remedy() {
        let fake = Fake::new();
        fake.write("dev/net/tun", "");
        assert!(states(&fake).iter().all(|(_, state)| *state == State::Ok));
    }

    #[test]
    fn missing_capabilities_are_granted_by_setpriv() {
        let fake = Fake::new();
        fake.write("proc/self/status", "Uid:\t1000\t1000\t1000\t1000\nCapEff:\t0000000000000000\n");
        for check in checks(&fake.machine).into_iter().filter(|check| check.name.starts_with("cap_")) {
            assert_ne!(check.state, State::Ok, "{}", check.name);
            let remedy = check.remedy.unwrap();
            let kept = "--ambient-caps +net_admin,+net_raw,+sys_admin,+ipc_lock linerate …";
            assert!(remedy.starts_with("sudo setpriv --reuid $(id -u) ") && remedy.ends_with(kept), "{remedy}");
        }
        assert_eq!(states(&fake)[0], ("user".into(), State::Ok));
    }

    #[test]
    fn root_without_capabilities_is_in_a_container() {
        let fake = Fake::new();
        fake.write("proc/self/status", "Uid:\t0\t0\t0\t0\nCapEff:\t00000000a80425fb\n");
        let missing = checks(&fake.machine).into_iter().find(|check| check.name == "cap_net_admin").unwrap();
        assert_eq!((missing.state, missing.remedy.unwrap().as_str()), (State::Missing, CONTAINER));
    }

    #[test]
    fn missing_tun_is_loaded_or_needs_another_kernel() {
        let fake = Fake::new();
        let remedy = |fake: &Fake| checks(&fake.machine).pop().unwrap().remedy.unwrap();
        assert_eq!(remedy(&fake), DEBIAN_KERNEL);
        fake.loadable(&["tun"]);
        assert_eq!(remedy(&fake), "sudo modprobe tun");
    }

    #[test]
    fn cap_bpf_does_not_replace_cap_sys_admin() {
        let fake = Fake::new();
        fake.write("proc/self/status", "Uid:\t0\t0\t0\t0\nCapEff:\t0000008000003000\n");
        assert!(states(&fake).contains(&("cap_sys_admin".into(), State::Missing)));
    }
}
