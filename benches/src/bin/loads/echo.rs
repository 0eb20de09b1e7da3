//! Echo over virtio-user and over kernel sockets, and loads over virtio-user relative to each other.

use crate::pair::{Network, P50, P99, P999, Pair, RATE, VALUES};
use crate::testpmd;
use linerate_benches::rounds::{Bound, Job, Plan, Required, RoundRows, Row};
use linerate_harness::Error;

/// Networks of the comparison with the kernel: name, network, and options of both ends.
const NETWORKS: [(&str, Network, &str); 4] = [
    (NATIVE, Network::Virtio, "--engine native"),
    (SMOLTCP, Network::Virtio, "--engine smoltcp"),
    (SLEEPING, Network::Sleeping, ""),
    (SPINNING, Network::Spinning, ""),
];
const NATIVE: &str = "virtio-user to vhost, native";
const SMOLTCP: &str = "virtio-user to vhost, smoltcp";
const SLEEPING: &str = "kernel, sleeping";
const SPINNING: &str = "kernel, spinning";
const TESTPMD: &str = "testpmd, returned frames";

/// Measures frames that testpmd returns, as a row with this name and empty cells.
fn bounces<'a>(pair: &'a Pair, names: &'static [&'static str]) -> Option<Job<'a>> {
    if !testpmd::is_installed() {
        eprintln!("not measured: dpdk-testpmd is not installed: apt-get install dpdk-dev");
        return None;
    }
    let measure = move |_| {
        let rate = testpmd::bounces(pair.scratch.path(), pair.cores.server, pair.cores.load, pair.duration)?;
        Ok(vec![Row::new(names, &[rate, f64::NAN, f64::NAN, f64::NAN])])
    };
    Some(Job::new(TESTPMD, measure))
}

/// Returns the comparison of both engines with kernel sockets.
pub fn side_by_side(pair: &Pair) -> Plan<'_> {
    let mut jobs = Vec::new();
    for connections in ["64", "1"] {
        for (name, network, options) in NETWORKS {
            jobs.push(Job::new(format!("{name}, connections: {connections}"), move |_| {
                let load = format!("{options} --size 64 --connections {connections}");
                let loaded = pair.run(network, "echo", options, &load)?;
                Ok(vec![Row::new(&[name, connections], &loaded.values())])
            }));
        }
    }
    jobs.extend(bounces(pair, &[TESTPMD, ""]));
    let mut required = Vec::new();
    for (name, engine, rate, sleeping, spinning) in
        [(NATIVE, "native", 15.0, 10.0, 3.0), (SMOLTCP, "smoltcp", 5.0, 5.0, 2.0)]
    {
        let many = |round: &RoundRows, name| round.value(&[name, "64"], RATE);
        let kernel = move |round: &RoundRows| Some(many(round, SLEEPING)?.max(many(round, SPINNING)?));
        required.push(Required::new(
            format!("{engine}: requests/s of 64 connections, to the faster kernel baseline's"),
            Bound::AtLeast(rate),
            move |round| Some(many(round, name)? / kernel(round)?),
        ));
        for (baseline, which, least) in [(SLEEPING, "sleeping", sleeping), (SPINNING, "spinning", spinning)] {
            required.push(Required::new(
                format!("{engine}: RTT p50 of one connection: the {which} baseline's, to this"),
                Bound::AtLeast(least),
                move |round| Some(round.value(&[baseline, "1"], P50)? / round.value(&[name, "1"], P50)?),
            ));
        }
    }
    if testpmd::is_installed() {
        required.push(Required::new(
            "native: requests/s of 64 connections, to testpmd's bounces/s",
            Bound::AtLeast(1.0 / 3.0),
            |round| Some(round.value(&[NATIVE, "64"], RATE)? / round.value(&[TESTPMD, ""], RATE)?),
        ));
    }
    let legend = "64-byte echoes, one request in flight on each connection".to_owned();
    Plan { heads: &["network", "connections"], values: VALUES, jobs, required, legend }
}

