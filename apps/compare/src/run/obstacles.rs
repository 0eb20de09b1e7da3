//! Obstacles to links on a host, found by `linerate doctor`.

use super::link_spec::{Ends, Form, LinkSpec};
use crate::host_checks::{Check, Report, State, Subject, missing_for};

/// Links that cannot be used, each with reason and remedy.
#[derive(Debug, Clone, Default)]
pub struct Obstacles(Vec<(LinkSpec, String, String)>);

impl Obstacles {
    /// Finds the obstacles to `specs` on the examined host.
    pub fn find(specs: &[LinkSpec], report: &Report) -> Obstacles {
        Obstacles::collect(specs, |spec| obstacle(spec, |ends| &ends.server, report))
    }

    /// Finds the obstacles to `specs` between two examined machines.
    pub fn between(specs: &[LinkSpec], server: &Report, load: &Report) -> Obstacles {
        Obstacles::collect(specs, |spec| {
            let at = |end: &str, name: fn(&Ends) -> &String, report| {
                let (reason, remedy) = obstacle(spec, name, report)?;
                Some((format!("at the {end}, {reason}"), remedy))
            };
            at("server", |ends| &ends.server, server).or_else(|| at("load", |ends| &ends.load, load))
        })
    }

    fn collect(specs: &[LinkSpec], find: impl Fn(&LinkSpec) -> Option<(String, String)>) -> Obstacles {
        let found = specs.iter().filter_map(|spec| find(spec).map(|(reason, remedy)| (spec.clone(), reason, remedy)));
        Obstacles(found.collect())
    }

    /// Adds an obstacle.
    pub fn put(&mut self, spec: LinkSpec, reason: impl Into<String>, remedy: impl Into<String>) {
        self.0.push((spec, reason.into(), remedy.into()));
    }

    /// Returns reason and remedy, if there is an obstacle to `spec`.
    pub fn to(&self, spec: &LinkSpec) -> Option<(String, String)> {
        let (_, reason, remedy) = self.0.iter().find(|(other, _, _)| other == spec)?;
        Some((reason.clone(), remedy.clone()))
    }
}

/// Returns the usable verbs devices.
pub fn devices(report: &Report) -> Vec<String> {
    let known = ["support", "libraries", "ib_uverbs", "rdma_ucm", "devices", "/dev/infiniband"];
    let checks = report.checks.iter().filter(|check| check.subject == Subject::Rdma && check.state == State::Ok);
    checks.map(|check| check.name.clone()).filter(|name| !known.contains(&&**name)).collect()
}

/// Returns the obstacle to a link, whose ports and devices have the names given by `name`.
fn obstacle(spec: &LinkSpec, name: fn(&Ends) -> &String, report: &Report) -> Option<(String, String)> {
    let forms: &[&str] = match spec {
        LinkSpec::Kernel => &[],
        LinkSpec::Veth => return namespaces(report),
        LinkSpec::VirtioUser => &["vhost", "virtio-user"],
        LinkSpec::Roce if report.checks.iter().any(is_without_rdma) => {
            return report.checks.iter().find(|check| is_without_rdma(check)).map(reason_and_remedy);
        }
        LinkSpec::Roce => &["vhost", "virtio-user"],
        LinkSpec::Memif => &["memif"],
        LinkSpec::AfXdp | LinkSpec::AfXdpShared => &["af_xdp"],
        LinkSpec::Rdma(devices) => return verbs(devices.as_ref().map(|devices| &**name(devices)), report),
        LinkSpec::Port(form, ends) => return port(*form, name(ends), report),
    };
    let missing = forms.iter().flat_map(|form| missing_for(form, &report.checks)).next();
    let has_namespaces = matches!(spec, LinkSpec::AfXdp | LinkSpec::AfXdpShared);
    missing.map(reason_and_remedy).or_else(|| if has_namespaces { namespaces(report) } else { None })
}

/// Returns whether a check reports that the program was built without RDMA.
fn is_without_rdma(check: &Check) -> bool {
    check.subject == Subject::Rdma && check.name == "support" && check.state != State::Ok
}

fn port(form: Form, name: &str, report: &Report) -> Option<(String, String)> {
    if let Some(missing) = missing_for(form.name(), &report.checks).first() {
        return Some(reason_and_remedy(missing));
    }
    let subject = match form {
        Form::Pci => Subject::Pci,
        Form::AfXdp => Subject::Interfaces,
    };
    match report.checks.iter().find(|check| check.subject == subject && check.name == name) {
        Some(check) if check.state != State::Ok => Some(reason_and_remedy(check)),
        Some(_) => None,
        None => {
            let reason =
                format!("there is no {} {name}", if form == Form::Pci { "network device" } else { "interface" });
            Some((reason, "run linerate doctor there: it lists the available ones".to_owned()))
        }
    }
}

/// Returns the obstacle to veth pairs, which need network namespaces.
fn namespaces(report: &Report) -> Option<(String, String)> {
    let user = report.checks.iter().find(|check| check.subject == Subject::Privileges && check.name == "user")?;
    if user.state == State::Ok {
        return None;
    }
    let remedy = user.remedy.clone().unwrap_or_else(|| "run it as root".to_owned());
    Some(("network namespaces and interfaces require root".to_owned(), remedy))
}

