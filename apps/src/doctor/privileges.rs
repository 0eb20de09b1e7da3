//! What this user may do.

use super::machine::capability::{BPF, IPC_LOCK, NET_ADMIN, NET_RAW, SYS_ADMIN};
use super::machine::{DEBIAN_KERNEL, Module};
use super::{Check, Machine, State, Subject};

/// The remedy of a root that a container has cut short.
const CONTAINER: &str = "docker run --privileged --network host …  # where this container is started";

pub(super) fn checks(machine: &Machine) -> Vec<Check> {
    let is_root = machine.user() == Some(0);
    let user = match machine.user() {
        Some(0) => check("user", State::Ok, "root"),
        Some(user) => {
            let found = format!("user {user}: hugepages can be reserved and PCI devices opened by root only");
            check("user", State::Warn, found).remedy(format!("sudo {} …", machine.program))
        }
        None => check("user", State::Warn, "unknown: /proc is not mounted").remedy("sudo mount -t proc proc /proc"),
    };
    // A capability that another one includes is as good as there.
    let needed = [
        ("cap_net_admin", &[NET_ADMIN][..], "--via tap: and af_xdp: need it"),
        ("cap_net_raw", &[NET_RAW][..], "--via af_xdp: needs it"),
        ("cap_bpf", &[BPF, SYS_ADMIN][..], "--via af_xdp: needs it"),
        ("cap_ipc_lock", &[IPC_LOCK][..], "memory for devices counts against the limit of locked memory"),
    ];
    let capabilities = needed.into_iter().map(|(name, any, without)| {
        if any.iter().any(|&capability| machine.capable(capability)) {
            return check(name, State::Ok, "there");
        }
        let state = if name == "cap_ipc_lock" { State::Warn } else { State::Missing };
        let remedy = if is_root { CONTAINER.to_owned() } else { format!("sudo {} …", machine.program) };
        check(name, state, format!("not there: {without}")).remedy(remedy)
    });
    std::iter::once(user).chain(capabilities).chain([tun(machine)]).collect()
}

fn tun(machine: &Machine) -> Check {
    if machine.exists("dev/net/tun") {
        return check("/dev/net/tun", State::Ok, "there");
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
    fn a_user_without_capabilities_is_sent_to_sudo() {
        let fake = Fake::new();
        fake.write("proc/self/status", "Uid:\t1000\t1000\t1000\t1000\nCapEff:\t0000000000000000\n");
        for check in checks(&fake.machine).into_iter().filter(|check| check.name != "/dev/net/tun") {
            assert_ne!(check.state, State::Ok, "{}", check.name);
            assert_eq!(check.remedy.unwrap(), "sudo linerate …");
        }
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
    fn administrators_may_load_bpf_programs() {
        let fake = Fake::new();
        fake.write("proc/self/status", "Uid:\t0\t0\t0\t0\nCapEff:\t0000000000200000\n");
        assert!(states(&fake).contains(&("cap_bpf".into(), State::Ok)));
    }
}
