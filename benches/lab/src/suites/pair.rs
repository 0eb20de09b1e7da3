//! Two guests joined by a wire, each with a verbs device on it.

use super::service::{ECHO, End, Service};
use crate::error::{Result, failed};
use crate::host::Lab;
use crate::machine::{Machine, Nic, Setup, Wire};
use crate::program::{Program, wait_for};
use std::path::Path;

/// Verbs device of each guest.
pub const DEVICE: &str = "lr0";
/// Interface below it.
pub const INTERFACE: &str = "eth0";

/// Script that waits for a listener.
const LISTENING: &str = "until rdma resource show cm_id | grep -q LISTEN; do sleep 0.05; done";

/// Two guests.
pub struct Pair {
    /// Guest of the services.
    pub server: Machine,
    /// Guest of the loads.
    pub client: Machine,
    /// Server's network device.
    nic: Nic,
}

/// Driver of the verbs devices.
#[derive(Debug, Clone, Copy)]
pub enum Provider<'a> {
    /// Soft-RoCE of Debian's kernel.
    Rxe,
    /// Soft-iWARP, from this module.
    Siw(&'a Path),
}

impl Pair {
    /// Address of the server.
    pub const SERVER: &'static str = "10.83.0.1";
    /// Address of the client.
    pub const CLIENT: &'static str = "10.83.0.2";

    /// Boots both guests.
    pub fn boot(lab: &Lab, provider: Provider) -> Result<Pair> {
        let socket = lab.socket("wire");
        let nic = |slot, serves| Nic::new(slot, Wire::Guest { socket: socket.clone(), serves });
        let start = |name, nic: &Nic| {
            Machine::start(lab, &Setup { name, megabytes: 1024, cpus: 1, nics: vec![nic.clone()], ..Setup::default() })
        };
        // An earlier pair may have left the socket.
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

    /// Takes the link down or up, and waits until the server's device has detected it.
    pub fn link(&self, is_up: bool) -> Result<()> {
        self.server.plug(&self.nic, is_up)?;
        let state = if is_up { "ACTIVE" } else { "DOWN" };
        self.server.run("link", &until_it_is(state)).map(drop)
    }

    /// Returns the server's verbs objects and descriptors, and its resident memory in kB.
    pub fn held(&self) -> Result<(String, u64)> {
        let script = format!(
            "pid=$(pgrep -x linerate)
            echo $(rdma resource show {DEVICE}) and $(ls /proc/$pid/fd | wc -l) descriptors
            grep VmRSS /proc/$pid/status | tr -dc 0-9"
        );
        let counted = self.server.run("resources of the server", &script)?;
        match counted.stdout.lines().collect::<Vec<_>>()[..] {
            [held, resident] if let Ok(resident) = resident.trim().parse() => Ok((held.to_owned(), resident)),
            ref other => failed(format!("cannot read the server's resources: {other:?}")),
        }
    }

    /// Runs rdma-core's `rping`, which connects by rdma_cm and checks the echo.
    pub fn rping(&self) -> Result<()> {
        let server = self.server.start_script("rping", &format!("exec rping -s -a {} -C 10", Self::SERVER))?;
        self.server.run("listening", LISTENING)?;
        self.client.run("rping", &format!("rping -c -a {} -C 10 -v", Self::SERVER))?;
        server.succeed().map(drop)
    }

    /// Starts a server. `args` are arguments of both ends.
    pub fn serve(&self, lab: &Lab, service: Service, args: &str) -> Result<Program> {
        let end = End { args: args.to_owned(), ..End::new(format!("rdma:{DEVICE}"), Self::SERVER) };
        let mut server = self.server.start_script(service.name, &lab.in_guest(&service.serve(&end)))?;
        server.wait_for_line("ready ")?;
        Ok(server)
    }

    /// Starts a load.
    pub fn load(&self, lab: &Lab, service: Service, args: &str) -> Result<Program> {
        let end = End { args: args.to_owned(), ..End::new(format!("rdma:{DEVICE}"), Self::CLIENT) };
        self.client.start_script(service.name, &lab.in_guest(&service.load(&end, Self::SERVER)))
    }

    /// Checks that a server answers a load. A load without any reply is given more time.
    pub fn answers(&self, lab: &Lab, service: Service, args: &str) -> Result<()> {
        let server = self.serve(lab, service, args)?;
        let load = self.load(lab, service, args)?.succeed()?;
        let served = server.stop()?;
        if load.last_json()?["requests"] == 0 && service.seconds < 60 {
            return self.answers(lab, Service { seconds: 4 * service.seconds, ..service }, args);
        }
        service.check(&load, &served)
    }

    /// Checks that a server refuses `rping`, which sends no parameters, and serves the next load.
    pub fn rping_is_refused(&self, lab: &Lab) -> Result<()> {
        let server = self.serve(lab, ECHO, "")?;
        let rping = format!("exec rping -c -a {} -p {} -C 1 -v", Self::SERVER, ECHO.port);
        let rping = self.client.start_script("rping", &rping)?.end()?;
        if rping.status.success()
            || !rping.stderr.lines().chain(rping.stdout.lines()).any(|line| line.contains("REJECTED"))
        {
            return failed(format!("not refused: {rping:?}"));
        }
        let load = self.load(lab, ECHO, "")?.succeed()?;
        ECHO.check(&load, &server.stop()?)
    }

    /// Checks that a load detects `rping` as a foreign server.
    pub fn rping_is_not_taken_for_a_server(&self, lab: &Lab) -> Result<()> {
        let rping = format!("exec rping -s -a {} -p {} -C 1 -v", Self::SERVER, ECHO.port);
        let _rping = self.server.start_script("rping", &rping)?;
        self.server.run("listening", LISTENING)?;
        let load = self.load(lab, Service { connections: 1, ..ECHO }, "")?.end()?;
        if load.status.success()
            || !load.stderr.lines().any(|line| line.contains("the peer is not a compatible Linerate process"))
        {
            return failed(format!("not detected: {load:?}"));
        }
        Ok(())
    }
}

/// Returns a script that creates the verbs device and waits until it is usable.
pub fn device(provider: Provider) -> String {
    let (kind, load) = match provider {
        Provider::Rxe => ("rxe", "modprobe rdma_rxe".to_owned()),
        // The module is not in the kernel's module tree, so its dependencies are named here.
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

/// Returns the verbs objects of all programs in a guest.
pub fn objects(machine: &Machine) -> Result<String> {
    Ok(machine.run("objects", &format!("rdma resource show {DEVICE}"))?.stdout.lines().collect::<Vec<_>>().join(" "))
}

/// Returns a script that waits for a state of the verbs device's port.
fn until_it_is(state: &str) -> String {
    format!("until rdma link show {DEVICE}/1 | grep -q 'state {state}'; do sleep 0.05; done")
}