fn verbs(device: Option<&str>, report: &Report) -> Option<(String, String)> {
    let of_rdma = |name: &str| {
        report
            .checks
            .iter()
            .find(|check| check.subject == Subject::Rdma && check.name == name && check.state != State::Ok)
    };
    if let Some(check) = ["support", "libraries", "ib_uverbs", "/dev/infiniband"].into_iter().find_map(of_rdma) {
        return Some(reason_and_remedy(check));
    }
    let Some(device) = device else {
        let reason = "no RDMA device".to_owned();
        let remedy = of_rdma("devices").and_then(|check| check.remedy.clone());
        return Some((reason, remedy.unwrap_or_else(|| "run linerate doctor for details".to_owned())));
    };
    let there = report.checks.iter().find(|check| check.subject == Subject::Rdma && check.name == device);
    match there {
        Some(check) if check.state == State::Ok => None,
        Some(check) => Some(reason_and_remedy(check)),
        None => Some((format!("no RDMA device {device}"), "linerate rdma info lists the devices".to_owned())),
    }
}

fn reason_and_remedy(check: &Check) -> (String, String) {
    let remedy = check.remedy.clone().unwrap_or_else(|| "run linerate doctor for details".to_owned());
    (format!("{}: {}", check.name, check.found), remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(subject: Subject, name: &str, state: State, found: &str, remedy: &str) -> Check {
        let remedy = (!remedy.is_empty()).then(|| remedy.to_owned());
        Check { subject, name: name.into(), state, found: found.into(), via: Vec::new(), remedy }
    }

    fn reason(spec: &str, checks: Vec<Check>) -> Option<(String, String)> {
        let spec = if spec == "rdma" { LinkSpec::Rdma(None) } else { spec.parse().unwrap() };
        Obstacles::find(std::slice::from_ref(&spec), &Report { checks }).to(&spec)
    }

    #[test]
    fn program_without_dpdk_has_no_frames() {
        let without = check(Subject::Dpdk, "support", State::Missing, "built without DPDK", "build it");
        for spec in ["virtio-user", "memif", "af_xdp"] {
            let found = reason(spec, vec![without.clone()]);
            assert_eq!(found, Some(("support: built without DPDK".into(), "build it".into())), "{spec}");
        }
        assert_eq!(reason("kernel", vec![without]), None);
    }

    #[test]
    fn each_link_needs_its_driver() {
        let vhost = check(Subject::Dpdk, "net_vhost", State::Missing, "not installed", "install it");
        assert!(reason("virtio-user", vec![vhost.clone()]).is_some());
        assert!(reason("memif", vec![vhost]).is_none());
    }

    #[test]
    fn interfaces_require_root() {
        let user = |state, remedy| check(Subject::Privileges, "user", state, "user 1000", remedy);
        assert_eq!(reason("veth", vec![user(State::Ok, "")]), None);
        let (reason_and_remedy, remedy) = reason("af_xdp", vec![user(State::Warn, "sudo linerate")]).unwrap();
        assert!(reason_and_remedy.contains("root") && remedy == "sudo linerate");
    }

    #[test]
    fn verbs_need_an_active_device() {
        let none = check(Subject::Rdma, "devices", State::Warn, "none", "modprobe rdma_rxe");
        assert_eq!(reason("rdma", vec![none]), Some(("no RDMA device".into(), "modprobe rdma_rxe".into())));
        let down = check(Subject::Rdma, "mlx5_0", State::Warn, "no port is active", "ip link set up");
        assert_eq!(reason("rdma:mlx5_0", vec![down]).unwrap().1, "ip link set up");
        let up = check(Subject::Rdma, "mlx5_0", State::Ok, "port 1 active", "");
        assert_eq!(devices(&Report { checks: vec![up.clone()] }), ["mlx5_0"]);
        assert_eq!(reason("rdma:mlx5_0", vec![up.clone()]), None);
        assert!(reason("rdma:rxe0", vec![up]).unwrap().0.contains("rxe0"));
        let support = check(Subject::Rdma, "support", State::Warn, "built without RDMA", "build it");
        assert!(reason("rdma", vec![support]).unwrap().0.contains("without RDMA"));
    }

    #[test]
    fn each_of_two_machines_needs_its_end() {
        let device = |name: &str| check(Subject::Rdma, name, State::Ok, "port 1 active", "");
        let report = |checks: Vec<Check>| Report { checks };
        let spec: LinkSpec = "rdma:x/y".parse().unwrap();
        let between = |server: &Report, load: &Report| {
            Obstacles::between(std::slice::from_ref(&spec), server, load).to(&spec).map(|(reason, _)| reason)
        };
        let (x, y) = (report(vec![device("x")]), report(vec![device("y")]));
        assert_eq!(between(&x, &y), None);
        assert_eq!(between(&x, &x).unwrap(), "at the load, no RDMA device y");
        assert_eq!(between(&y, &y).unwrap(), "at the server, no RDMA device x");
    }

    #[test]
    fn port_must_exist_and_be_bound() {
        let mut bound = check(Subject::Pci, "0000:00:10.0", State::Ok, "virtio, uio_pci_generic", "");
        bound.via = vec!["pci:0000:00:10.0".to_owned()];
        let unbound = check(Subject::Pci, "0000:00:11.0", State::Warn, "virtio, eth0", "bind it");
        let report = Report { checks: vec![bound, unbound] };
        let found = |text: &str| {
            let spec: LinkSpec = text.parse().unwrap();
            Obstacles::between(std::slice::from_ref(&spec), &report, &report).to(&spec)
        };
        assert_eq!(found("pci:0000:00:10.0"), None);
        assert_eq!(found("pci:0000:00:10.0/0000:00:11.0").unwrap().1, "bind it");
        assert!(found("pci:0000:00:12.0").unwrap().0.contains("no network device 0000:00:12.0"));
    }
}
