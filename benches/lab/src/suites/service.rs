//! A service of `linerate` and its load, wherever each of them runs.

use crate::error::{Result, failed};
use crate::program::Ended;

/// A service that a load measures and checks.
#[derive(Debug, Clone, Copy)]
pub struct Service {
    /// Its command.
    pub name: &'static str,
    /// Where it is served.
    pub port: u16,
    /// What its server is told.
    pub serve: &'static str,
    /// What its load does.
    pub load: &'static str,
    /// On how many connections.
    pub connections: u32,
    /// And on how many, one after the other, it asks the server something before and after.
    pub asks: u32,
    /// How long, once they are open.
    pub seconds: u32,
}

/// Every byte comes back.
pub const ECHO: Service =
    Service { name: "echo", port: 7, serve: "", load: "--size 1000 --depth 2", connections: 8, asks: 0, seconds: 2 };

/// Every value is the one that was written.
pub const KV: Service = Service {
    name: "kv",
    port: 6379,
    serve: "--memory 64m",
    load: "--keys 1000 --value-size 64-4k --get-ratio 0.5 --verify --no-miss",
    connections: 8,
    asks: 0,
    seconds: 2,
};

/// Every value is the one that was written, and a value that is there is read out of the server's memory.
pub const ONE_SIDED: Service = Service {
    serve: "--memory 64m --export 64m",
    load: "--one-sided --keys 1000 --value-size 64-2k --get-ratio 0.5 --verify --no-miss",
    // Where it exports, and its time before and after.
    asks: 3,
    ..KV
};

/// Every number is in the end what was added to it.
pub const COUNTING: Service = Service {
    serve: "--memory 64m --counters 16",
    load: "--one-sided-incr --keys 16 --depth 8",
    // Where the counters are, and what they were and are.
    asks: 2,
    ..KV
};

/// What verbs drop besides.
const SENSELESS: &str = "message: senseless";

/// Both, one after the other.
pub const ALL: [Service; 2] = [ECHO, KV];

/// One end of the wire.
#[derive(Debug, Clone)]
pub struct End {
    /// Its `--via`.
    pub via: String,
    /// Its address.
    pub ip: String,
    /// How many workers.
    pub workers: u16,
    /// What else is to be said of it.
    pub words: String,
}

impl End {
    /// One worker on kernel sockets.
    pub fn kernel() -> End {
        End::new("kernel", "")
    }

    /// One worker.
    pub fn new(via: impl Into<String>, ip: impl Into<String>) -> End {
        End { via: via.into(), ip: ip.into(), workers: 1, words: String::new() }
    }

    /// The arguments that say so.
    fn arguments(&self) -> String {
        // Two machines and this one share few cores: nobody polls in vain.
        let ours = match self.via.split_once(':') {
            None => String::new(),
            Some(("rdma", _)) => "--idle backoff".to_owned(),
            Some(_) => format!("--ip {}/24 --idle backoff", self.ip),
        };
        format!("--via {} {ours} --workers {} {} --json", self.via, self.workers, self.words)
    }
}

impl Service {
    /// The arguments of a server.
    pub fn serve(&self, end: &End) -> String {
        format!("-v {} serve {} --listen {}:{} {}", self.name, end.arguments(), end.ip, self.port, self.serve)
    }

    /// The arguments of a load of a server at `remote`.
    pub fn load(&self, end: &End, remote: &str) -> String {
        let Service { name, port, load, connections, seconds, .. } = self;
        let ours = end.arguments();
        format!(
            "-v {name} load {ours} --connect {remote}:{port} --connections {connections} --duration {seconds}s {load}"
        )
    }

    /// What a load and its server tell must fit: nothing went wrong, and nothing was damaged on the way.
    pub fn check(&self, load: &Ended, server: &Ended) -> Result<()> {
        let (load, server) = (load.json()?, server.json()?);
        let all_is_well = load["errors"] == 0
            && load["requests"].as_u64() > Some(0)
            && server["accepted"] == self.connections + self.asks
            && server["finished"] == self.connections + self.asks;
        if !all_is_well {
            return failed(format!("the load tells {load}, the server {server}"));
        }
        for cause in
            ["bad TCP or UDP checksum", "bad IPv4 checksum", "truncated frame", "too long for the port", SENSELESS]
        {
            if !server["drops"][cause].is_null() {
                return failed(format!("the server dropped something: {server}"));
            }
        }
        Ok(())
    }
}
