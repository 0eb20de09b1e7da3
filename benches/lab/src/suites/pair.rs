//! Two guests with a wire between them and a verbs device on it each.

use super::service::{ECHO, End, Service};
use crate::error::{Result, failed};
use crate::host::Lab;
use crate::machine::{Machine, Nic, Setup, Wire};
use crate::program::{Program, wait_for};
use std::path::Path;

/// The verbs device of each guest.
pub const DEVICE: &str = "lr0";
/// What it is on.
pub const INTERFACE: &str = "eth0";

/// Waits until somebody listens.
const LISTENING: &str = "until rdma resource show cm_id | grep -q LISTEN; do sleep 0.05; done";

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

    /// What a server holds: objects of its device, with its descriptors; and kilobytes of resident memory.
    pub fn held(&self) -> Result<(String, u64)> {
        let script = format!(
            "pid=$(pgrep -x linerate)
            echo $(rdma resource show {DEVICE}) and $(ls /proc/$pid/fd | wc -l) descriptors
            grep VmRSS /proc/$pid/status | tr -dc 0-9"
        );
        let told = self.server.run("what the server holds", &script)?;
        match told.out.as_slice() {
            [held, resident] if let Ok(resident) = resident.trim().parse() => Ok((held.clone(), resident)),
            other => failed(format!("it is not to be seen what the server holds: {other:?}")),
        }
    }

    /// rdma-core's `rping`, which connects by rdma_cm and checks what comes back.
    pub fn rping(&self) -> Result<()> {
        let server = self.server.start_script("rping", &format!("exec rping -s -a {} -C 10", Self::SERVER))?;
        self.server.run("listening", LISTENING)?;
        self.client.run("rping", &format!("rping -c -a {} -C 10 -v", Self::SERVER))?;
        server.succeed().map(drop)
    }

    /// Starts a server. `words` are arguments that both ends have.
    pub fn serve(&self, lab: &Lab, service: Service, words: &str) -> Result<Program> {
        let end = End { words: words.to_owned(), ..End::new(format!("rdma:{DEVICE}"), Self::SERVER) };
        let mut server = self.server.start_script(service.name, &lab.in_guest(&service.serve(&end)))?;
        server.wait_for_line("ready ")?;
        Ok(server)
    }

    /// Starts a load of it.
    pub fn load(&self, lab: &Lab, service: Service, words: &str) -> Result<Program> {
        let end = End { words: words.to_owned(), ..End::new(format!("rdma:{DEVICE}"), Self::CLIENT) };
        self.client.start_script(service.name, &lab.in_guest(&service.load(&end, Self::SERVER)))
    }

    /// A server answers a load, which is given more time where not even one request has come back.
    pub fn answers(&self, lab: &Lab, service: Service, words: &str) -> Result<()> {
        let server = self.serve(lab, service, words)?;
        let load = self.load(lab, service, words)?.succeed()?;
        let served = server.stop()?;
        if load.json()?["requests"] == 0 && service.seconds < 60 {
            return self.answers(lab, Service { seconds: 4 * service.seconds, ..service }, words);
        }
        service.check(&load, &served)
    }

    /// `rping` asks for a connection without saying that it is one of ours, and is refused; the next load is served.
    pub fn rping_is_refused(&self, lab: &Lab) -> Result<()> {
        let server = self.serve(lab, ECHO, "")?;
        let rping = format!("exec rping -c -a {} -p {} -C 1 -v", Self::SERVER, ECHO.port);
        let rping = self.client.start_script("rping", &rping)?.end()?;
        if rping.status == 0 || !rping.err.iter().chain(&rping.out).any(|line| line.contains("REJECTED")) {
            return failed(format!("it is not refused: {rping:?}"));
        }
        let load = self.load(lab, ECHO, "")?.succeed()?;
        ECHO.check(&load, &server.stop()?)
    }

    /// A load that comes upon `rping` knows that this is no server of its own.
    pub fn rping_is_not_taken_for_a_server(&self, lab: &Lab) -> Result<()> {
        let rping = format!("exec rping -s -a {} -p {} -C 1 -v", Self::SERVER, ECHO.port);
        let _rping = self.server.start_script("rping", &rping)?;
        self.server.run("listening", LISTENING)?;
        let load = self.load(lab, Service { connections: 1, ..ECHO }, "")?.end()?;
        if load.status == 0 || !load.err.iter().any(|line| line.contains("the peer is another program")) {
            return failed(format!("it does not know: {load:?}"));
        }
        Ok(())
    }
}

/// A script that makes the verbs device, and waits until it can be used.
pub fn device(provider: Provider) -> String {
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

/// The objects of a guest's device, of all of its programs.
pub fn objects(machine: &Machine) -> Result<String> {
    Ok(machine.run("objects", &format!("rdma resource show {DEVICE}"))?.out.join(" "))
}

/// A script that waits until the verbs device's port is in a state.
fn until_it_is(state: &str) -> String {
    format!("until rdma link show {DEVICE}/1 | grep -q 'state {state}'; do sleep 0.05; done")
}
