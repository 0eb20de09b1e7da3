//! What this user may do.

use super::machine::capability::{IPC_LOCK, NET_ADMIN, NET_RAW, SYS_ADMIN};
use super::machine::{DEBIAN_KERNEL, Module};
use super::{Check, Machine, State, Subject};

/// The remedy of a root that a container has cut short.
const CONTAINER: &str = "docker run --privileged --network host …  # where this container is started";

pub(super) fn checks(machine: &Machine) -> Vec<Check> {
    let is_root = machine.user() == Some(0);
    let user = match machine.user() {
        Some(0) => check("user", State::Ok, "root"),
        Some(user) => {
            let found =
                format!("user {user}: only root reserves hugepages and binds PCI devices; what follows is this user's");
            check("user", State::Ok, found)
        }
        None => check("user", State::Warn, "unknown: /proc is not mounted").remedy("sudo mount -t proc proc /proc"),
    };
    let needed = [
        ("cap_net_admin", NET_ADMIN, "--via tap: and af_xdp: need it"),
        ("cap_net_raw", NET_RAW, "--via af_xdp: needs it"),
        // libxdp finds its program by number, for which CAP_BPF is not enough.
        ("cap_sys_admin", SYS_ADMIN, "--via af_xdp: needs it"),
        ("cap_ipc_lock", IPC_LOCK, "memory for devices counts against the limit of locked memory"),
    ];
    let capabilities = needed.into_iter().map(|(name, capability, without)| {
        if machine.capable(capability) {
            return check(name, State::Ok, "there");
        }
        let state = if name == "cap_ipc_lock" { State::Warn } else { State::Missing };
        let remedy = if is_root { CONTAINER.to_owned() } else { keeping(machine, needed.map(|(name, ..)| name)) };
        check(name, state, format!("not there: {without}")).remedy(remedy)
    });
    std::iter::once(user).chain(capabilities).chain([tun(machine)]).collect()
}

/// How this user runs the program with these capabilities, and remains who he is.
fn keeping(machine: &Machine, capabilities: [&str; 4]) -> String {
    let kept = capabilities.map(|name| format!("+{}", name.trim_start_matches("cap_"))).join(",");
    format!(
        "sudo setpriv --reuid $(id -u) --regid $(id -g) --init-groups --inh-caps {kept} --ambient-caps {kept} {} …",
        machine.program
    )
}

fn tun(machine: &Machine) -> Check {
    if machine.may_use("dev/net/tun") {
        return check("/dev/net/tun", State::Ok, "there");
    }
    if machine.exists("dev/net/tun") {
        let found = "this user may not open it: --via tap: needs it";
        return check("/dev/net/tun", State::Missing, found)
            .remedy("sudo chmod 666 /dev/net/tun  # until the next boot");
    }
    let remedy = if machine.module("tun") == Module::Absent { DEBIAN_KERNEL } else { "sudo modprobe tun" };
    check("/dev/net/tun", State::Missing, "not there: --via tap: needs it").remedy(remedy)
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
    fn root_with_everything_has_nothing_to_mend() {
        let fake = Fake::new();
        fake.write("dev/net/tun", "");
        assert!(states(&fake).iter().all(|(_, state)| *state == State::Ok));
    }

    #[test]
    fn a_user_without_capabilities_can_have_them_and_remain_himself() {
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
    fn a_root_without_capabilities_is_in_a_container() {
        let fake = Fake::new();
        fake.write("proc/self/status", "Uid:\t0\t0\t0\t0\nCapEff:\t00000000a80425fb\n");
        let missing = checks(&fake.machine).into_iter().find(|check| check.name == "cap_net_admin").unwrap();
        assert_eq!((missing.state, missing.remedy.unwrap().as_str()), (State::Missing, CONTAINER));
    }

    #[test]
    fn tun_is_a_module_or_needs_another_kernel() {
        let fake = Fake::new();
        let remedy = |fake: &Fake| checks(&fake.machine).pop().unwrap().remedy.unwrap();
        assert_eq!(remedy(&fake), DEBIAN_KERNEL);
        fake.loadable(&["tun"]);
        assert_eq!(remedy(&fake), "sudo modprobe tun");
    }

    #[test]
    fn who_may_load_bpf_programs_may_not_find_them_by_number() {
        let fake = Fake::new();
        fake.write("proc/self/status", "Uid:\t0\t0\t0\t0\nCapEff:\t0000008000003000\n");
        assert!(states(&fake).contains(&("cap_sys_admin".into(), State::Missing)));
    }
}
