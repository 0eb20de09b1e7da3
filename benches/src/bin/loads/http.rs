//! `linerate http serve`, and the same server on tokio, with the load generator `linerate http load`.

use crate::pair::{Network, Pair, RATE, VALUES};
use linerate_benches::rounds::{Bound, Job, Plan, Required, Row};
use linerate_harness::Error;
use linerate_harness::address::{unused_address, wait_until_listening};
use linerate_harness::process::{Process, pinned, sibling};

const VIRTIO: &str = "`http serve` over virtio-user";
const KERNEL: &str = "`http serve` over loopback";
const TOKIO: &str = "hyper on tokio over loopback";
const CONNECTIONS: &str = "--connections 64";

/// Returns the comparison of both servers.
pub fn plan(pair: &Pair) -> Result<Plan<'_>, Error> {
    let http = sibling("http", "cargo build --release -p linerate-benches")?.to_string_lossy().into_owned();
    let linerate = |name: &'static str, network| {
        Job::new(name, move |_| Ok(vec![Row::new(&[name], &pair.run(network, "http", "", CONNECTIONS)?.values())]))
    };
    let tokio = move |_| {
        let address = unused_address();
        let mut server = pinned(pair.cores.server, &http);
        server.args(["tokio", "--listen", &address.to_string()]);
        // It has no orderly end.
        let _server = Process::start(server)?;
        wait_until_listening(address, "http")?;
        let loaded = pair.load(&format!("http load --connect {address} {CONNECTIONS}"))?;
        Ok(vec![Row::new(&[TOKIO], &loaded.values())])
    };
    let ratio = Required::new("requests/s over virtio-user, to tokio's", Bound::AtLeast(4.0), |round| {
        Some(round.value(&[VIRTIO], RATE)? / round.value(&[TOKIO], RATE)?)
    });
    Ok(Plan {
        heads: &["server"],
        values: VALUES,
        jobs: vec![linerate(VIRTIO, Network::Virtio), linerate(KERNEL, Network::Sleeping), Job::new(TOKIO, tokio)],
        required: vec![ratio],
        legend: "64 connections, one request in flight on each".to_owned(),
    })
}
