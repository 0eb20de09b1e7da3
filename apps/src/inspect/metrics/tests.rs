use super::*;
use linerate_bypass::inspect::{Gauges, Shortages};
use std::collections::HashSet;

fn told(worker: usize) -> Snapshot {
    let mut told = Snapshot { worker, ..Snapshot::default() };
    (told.summary.rx_frames, told.gauges.connections) = (10 + worker as u64, 3);
    told.summary.drop_for("bad \"sum\" \\ and\nmore", 7);
    told
}

#[test]
fn each_worker_has_a_line_under_its_metric() {
    let page = page(&[Some(told(0)), Some(told(1))]);
    let part = "# HELP linerate_rx_frames_total Frames (kernel: reads, RDMA: messages) that were received.\n\
                # TYPE linerate_rx_frames_total counter\n\
                linerate_rx_frames_total{worker=\"0\"} 10\n\
                linerate_rx_frames_total{worker=\"1\"} 11\n";
    assert!(page.contains(part), "{page}");
    assert!(page.contains("# TYPE linerate_connections gauge\nlinerate_connections{worker=\"0\"} 3\n"), "{page}");
    assert!(page.ends_with('\n') && !page.contains("\n\n"));
}

#[test]
fn labels_are_escaped_as_the_format_says() {
    let page = page(&[Some(told(0))]);
    let line = r#"linerate_drops_total{worker="0",cause="bad \"sum\" \\ and\nmore"} 7"#;
    assert!(page.lines().any(|told| told == line), "{page}");
}

#[test]
fn what_there_is_not_has_neither_a_line_nor_a_head() {
    let mut with = told(0);
    let without = page(&[Some(with.clone())]);
    for name in ["linerate_tx_full_total", "linerate_connections_half_open", "linerate_rdma_posts_total"] {
        assert!(!without.contains(name), "{without}");
    }
    with.shortages = Some(Shortages { tx_full: 1, pool_empty: 2 });
    with.gauges = Gauges { half_open: Some(0), ..with.gauges };
    with.summary.verbs.posts = 5;
    let with = page(&[Some(with)]);
    for line in [
        "linerate_tx_full_total{worker=\"0\"} 1",
        "linerate_connections_half_open{worker=\"0\"} 0",
        "linerate_rdma_posts_total{worker=\"0\"} 5",
    ] {
        assert!(with.lines().any(|told| told == line), "{with}");
    }
}

#[test]
fn what_is_told_to_others_are_the_values_of_the_page_by_their_names() {
    let mut told = told(0);
    told.requests = Some(5);
    let (values, page) = (values(&told), page(&[Some(told)]));
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
    // Beside them the page has the version, and that the worker is up.
    assert_eq!(page.lines().filter(|line| !line.starts_with('#')).count(), lines + 2);
    assert_eq!(values["linerate_requests_total"], Value::One(5));
    assert!(matches!(&values["linerate_drops_total"], Value::Each(causes) if causes.values().eq([&7])));
    assert!(!values.contains_key("linerate_pool_free_packets"));
}

#[test]
fn a_worker_that_does_not_answer_is_down() {
    let page = page(&[None, Some(told(1))]);
    assert!(page.contains("linerate_worker_up{worker=\"0\"} 0\nlinerate_worker_up{worker=\"1\"} 1\n"), "{page}");
    assert!(!page.contains("linerate_turns_total{worker=\"0\"}"), "{page}");
}

#[test]
fn names_are_as_prometheus_would_have_them() {
    let mut seen = HashSet::new();
    for Metric { name, kind, help, .. } in METRICS {
        assert!(seen.insert(name), "{name} is there twice");
        assert!(name.starts_with("linerate_") && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{name}");
        assert_eq!(name.ends_with("_total"), *kind == Kind::Counter, "{name}");
        assert!(help.ends_with('.') && !help.contains(['\n', '\\', '|']), "{name}: {help}");
    }
}

/// What the documentation has of the table: all behind this line.
const MARK: &str =
    "<!-- Written by a test of linerate-apps from the table in the program; see the message of that test. -->\n";

#[test]
fn the_documentation_has_every_metric() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/src/metrics.md");
    let page = std::fs::read_to_string(path).unwrap();
    let (prose, table) = page.split_once(MARK).expect("the mark in metrics.md");
    let mut expected = String::from("\n| metric | type | labels | what it is |\n|---|---|---|---|\n");
    for Metric { name, kind, help, values } in METRICS {
        let labels = match values {
            Values::Each(_) | Values::Up => "`worker`".to_owned(),
            Values::By(label, _) => format!("`worker`, `{label}`"),
            Values::Version => "`version`".to_owned(),
        };
        expected += &format!("| `{name}` | {} | {labels} | {help} |\n", kind.name());
    }
    if std::env::var_os("LINERATE_WRITE_DOCS").is_some() {
        std::fs::write(path, format!("{prose}{MARK}{expected}")).unwrap();
        return;
    }
    assert_eq!(table, expected, "docs/src/metrics.md is not the table: run this test with LINERATE_WRITE_DOCS=1");
}
