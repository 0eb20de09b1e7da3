//! AF_XDP on a guest's virtio network device, which has combined channels like most NICs and unlike veth.

use super::Suite;
use super::service::{ALL, End};
use crate::error::Result;
use crate::host::Lab;
use crate::machine::{Machine, Nic, Setup, Wire};
use crate::report::Report;
use linerate_harness::namespace::Namespace;

pub const SUITE: Suite =
    Suite { name: "af_xdp", about: "AF_XDP on two queues of one interface, in a guest on virtio-net", run };

const HOST: &str = "10.81.0.1/24";
pub const GUEST: &str = "10.81.0.2";
/// Interface on the host.
pub const WIRE: &str = "lr0";
/// Interface in the guest.
pub const INTERFACE: &str = "eth0";
pub const QUEUES: u16 = 2;

fn run(lab: &Lab, report: &mut Report) {
    let Some((machine, namespace)) = report.case("a guest with an interface of two queues", || boot(lab)) else {
        return;
    };
    for service in ALL {
        report.case(&format!("{} answers Linux on two queues", service.name), || {
            let via = format!("af_xdp:{INTERFACE},queue_count={QUEUES}");
            let end = End { workers: QUEUES, ..End::new(via, GUEST) };
            let mut server = machine.start_script(service.name, &lab.in_guest(&service.serve(&end)))?;
            server.wait_for_line("ready ")?;
            let load = lab.linerate(Some(&namespace), &service.load(&End::kernel(), GUEST))?;
            service.check(&load.succeed()?, &server.stop()?)
        });
    }
}

/// Boots a guest whose interface is up, without an address.
pub fn boot(lab: &Lab) -> Result<(Machine, Namespace)> {
    let namespace = Namespace::new("lab")?;
    let nic = Nic { queues: QUEUES, ..Nic::new(16, Wire::Tap(WIRE.to_owned())) };
    let setup = Setup {
        name: "guest",
        megabytes: 1024,
        cpus: QUEUES.into(),
        nics: vec![nic],
        namespace: Some(&namespace),
        ..Setup::default()
    };
    let machine = Machine::start(lab, &setup)?;
    machine.wait_until_up()?;
    namespace.add_address(WIRE, HOST)?;
    namespace.up(WIRE)?;
    machine.bring_up(INTERFACE, None)?;
    machine.run("queues", &format!("ethtool -L {INTERFACE} combined {QUEUES}; echo 160 >/proc/sys/vm/nr_hugepages"))?;
    Ok((machine, namespace))
}
