//! Machines of a comparison: both ends on this one, or each on its own.

use super::CompareError;
use crate::doctor::{self, Examined, State};
use linerate_compare::location::Location;
use linerate_compare::results::Machine;
use linerate_compare::run::cores::Cores;
use linerate_compare::run::link_spec::{Ends, LinkSpec};
use linerate_compare::run::network::{EndMachine, Network};
use linerate_compare::run::obstacles::{Obstacles, devices};
use linerate_stack::IpCidr;
use std::path::{Path, PathBuf};

/// Selection of the machines.
#[derive(Debug, Clone, clap::Args)]
pub struct MachinesArgs {
    /// Run servers on another machine through this command prefix, such as 'ssh root@a'; split at white space [default:
    /// this machine]
    #[arg(long, value_name = "COMMAND")]
    server_on: Option<String>,

    /// Run load generators on another machine through this command prefix [default: this machine]
    #[arg(long, value_name = "COMMAND")]
    load_on: Option<String>,

    /// Path of linerate on other machines [default: the path on this machine]
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,

    /// Address of the server on the network between the machines, such as 10.0.0.1/24
    #[arg(long, value_name = "CIDR")]
    server_ip: Option<IpCidr>,

    /// Address of the load generator on that network
    #[arg(long, value_name = "CIDR")]
    load_ip: Option<IpCidr>,

    /// Address of the server's port with pci and af_xdp, which bypass the kernel's address [default: --server-ip]
    #[arg(long, value_name = "CIDR")]
    server_port_ip: Option<IpCidr>,

    /// Address of the load generator's port with pci and af_xdp [default: --load-ip]
    #[arg(long, value_name = "CIDR")]
    load_port_ip: Option<IpCidr>,
}

/// Machines of a comparison with the results of their examination.
pub struct Machines {
    server: Examined,
    /// Machine of the load generator and the network to it, if it is separate.
    other: Option<(Examined, Network)>,
}

impl MachinesArgs {
    /// Examines the machines. `program` is the path of `linerate` on this machine.
    ///
    /// # Errors
    /// Fails if the arguments contradict each other, or if a machine cannot be reached.
    pub fn examine(&self, program: &Path) -> Result<Machines, CompareError> {
        let Some([server, load]) = self.locations(program).map_err(CompareError::Usage)? else {
            return Ok(Machines { server: doctor::examine_here(&doctor::Machine::local()), other: None });
        };
        let [server_host, load_host] = [&server, &load].map(Location::examine);
        let (server_host, load_host) = (server_host?, load_host?);
        let network = Network {
            server: end_machine(server, self.server_ip, self.server_port_ip, &server_host),
            load: end_machine(load, self.load_ip, self.load_port_ip, &load_host),
            emulated_by: [&server_host, &load_host]
                .into_iter()
                .find(|examined| examined.machine.emulated)
                // Examination detects emulation by QEMU only.
                .map(|_| "QEMU".to_owned()),
        };
        Ok(Machines { server: server_host, other: Some((load_host, network)) })
    }

    /// Returns the locations of server and load generator, or `None` if both are on this machine.
    fn locations(&self, program: &Path) -> Result<Option<[Location; 2]>, String> {
        let given = [
            ("--program", self.program.is_some()),
            ("--server-ip", self.server_ip.is_some()),
            ("--load-ip", self.load_ip.is_some()),
            ("--server-port-ip", self.server_port_ip.is_some()),
            ("--load-port-ip", self.load_port_ip.is_some()),
        ];
        if self.server_on.is_none() && self.load_on.is_none() {
            return match given.iter().find(|(_, given)| *given) {
                Some((option, _)) => {
                    Err(format!("{option} has an effect only with --server-on or --load-on: leave it out"))
                }
                None => Ok(None),
            };
        }
        let remote_program = self.program.as_deref().unwrap_or(program);
        let location = |option: &str, prefix: &Option<String>| match prefix {
            Some(prefix) => {
                Location::on(prefix, remote_program.to_owned()).map_err(|error| format!("{option}: {error}"))
            }
            None => Ok(Location::here(program.to_owned())),
        };
        Ok(Some([location("--server-on", &self.server_on)?, location("--load-on", &self.load_on)?]))
    }
}

impl Machines {
    /// Returns the machine of the server and, if separate, the machine of the load generator with the network between
    /// them.
    pub fn apart(self) -> (Machine, Option<(Machine, Network)>) {
        (self.server.machine, self.other.map(|(load, network)| (load.machine, network)))
    }

    /// Returns the factor by which starting and stopping programs takes longer than on this machine.
    pub fn slower(&self) -> u32 {
        self.other.as_ref().map_or(1, |(_, network)| network.slower())
    }

    /// Returns the default links.
    pub fn specs(&self) -> Vec<LinkSpec> {
        let devices = devices(&self.server.report);
        let Some((load, _)) = &self.other else {
            let mut specs = vec![LinkSpec::VirtioUser, LinkSpec::Kernel];
            specs.extend(devices.iter().map(|device| LinkSpec::Rdma(Some(Ends::both(device)))));
            if devices.is_empty() {
                // The protocol without a device, and a row that names the missing requirement of a device.
                specs.extend([LinkSpec::Roce, LinkSpec::Rdma(None)]);
            }
            return specs;
        };
        let load_devices = self::devices(&load.report);
        let ends = devices.first().zip(load_devices.first()).map(|(server, load)| Ends::new(server, load));
        vec![LinkSpec::Kernel, LinkSpec::Rdma(ends)]
    }

