//! Unmodified virtual machine served by the stack: its kernel's TCP is the client of `linerate` on the host, over
//! vhost-user.

use super::Suite;
use super::service::{ALL, ECHO, End, KV, Service};
use crate::error::Result;
use crate::host::Lab;
use crate::machine::{Machine, Nic, Setup, Wire};
use crate::program::Program;
use crate::report::Report;

pub const SUITE: Suite =
    Suite { name: "vhost", about: "a guest's kernel as the client of a server on the host, over vhost-user", run };

const HOST: &str = "10.82.0.1";
const GUEST: &str = "10.82.0.2";
/// VLAN, and its addresses.
const VLAN: u16 = 7;
const HOST_THERE: &str = "10.82.7.1";
const GUEST_THERE: &str = "10.82.7.2";
/// Interface in the guest.
const INTERFACE: &str = "eth0";

fn run(lab: &Lab, report: &mut Report) {
    let Some((machine, echo)) = report.case("a guest on a server's socket", || boot(lab)) else { return };
    report
        .case("the guest's kernel pings the server", || machine.run("ping", &format!("ping -c 3 -i 0.2 -w 60 {HOST}")));
    report.case("echo answers the guest's kernel", || load(lab, &machine, ECHO, echo, HOST));
    report.case("kv answers the guest's kernel, on the socket that echo has left", || {
        let server = serve(lab, KV, &end(lab))?;
        load(lab, &machine, KV, server, HOST)
    });
    for service in ALL {
        report.case(&format!("{} in a VLAN answers the guest's kernel", service.name), || {
            let there = End { ip: HOST_THERE.to_owned(), args: format!("--vlan {VLAN}"), ..end(lab) };
            let server = serve(lab, service, &there)?;
            machine.run("vlan", &join_vlan())?;
            load(lab, &machine, service, server, HOST_THERE)
        });
    }
}

/// Returns the host's end.
fn end(lab: &Lab) -> End {
    End::new(format!("vhost:{}", lab.socket("vhost").display()), HOST)
}

/// Returns a script that adds the guest's kernel to the VLAN.
fn join_vlan() -> String {
    let name = format!("{INTERFACE}.{VLAN}");
    format!(
        "modprobe 8021q
        [ ! -e /sys/class/net/{name} ] || exit 0
        ip link add link {INTERFACE} name {name} type vlan id {VLAN}
        ip addr add {GUEST_THERE}/24 dev {name}
        ip link set {name} up"
    )
}

fn serve(lab: &Lab, service: Service, end: &End) -> Result<Program> {
    let mut server = lab.linerate(None, &service.serve(end))?;
    server.wait_for_line("ready ")?;
    Ok(server)
}

fn boot(lab: &Lab) -> Result<(Machine, Program)> {
    let server = serve(lab, ECHO, &end(lab))?;
    let nic = Nic { interrupts: false, ..Nic::new(16, Wire::VhostUser(lab.socket("vhost"))) };
    let machine =
        Machine::start(lab, &Setup { name: "guest", megabytes: 512, cpus: 1, nics: vec![nic], ..Setup::default() })?;
    machine.wait_until_up()?;
    machine.bring_up(INTERFACE, Some(&format!("{GUEST}/24")))?;
    Ok((machine, server))
}

/// Runs a load in the guest against a server on the host at `address`.
fn load(lab: &Lab, machine: &Machine, service: Service, server: Program, address: &str) -> Result<()> {
    machine.run("carrier", &format!("until [ $(cat /sys/class/net/{INTERFACE}/carrier) = 1 ]; do sleep 0.05; done"))?;
    let load = machine.run(service.name, &lab.in_guest(&service.load(&End::kernel(), address)))?;
    service.check(&load, &server.stop()?)
}
