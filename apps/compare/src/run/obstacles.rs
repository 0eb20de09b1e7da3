//! What stands in the way of a link on this host, as `linerate doctor` knows it.

use super::way::{Ends, Form, Way};
use crate::host_checks::{Check, Report, State, Subject, missing_for};

/// The links that cannot be had, each with why, and what would change that.
#[derive(Debug, Clone, Default)]
pub struct Obstacles(Vec<(Way, String, String)>);

impl Obstacles {
    /// Those of `ways` on the host that was examined.
    pub fn find(ways: &[Way], report: &Report) -> Obstacles {
        let mut obstacles = Obstacles::default();
        for way in ways {
            if let Some((why, remedy)) = stands_in_the_way(way, report) {
                obstacles.put(way.clone(), why, remedy);
            }
        }
        obstacles
    }

    /// Those of `ways` between two machines that were examined, the server's and the load's.
    pub fn between(ways: &[Way], server: &Report, load: &Report) -> Obstacles {
        let mut obstacles = Obstacles::default();
        for way in ways {
            let at = |end: &str, name: fn(&Ends) -> &String, report| {
                let (why, remedy) = stands_in_the_way_there(way, name, report)?;
                Some((format!("at the {end}, {why}"), remedy))
            };
            let found = at("server", |ends| &ends.server, server).or_else(|| at("load", |ends| &ends.load, load));
            if let Some((why, remedy)) = found {
                obstacles.put(way.clone(), why, remedy);
            }
        }
        obstacles
    }

    /// Notes one.
    pub fn put(&mut self, way: Way, why: impl Into<String>, remedy: impl Into<String>) {
        self.0.push((way, why.into(), remedy.into()));
    }

    /// Why there is no such link, and what would change that.
    pub fn to(&self, way: &Way) -> Option<(String, String)> {
        let (_, why, remedy) = self.0.iter().find(|(other, _, _)| other == way)?;
        Some((why.clone(), remedy.clone()))
    }
}

/// The devices that verbs can be used with here.
pub fn devices(report: &Report) -> Vec<String> {
    let known = ["support", "libraries", "ib_uverbs", "rdma_ucm", "devices", "/dev/infiniband"];
    let checks = report.checks.iter().filter(|check| check.subject == Subject::Rdma && check.state == State::Ok);
    checks.map(|check| check.name.clone()).filter(|name| !known.contains(&&**name)).collect()
}

fn stands_in_the_way(way: &Way, report: &Report) -> Option<(String, String)> {
    let forms: &[&str] = match way {
        Way::Kernel => &[],
        Way::Veth => return namespaces(report),
        Way::VirtioUser => &["vhost", "virtio-user"],
        Way::Memif => &["memif"],
        Way::AfXdp => &["af_xdp"],
        Way::Rdma(devices) => return verbs(devices.as_ref().map(|devices| &*devices.server), report),
        Way::Port(form, ends) => return port(*form, &ends.server, report),
    };
    let missing = forms.iter().flat_map(|form| missing_for(form, &report.checks)).next();
    missing.map(said).or_else(|| if *way == Way::AfXdp { namespaces(report) } else { None })
}

/// At one of two machines, where what it has is called by that `name` of the two.
fn stands_in_the_way_there(way: &Way, name: fn(&Ends) -> &String, report: &Report) -> Option<(String, String)> {
    match way {
        Way::Rdma(devices) => verbs(devices.as_ref().map(|devices| &**name(devices)), report),
        Way::Port(form, ends) => port(*form, name(ends), report),
        _ => stands_in_the_way(way, report),
    }
}

fn port(form: Form, name: &str, report: &Report) -> Option<(String, String)> {
    if let Some(missing) = missing_for(form.name(), &report.checks).first() {
        return Some(said(missing));
    }
    let subject = match form {
        Form::Pci => Subject::Pci,
        Form::AfXdp => Subject::Interfaces,
    };
    match report.checks.iter().find(|check| check.subject == subject && check.name == name) {
        Some(check) if check.state != State::Ok => Some(said(check)),
        Some(_) => None,
        None => {
            let why = format!("there is no {} {name}", if form == Form::Pci { "network device" } else { "interface" });
            Some((why, "run linerate doctor there: it lists those that there are".to_owned()))
        }
    }
}

/// Pairs of interfaces are made in namespaces.
fn namespaces(report: &Report) -> Option<(String, String)> {
    let user = report.checks.iter().find(|check| check.subject == Subject::Privileges && check.name == "user")?;
    if user.state == State::Ok {
        return None;
    }
    let remedy = user.remedy.clone().unwrap_or_else(|| "run it as root".to_owned());
    Some(("network namespaces and interfaces are made by root only".to_owned(), remedy))
}

fn verbs(device: Option<&str>, report: &Report) -> Option<(String, String)> {
    let of_rdma = |name: &str| {
        report
            .checks
            .iter()
            .find(|check| check.subject == Subject::Rdma && check.name == name && check.state != State::Ok)
    };
    if let Some(check) = ["support", "libraries", "ib_uverbs", "/dev/infiniband"].into_iter().find_map(of_rdma) {
        return Some(said(check));
    }
    let Some(device) = device else {
        let why = "no RDMA device".to_owned();
        let remedy = of_rdma("devices").and_then(|check| check.remedy.clone());
        return Some((why, remedy.unwrap_or_else(|| "linerate doctor says what there is".to_owned())));
    };
    let there = report.checks.iter().find(|check| check.subject == Subject::Rdma && check.name == device);
    match there {
        Some(check) if check.state == State::Ok => None,
        Some(check) => Some(said(check)),
        None => Some((format!("no RDMA device {device}"), "linerate rdma info lists those that there are".to_owned())),
    }
}

