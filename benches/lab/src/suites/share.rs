//! Interface of a guest that carries the connections of the guest's kernel while `linerate` serves as well.

use super::Suite;
use super::af_xdp::{GUEST, INTERFACE, QUEUES, WIRE, boot};
use super::service::{ALL, ECHO, End};
use crate::error::{Context, Result, failed};
use crate::host::Lab;
use crate::machine::Machine;
use crate::program::{Program, TIMEOUT};
use crate::report::Report;
use linerate_harness::namespace::Namespace;
use std::io::{Read, Write};
use std::net::TcpStream;

pub const SUITE: Suite = Suite {
    name: "share",
    about: "an interface of two queues that a guest's kernel keeps, with its address and an open connection",
    run,
};

/// Port of the kernel's connection.
const MANAGEMENT: u16 = 22;
/// Ethernet addresses to which the host's end of the wire moves.
const MOVES: [&str; 2] = ["52:54:00:6c:72:f1", "52:54:00:6c:72:f2"];

fn run(lab: &Lab, report: &mut Report) {
    let Some((machine, namespace)) = report.case("a guest with an interface of two queues", || boot(lab)) else {
        return;
    };
    let site = SharedHost { lab, machine: &machine, namespace: &namespace };
    let manage = || site.manage();
    let Some((kernel, mut stream)) = report.case("the guest's kernel has an address and a connection", manage) else {
        return;
    };
    for service in ALL {
        report.case(&format!("{} serves beside the connection until it is stopped", service.name), || {
            let server = site.serve(&service.serve(&site.end()))?;
            let load = lab.linerate(Some(&namespace), &service.load(&End::kernel(), GUEST))?;
            assert_alive(&mut stream)?;
            service.check(&load.succeed()?, &server.stop()?)?;
            assert_alive(&mut stream)
        });
    }
    report.case("a killed server leaves the connection and its port to the kernel", || {
        let server = site.serve(&ECHO.serve(&site.end()))?;
        let mut served = site.connect(ECHO.port)?;
        assert_alive(&mut served)?;
        server.kill()?;
        assert_alive(&mut stream)?;
        let of_kernel = site.serve(&ECHO.serve(&End { ip: GUEST.to_owned(), ..End::kernel() }))?;
        assert_alive(&mut site.connect(ECHO.port)?)?;
        of_kernel.stop().map(drop)
    });
    report.case("both follow a neighbour that moves", || {
        let server = site.serve(&ECHO.serve(&site.end()))?;
        let mut served = site.connect(ECHO.port)?;
        // The host announces its new address (arp(7)).
        namespace.run("sysctl", &["-qw", &format!("net.ipv4.conf.{WIRE}.arp_notify=1")])?;
        for address in MOVES {
            assert_alive(&mut served)?;
            namespace.ip(&format!("link set {WIRE} address {address}"))?;
            assert_alive(&mut stream)?;
            assert_alive(&mut served)?;
            assert_alive(&mut site.connect(ECHO.port)?)?;
        }
        drop(served);
        server.stop()?;
        assert_alive(&mut stream)
    });
    report.case("the interface is left as found, and the connection ends in order", || {
        let link = machine.run("interface", &format!("ip link show dev {INTERFACE}"))?.stdout;
        if link.contains("xdp") || link.contains("PROMISC") {
            return failed(format!("the interface is {link}"));
        }
        drop(stream);
        let summary = kernel.stop()?.last_json()?;
        let is_whole = summary["accepted"] == 1 && summary["finished"] == 1;
        if is_whole { Ok(()) } else { failed(format!("the server of the kernel reports {summary}")) }
    });
}

/// Guest, and the other end of its wire.
struct SharedHost<'a> {
    lab: &'a Lab,
    machine: &'a Machine,
    namespace: &'a Namespace,
}

impl SharedHost<'_> {
    /// Gives the guest's kernel an address, and connects to it.
    fn manage(&self) -> Result<(Program, TcpStream)> {
        self.machine.run("address", &format!("ip addr add {GUEST}/24 dev {INTERFACE}"))?;
        let server = self.serve(&format!("echo serve --via kernel --listen {GUEST}:{MANAGEMENT} --json"))?;
        let mut stream = self.connect(MANAGEMENT)?;
        assert_alive(&mut stream)?;
        Ok((server, stream))
    }

    /// Returns the end of a server that shares the interface.
    fn end(&self) -> End {
        End { workers: QUEUES, ..End::new(format!("af_xdp:{INTERFACE},share"), GUEST) }
    }

    fn serve(&self, arguments: &str) -> Result<Program> {
        let mut server = self.machine.start_script("serve", &self.lab.in_guest(arguments))?;
        server.wait_for_line("ready ")?;
        Ok(server)
    }

    /// Connects from the host.
    fn connect(&self, port: u16) -> Result<TcpStream> {
        let stream = self.namespace.within(|| TcpStream::connect((GUEST, port))).context(format!("port {port}"))?;
        stream.set_read_timeout(Some(TIMEOUT)).context("a time limit")?;
        Ok(stream)
    }
}

/// Passes a message through an open connection and back.
fn assert_alive(stream: &mut TcpStream) -> Result<()> {
    let mut reply = [0; 5];
    stream.write_all(b"alive").context("a request to the guest")?;
    stream.read_exact(&mut reply).context("a reply of the guest")?;
    if &reply == b"alive" { Ok(()) } else { failed(format!("the guest replied {reply:?}")) }
}
