//! What is told of workers, in one table: Prometheus' page is made of it, what `linerate top` asks for, and the list in the
//! documentation.

use super::wire::Value;
use linerate_bypass::Verbs;
use linerate_bypass::inspect::Snapshot;
use std::collections::BTreeMap;
use std::fmt::Write;

/// What becomes of a metric's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// It only grows, until the program ends.
    Counter,
    /// It goes up and down.
    Gauge,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        }
    }
}

/// Where the values come from. `None` is left out: a transport does not have it.
enum Values {
    /// One of each worker.
    Each(fn(&Snapshot) -> Option<u64>),
    /// Several of each worker, told apart by this label.
    By(&'static str, fn(&Snapshot) -> Vec<(&'static str, u64)>),
    /// Whether the worker has answered.
    Up,
    /// 1, with the version as a label.
    Version,
}

struct Metric {
    name: &'static str,
    kind: Kind,
    /// One line, without `\` and line feeds.
    help: &'static str,
    values: Values,
}

const fn counter(name: &'static str, help: &'static str, value: fn(&Snapshot) -> Option<u64>) -> Metric {
    Metric { name, kind: Kind::Counter, help, values: Values::Each(value) }
}

const fn gauge(name: &'static str, help: &'static str, value: fn(&Snapshot) -> Option<u64>) -> Metric {
    Metric { name, kind: Kind::Gauge, help, values: Values::Each(value) }
}

/// What was asked of RDMA devices, where there is one.
fn verbs(told: &Snapshot) -> Option<&Verbs> {
    Some(&told.summary.verbs).filter(|verbs| **verbs != Verbs::default())
}

/// All of them.
const METRICS: &[Metric] = &[
    Metric {
        name: "linerate_build_info",
        kind: Kind::Gauge,
        help: "1, with the version of the program as a label.",
        values: Values::Version,
    },
    Metric {
        name: "linerate_worker_up",
        kind: Kind::Gauge,
        help: "1 if the worker answered within a second, else 0, and it has none of the values below.",
        values: Values::Up,
    },
    counter("linerate_turns_total", "Turns of the worker.", |told| Some(told.summary.turns)),
    counter(
        "linerate_busy_turns_total",
        "Turns with something to do: frames, messages of other threads, or events of connections.",
        |told| Some(told.summary.busy_turns),
    ),
    counter(
        "linerate_requests_total",
        "Requests that the service did (key-value: commands, and keys of memcached's clients) or the load had answered; others have none.",
        |told| told.requests,
    ),
    counter(
        "linerate_slow_requests_total",
        "Requests that held the worker for more than 10 ms, in which it served nobody else (key-value only).",
        |told| told.slow_requests,
    ),
    counter(
        "linerate_rx_bursts_total",
        "Turns in which frames (kernel: bytes or datagrams, RDMA: completions) came.",
        |told| Some(told.summary.bursts),
    ),
    counter("linerate_rx_frames_total", "Frames (kernel: reads, RDMA: messages) that were received.", |told| {
        Some(told.summary.rx_frames)
    }),
    counter("linerate_rx_bytes_total", "Bytes in them.", |told| Some(told.summary.rx_bytes)),
    counter("linerate_tx_frames_total", "Frames (kernel: writes, RDMA: messages) that were sent.", |told| {
        Some(told.summary.tx_frames)
    }),
    counter("linerate_tx_bytes_total", "Bytes in them.", |told| Some(told.summary.tx_bytes)),
    counter(
        "linerate_retransmitted_segments_total",
        "Segments with data that TCP of our own (--engine native) sent again.",
        |told| told.summary.retransmitted,
    ),
    counter(
        "linerate_rx_misdirected_frames_total",
        "Received frames that were passed on to the worker that owns their flow.",
        |told| Some(told.summary.misdirected),
    ),
    counter(
        "linerate_copied_bytes_total",
        "Payload bytes copied between the port's memory and the service's view of them, either way.",
        |told| Some(told.summary.copied_bytes),
    ),
    Metric {
        name: "linerate_drops_total",
        kind: Kind::Counter,
        help: "Frames, segments and datagrams dropped, by cause; a cause is there once it has been one.",
        values: Values::By("cause", |told| told.summary.drops.iter().map(|(cause, n)| (*cause, *n)).collect()),
    },
    counter(
        "linerate_tx_full_total",
        "Bursts of frames that the port did not take whole, since its transmit ring was full.",
        |told| told.shortages.map(|shortages| shortages.tx_full),
    ),
    counter("linerate_pool_empty_total", "Times that a packet was wanted and the port's pool was empty.", |told| {
        told.shortages.map(|shortages| shortages.pool_empty)
    }),
    counter("linerate_connections_accepted_total", "Connections that peers opened to us.", |told| {
        Some(told.summary.accepted)
    }),
    counter("linerate_connections_opened_total", "Connections that we opened.", |told| Some(told.summary.connected)),
    counter("linerate_connections_failed_total", "Connections that we could not open.", |told| {
        Some(told.summary.failed)
    }),
    counter("linerate_connections_finished_total", "Connections that ended with both sides closed.", |told| {
        Some(told.summary.finished)
    }),
    counter(
        "linerate_connections_broken_total",
        "Connections that ended by a reset, a time-out or an abort.",
        |told| Some(told.summary.broken),
    ),
    gauge("linerate_connections", "Connections at the moment, in whatever state.", |told| {
        Some(told.gauges.connections)
    }),
    gauge("linerate_connections_half_open", "Connections that peers have begun and not completed.", |told| {
        told.gauges.half_open
    }),
    gauge("linerate_connections_time_wait", "Connections in TIME-WAIT.", |told| told.gauges.time_wait),
    gauge(
        "linerate_packets_held",
        "Packets of the port that queues of connections hold: received and not consumed, or sent and not acknowledged.",
        |told| told.gauges.packets_held,
    ),
    gauge(
        "linerate_pool_free_packets",
        "Packets free in the pool that frames are received into. Workers that share a pool tell the same one: do not add them up.",
        |told| told.gauges.pool_left,
    ),
    gauge("linerate_pool_share_packets", "Packets that the worker may hold at a time.", |told| told.gauges.pool_share),
    gauge("linerate_tx_queued_frames", "Frames that wait for the port.", |told| told.gauges.tx_queued),
    counter("linerate_rdma_requests_total", "Requests posted to send queues.", |told| {
        verbs(told).map(|it| it.requests)
    }),
    counter("linerate_rdma_posts_total", "Calls that posted them.", |told| verbs(told).map(|it| it.posts)),
    counter("linerate_rdma_buffers_total", "Buffers posted for messages.", |told| verbs(told).map(|it| it.buffers)),
    counter("linerate_rdma_requests_completed_total", "Completions of requests that were polled.", |told| {
        verbs(told).map(|it| it.requests_completed)
    }),
    counter("linerate_rdma_buffers_completed_total", "Completions of buffers that were polled.", |told| {
        verbs(told).map(|it| it.buffers_completed)
    }),
];

