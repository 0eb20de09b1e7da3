//! Unmodified programs on the stack (`linerate run`) over virtio-user, and on the kernel over loopback.

use crate::pair::{Pair, RATE, VALUES};
use linerate_benches::rounds::{Bound, Job, Plan, Required, Row};
use linerate_harness::Error;
use linerate_harness::address::{unused_address, wait_until_listening};
use linerate_harness::process::{Process, TIMEOUT, pinned, sibling};
use std::net::SocketAddr;
use std::process::Command;

const STACK: &str = "stack";
const KERNEL: &str = "kernel";

/// Server, and its load.
struct Program {
    name: &'static str,
    /// Program, and its package.
    package: [&'static str; 2],
    /// Returns its arguments for an address.
    arguments: fn(SocketAddr) -> String,
    /// Words of the load.
    load: &'static str,
    depth: &'static str,
    /// Required ratio of the rates.
    least: f64,
}

const KEYS: &str = "--connections 64 --keys 100000 --value-size 64 --get-ratio 0.9";

fn redis(at: SocketAddr) -> String {
    format!("--port {} --bind {} --protected-mode no --save", at.port(), at.ip())
}

const PROGRAMS: [Program; 4] = [
    Program {
        name: "redis-server",
        package: ["redis-server", "redis-server"],
        arguments: redis,
        load: "kv load",
        depth: "1",
        least: 1.5,
    },
    Program {
        name: "redis-server",
        package: ["redis-server", "redis-server"],
        arguments: redis,
        load: "kv load",
        depth: "16",
        least: 1.0,
    },
    Program {
        name: "memcached with one thread",
        package: ["memcached", "memcached"],
        arguments: |at| format!("-u root -t 1 -m 1024 -U 0 -l {} -p {}", at.ip(), at.port()),
        load: "kv load --protocol memcached",
        depth: "1",
        least: 1.5,
    },
    Program {
        name: "nginx, 1 KiB",
        package: ["nginx", "nginx-light"],
        arguments: |_| "-p . -c nginx.conf".to_owned(),
        load: "http load --path /page",
        depth: "1",
        least: 1.5,
    },
];

/// Configuration of nginx, except for its address.
const NGINX: &str = "daemon off; master_process off; pid nginx.pid; error_log stderr warn;
events { worker_connections 512; }
http {
    access_log off; sendfile on; keepalive_requests 1000000000;
    client_body_temp_path 1; proxy_temp_path 2; fastcgi_temp_path 3; uwsgi_temp_path 4; scgi_temp_path 5;
    server { root .; listen ADDRESS; }
}
";

/// Returns the configuration of nginx, which listens at `address`, with further options.
pub fn nginx(address: &str) -> String {
    NGINX.replace("ADDRESS", address)
}

/// Returns the comparison, without the programs that are not installed.
pub fn plan(pair: &Pair) -> Result<Plan<'_>, Error> {
    sibling("liblinerate_preload.so", "cargo build --release -p linerate-preload")?;
    let (mut jobs, mut required) = (Vec::new(), Vec::new());
    for program in &PROGRAMS {
        let Program { name, package: [command, package], depth, least, .. } = program;
        if Command::new(command).arg("--version").output().is_err() {
            eprintln!("not measured: {name}: {command} is not installed: apt-get install {package}");
            continue;
        }
        for network in [STACK, KERNEL] {
            jobs.push(Job::new(format!("{name}, depth {depth}, {network}"), move |_| {
                Ok(vec![Row::new(&[name, depth, network], &program.measure(pair, network)?)])
            }));
        }
        required.push(Required::new(
            format!("{name}, depth {depth}: requests/s on the stack, to those on the kernel"),
            Bound::AtLeast(*least),
            move |round| Some(round.value(&[name, depth, STACK], RATE)? / round.value(&[name, depth, KERNEL], RATE)?),
        ));
    }
    Ok(Plan {
        heads: &["program", "depth", "sockets"],
        values: VALUES,
        jobs,
        required,
        legend:
            "64 connections; 90 % GET of 100000 keys with values of 64 bytes; the load has the sockets of the server"
                .to_owned(),
    })
}

impl Program {
    /// Measures the program on a network with the load at its other end.
    fn measure(&self, pair: &Pair, network: &str) -> Result<[f64; 4], Error> {
        let at = if network == STACK { SocketAddr::from(([10, 0, 0, 2], 8000)) } else { unused_address() };
        let write = |name: &str, content: &[u8]| {
            let error = |error| Error::Start { program: self.name.to_owned(), error };
            std::fs::write(pair.scratch.path().join(name), content).map_err(error)
        };
        write("nginx.conf", nginx(&at.to_string()).as_bytes())?;
        write("page", &[b'x'; 1024])?;
        let socket = pair.scratch.path().join("link.sock");
        let mut server = if network == STACK {
            let words = format!("run --via vhost:{} --ip {}/24", socket.display(), at.ip());
            let mut linerate = pair.command(Command::new(&pair.linerate), &words, pair.cores.server);
            linerate.args(["--", self.package[0]]).env("RUST_LOG", "info");
            linerate
        } else {
            pinned(pair.cores.server, self.package[0])
        };
        let arguments = (self.arguments)(at);
        server.args(arguments.split(' ')).args(arguments.ends_with("--save").then_some(""));
        let mut server = Process::start({
            server.current_dir(pair.scratch.path());
            server
        })?;
        let keys = if self.load.starts_with("kv") { KEYS } else { "--connections 64" };
        let load = format!("{} --connect {at} {keys} --depth {}", self.load, self.depth);
        let loaded = if network == STACK {
            let line = server.wait_for_stderr(&["listens on"], TIMEOUT)?;
            line.ok_or_else(|| server.failed("does not listen"))?;
            pair.load(&format!("{load} --no-inspect --via virtio-user:{} --ip 10.0.0.1/24", socket.display()))?
        } else {
            wait_until_listening(at, self.name)?;
            pair.load(&format!("{load} --via kernel"))?
        };
        server.stop()?;
        Ok(loaded.values())
    }
}
