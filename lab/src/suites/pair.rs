//! Two guests with a wire between them and a verbs device on it each.

use super::service::{End, Service};
use crate::error::Result;
use crate::host::Lab;
use crate::machine::{Machine, Nic, Setup, Wire};
use crate::program::{Program, wait_for};
use std::path::Path;

/// The verbs device of each guest.
pub const DEVICE: &str = "lr0";
/// What it is on.
const INTERFACE: &str = "eth0";

/// Two guests.
pub struct Pair {
    /// Where services run.
    pub server: Machine,
    /// Where their loads do.
    pub client: Machine,
    /// The server's end of the wire.
    nic: Nic,
}

/// What drives the verbs devices.
#[derive(Debug, Clone, Copy)]
pub enum Provider<'a> {
    /// Soft-RoCE, of Debian's kernel.
    Rxe,
    /// iWARP over the kernel's TCP, by this module.
    Siw(&'a Path),
}

impl Pair {
    /// The server's address.
    pub const SERVER: &'static str = "10.83.0.1";
    /// The client's.
    pub const CLIENT: &'static str = "10.83.0.2";

    /// Boots both.
    pub fn boot(lab: &Lab, provider: Provider) -> Result<Pair> {
        let socket = lab.socket("wire");
        let nic = |slot, serves| Nic::new(slot, Wire::Guest { socket: socket.clone(), serves });
        let start = |name, nic: &Nic| {
            Machine::start(lab, &Setup { name, megabytes: 1024, cpus: 1, nics: vec![nic.clone()], ..Setup::default() })
        };
        // Pairs follow each other.
        let _ = std::fs::remove_file(&socket);
        let (here, there) = (nic(16, true), nic(17, false));
        let server = start("server", &here)?;
        wait_for("the wire", || Ok(socket.exists()))?;
        let client = start("client", &there)?;
        for (machine, address) in [(&server, Self::SERVER), (&client, Self::CLIENT)] {
            machine.wait_until_up()?;
            machine.bring_up(INTERFACE, Some(&format!("{address}/24")))?;
            machine.run("device", &device(provider))?;
        }
        client.run("ping", &format!("ping -c 1 -w 60 {}", Self::SERVER))?;
        Ok(Pair { server, client, nic: here })
    }

    /// Takes the link down or up, and waits until the server's device has seen it.
    pub fn link(&self, is_up: bool) -> Result<()> {
        self.server.plug(&self.nic, is_up)?;
        let state = if is_up { "ACTIVE" } else { "DOWN" };
        self.server.run("link", &until_it_is(state)).map(drop)
    }

    /// rdma-core's `rping`, which connects by rdma_cm and checks what comes back.
    pub fn rping(&self) -> Result<()> {
        let server = self.server.start_script("rping", &format!("exec rping -s -a {} -C 10", Self::SERVER))?;
        self.server.run("listening", "until rdma resource show cm_id | grep -q LISTEN; do sleep 0.05; done")?;
        self.client.run("rping", &format!("rping -c -a {} -C 10 -v", Self::SERVER))?;
        server.succeed().map(drop)
    }

    /// Starts a server. `words` are arguments that both ends have.
    pub fn serve(&self, lab: &Lab, service: Service, words: &'static str) -> Result<Program> {
        let end = End { words, ..End::new(format!("rdma:{DEVICE}"), Self::SERVER) };
        let mut server = self.server.start_script(service.name, &lab.in_guest(&service.serve(&end)))?;
        server.wait_for_line("ready ")?;
        Ok(server)
    }

    /// Starts a load of it.
    pub fn load(&self, lab: &Lab, service: Service, words: &'static str) -> Result<Program> {
        let end = End { words, ..End::new(format!("rdma:{DEVICE}"), Self::CLIENT) };
        self.client.start_script(service.name, &lab.in_guest(&service.load(&end, Self::SERVER)))
    }

    /// A server answers a load.
    pub fn answers(&self, lab: &Lab, service: Service, words: &'static str) -> Result<()> {
        let server = self.serve(lab, service, words)?;
        let load = self.load(lab, service, words)?.succeed()?;
        service.check(&load, &server.stop()?)
    }
}

/// A script that makes the verbs device, and waits until it can be used.
fn device(provider: Provider) -> String {
    let (kind, load) = match provider {
        Provider::Rxe => ("rxe", "modprobe rdma_rxe".to_owned()),
        // It is not among the kernel's modules, so what it needs is named here.
        Provider::Siw(module) => ("siw", format!("modprobe -a libcrc32c ib_core iw_cm; insmod '{}'", module.display())),
    };
    format!(
        "modprobe -a rdma_ucm ib_uverbs
        {load}
        rdma link add {DEVICE} type {kind} netdev {INTERFACE}
        {}",
        until_it_is("ACTIVE")
    )
}

/// A script that waits until the verbs device's port is in a state.
fn until_it_is(state: &str) -> String {
    format!("until rdma link show {DEVICE}/1 | grep -q 'state {state}'; do sleep 0.05; done")
}
