//! Grafana dashboard: its queries match the metrics of the program.

use crate::common::{run, serve, start};
use linerate_harness::TIMEOUT;
use linerate_harness::address::unused_address;
use linerate_harness::program::Program;
use linerate_harness::rerun::is_installed;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn dashboard() -> Value {
    serde_json::from_slice(&fs::read(root().join("apps/packaging/examples/grafana.json")).unwrap()).unwrap()
}

fn panels(dashboard: &Value) -> &Vec<Value> {
    dashboard["panels"].as_array().unwrap()
}

/// Returns the queries of the panels with their titles.
fn queries(dashboard: &Value) -> Vec<(String, String)> {
    let targets = panels(dashboard).iter().flat_map(|panel| {
        let targets = panel["targets"].as_array().into_iter().flatten();
        targets.map(|target| (panel["title"].as_str().unwrap().to_owned(), target["expr"].as_str().unwrap().to_owned()))
    });
    targets.collect()
}

fn metrics(expression: &str) -> BTreeSet<String> {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let words = words.filter(|word| word.starts_with("linerate_"));
    // Buckets of a histogram.
    words.map(|word| word.trim_end_matches("_bucket").to_owned()).collect()
}

/// Returns the metrics listed in the documentation, which another test generates.
fn documented() -> BTreeSet<String> {
    let page = fs::read_to_string(root().join("docs/src/metrics.md")).unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    rows.map(|(name, _)| name.to_owned()).collect()
}

#[test]
fn dashboard_uses_exactly_the_documented_metrics() {
    let dashboard = dashboard();
    let named = queries(&dashboard).iter().flat_map(|(_, expression)| metrics(expression)).collect::<BTreeSet<_>>();
    assert_eq!(named, documented());
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        let query = variable["definition"].as_str().unwrap_or_default();
        assert!(metrics(query).is_subset(&documented()), "{query}");
    }
}

#[test]
fn dashboard_is_valid_and_panels_do_not_overlap() {
    let dashboard = dashboard();
    assert!(dashboard["schemaVersion"].as_u64() >= Some(30) && dashboard["uid"].is_string(), "{dashboard}");
    assert!(dashboard["title"].is_string() && dashboard["id"].is_null(), "{dashboard}");
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    let source = variables.iter().find(|variable| variable["type"] == "datasource").unwrap();
    assert_eq!((&source["name"], &source["query"]), (&"datasource".into(), &"prometheus".into()));
    let (mut ids, mut taken) = (BTreeSet::new(), BTreeSet::new());
    for panel in panels(&dashboard) {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{panel}");
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|side| panel["gridPos"][side].as_u64().unwrap());
        assert!(w > 0 && h > 0 && x + w <= 24, "{panel}");
        for cell in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            assert!(taken.insert(cell), "{panel}");
        }
        let targets = panel["targets"].as_array().map_or(&[][..], Vec::as_slice);
        assert_eq!(targets.is_empty(), panel["type"] == "row", "{panel}");
        let references: BTreeSet<_> = targets.iter().map(|target| target["refId"].as_str().unwrap()).collect();
        assert_eq!(references.len(), targets.len(), "{panel}");
        for source in targets.iter().map(|target| &target["datasource"]).chain(panel.get("datasource")) {
            assert_eq!(source["uid"], "${datasource}", "{panel}");
        }
    }
    // Every variable in an expression is defined, or one of Grafana's.
    let known: BTreeSet<_> = variables.iter().map(|variable| variable["name"].as_str().unwrap()).collect();
    for (title, expression) in queries(&dashboard) {
        let used = expression.split('$').skip(1).map(|rest| {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
            &rest[..end]
        });
        let unknown: Vec<_> = used.filter(|name| !name.starts_with("__") && !known.contains(name)).collect();
        assert!(unknown.is_empty(), "{title}: {unknown:?}");
    }
}

/// Sends an HTTP GET and returns the body of the response.
fn get(address: SocketAddr, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(TIMEOUT)).ok()?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    head.split(' ').nth(1).filter(|status| *status == "200").map(|_| body.to_owned())
}

