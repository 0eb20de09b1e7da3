//! Table of worker metrics: source of the Prometheus page, of the counters for `linerate top`, and of the list in the
//! documentation.

use super::wire::Value;
use linerate_service::Verbs;
use linerate_service::inspect::Snapshot;
use std::collections::BTreeMap;
use std::fmt::{Display, Write};

/// Prometheus type of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MetricType {
    /// Monotonic until the program ends.
    Counter,
    /// Arbitrary level.
    Gauge,
    /// Cumulative counts by upper bound, and their sum.
    Histogram,
}

impl MetricType {
    fn name(self) -> &'static str {
        match self {
            MetricType::Counter => "counter",
            MetricType::Gauge => "gauge",
            MetricType::Histogram => "histogram",
        }
    }
}

/// Source of a metric's values. `None` omits the metric: the transport does not have it.
enum Values {
    /// One value per worker.
    Each(fn(&Snapshot) -> Option<u64>),
    /// Several values per worker, distinguished by this label.
    By(&'static str, fn(&Snapshot) -> Vec<(&str, u64)>),
    /// Values of the service with these names: cumulative counts by upper bound in seconds, and the sum in
    /// nanoseconds.
    Histogram(&'static str, &'static str),
    /// Set if the worker answered.
    Up,
    /// The value 1, with the version as a label.
    Version,
}

struct Metric {
    name: &'static str,
    kind: MetricType,
    /// Help text: one line without `\`.
    help: &'static str,
    values: Values,
}

const fn counter(name: &'static str, help: &'static str, value: fn(&Snapshot) -> Option<u64>) -> Metric {
    Metric { name, kind: MetricType::Counter, help, values: Values::Each(value) }
}

const fn gauge(name: &'static str, help: &'static str, value: fn(&Snapshot) -> Option<u64>) -> Metric {
    Metric { name, kind: MetricType::Gauge, help, values: Values::Each(value) }
}

/// Returns the only value `name` of the service.
fn service_value(snapshot: &Snapshot, name: &str) -> Option<u64> {
    snapshot.service.others.iter().find(|metric| metric.name == name).map(|metric| metric.value)
}

/// Returns the values `name` of the service, by part.
fn service_values(snapshot: &Snapshot, name: &str) -> Vec<(&'static str, u64)> {
    snapshot
        .service
        .others
        .iter()
        .filter(|metric| metric.name == name)
        .map(|metric| (metric.part, metric.value))
        .collect()
}

/// Returns the verbs counters, if an RDMA device is in use.
fn verbs(snapshot: &Snapshot) -> Option<&Verbs> {
    Some(&snapshot.summary.verbs).filter(|verbs| **verbs != Verbs::default())
}

const METRICS: &[Metric] = &[
    Metric {
        name: "linerate_build_info",
        kind: MetricType::Gauge,
        help: "Always 1, with the program version as a label.",
        values: Values::Version,
    },
    Metric {
        name: "linerate_worker_up",
        kind: MetricType::Gauge,
        help: "1 if the worker answered within one second, else 0. A worker that is down has no other metric.",
        values: Values::Up,
    },
    Metric {
        name: "linerate_link_up",
        kind: MetricType::Gauge,
        help: "1 if the link of the port is up, else 0, on worker 0. The label interface is the kernel interface or, \
               without one, the network in the form of --via.",
        values: Values::By("interface", |snapshot| {
            snapshot.link.iter().map(|link| (link.interface.as_str(), u64::from(link.is_up))).collect()
        }),
    },
    counter("linerate_turns_total", "Iterations of the worker loop.", |snapshot| Some(snapshot.summary.turns)),
    counter(
        "linerate_busy_turns_total",
        "Iterations with work: frames, messages from other threads, or connection events.",
        |snapshot| Some(snapshot.summary.busy_turns),
    ),
    counter("linerate_sleeps_total", "Sleeps of the worker.", |snapshot| Some(snapshot.summary.sleeps)),
    counter("linerate_wakeups_total", "Sleeps of the worker after which there was work.", |snapshot| {
        Some(snapshot.summary.wakeups)
    }),
    counter("linerate_cpu_microseconds_total", "Processor time of the worker's thread.", |snapshot| {
        Some(snapshot.summary.cpu_us)
    }),
    counter(
        "linerate_requests_total",
        "Requests completed by the service or the load generator. Key-value: commands, and keys of memcached clients. \
         Services other than key-value and HTTP do not count requests.",
        |snapshot| snapshot.service.requests,
    ),
    counter(
        "linerate_slow_requests_total",
        "Requests that blocked the worker for more than 10 ms (key-value only).",
        |snapshot| snapshot.service.slow_requests,
    ),
    Metric {
        name: "linerate_tls_handshakes_total",
        kind: MetricType::Counter,
        help: "TLS handshakes by result: full, resumed (with a ticket), failed, timed_out, displaced by newer \
               ones, or refused beyond the limit of their source.",
        values: Values::By("result", |snapshot| service_values(snapshot, "tls handshakes")),
    },
    Metric {
        name: "linerate_tls_alerts_sent_total",
        kind: MetricType::Counter,
        help: "Fatal TLS alerts sent, by their name in RFC 8446.",
        values: Values::By("alert", |snapshot| service_values(snapshot, "tls alerts sent")),
    },
    Metric {
        name: "linerate_tls_alerts_received_total",
        kind: MetricType::Counter,
        help: "Fatal TLS alerts received, by their name in RFC 8446.",
        values: Values::By("alert", |snapshot| service_values(snapshot, "tls alerts received")),
    },
    Metric {
        name: "linerate_tls_key_updates_total",
        kind: MetricType::Counter,
        help: "KeyUpdate messages of TLS, by direction: sent or received.",
        values: Values::By("direction", |snapshot| service_values(snapshot, "tls key updates")),
    },
    counter("linerate_tls_records_sent_total", "TLS records of application data sent.", |snapshot| {
        service_value(snapshot, "tls records")
    }),
    counter("linerate_tls_truncated_total", "TLS connections whose peer finished without close_notify.", |snapshot| {
        service_value(snapshot, "tls truncated")
    }),
    Metric {
        name: "linerate_kv_commands_total",
        kind: MetricType::Counter,
        help: "Commands of Redis clients by type, on the worker that executed them (key-value only).",
        values: Values::By("type", |snapshot| service_values(snapshot, "commands")),
    },
    counter("linerate_kv_hits_total", "Lookups of Redis clients that found a key (key-value only).", |snapshot| {
        service_value(snapshot, "hits")
    }),
    counter("linerate_kv_misses_total", "Lookups of Redis clients that found no key (key-value only).", |snapshot| {
        service_value(snapshot, "misses")
    }),
    gauge("linerate_kv_keys", "Keys in the shard of the worker, of all clients (key-value only).", |snapshot| {
        service_value(snapshot, "keys")
    }),
    counter("linerate_kv_expired_keys_total", "Keys removed because they expired (key-value only).", |snapshot| {
        service_value(snapshot, "expired")
    }),
    counter(
        "linerate_kv_evicted_keys_total",
        "Keys removed because the memory was full (key-value only).",
        |snapshot| service_value(snapshot, "evicted"),
    ),
    Metric {
        name: "linerate_kv_memory_bytes",
        kind: MetricType::Gauge,
        help: "Memory in use by the shard of the worker, by class (key-value only). Absent while another \
               worker has borrowed the shard.",
        values: Values::By("class", |snapshot| service_values(snapshot, "memory")),
    },
    counter(
        "linerate_kv_evicted_clients_total",
        "Clients disconnected because the memory of all clients exceeded its limit (key-value only).",
        |snapshot| service_value(snapshot, "evicted clients"),
    ),
    gauge("linerate_kv_client_memory_bytes", "Memory of the clients of the worker (key-value only).", |snapshot| {
        service_value(snapshot, "client memory")
    }),
    counter(
        "linerate_kv_remote_batches_total",
        "Batches of requests sent to the workers of their keys (key-value only).",
        |snapshot| service_value(snapshot, "remote batches"),
    ),
    counter("linerate_kv_remote_requests_total", "Requests in these batches (key-value only).", |snapshot| {
        service_value(snapshot, "remote requests")
    }),
    Metric {
        name: "linerate_kv_latency_seconds",
        kind: MetricType::Histogram,
        help: "Time from the burst with a request to its reply, on the worker of the connection, for the requests of \
               one burst in 16 (key-value only). Requests that wait for several shards are not included.",
        values: Values::Histogram("latency", "latency sum"),
    },
    counter(
        "linerate_rx_bursts_total",
        "Iterations that received frames (kernel: bytes or datagrams, RDMA: completions).",
        |snapshot| Some(snapshot.summary.bursts),
    ),
    counter("linerate_rx_frames_total", "Frames received (kernel: reads, RDMA: messages).", |snapshot| {
        Some(snapshot.summary.rx_frames)
    }),
    counter("linerate_rx_bytes_total", "Total bytes received.", |snapshot| Some(snapshot.summary.rx_bytes)),
    counter("linerate_tx_frames_total", "Frames sent (kernel: writes, RDMA: messages).", |snapshot| {
        Some(snapshot.summary.tx_frames)
    }),
    counter("linerate_tx_bytes_total", "Total bytes sent.", |snapshot| Some(snapshot.summary.tx_bytes)),
    counter(
        "linerate_retransmitted_segments_total",
        "Data segments retransmitted (--engine native only).",
        |snapshot| snapshot.summary.retransmitted,
    ),
    counter(
        "linerate_rx_misdirected_frames_total",
        "Received frames forwarded to the worker that owns the flow.",
        |snapshot| Some(snapshot.summary.misdirected),
    ),
    counter(
        "linerate_passed_frames_total",
        "Frames that an interface shared with the kernel (af_xdp:INTERFACE,share) passed to it, on worker 0.",
        |snapshot| snapshot.passed_frames,
    ),
    counter(
        "linerate_copied_bytes_total",
        "Payload bytes copied between port memory and the service, in either direction.",
        |snapshot| Some(snapshot.summary.copied_bytes),
    ),
    Metric {
        name: "linerate_drops_total",
        kind: MetricType::Counter,
        help: "Frames, segments and datagrams dropped, by cause. A cause appears with its first drop.",
        values: Values::By("cause", |snapshot| snapshot.summary.drops.iter().map(|(cause, n)| (*cause, *n)).collect()),
    },
    counter(
        "linerate_tx_full_total",
        "Transmit bursts that the port accepted only in part because its ring was full.",
        |snapshot| snapshot.shortages.map(|shortages| shortages.tx_full),
    ),
    counter(
        "linerate_pool_empty_total",
        "Packet allocations that failed because the pool of the port was empty.",
        |snapshot| snapshot.shortages.map(|shortages| shortages.pool_empty),
    ),
    counter("linerate_connections_accepted_total", "Connections opened by peers.", |snapshot| {
        Some(snapshot.summary.accepted)
    }),
    counter("linerate_connections_opened_total", "Connections opened locally.", |snapshot| {
        Some(snapshot.summary.connected)
    }),
    counter("linerate_connections_failed_total", "Local connection attempts that failed.", |snapshot| {
        Some(snapshot.summary.failed)
    }),
    counter("linerate_connections_finished_total", "Connections closed by both sides.", |snapshot| {
        Some(snapshot.summary.finished)
    }),
    counter("linerate_connections_broken_total", "Connections ended by a reset, a timeout or an abort.", |snapshot| {
        Some(snapshot.summary.broken)
    }),
    gauge("linerate_connections", "Current connections in any state.", |snapshot| Some(snapshot.gauges.connections)),
    gauge("linerate_connections_half_open", "Connections whose handshake a peer has not completed.", |snapshot| {
        snapshot.gauges.half_open
    }),
    gauge("linerate_connections_time_wait", "Connections in TIME-WAIT.", |snapshot| snapshot.gauges.time_wait),
    gauge(
        "linerate_packets_held",
        "Packets of the port in connection queues: received but not consumed, or sent but not acknowledged.",
        |snapshot| snapshot.gauges.packets_held,
    ),
    gauge(
        "linerate_pool_free_packets",
        "Free packets in the receive pool. Workers that share a pool report the same value: do not sum.",
        |snapshot| snapshot.gauges.pool_left,
    ),
    gauge("linerate_pool_share_packets", "Maximum number of packets held by the worker.", |snapshot| {
        snapshot.gauges.pool_share
    }),
    gauge("linerate_tx_queued_frames", "Frames queued for transmission.", |snapshot| snapshot.gauges.tx_queued),
    counter("linerate_rdma_requests_total", "Work requests posted to send queues.", |snapshot| {
        verbs(snapshot).map(|verbs| verbs.requests)
    }),
    counter("linerate_rdma_posts_total", "Post calls for send work requests.", |snapshot| {
        verbs(snapshot).map(|verbs| verbs.posts)
    }),
    counter("linerate_rdma_buffers_total", "Receive buffers posted.", |snapshot| {
        verbs(snapshot).map(|verbs| verbs.buffers)
    }),
    counter("linerate_rdma_requests_completed_total", "Completions polled for send work requests.", |snapshot| {
        verbs(snapshot).map(|verbs| verbs.requests_completed)
    }),
    counter("linerate_rdma_buffers_completed_total", "Completions polled for receive buffers.", |snapshot| {
        verbs(snapshot).map(|verbs| verbs.buffers_completed)
    }),
    counter(
        "linerate_rdma_credit_stalls_total",
        "Flushes that left data behind: the peer had no free buffer.",
        |snapshot| verbs(snapshot).map(|verbs| verbs.credit_stalls),
    ),
    counter(
        "linerate_rdma_queue_stalls_total",
        "Flushes that left data behind: the send queue was full.",
        |snapshot| verbs(snapshot).map(|verbs| verbs.queue_stalls),
    ),
    Metric {
        name: "linerate_rdma_errors_total",
        kind: MetricType::Counter,
        help: "Completions with an error, by status of ibv_poll_cq. A status appears with its first error.",
        values: Values::By("status", |snapshot| {
            snapshot.summary.verbs_errors.iter().map(|(status, n)| (*status, *n)).collect()
        }),
    },
    Metric {
        name: "linerate_rdma_congestion_total",
        kind: MetricType::Counter,
        help: "Packets that routers marked, and notifications of them, by kind (--via roce, --ecn). A kind \
               appears with its first packet.",
        values: Values::By("kind", |snapshot| {
            snapshot.summary.congestion.iter().map(|(kind, n)| (*kind, *n)).collect()
        }),
    },
];

/// Formats the Prometheus page, in text format version 0.0.4. The index in `snapshots` is the worker number; `None` is
/// a worker that did not answer.
pub fn page(snapshots: &[Option<Snapshot>]) -> String {
    let mut page = String::new();
    for Metric { name, kind, help, values } in METRICS {
        let mut lines = String::new();
        let mut line = |suffix: &str, labels: &[(&str, &str)], value: &dyn Display| {
            lines.push_str(name);
            lines.push_str(suffix);
            for (n, (label, text)) in labels.iter().enumerate() {
                lines.push(if n == 0 { '{' } else { ',' });
                let _ = write!(lines, "{label}=\"{}\"", escaped(text));
            }
            let _ = writeln!(lines, "}} {value}");
        };
        if let Values::Version = values {
            line("", &[("version", env!("CARGO_PKG_VERSION"))], &1);
        }
        for (worker, snapshot) in snapshots.iter().enumerate() {
            let worker = worker.to_string();
            let worker = ("worker", worker.as_str());
            match (values, snapshot) {
                (Values::Up, snapshot) => line("", &[worker], &u64::from(snapshot.is_some())),
                (Values::Each(value), Some(snapshot)) => {
                    if let Some(value) = value(snapshot) {
                        line("", &[worker], &value);
                    }
                }
                (Values::By(label, all), Some(snapshot)) => {
                    all(snapshot).into_iter().for_each(|(text, value)| line("", &[worker, (*label, text)], &value));
                }
                (Values::Histogram(buckets, sum), Some(snapshot)) => {
                    let buckets = service_values(snapshot, buckets);
                    buckets.iter().for_each(|(bound, count)| line("_bucket", &[worker, ("le", bound)], count));
                    if let (Some((_, count)), Some(nanos)) = (buckets.last(), service_value(snapshot, sum)) {
                        line("_sum", &[worker], &(nanos as f64 / 1e9));
                        line("_count", &[worker], count);
                    }
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

/// Returns the values of a worker by metric name.
pub fn values(snapshot: &Snapshot) -> BTreeMap<String, Value> {
    let value = |metric: &Metric| match metric.values {
        Values::Each(value) => value(snapshot).map(Value::One),
        Values::By(_, all) => {
            Some(Value::Each(all(snapshot).into_iter().map(|(text, value)| (text.to_owned(), value)).collect()))
        }
        // The state and the version are implied by the reply.
        Values::Up | Values::Version | Values::Histogram(..) => None,
    };
    METRICS.iter().filter_map(|metric| Some((metric.name.to_owned(), value(metric)?))).collect()
}

/// Escapes a label value: `\`, `"` and line feeds (Prometheus text format).
pub(super) fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests;
