//! RoCEv2 in software against Linux: a guest's Soft-RoCE and rdma-core at the other end of a vhost-user link.

use super::Suite;
use super::pair::{DEVICE, INTERFACE, Provider, device};
use super::service::{ALL, COUNTING, ECHO, End, KV, ONE_SIDED, Service};
use crate::error::{Result, failed};
use crate::host::Lab;
use crate::machine::{Machine, Nic, Setup, Wire};
use crate::program::{Program, wait_for};
use crate::report::Report;
use linerate_harness::namespace::Namespace;

pub const SUITE: Suite = Suite { name: "roce", about: "RoCEv2 of linerate on the host with Soft-RoCE in a guest", run };

pub const HOST: &str = "10.84.0.1";
pub const GUEST: &str = "10.84.0.2";

/// Interfaces of the host: that of QEMU, that of `linerate`, and the bridge that joins them.
const WIRE: &str = "lr0";
const TAP: &str = "lr1";
const BRIDGE: &str = "br0";
/// Ethernet address of `linerate`: the bridge takes frames to the address of its interface for itself.
const TAP_MAC: &str = "02:6c:72:00:00:01";

/// Arguments of both ends.
const MODES: [(&str, &str); 2] = [("buffers of each connection", ""), ("shared buffers", "--srq 1024")];

/// Loads of each mode, around the path MTU of 1024 bytes.
const LOADS: [(&str, Service); 5] = [
    ("echo of 1 byte", Service { load: "--size 1 --depth 4", seconds: 1, ..ECHO }),
    ("echo of 1023 bytes", Service { load: "--size 1023", seconds: 1, ..ECHO }),
    ("echo of 4 kB", Service { load: "--size 4k --depth 4", seconds: 1, ..ECHO }),
    ("echo of 1 MB", Service { load: "--size 1m", connections: 1, seconds: 1, ..ECHO }),
    ("kv", Service { load: "--keys 200 --value-size 8-48k --get-ratio 0.5 --verify --fail-on-miss", ..KV }),
];

fn run(lab: &Lab, report: &mut Report) {
    let booted = report.case("a guest with Soft-RoCE", || {
        let server = serve(lab, ECHO, "")?;
        Ok((boot(lab)?, server))
    });
    let Some((machine, echo)) = booted else { return };
    report.case("Soft-RoCE of the guest is answered by linerate", || load_in_guest(lab, &machine, ECHO, echo, ""));
    for (mode, words) in MODES {
        for (load, service) in LOADS {
            report.case(&format!("{mode}: {load}"), || {
                let server = serve(lab, service, words)?;
                load_in_guest(lab, &machine, service, server, words)
            });
        }
    }
    for (name, service) in [("one-sided GETs from the host", ONE_SIDED), ("counters of the host", COUNTING)] {
        report.case(name, || {
            let server = serve(lab, service, "")?;
            load_in_guest(lab, &machine, service, server, "")
        });
    }
    let services =
        [("echo", ECHO), ("kv", KV), ("one-sided GETs from the guest", ONE_SIDED), ("counters of the guest", COUNTING)];
    for (name, service) in services {
        report
            .case(&format!("Soft-RoCE of the guest answers linerate: {name}"), || load_on_host(lab, &machine, service));
    }
    drop(machine);
    over_tap(lab, report);
}

/// Runs the services over TAP interfaces: a bridge of the host joins that of QEMU and that of `linerate`.
fn over_tap(lab: &Lab, report: &mut Report) {
    let Some((machine, namespace)) = report.case("a guest on a bridge of TAP interfaces", || boot_on_tap(lab)) else {
        return;
    };
    let host = || End { args: format!("--mac {TAP_MAC}"), ..End::new(format!("roce:tap:{TAP}"), HOST) };
    let join = || wait_for(TAP, || Ok(namespace.ip(&format!("link set {TAP} master {BRIDGE} up")).is_ok()));
    for service in ALL {
        report.case(&format!("over TAP: linerate answers Soft-RoCE: {}", service.name), || {
            let mut server = lab.linerate(Some(&namespace), &service.serve(&host()))?;
            join()?;
            server.wait_for_line("ready ")?;
            load_in_guest(lab, &machine, service, server, "")
        });
        report.case(&format!("over TAP: Soft-RoCE answers linerate: {}", service.name), || {
            let mut server = machine.start_script(service.name, &lab.in_guest(&service.serve(&guest(""))))?;
            server.wait_for_line("ready ")?;
            let load = lab.linerate(Some(&namespace), &service.load(&host(), GUEST))?;
            join()?;
            service.check(&load.succeed()?, &server.stop()?)
        });
    }
}

