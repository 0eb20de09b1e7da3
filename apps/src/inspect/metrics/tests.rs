use super::*;
use linerate_service::inspect::{Gauges, Link, ServiceMetric, Shortages};
use std::collections::HashSet;

fn snapshot(worker: usize) -> Snapshot {
    let mut snapshot = Snapshot { worker, ..Snapshot::default() };
    (snapshot.summary.rx_frames, snapshot.gauges.connections) = (10 + worker as u64, 3);
    snapshot.summary.drop_for("bad \"sum\" \\ and\nmore", 7);
    snapshot
}

#[test]
fn metric_has_one_line_per_worker() {
    let page = page(&[Some(snapshot(0)), Some(snapshot(1))]);
    let part = "# HELP linerate_rx_frames_total Frames received (kernel: reads, RDMA: messages).\n\
                # TYPE linerate_rx_frames_total counter\n\
                linerate_rx_frames_total{worker=\"0\"} 10\n\
                linerate_rx_frames_total{worker=\"1\"} 11\n";
    assert!(page.contains(part), "{page}");
    assert!(page.contains("# TYPE linerate_connections gauge\nlinerate_connections{worker=\"0\"} 3\n"), "{page}");
    assert!(page.ends_with('\n') && !page.contains("\n\n"));
}

#[test]
fn label_values_are_escaped() {
    let page = page(&[Some(snapshot(0))]);
    let line = r#"linerate_drops_total{worker="0",cause="bad \"sum\" \\ and\nmore"} 7"#;
    assert!(page.lines().any(|actual| actual == line), "{page}");
}

#[test]
fn absent_metrics_have_no_lines() {
    let mut with = snapshot(0);
    let without = page(&[Some(with.clone())]);
    for name in [
        "linerate_passed_frames_total",
        "linerate_link_up",
        "linerate_tx_full_total",
        "linerate_connections_half_open",
        "linerate_rdma_posts_total",
    ] {
        assert!(!without.contains(name), "{without}");
    }
    with.shortages = Some(Shortages { tx_full: 1, pool_empty: 2 });
    with.passed_frames = Some(9);
    with.link = Some(Link { interface: "eth0".to_owned(), is_up: false });
    with.gauges = Gauges { half_open: Some(0), ..with.gauges };
    with.summary.verbs.posts = 5;
    let with = page(&[Some(with)]);
    for line in [
        "linerate_passed_frames_total{worker=\"0\"} 9",
        "linerate_link_up{worker=\"0\",interface=\"eth0\"} 0",
        "linerate_tx_full_total{worker=\"0\"} 1",
        "linerate_connections_half_open{worker=\"0\"} 0",
        "linerate_rdma_posts_total{worker=\"0\"} 5",
    ] {
        assert!(with.lines().any(|actual| actual == line), "{with}");
    }
}

#[test]
fn values_match_the_page() {
    let mut snapshot = snapshot(0);
    snapshot.service.requests = Some(5);
    let (values, page) = (values(&snapshot), page(&[Some(snapshot)]));
    let mut lines = 0;
    for (name, value) in &values {
        match value {
            Value::One(value) => {
                lines += 1;
                assert!(page.contains(&format!("\n{name}{{worker=\"0\"}} {value}\n")), "{name}: {page}");
            }
            Value::Each(each) => lines += each.len(),
        }
    }
    // The page also has the version and the state of the worker.
    assert_eq!(page.lines().filter(|line| !line.starts_with('#')).count(), lines + 2);
    assert_eq!(values["linerate_requests_total"], Value::One(5));
    assert!(matches!(&values["linerate_drops_total"], Value::Each(causes) if causes.values().eq([&7])));
    assert!(!values.contains_key("linerate_pool_free_packets"));
}

#[test]
fn histogram_has_buckets_sum_and_count() {
    let mut snapshot = snapshot(3);
    let metric = |name, part, value| ServiceMetric { name, part, value };
    snapshot.service.others =
        vec![metric("latency", "1e-06", 2), metric("latency", "+Inf", 5), metric("latency sum", "", 1_500_000_000)];
    let page = page(&[Some(snapshot)]);
    let part = "# TYPE linerate_kv_latency_seconds histogram\n\
                linerate_kv_latency_seconds_bucket{worker=\"0\",le=\"1e-06\"} 2\n\
                linerate_kv_latency_seconds_bucket{worker=\"0\",le=\"+Inf\"} 5\n\
                linerate_kv_latency_seconds_sum{worker=\"0\"} 1.5\n\
                linerate_kv_latency_seconds_count{worker=\"0\"} 5\n# HELP";
    assert!(page.contains(part), "{page}");
}

#[test]
fn silent_worker_is_down() {
    let page = page(&[None, Some(snapshot(1))]);
    assert!(page.contains("linerate_worker_up{worker=\"0\"} 0\nlinerate_worker_up{worker=\"1\"} 1\n"), "{page}");
    assert!(!page.contains("linerate_turns_total{worker=\"0\"}"), "{page}");
}

#[test]
fn names_follow_prometheus_conventions() {
    let mut seen = HashSet::new();
    for Metric { name, kind, help, .. } in METRICS {
        assert!(seen.insert(name), "{name} is duplicated");
        assert!(name.starts_with("linerate_") && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{name}");
        assert_eq!(name.ends_with("_total"), *kind == MetricType::Counter, "{name}");
        assert!(help.ends_with('.') && !help.contains(['\n', '\\', '|']), "{name}: {help}");
    }
}

/// Marker in the documentation. The generated table follows it.
const MARK: &str =
    "<!-- Written by a test of linerate-apps from the table in the program; see the message of that test. -->\n";

#[test]
fn documentation_lists_every_metric() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/src/metrics.md");
    let page = std::fs::read_to_string(path).unwrap();
    let (prose, table) = page.split_once(MARK).expect("marker in metrics.md");
    let mut expected = String::from("\n| metric | type | labels | description |\n|---|---|---|---|\n");
    for Metric { name, kind, help, values } in METRICS {
        let labels = match values {
            Values::Each(_) | Values::Up => "`worker`".to_owned(),
            Values::By(label, _) => format!("`worker`, `{label}`"),
            Values::Histogram(..) => "`worker`, `le`".to_owned(),
            Values::Version => "`version`".to_owned(),
        };
        expected += &format!("| `{name}` | {} | {labels} | {help} |\n", kind.name());
    }
    if std::env::var_os("LINERATE_WRITE_DOCS").is_some() {
        std::fs::write(path, format!("{prose}{MARK}{expected}")).unwrap();
        return;
    }
    assert_eq!(table, expected, "docs/src/metrics.md is out of date: run this test with LINERATE_WRITE_DOCS=1");
}