/// The page that Prometheus reads: its text format, version 0.0.4. The place in `told` is the worker's number; `None` is one that did
/// not answer.
pub fn page(told: &[Option<Snapshot>]) -> String {
    let mut page = String::new();
    for Metric { name, kind, help, values } in METRICS {
        let mut lines = String::new();
        let mut line = |labels: &[(&str, &str)], value: u64| {
            lines.push_str(name);
            for (n, (label, text)) in labels.iter().enumerate() {
                lines.push(if n == 0 { '{' } else { ',' });
                let _ = write!(lines, "{label}=\"{}\"", escaped(text));
            }
            let _ = writeln!(lines, "}} {value}");
        };
        if let Values::Version = values {
            line(&[("version", env!("CARGO_PKG_VERSION"))], 1);
        }
        for (worker, told) in told.iter().enumerate() {
            let worker = worker.to_string();
            let worker = ("worker", worker.as_str());
            match (values, told) {
                (Values::Up, told) => line(&[worker], u64::from(told.is_some())),
                (Values::Each(value), Some(told)) => {
                    if let Some(value) = value(told) {
                        line(&[worker], value);
                    }
                }
                (Values::By(label, all), Some(told)) => {
                    all(told).into_iter().for_each(|(text, value)| line(&[worker, (*label, text)], value));
                }
                (Values::Version, _) | (_, None) => {}
            }
        }
        if !lines.is_empty() {
            let _ = write!(page, "# HELP {name} {help}\n# TYPE {name} {}\n{lines}", kind.name());
        }
    }
    page
}

/// What a worker has told, by the names of the metrics.
pub fn values(told: &Snapshot) -> BTreeMap<String, Value> {
    let value = |metric: &Metric| match metric.values {
        Values::Each(value) => value(told).map(Value::One),
        Values::By(_, all) => {
            Some(Value::Each(all(told).into_iter().map(|(text, value)| (text.to_owned(), value)).collect()))
        }
        // An answer says by itself that the worker is up, and of which version it is.
        Values::Up | Values::Version => None,
    };
    METRICS.iter().filter_map(|metric| Some((metric.name.to_owned(), value(metric)?))).collect()
}

/// The text of a label: `\`, `"` and line feeds are escaped, and nothing else.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests;
