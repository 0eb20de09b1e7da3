//! A virtual machine as it is, served by the stack: its kernel's TCP is the client of `linerate` on the host, over
//! vhost-user.

use super::Suite;
use super::service::{ECHO, End, KV, Service};
use crate::error::Result;
use crate::host::Lab;
use crate::machine::{Machine, Nic, Setup, Wire};
use crate::program::Program;
use crate::report::Report;

pub const SUITE: Suite =
    Suite { name: "vhost", about: "a guest's kernel as the client of a server on the host, over vhost-user", run };

const HOST: &str = "10.82.0.1";
const GUEST: &str = "10.82.0.2";
/// In the guest.
const INTERFACE: &str = "eth0";

fn run(lab: &Lab, report: &mut Report) {
    let Some((machine, echo)) = report.case("a guest on a server's socket", || boot(lab)) else { return };
    report
        .case("the guest's kernel pings the server", || machine.run("ping", &format!("ping -c 3 -i 0.2 -w 60 {HOST}")));
    report.case("echo answers the guest's kernel", || load(lab, &machine, ECHO, echo));
    report.case("kv answers the guest's kernel, on the socket that echo has left", || {
        let server = serve(lab, KV)?;
        load(lab, &machine, KV, server)
    });
}

fn serve(lab: &Lab, service: Service) -> Result<Program> {
    let end = End::new(format!("vhost:{}", lab.socket("vhost").display()), HOST);
    let mut server = lab.linerate(None, &service.serve(&end))?;
    server.wait_for_line("ready ")?;
    Ok(server)
}

fn boot(lab: &Lab) -> Result<(Machine, Program)> {
    let server = serve(lab, ECHO)?;
    let nic = Nic { interrupts: false, ..Nic::new(16, Wire::VhostUser(lab.socket("vhost"))) };
    let machine =
        Machine::start(lab, &Setup { name: "guest", megabytes: 512, cpus: 1, nics: vec![nic], ..Setup::default() })?;
    machine.wait_until_up()?;
    machine.bring_up(INTERFACE, Some(&format!("{GUEST}/24")))?;
    Ok((machine, server))
}

/// A load in the guest, against a server on the host.
fn load(lab: &Lab, machine: &Machine, service: Service, server: Program) -> Result<()> {
    machine.run("carrier", &format!("until [ $(cat /sys/class/net/{INTERFACE}/carrier) = 1 ]; do sleep 0.05; done"))?;
    let load = machine.run(service.name, &lab.in_guest(&service.load(&End::kernel(), HOST)))?;
    service.check(&load, &server.stop()?)
}