fn said(check: &Check) -> (String, String) {
    let remedy = check.remedy.clone().unwrap_or_else(|| "linerate doctor says more".to_owned());
    (format!("{}: {}", check.name, check.found), remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(subject: Subject, name: &str, state: State, found: &str, remedy: &str) -> Check {
        let remedy = (!remedy.is_empty()).then(|| remedy.to_owned());
        Check { subject, name: name.into(), state, found: found.into(), via: Vec::new(), remedy }
    }

    fn why(way: &str, checks: Vec<Check>) -> Option<(String, String)> {
        let way = if way == "rdma" { Way::Rdma(None) } else { way.parse().unwrap() };
        Obstacles::find(std::slice::from_ref(&way), &Report { checks }).to(&way)
    }

    #[test]
    fn a_program_without_dpdk_has_no_frames() {
        let without = check(Subject::Dpdk, "support", State::Missing, "built without DPDK", "build it");
        for way in ["virtio-user", "memif", "af_xdp"] {
            let found = why(way, vec![without.clone()]);
            assert_eq!(found, Some(("support: built without DPDK".into(), "build it".into())), "{way}");
        }
        assert_eq!(why("kernel", vec![without]), None);
    }

    #[test]
    fn each_link_needs_its_own_driver() {
        let vhost = check(Subject::Dpdk, "net_vhost", State::Missing, "not installed", "install it");
        assert!(why("virtio-user", vec![vhost.clone()]).is_some());
        assert!(why("memif", vec![vhost]).is_none());
    }

    #[test]
    fn interfaces_are_made_by_root_only() {
        let user = |state, remedy| check(Subject::Privileges, "user", state, "user 1000", remedy);
        assert_eq!(why("veth", vec![user(State::Ok, "")]), None);
        let (said, remedy) = why("af_xdp", vec![user(State::Warn, "sudo linerate")]).unwrap();
        assert!(said.contains("root") && remedy == "sudo linerate");
    }

    #[test]
    fn verbs_need_a_device_that_is_there_and_active() {
        let none = check(Subject::Rdma, "devices", State::Warn, "none", "modprobe rdma_rxe");
        assert_eq!(why("rdma", vec![none]), Some(("no RDMA device".into(), "modprobe rdma_rxe".into())));
        let down = check(Subject::Rdma, "mlx5_0", State::Warn, "no port is active", "ip link set up");
        assert_eq!(why("rdma:mlx5_0", vec![down]).unwrap().1, "ip link set up");
        let up = check(Subject::Rdma, "mlx5_0", State::Ok, "port 1 active", "");
        assert_eq!(devices(&Report { checks: vec![up.clone()] }), ["mlx5_0"]);
        assert_eq!(why("rdma:mlx5_0", vec![up.clone()]), None);
        assert!(why("rdma:rxe0", vec![up]).unwrap().0.contains("rxe0"));
        let support = check(Subject::Rdma, "support", State::Warn, "built without RDMA", "build it");
        assert!(why("rdma", vec![support]).unwrap().0.contains("without RDMA"));
    }

    #[test]
    fn each_of_two_machines_has_to_have_its_own_end() {
        let device = |name: &str| check(Subject::Rdma, name, State::Ok, "port 1 active", "");
        let report = |checks: Vec<Check>| Report { checks };
        let way: Way = "rdma:x/y".parse().unwrap();
        let between = |server: &Report, load: &Report| {
            Obstacles::between(std::slice::from_ref(&way), server, load).to(&way).map(|(why, _)| why)
        };
        let (x, y) = (report(vec![device("x")]), report(vec![device("y")]));
        assert_eq!(between(&x, &y), None);
        assert_eq!(between(&x, &x).unwrap(), "at the load, no RDMA device y");
        assert_eq!(between(&y, &y).unwrap(), "at the server, no RDMA device x");
    }

    #[test]
    fn a_port_has_to_be_there_and_to_be_bound() {
        let mut bound = check(Subject::Pci, "0000:00:10.0", State::Ok, "virtio, uio_pci_generic", "");
        bound.via = vec!["pci:0000:00:10.0".to_owned()];
        let unbound = check(Subject::Pci, "0000:00:11.0", State::Warn, "virtio, eth0", "bind it");
        let report = Report { checks: vec![bound, unbound] };
        let found = |text: &str| {
            let way: Way = text.parse().unwrap();
            Obstacles::between(std::slice::from_ref(&way), &report, &report).to(&way)
        };
        assert_eq!(found("pci:0000:00:10.0"), None);
        assert_eq!(found("pci:0000:00:10.0/0000:00:11.0").unwrap().1, "bind it");
        assert!(found("pci:0000:00:12.0").unwrap().0.contains("no network device 0000:00:12.0"));
    }
}