    /// Returns whether the load generator has a machine of its own.
    pub fn are_two(&self) -> bool {
        self.other.is_some()
    }

    /// Returns an error if a link in `specs` does not fit these machines.
    pub fn check(&self, specs: &[LinkSpec]) -> Result<(), String> {
        let network = self.other.as_ref().map(|(_, network)| network);
        let unfit =
            |spec: &LinkSpec| spec.unfit(network.is_some()).or_else(|| network.and_then(|network| network.lacks(spec)));
        specs.iter().find_map(unfit).map_or(Ok(()), Err)
    }

    pub fn obstacles(&self, specs: &[LinkSpec]) -> Obstacles {
        match &self.other {
            None => Obstacles::find(specs, &self.server.report),
            Some((load, _)) => Obstacles::between(specs, &self.server.report, &load.report),
        }
    }

    /// Assigns cores to the threads.
    ///
    /// # Errors
    /// Fails if the requested cores are unsuitable.
    pub fn cores(&self, servers: Option<&[usize]>, loads: Option<&[usize]>) -> Result<Cores, String> {
        let load = self.other.as_ref().map_or(&self.server, |(load, _)| load);
        Cores::choose([&self.server.cores, &load.cores], self.other.is_some(), servers, loads)
    }
}

/// Returns an end of the network, whose ports have the address of its kernel unless they have their own.
fn end_machine(location: Location, ip: Option<IpCidr>, port_ip: Option<IpCidr>, examined: &Examined) -> EndMachine {
    // The RDMA connection manager.
    let is = |check: &&doctor::Check| check.subject == doctor::Subject::Rdma && check.name == "rdma_ucm";
    let without_manager = examined.report.checks.iter().find(is).is_some_and(|check| check.state != State::Ok);
    EndMachine { location, ip, port_ip: port_ip.or(ip), without_manager }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        machines: MachinesArgs,
    }

    fn locations(words: &[&str]) -> Result<Option<[Location; 2]>, String> {
        let words = std::iter::once("linerate").chain(words.iter().copied());
        Cli::try_parse_from(words).map_err(|error| error.to_string())?.machines.locations(Path::new("/here/linerate"))
    }

    #[test]
    fn each_end_may_be_on_another_machine() {
        let here = || Location::here("/here/linerate".into());
        let remote = |prefix: &str| Location::on(prefix, "/here/linerate".into()).unwrap();
        assert_eq!(locations(&[]), Ok(None));
        assert_eq!(locations(&["--server-on", "ssh a"]), Ok(Some([remote("ssh a"), here()])));
        assert_eq!(locations(&["--load-on", "ssh b"]), Ok(Some([here(), remote("ssh b")])));
        let elsewhere = Location::on("ssh a", "/opt/linerate".into()).unwrap();
        assert_eq!(locations(&["--server-on", "ssh a", "--program", "/opt/linerate"]), Ok(Some([elsewhere, here()])));
    }

    #[test]
    fn remote_options_require_another_machine() {
        for words in [["--server-ip", "10.0.0.1/24"], ["--load-port-ip", "10.0.0.1/24"], ["--program", "/opt/linerate"]]
        {
            let error = locations(&words).unwrap_err();
            assert!(error.contains(words[0]) && error.contains("--server-on"), "{error}");
        }
        assert!(locations(&["--server-on", " "]).unwrap_err().contains("--server-on: write a command"));
        assert!(locations(&["--server-on", "ssh a", "--server-ip", "10.0.0.1"]).is_err(), "a prefix is missing");
    }

    #[test]
    fn links_depend_on_the_number_of_machines() {
        let examined = || doctor::examine_here(&doctor::Machine::local());
        let one = Machines { server: examined(), other: None };
        assert!(one.check(&["kernel".parse().unwrap(), "veth".parse().unwrap()]).is_ok());
        assert!(one.check(&["pci:0000:03:00.0".parse().unwrap()]).unwrap_err().contains("--server-on"));
        assert!(one.specs().contains(&LinkSpec::VirtioUser) && one.slower() == 1);
        let here = || Location::here("linerate".into());
        let end =
            || EndMachine { location: here(), ip: "10.0.0.1/24".parse().ok(), port_ip: None, without_manager: false };
        let network = Network { server: end(), load: end(), emulated_by: None };
        let two = Machines { server: examined(), other: Some((examined(), network)) };
        assert!(two.check(&["veth".parse().unwrap()]).unwrap_err().contains("one machine"));
        assert!(two.check(&["pci:0000:03:00.0".parse().unwrap()]).unwrap_err().contains("--server-port-ip"));
        assert!(two.check(&two.specs()).is_ok() && !two.specs().contains(&LinkSpec::VirtioUser));
        assert!(two.cores(None, None).unwrap().two_machines && two.slower() > 1);
    }
}
