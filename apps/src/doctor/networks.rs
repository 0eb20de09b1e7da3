//! Forms of `--via`: availability, and the obstacles of unavailable forms.

use super::{Check, State, Subject};
use linerate_compare::host_checks::{FORMS, Need, missing};

/// Returns one check per form, derived from all other checks.
pub(super) fn checks(details: &[Check]) -> Vec<Check> {
    let kernel = Check::new(Subject::Networks, "kernel", State::Ok, "ready").via("kernel");
    std::iter::once(kernel).chain(FORMS.into_iter().map(|(name, via, needs)| form(details, name, via, needs))).collect()
}

fn form(details: &[Check], name: &str, via: &str, needs: &[Need]) -> Check {
    let missing = missing(details, needs);
    let new = |state, found: String| Check::new(Subject::Networks, name, state, found);
    if let Some(first) = missing.first() {
        let found = match missing.as_slice() {
            [one] => format!("{}: {}", one.name, one.found),
            several => {
                let names: Vec<&str> = several.iter().map(|check| check.name.as_str()).collect();
                format!("missing: {}; see below", names.join(", "))
            }
        };
        let check = new(State::Missing, found);
        return Check { remedy: first.remedy.clone(), ..check };
    }
    // These two forms also need a device or an interface, which have checks of their own.
    let subject = match name {
        "af_xdp" => Subject::Interfaces,
        "pci" => Subject::Pci,
        _ => return new(State::Ok, "ready".to_owned()).via(via),
    };
    let candidates = details.iter().filter(|check| check.subject == subject);
    let (usable, unusable): (Vec<&Check>, Vec<&Check>) = candidates.partition(|check| !check.via.is_empty());
    let state = usable.iter().map(|check| check.state).min_by_key(|state| *state != State::Ok);
    let found = match state {
        Some(State::Ok) => "ready",
        Some(_) => "ready, on an interface shared with the kernel",
        None if name == "pci" => "no device is bound to a driver that DPDK can use: see below",
        None => "no interface is up: see below",
    };
    let check = new(state.unwrap_or(State::Missing), found.to_owned());
    let remedy = match state {
        Some(State::Ok) => None,
        _ if name == "af_xdp" => {
            let exists = |name: &String| unusable.iter().chain(&usable).any(|check| check.name == *name);
            let mut names = (0..).map(|n| format!("lr{n}")).filter(|name| !exists(name));
            names.next().zip(names.next()).map(|(first, second)| {
                format!(
                    "sudo ip link add {first} type veth peer name {second} && sudo ip link set dev {first} up && sudo \
                     ip link set dev {second} up  # creates an interface pair: --via af_xdp:{second}"
                )
            })
        }
        _ => unusable.iter().find_map(|check| check.remedy.clone()),
    };
    let best = usable.iter().filter(|check| Some(check.state) == state);
    let via = best.flat_map(|check| check.via.clone()).collect();
    Check { via, remedy, ..check }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(details: &[Check], name: &str) -> Check {
        checks(details).into_iter().find(|check| check.name == name).unwrap()
    }

    #[test]
    fn form_is_ready_if_no_requirement_is_missing() {
        let details = [Check::new(Subject::Dpdk, "net_tap", State::Missing, "not installed").remedy("install it")];
        assert_eq!(find(&details, "tap").state, State::Missing);
        assert_eq!(find(&details, "tap").remedy.unwrap(), "install it");
        assert_eq!(find(&details, "tap").found, "net_tap: not installed");
        assert_eq!(
            (find(&details, "vhost").state, find(&details, "vhost").via),
            (State::Ok, vec!["vhost:/tmp/a.sock".into()])
        );
    }

    #[test]
    fn all_missing_requirements_are_named_and_the_first_is_fixed() {
        let missing =
            |subject, name: &str| Check::new(subject, name, State::Missing, "no").remedy(format!("fix {name}"));
        let details = [missing(Subject::Privileges, "cap_net_admin"), missing(Subject::Dpdk, "net_tap")];
        assert_eq!(find(&details, "tap").found, "missing: net_tap, cap_net_admin; see below");
        assert_eq!(find(&details, "tap").remedy.unwrap(), "fix net_tap");
    }

    #[test]
    fn only_kernel_sockets_work_without_dpdk() {
        let details = [Check::new(Subject::Dpdk, "version", State::Missing, "DPDK is not installed").remedy("install")];
        let ready: Vec<String> =
            checks(&details).into_iter().filter(|check| check.state == State::Ok).map(|check| check.name).collect();
        assert_eq!(ready, ["kernel"]);
    }

    #[test]
    fn af_xdp_lists_usable_interfaces() {
        let interface =
            |name: &str, state| Check::new(Subject::Interfaces, name, state, "").via(format!("af_xdp:{name}"));
        let details = [interface("eth0", State::Warn)];
        assert_eq!(
            (find(&details, "af_xdp").state, find(&details, "af_xdp").via),
            (State::Warn, vec!["af_xdp:eth0".into()])
        );
        assert!(find(&details, "af_xdp").remedy.unwrap().contains("link add lr0 type veth peer name lr1 &&"));
        let details = [interface("lr0", State::Warn), interface("eth0", State::Warn)];
        assert!(find(&details, "af_xdp").remedy.unwrap().contains("link add lr1 type veth peer name lr2 &&"));
        let details = [interface("eth0", State::Warn), interface("eth1", State::Ok)];
        assert_eq!(find(&details, "af_xdp").state, State::Ok);
        assert_eq!(find(&details, "af_xdp").via, ["af_xdp:eth1"]);
        assert_eq!(find(&[], "af_xdp").state, State::Missing);
    }

    #[test]
    fn pci_shows_how_to_bind_the_first_device() {
        let device = Check::new(Subject::Pci, "0000:03:00.0", State::Warn, "").remedy("bind it");
        let none = find(std::slice::from_ref(&device), "pci");
        assert_eq!((none.state, none.remedy.unwrap().as_str()), (State::Missing, "bind it"));
        let bound = Check { state: State::Ok, remedy: None, ..device }.via("pci:0000:03:00.0");
        assert_eq!(find(&[bound], "pci").via, ["pci:0000:03:00.0"]);
    }
}