/// Loads of [`links`]: name, network, service, and options of the server and of the load.
const LOADS: [(&str, Network, &str, &str, &str); 16] = [
    (MANY, Network::Virtio, "echo", "", "--connections 64"),
    (ONE, Network::Virtio, "echo", "", "--connections 1"),
    ("1 000 connections", Network::Virtio, "echo", "", "--connections 1000"),
    ("4 000 connections", Network::Virtio, "echo", "", "--connections 4000"),
    ("10 000 connections", Network::Virtio, "echo", "--max-packets 20000", "--connections 10000"),
    ("100 000 connections", Network::Virtio, "echo", "--max-packets 200000", "--connections 100000 --ports 2"),
    ("frames of an echo's size, one in flight", Network::Virtio, "raw", "", "--size 116"),
    ("memif, 64 connections", Network::Memif, "echo", "", "--connections 64"),
    ("memif, one connection", Network::Memif, "echo", "", "--connections 1"),
    ("UDP, 64 in flight", Network::Virtio, "echo", "", "--connections 64 --udp"),
    (
        "key-value service, 90 % GETs of 64 bytes",
        Network::Virtio,
        "kv",
        "--memory 96m",
        "--connections 64 --keys 100000 --value-size 64 --get-ratio 0.9",
    ),
    (KB_16, Network::Virtio, "echo", "", "--connections 16 --depth 4 --size 16384"),
    (KB_64, Network::Virtio, "echo", "", "--connections 16 --depth 4 --size 65536"),
    ("RoCEv2, 64 queue pairs", Network::Roce, "echo", "", "--connections 64"),
    ("RoCEv2, one queue pair", Network::Roce, "echo", "", "--connections 1"),
    (ROCE_KB_64, Network::Roce, "echo", "", "--connections 16 --depth 4 --size 65536"),
];
const MANY: &str = "64 connections";
const ONE: &str = "one connection";
const HALF: &str = "64 connections at half of their rate";
const KB_16: &str = "messages of 16 KB, 16 connections, 4 in flight";
const KB_64: &str = "messages of 64 KB, 16 connections, 4 in flight";
const ROCE_KB_64: &str = "RoCEv2, messages of 64 KB, 16 queue pairs, 4 in flight";

/// Returns loads over virtio-user and memif relative to each other, and to the capacity of the link.
pub fn links(pair: &Pair) -> Plan<'_> {
    let mut jobs: Vec<Job> = bounces(pair, &[TESTPMD]).into_iter().collect();
    jobs.extend(LOADS.map(|(name, network, service, serve, load)| {
        Job::new(name, move |_| Ok(vec![Row::new(&[name], &pair.run(network, service, serve, load)?.values())]))
    }));
    jobs.push(Job::new(HALF, |_| half_rate(pair)));
    let ratio = |of: &'static str, to: &'static str, value| {
        move |round: &RoundRows| Some(round.value(&[of], value)? / round.value(&[to], value)?)
    };
    let rate = |of: &'static str, to: &'static str, least| {
        Required::new(format!("requests/s: {of}, to {to}"), Bound::AtLeast(least), ratio(of, to, RATE))
    };
    let time = |of: &'static str, to: &'static str, most| {
        Required::new(format!("RTT p50: {of}, to {to}"), Bound::AtMost(most), ratio(of, to, P50))
    };
    let tail = |of: &'static str, percentile, value, most| {
        let ratio = move |round: &RoundRows| Some(round.value(&[of], value)? / round.value(&[of], P50)?);
        Required::new(format!("RTT {percentile} to p50: {of}"), Bound::AtMost(most), ratio)
    };
    let mut required = vec![
        rate("1 000 connections", MANY, 1.0),
        rate("4 000 connections", MANY, 0.9),
        rate("10 000 connections", MANY, 0.8),
        rate("100 000 connections", MANY, 0.5),
        tail("4 000 connections", "p99", P99, 2.0),
        tail(HALF, "p99.9", P999, 5.0),
        time(ONE, "frames of an echo's size, one in flight", 1.3),
        rate("memif, 64 connections", MANY, 1.2),
        time("memif, one connection", ONE, 1.2),
        rate("UDP, 64 in flight", MANY, 1.3),
        rate("key-value service, 90 % GETs of 64 bytes", MANY, 0.9),
        rate("RoCEv2, 64 queue pairs", MANY, 1.0),
        time("RoCEv2, one queue pair", ONE, 1.0),
        rate(ROCE_KB_64, KB_64, 0.8),
        Required::new("bytes/s: messages of 64 KB, to those of 16 KB", Bound::AtLeast(1.0), |round| {
            Some(4.0 * round.value(&[KB_64], RATE)? / round.value(&[KB_16], RATE)?)
        }),
    ];
    if testpmd::is_installed() {
        required.push(rate(MANY, TESTPMD, 0.5));
    }
    let legend = "echoes of 64 bytes over virtio-user with one in flight on each connection, unless stated otherwise";
    Plan { heads: &["load"], values: VALUES, jobs, required, legend: legend.to_owned() }
}

/// Measures round trips at half of the rate of 64 connections.
fn half_rate(pair: &Pair) -> Result<Vec<Row>, Error> {
    let run = |more: &str| pair.run(Network::Virtio, "echo", "", &format!("--connections 64 {more}"));
    let half = run("")?.values()[RATE] / 2.0;
    Ok(vec![Row::new(&[HALF], &run(&format!("--rate {half:.0}"))?.values())])
}
