//! DPDK's virtio driver on an emulated PCI device, bound to uio and to vfio, with every type of ring. Clients are on
//! the host: Linux over a TAP interface, and `linerate` over vhost-user.

use super::Suite;
use super::service::{ALL, ECHO, End, Service};
use crate::error::{Result, failed};
use crate::host::Lab;
use crate::machine::{Machine, Nic, Setup, Wire};
use crate::program::Program;
use crate::report::Report;
use linerate_harness::namespace::Namespace;
use std::path::Path;

pub const SUITE: Suite =
    Suite { name: "virtio-pci", about: "the virtio PMD in a guest, bound to uio_pci_generic and to vfio-pci", run };

/// Hugepages of 2 MB for a guest's programs.
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

/// Runs all cases with devices bound to `driver`.
fn driver(lab: &Lab, report: &mut Report, driver: &str, nics: &[Nic]) {
    let booted = report.case(&format!("{driver}: boot with bound devices"), || boot(lab, driver, nics));
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

/// Returns an address in the network of a device.
fn address(nic: &Nic, host: u8) -> String {
    format!("10.80.{}.{host}", nic.slot)
}

/// Returns `linerate` at the host's end of vhost-user.
fn host_end(nic: &Nic, socket: &Path) -> End {
    // The device sends address translation requests.
    let iommu = if nic.iommu { ",iommu-support=1" } else { "" };
    let via = format!("vhost:{}{iommu}", socket.display());
    End { workers: nic.queues, ..End::new(via, address(nic, 1)) }
}

/// Starts an idle backend at the host's end of vhost-user.
fn other(lab: &Lab, nic: &Nic, socket: &Path) -> Result<Program> {
    let mut other = lab.linerate(None, &ECHO.serve(&host_end(nic, socket)))?;
    other.wait_for_line("ready ")?;
    Ok(other)
}

fn boot(lab: &Lab, driver: &str, nics: &[Nic]) -> Result<(Machine, Namespace)> {
    let iommu = driver == "vfio-pci";
    let nics: Vec<Nic> = nics.iter().map(|nic| Nic { iommu, ..nic.clone() }).collect();
    let namespace = Namespace::new("lab")?;
    // QEMU waits for a backend of each vhost-user device before it boots; the backend may disconnect later.
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
            namespace.add_address(interface, &format!("{}/24", address(nic, 1)))?;
            namespace.up(interface)?;
        }
    }
    let devices: Vec<String> = nics.iter().map(Nic::pci).collect();
    machine.run("bind", &bind(driver, &devices))?;
    Ok((machine, namespace))
}

/// Returns a script that binds devices to a driver and reserves hugepages.
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

/// Checks that a server in the guest answers a load on the host.
fn answers(lab: &Lab, machine: &Machine, namespace: &Namespace, nic: &Nic, service: Service) -> Result<()> {
    let nic = &Nic { iommu: machine.has_iommu(), ..nic.clone() };
    // QEMU's own packed rings accept frames in one segment only.
    let args = if nic.packed && !matches!(nic.wire, Wire::VhostUser(_)) { "--no-multi-segment" } else { "" };
    // QEMU 7.2 ends by SIGSEGV when a vhost-user device behind an IOMMU raises an interrupt.
    let idle = if nic.iommu && matches!(nic.wire, Wire::VhostUser(_)) { "poll" } else { "wait" };
    let end = End::new(format!("pci:{}", nic.pci()), address(nic, 2));
    let end = End { workers: nic.queues, args: args.to_owned(), idle, ..end };
    let load = || match &nic.wire {
        Wire::VhostUser(socket) => lab.linerate(None, &service.load(&host_end(nic, socket), &end.ip)),
        _ => lab.linerate(Some(namespace), &service.load(&End::kernel(), &end.ip)),
    };
    // The driver needs a backend of vhost-user to start, which then disconnects. With packed rings QEMU cannot pass
    // the ring position to the next backend, so the load is the backend from the start.
    let (early, other) = match &nic.wire {
        Wire::VhostUser(_) if nic.packed => (Some(load()?), None),
        Wire::VhostUser(socket) => (None, Some(other(lab, nic, socket)?)),
        _ => (None, None),
    };
    let mut server = machine.start_script(service.name, &lab.in_guest(&service.serve(&end)))?;
    server.wait_for_line("ready ")?;
    other.map(Program::stop).transpose()?;
    let load = early.map_or_else(load, Ok)?;
    let (load, server) = (load.succeed()?, server.stop()?);
    // Only vfio-pci passes the interrupts of queues to user space.
    let wakes = nic.iommu && idle == "wait";
    if wakes && (server.stderr.contains("cannot wake") || server.last_json()?["wakeups"] == 0) {
        return failed(format!("frames did not wake the server: {server:?}"));
    }
    service.check(&load, &server)
}
