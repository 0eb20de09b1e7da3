//! TLS over virtio-user, relative to servers without it, and to redis-server and nginx with it over loopback.

use crate::pair::{Network, Pair, RATE, VALUES};
use crate::programs::nginx;
use linerate_benches::certificate::Certificate;
use linerate_benches::rounds::{Bound, Job, Plan, Required, RoundRows, Row};
use linerate_harness::Error;
use linerate_harness::address::{unused_address, wait_until_listening};
use linerate_harness::process::{Process, pinned};
use std::net::SocketAddr;
use std::process::Command;

const SECURE: &str = "with";
const PLAIN: &str = "without";
const LOAD: &str = "--tls --tls-insecure";
const ECHO: &str = "echo, 64 bytes";
const KV: &str = "kv, GET";
const HTTP: &str = "http, 1 KiB";
const KEYS: &str = "--keys 100000 --value-size 64 --get-ratio 1";

/// Server of others over loopback, and its load.
struct Other {
    name: &'static str,
    /// Program, and its package.
    package: [&'static str; 2],
    /// Returns the arguments for an address.
    arguments: fn(SocketAddr) -> String,
    load: String,
    /// Server of linerate, and the minimum ratio of its rate.
    ratio: (&'static str, f64),
}

/// Returns the comparison, without the programs that are not installed.
pub fn plan(pair: &Pair) -> Result<Plan<'_>, Error> {
    let failed = |error| Error::Start { program: "loads tls".to_owned(), error };
    let files = pair.scratch.path();
    Certificate::new(files).map_err(|error| failed(std::io::Error::other(error)))?;
    let site = files.join("site");
    std::fs::create_dir(&site).and_then(|()| std::fs::write(site.join("page"), [b'x'; 1024])).map_err(failed)?;
    let server = format!("--tls-cert {0}/server.pem --tls-key {0}/server.key", files.display());
    let http_load = "--path /page".to_owned();
    let services = [
        (ECHO, "echo", String::new(), "--size 64".to_owned()),
        (KV, "kv", "--memory 128m".to_owned(), KEYS.to_owned()),
        (HTTP, "http", format!("--dir {}", site.display()), http_load.clone()),
    ];
    let mut jobs = Vec::new();
    for (name, service, serve, load) in services {
        for (tls, serve_tls, load_tls) in [(SECURE, &*server, LOAD), (PLAIN, "", "")] {
            let (serve, load) = (format!("{serve} {serve_tls}"), format!("--connections 64 {load} {load_tls}"));
            jobs.push(Job::new(format!("{name}, {tls} TLS"), move |_| {
                Ok(vec![Row::new(&[name, tls], &pair.run(Network::Virtio, service, &serve, &load)?.values())])
            }));
        }
    }
    let echo = |round: &RoundRows| Some(round.value(&[ECHO, SECURE], RATE)? / round.value(&[ECHO, PLAIN], RATE)?);
    let mut required = vec![Required::new("echoes/s with TLS, to those without", Bound::AtLeast(0.45), echo)];
    let others = [
        Other {
            name: "redis-server over loopback",
            package: ["redis-server", "redis-server"],
            arguments: |at| {
                format!(
                    "--port 0 --tls-port {} --bind {} --tls-cert-file server.pem --tls-key-file server.key \
                     --tls-auth-clients no --protected-mode no --appendonly no --save",
                    at.port(),
                    at.ip()
                )
            },
            load: format!("kv load {KEYS}"),
            ratio: (KV, 10.0),
        },
        Other {
            name: "nginx over loopback",
            package: ["nginx", "nginx-light"],
            arguments: |_| "-p . -c nginx.conf".to_owned(),
            load: format!("http load {http_load}"),
            ratio: (HTTP, 5.0),
        },
    ];
    for Other { name, package: [program, package], arguments, load, ratio: (service, least) } in others {
        if Command::new(program).arg("--version").output().is_err() {
            eprintln!("not measured: {name}: {program} is not installed: apt-get install {package}");
            continue;
        }
        jobs.push(Job::new(name, move |_| {
            let at = unused_address();
            let options =
                format!("{at} ssl; ssl_protocols TLSv1.3; ssl_certificate server.pem; ssl_certificate_key server.key");
            let configuration = nginx(&options).replace("root .", "root site");
            std::fs::write(pair.scratch.path().join("nginx.conf"), configuration).map_err(failed)?;
            let mut server = pinned(pair.cores.server, program);
            let arguments = arguments(at);
            server.args(arguments.split(' ')).args(arguments.ends_with("--save").then_some(""));
            server.current_dir(pair.scratch.path());
            let server = Process::start(server)?;
            wait_until_listening(at, name)?;
            let loaded = pair.load(&format!("{load} --connections 64 --via kernel --connect {at} {LOAD}"))?;
            server.stop()?;
            Ok(vec![Row::new(&[name, SECURE], &loaded.values())])
        }));
        required.push(Required::new(
            format!("{service}: requests/s with TLS over virtio-user, to those of {name}"),
            Bound::AtLeast(least),
            move |round| Some(round.value(&[service, SECURE], RATE)? / round.value(&[name, SECURE], RATE)?),
        ));
    }
    Ok(Plan {
        heads: &["server", "TLS"],
        values: VALUES,
        jobs,
        required,
        legend: "64 connections, one request in flight on each; 100000 keys with values of 64 bytes; TLS 1.3"
            .to_owned(),
    })
}