fn boot_on_tap(lab: &Lab) -> Result<(Machine, Namespace)> {
    let namespace = Namespace::new("lab")?;
    let nics = vec![Nic::new(18, Wire::Tap(WIRE.to_owned()))];
    let setup =
        Setup { name: "guest", megabytes: 1024, cpus: 1, nics, namespace: Some(&namespace), ..Setup::default() };
    let machine = Machine::start(lab, &setup)?;
    machine.wait_until_up()?;
    namespace.ip(&format!("link add {BRIDGE} up type bridge"))?;
    namespace.ip(&format!("link set {WIRE} master {BRIDGE} up"))?;
    prepare(&machine)?;
    Ok((machine, namespace))
}

/// Returns the host's end.
pub fn host(lab: &Lab, args: &str) -> End {
    End { args: args.to_owned(), ..End::new(format!("roce:vhost:{}", lab.socket("roce").display()), HOST) }
}

/// Returns the guest's end.
fn guest(args: &str) -> End {
    End { args: args.to_owned(), ..End::new(format!("rdma:{DEVICE}"), GUEST) }
}

fn serve(lab: &Lab, service: Service, args: &str) -> Result<Program> {
    let mut server = lab.linerate(None, &service.serve(&host(lab, args)))?;
    server.wait_for_line("ready ")?;
    Ok(server)
}

/// Boots the guest, on the socket of a running program of the host.
pub fn boot(lab: &Lab) -> Result<Machine> {
    let nic = Nic { interrupts: false, ..Nic::new(18, Wire::VhostUser(lab.socket("roce"))) };
    let machine =
        Machine::start(lab, &Setup { name: "guest", megabytes: 1024, cpus: 1, nics: vec![nic], ..Setup::default() })?;
    machine.wait_until_up()?;
    prepare(&machine)?;
    Ok(machine)
}

/// Assigns the guest's address, and creates the verbs device.
fn prepare(machine: &Machine) -> Result<()> {
    machine.bring_up(INTERFACE, Some(&format!("{GUEST}/24")))?;
    machine.run("device", &device(Provider::Rxe)).map(drop)
}

/// Waits until the guest's interface has a link.
pub fn await_carrier(machine: &Machine) -> Result<()> {
    let script = format!("until [ $(cat /sys/class/net/{INTERFACE}/carrier) = 1 ]; do sleep 0.05; done");
    machine.run("carrier", &script).map(drop)
}

/// Runs a load in the guest against a server on the host.
fn load_in_guest(lab: &Lab, machine: &Machine, service: Service, server: Program, args: &str) -> Result<()> {
    await_carrier(machine)?;
    let load = machine.run(service.name, &lab.in_guest(&service.load(&guest(args), HOST)))?;
    let served = server.stop()?;
    if load.last_json()?["requests"] == 0 {
        return failed(format!("no reply: {load:?}, the server {served:?}"));
    }
    service.check(&load, &served)
}

/// Runs a load on the host against a server in the guest.
fn load_on_host(lab: &Lab, machine: &Machine, service: Service) -> Result<()> {
    let mut server = machine.start_script(service.name, &lab.in_guest(&service.serve(&guest(""))))?;
    server.wait_for_line("ready ")?;
    let load = lab.linerate(None, &service.load(&host(lab, ""), GUEST))?.succeed()?;
    service.check(&load, &server.stop()?)
}
