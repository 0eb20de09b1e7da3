//! Service of `linerate` with its load, independent of their machines.

use crate::error::{Result, failed};
use linerate_harness::process::Ended;

/// Service that a load measures and checks.
#[derive(Debug, Clone, Copy)]
pub struct Service {
    /// Command.
    pub name: &'static str,
    pub port: u16,
    /// Options of the server.
    pub serve: &'static str,
    /// Options of the load.
    pub load: &'static str,
    /// Connections of the load.
    pub connections: u32,
    /// Additional consecutive connections that query the server before and after.
    pub asks: u32,
    /// Duration in seconds.
    pub seconds: u32,
}

/// Echo: every byte is returned.
pub const ECHO: Service =
    Service { name: "echo", port: 7, serve: "", load: "--size 1000 --depth 2", connections: 8, asks: 0, seconds: 2 };

/// Key-value service: every value is the one written.
pub const KV: Service = Service {
    name: "kv",
    port: 6379,
    serve: "--memory 64m",
    load: "--keys 1000 --value-size 64-4k --get-ratio 0.5 --verify --fail-on-miss",
    connections: 8,
    asks: 0,
    seconds: 2,
};

/// One-sided GETs: existing values are read from the server's memory.
pub const ONE_SIDED: Service = Service {
    serve: "--memory 64m --export 64m",
    load: "--one-sided --keys 1000 --value-size 64-2k --get-ratio 0.5 --verify --fail-on-miss",
    // Export address, and CPU time before and after.
    asks: 3,
    ..KV
};

/// Counters: each ends as the sum of its additions.
pub const COUNTING: Service = Service {
    serve: "--memory 64m --counters 16",
    load: "--one-sided-incr --keys 16 --depth 8",
    // Address of the counters, and their values before and after.
    asks: 2,
    ..KV
};

/// Additional drop cause of verbs.
const SENSELESS: &str = "message: senseless";

/// Both services.
pub const ALL: [Service; 2] = [ECHO, KV];

/// One end of the wire.
#[derive(Debug, Clone)]
pub struct End {
    pub via: String,
    /// Address.
    pub ip: String,
    pub workers: u16,
    /// Value of `--idle`. The host and two guests share few cores, so that idle workers should not poll.
    pub idle: &'static str,
    /// Further arguments.
    pub args: String,
}

impl End {
    /// Returns an end with one worker on kernel sockets.
    pub fn kernel() -> End {
        End::new("kernel", "")
    }

    /// Returns an end with one worker.
    pub fn new(via: impl Into<String>, ip: impl Into<String>) -> End {
        End { via: via.into(), ip: ip.into(), workers: 1, idle: "wait", args: String::new() }
    }

    /// Returns the arguments of its network.
    pub fn arguments(&self) -> String {
        let network = match self.via.split_once(':') {
            None => String::new(),
            Some(("rdma", _)) => format!("--idle {}", self.idle),
            // The addresses are those of the guest's kernel.
            Some(_) if self.via.ends_with(",share") => format!("--idle {}", self.idle),
            Some(_) => format!("--ip {}/24 --idle {}", self.ip, self.idle),
        };
        format!("--via {} {network} --workers {} {}", self.via, self.workers, self.args)
    }
}

impl Service {
    /// Returns the arguments of a server.
    pub fn serve(&self, end: &End) -> String {
        format!("-v {} serve {} --json --listen {}:{} {}", self.name, end.arguments(), end.ip, self.port, self.serve)
    }

    /// Returns the arguments of a load of the server at `remote`.
    pub fn load(&self, end: &End, remote: &str) -> String {
        let Service { name, port, load, connections, seconds, .. } = self;
        let network = end.arguments();
        format!(
            "-v {name} load {network} --json --connect {remote}:{port} --connections {connections} \
             --duration {seconds}s {load}"
        )
    }

    /// Checks the reports of a load and its server: no errors, and no corruption.
    pub fn check(&self, load: &Ended, server: &Ended) -> Result<()> {
        let (load, server) = (load.last_json()?, server.last_json()?);
        let all_is_well = load["errors"] == 0
            && load["requests"].as_u64() > Some(0)
            && server["accepted"] == self.connections + self.asks
            && server["finished"] == self.connections + self.asks;
        if !all_is_well {
            return failed(format!("the load reports {load}, the server {server}"));
        }
        for cause in
            ["bad TCP or UDP checksum", "bad IPv4 checksum", "truncated frame", "too long for the port", SENSELESS]
        {
            if !server["drops"][cause].is_null() {
                return failed(format!("the server has drops: {server}"));
            }
        }
        Ok(())
    }
}
