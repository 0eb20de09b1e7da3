//! DPDK's virtio driver on a real PCI device, in a guest: bound to uio and to vfio, with every kind of ring. Clients are
//! on the host: Linux over a TAP interface, and `linerate` at the other end of vhost-user.

use super::Suite;
use super::service::{ALL, ECHO, End, Service};
use crate::error::Result;
use crate::host::{Lab, Namespace};
use crate::machine::{Machine, Nic, Setup, Wire};
use crate::program::Program;
use crate::report::Report;
use std::path::Path;

pub const SUITE: Suite =
    Suite { name: "virtio-pci", about: "the virtio PMD in a guest, bound to uio_pci_generic and to vfio-pci", run };

/// Pages of 2 MB for a guest's programs.
const HUGEPAGES: u32 = 160;

fn run(lab: &Lab, report: &mut Report) {
    let tap = |slot: u8, packed, queues| Nic { packed, queues, ..Nic::new(slot, Wire::Tap(format!("lr{slot}"))) };
    let link = |name: &str, packed, queues| {
        let wire = Wire::VhostUser(lab.socket(name));
        Nic { packed, queues, ..Nic::new(18, wire) }
    };
    driver(lab, report, "uio_pci_generic", &[tap(16, false, 1), tap(17, true, 2), link("uio", true, 2)]);
    driver(lab, report, "vfio-pci", &[tap(16, false, 2), tap(17, true, 1), link("vfio", false, 1)]);
}

/// All cases of devices that are bound to `driver`.
fn driver(lab: &Lab, report: &mut Report, driver: &str, nics: &[Nic]) {
    let booted = report.case(&format!("{driver}: a guest whose devices are bound to it"), || boot(lab, driver, nics));
    let Some((machine, namespace)) = booted else { return };
    for nic in nics {
        let ring = if nic.packed { "packed" } else { "split" };
        let queues = if nic.queues == 1 { "1 queue" } else { "2 queues" };
        for service in ALL {
            let client = match &nic.wire {
                Wire::VhostUser(_) => "linerate over vhost-user",
                _ => "Linux over TAP",
            };
            let name = format!("{driver}: {ring} ring, {queues}: {} answers {client}", service.name);
            report.case(&name, || answers(lab, &machine, &namespace, nic, service));
        }
    }
}

/// The network of a device.
fn address(nic: &Nic, host: u8) -> String {
    format!("10.80.{}.{host}", nic.slot)
}

/// `linerate` at the host's end of vhost-user.
fn host_end(nic: &Nic, socket: &Path) -> End {
    // The device asks where the guest's addresses lead.
    let iommu = if nic.iommu { ",iommu-support=1" } else { "" };
    let via = format!("vhost:{}{iommu}", socket.display());
    End { workers: nic.queues, ..End::new(via, address(nic, 1)) }
}

/// Somebody at the host's end, who does nothing.
fn other(lab: &Lab, nic: &Nic, socket: &Path) -> Result<Program> {
    let mut other = lab.linerate(None, &ECHO.serve(&host_end(nic, socket)))?;
    other.wait_for_line("ready ")?;
    Ok(other)
}

fn boot(lab: &Lab, driver: &str, nics: &[Nic]) -> Result<(Machine, Namespace)> {
    let iommu = driver == "vfio-pci";
    let nics: Vec<Nic> = nics.iter().map(|nic| Nic { iommu, ..nic.clone() }).collect();
    let namespace = lab.namespace()?;
    // QEMU does not begin without somebody at the other end of vhost-user, who may leave then.
    let mut others = Vec::new();
    for nic in &nics {
        if let Wire::VhostUser(socket) = &nic.wire {
            others.push(other(lab, nic, socket)?);
        }
    }
    let setup =
        Setup { name: "guest", megabytes: 1024, cpus: 2, iommu, nics: nics.clone(), namespace: Some(&namespace) };
    let machine = Machine::start(lab, &setup)?;
    machine.wait_until_up()?;
    others.into_iter().try_for_each(|other| other.stop().map(drop))?;
    for nic in &nics {
        if let Wire::Tap(interface) = &nic.wire {
            namespace.address(interface, &format!("{}/24", address(nic, 1)))?;
        }
    }
    let devices: Vec<String> = nics.iter().map(Nic::pci).collect();
    machine.run("bind", &bind(driver, &devices))?;
    Ok((machine, namespace))
}

/// A script that binds devices to a driver, and makes room for what uses them.
pub fn bind(driver: &str, devices: &[String]) -> String {
    let devices = devices.join(" ");
    format!(
        "modprobe {driver}
        for device in {devices}; do
            directory=/sys/bus/pci/devices/$device
            [ ! -e $directory/driver ] || echo $device >$directory/driver/unbind
            echo {driver} >$directory/driver_override
            echo $device >/sys/bus/pci/drivers_probe
            [ $(basename $(readlink $directory/driver)) = {driver} ]
        done
        echo {HUGEPAGES} >/proc/sys/vm/nr_hugepages
        [ $(cat /proc/sys/vm/nr_hugepages) = {HUGEPAGES} ]"
    )
}

/// A server in the guest answers a load on the host.
fn answers(lab: &Lab, machine: &Machine, namespace: &Namespace, nic: &Nic, service: Service) -> Result<()> {
    let nic = &Nic { iommu: machine.has_iommu(), ..nic.clone() };
    // QEMU's own packed rings take frames in one piece only.
    let words = if nic.packed && !matches!(nic.wire, Wire::VhostUser(_)) { "--no-multi-segment" } else { "" };
    let end =
        End { workers: nic.queues, words: words.to_owned(), ..End::new(format!("pci:{}", nic.pci()), address(nic, 2)) };
    let load = || match &nic.wire {
        Wire::VhostUser(socket) => lab.linerate(None, &service.load(&host_end(nic, socket), &end.ip)),
        _ => lab.linerate(Some(namespace), &service.load(&End::kernel(), &end.ip)),
    };
    // A driver begins with somebody at the other end of vhost-user, who leaves then. Of a packed ring QEMU cannot tell who comes
    // next how far it has been used, so that with these it is the load from the beginning.
    let (early, other) = match &nic.wire {
        Wire::VhostUser(_) if nic.packed => (Some(load()?), None),
        Wire::VhostUser(socket) => (None, Some(other(lab, nic, socket)?)),
        _ => (None, None),
    };
    let mut server = machine.start_script(service.name, &lab.in_guest(&service.serve(&end)))?;
    server.wait_for_line("ready ")?;
    other.map(Program::stop).transpose()?;
    let load = early.map_or_else(load, Ok)?;
    service.check(&load.succeed()?, &server.stop()?)
}
