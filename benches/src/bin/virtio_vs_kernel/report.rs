//! Printed report.

use comfy_table::{CellAlignment, Table, presets};
use linerate_benches::echo_pair::{Measured, Network, StackEngine};
use linerate_benches::requirements::ratios::{self, AtDistance, Ratio};
use serde::Serialize;
use std::fmt;

/// Results of one run.
#[derive(Serialize)]
pub struct Report {
    pub rounds: u32,
    pub seconds: u32,
    pub size: u32,
    /// Results by distance, nearest first.
    pub distances: Vec<Distance>,
    pub ratios: Vec<Ratio>,
}

/// Results with the cores at one distance.
#[derive(Serialize)]
pub struct Distance {
    /// Median transfer time of a cache line between the two cores, before and after, in nanoseconds.
    pub transfer_ns: f64,
    pub results: Vec<Row>,
    /// Frames per second that returned from one `dpdk-testpmd` to the other.
    pub bounces: Option<f64>,
    pub sockperf: Option<Sockperf>,
}

impl AtDistance for Distance {
    fn transfer_ns(&self) -> f64 {
        self.transfer_ns
    }
}

impl Distance {
    /// Returns the result of this number of connections over `network`.
    pub fn row(&self, network: Network, connections: u32) -> Option<&Row> {
        self.results.iter().find(|row| row.network == network && row.connections == connections)
    }
}

/// Result of one load over one network.
#[derive(Serialize)]
pub struct Row {
    #[serde(serialize_with = "name")]
    network: Network,
    engine: Option<&'static str>,
    connections: u32,
    #[serde(flatten)]
    pub measured: Measured,
}

/// Result of sockperf over one connection.
#[derive(Serialize)]
pub struct Sockperf {
    pub rate: f64,
    pub rtt_p50_us: f64,
}

impl Row {
    pub fn new(network: Network, connections: u32, measured: Measured) -> Self {
        Row { network, engine: network.engine().map(StackEngine::value), connections, measured }
    }
}

fn name<S: serde::Serializer>(network: &Network, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(match network {
        Network::Virtio(_) => "virtio",
        Network::Sleeping => "sleeping",
        Network::Spinning => "spinning",
    })
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN);
        let columns = ["network", "connections", "line ns", "requests/s", "RTT p50 µs", "p99 µs", "p99.9 µs", "errors"];
        table.set_header(columns);
        for Distance { transfer_ns, results, bounces, sockperf } in &self.distances {
            let line = format!("{transfer_ns:.0}");
            for Row { network, connections, measured: Measured { rate, errors, rtt_us }, .. } in results {
                table.add_row([
                    network.name(),
                    connections.to_string(),
                    line.clone(),
                    format!("{rate:.0}"),
                    format!("{:.1}", rtt_us.p50),
                    format!("{:.1}", rtt_us.p99),
                    format!("{:.1}", rtt_us.p999),
                    errors.to_string(),
                ]);
            }
            if let Some(rate) = bounces {
                let rate = format!("{rate:.0}");
                table.add_row(["testpmd, returned frames", "", &*line, &*rate, "", "", "", ""]);
            }
            if let Some(Sockperf { rate, rtt_p50_us }) = sockperf {
                let (rate, rtt) = (format!("{rate:.0}"), format!("{rtt_p50_us:.1}"));
                table.add_row(["sockperf, sleeping", "1", &*line, &*rate, &*rtt, "", "", ""]);
            }
        }
        table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
        writeln!(f, "{table}\n")?;

        write!(
            f,
            "{}\n\nline: transfer time of a cache line between the cores, before and after; only figures of the same \
             distance are compared",
            ratios::table(&self.ratios)
        )
    }
}