/// Returns the series of a Prometheus query, or `None` if Prometheus rejects it.
fn query(prometheus: SocketAddr, expression: &str) -> Option<Vec<Value>> {
    let escaped: String = expression.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let answer: Value = serde_json::from_str(&get(prometheus, &format!("/api/v1/query?query={escaped}"))?).ok()?;
    answer["data"]["result"].as_array().cloned()
}

/// Returns the metrics address in the ready line of a server.
fn metrics_of(server: &Program) -> String {
    let (_, rest) = server.ready.split_once("metrics at http://").unwrap();
    rest.split('/').next().unwrap().to_owned()
}

#[test]
#[ignore = "starts Prometheus and takes some seconds: ./run test --all"]
fn prometheus_has_a_value_for_each_query() {
    if !is_installed("prometheus", &["--version"], "prometheus") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let link = directory.path().join("a.sock");
    let link = link.display();
    let kernel = serve("echo", "--via kernel --listen 127.0.0.1:0 --metrics 127.0.0.1:0");
    // The key-value service counts requests.
    let kv = serve("kv", "--via kernel --listen 127.0.0.1:0 --workers 2 --memory 64m --metrics 127.0.0.1:0");
    let mut servers = vec![metrics_of(&kernel), metrics_of(&kv)];
    let there = "--ip 10.9.0.2/24 --listen 10.9.0.2:7 --idle wait --metrics 127.0.0.1:0";
    let stack = cfg!(feature = "dpdk").then(|| serve("echo", &format!("--via vhost:{link} {there}")));
    servers.extend(stack.as_ref().map(metrics_of));
    if stack.is_some() {
        // Raw frames cause drops.
        let drops = run(&format!("raw load --via virtio-user:{link} --duration 500ms --json"));
        assert!(drops.status.code().is_some(), "{drops:?}");
    }

    let address = unused_address();
    let targets: Vec<String> = servers.iter().map(|server| format!("'{server}'")).collect();
    let config = format!(
        "global: {{scrape_interval: 1s}}\nscrape_configs:\n\
         - {{job_name: linerate, static_configs: [{{targets: [{}]}}]}}\n",
        targets.join(", ")
    );
    fs::write(directory.path().join("prometheus.yml"), config).unwrap();
    let mut prometheus = Command::new("prometheus");
    prometheus.current_dir(directory.path()).arg("--config.file=prometheus.yml").arg("--storage.tsdb.path=data");
    prometheus.arg(format!("--web.listen-address={address}"));
    let _prometheus = Program::start(prometheus);

    let to = kernel.address();
    let mut loads = vec![start(&format!("echo load --via kernel --connect {to} --duration 60s"))];
    if stack.is_some() {
        let here = "--ip 10.9.0.1/24 --connect 10.9.0.2:7 --idle wait --duration 60s";
        loads.push(start(&format!("echo load --via virtio-user:{link} {here}")));
    }

    let filled =
        |text: &str| text.replace("$__rate_interval", "10s").replace("$job", "linerate").replace("$instance", ".*");
    // Without an RDMA device, a shared interface and certificates, their queries are only checked for syntax.
    let (absent, mut waiting): (Vec<_>, Vec<_>) = queries(&dashboard())
        .into_iter()
        .partition(|(_, query)| ["_rdma_", "_passed_frames_", "_tls_"].iter().any(|part| query.contains(part)));
    if stack.is_none() {
        let of_ports =
            ["pool", "queued", "held", "full", "half_open", "time_wait", "drops", "retransmitted", "link_up"];
        waiting.retain(|(_, query)| !of_ports.iter().any(|part| query.contains(part)));
    }
    let end = Instant::now() + Duration::from_secs(50);
    while !waiting.is_empty() {
        assert!(Instant::now() < end, "no value for {waiting:#?}");
        waiting.retain(|(_, query)| self::query(address, &filled(query)).is_none_or(|series| series.is_empty()));
        thread::sleep(Duration::from_millis(300));
    }
    for (title, query) in absent {
        assert!(self::query(address, &filled(&query)).is_some(), "{title}: {query}");
    }
}
