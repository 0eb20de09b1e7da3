//! What is printed.

use crate::ratios::Ratio;
use comfy_table::{CellAlignment, Table, presets};
use linerate_benches::echo_pair::{Measured, Network};
use serde::Serialize;
use std::fmt;

/// Everything about one run.
#[derive(Serialize)]
pub struct Report {
    pub rounds: u32,
    pub seconds: u32,
    pub size: u32,
    pub results: Vec<Row>,
    pub testpmd: Option<Bounces>,
    pub sockperf: Option<Sockperf>,
    pub ratios: Vec<Ratio>,
}

/// What one load measured over one network.
#[derive(Serialize)]
pub struct Row {
    #[serde(serialize_with = "name")]
    network: Network,
    engine: Option<&'static str>,
    connections: u32,
    /// Nanoseconds that a cache line took from one of the two cores to the other, before and after.
    pub transfer_ns: f64,
    #[serde(flatten)]
    pub measured: Measured,
}

/// What two `dpdk-testpmd` did.
#[derive(Serialize)]
pub struct Bounces {
    /// As that of the other rows.
    pub transfer_ns: f64,
    /// Frames that came back in a second.
    pub rate: f64,
}

/// What sockperf measured over one connection.
#[derive(Serialize)]
pub struct Sockperf {
    /// As that of the other rows.
    pub transfer_ns: f64,
    pub rate: f64,
    pub rtt_p50_us: f64,
}

impl Row {
    pub fn new(network: Network, connections: u32, transfer_ns: f64, measured: Measured) -> Self {
        Row { network, engine: network.engine().and_then(|engine| engine.value()), connections, transfer_ns, measured }
    }

    pub fn is_of(&self, network: Network, connections: u32) -> bool {
        self.network == network && self.connections == connections
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
        for Row { network, connections, transfer_ns, measured: Measured { rate, errors, rtt_us }, .. } in &self.results
        {
            table.add_row([
                network.name(),
                connections.to_string(),
                format!("{transfer_ns:.0}"),
                format!("{rate:.0}"),
                format!("{:.1}", rtt_us.p50),
                format!("{:.1}", rtt_us.p99),
                format!("{:.1}", rtt_us.p999),
                errors.to_string(),
            ]);
        }
        if let Some(Bounces { transfer_ns, rate }) = &self.testpmd {
            let (line, rate) = (format!("{transfer_ns:.0}"), format!("{rate:.0}"));
            table.add_row(["testpmd, frames that came back", "", &*line, &*rate, "", "", "", ""]);
        }
        if let Some(Sockperf { transfer_ns, rate, rtt_p50_us }) = &self.sockperf {
            let (line, rate, rtt) = (format!("{transfer_ns:.0}"), format!("{rate:.0}"), format!("{rtt_p50_us:.1}"));
            table.add_row(["sockperf, sleeping", "1", &*line, &*rate, &*rtt, "", "", ""]);
        }
        table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
        writeln!(f, "{table}\n")?;

        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN);
        table.set_header(["comparison", "ratio", "required", ""]);
        for Ratio { engine, what, ratio, required, met, comparable } in &self.ratios {
            let what = engine.map(|engine| format!("{engine}: ")).unwrap_or_default() + what;
            let verdict = match (comparable, met) {
                (false, _) => "the cores moved",
                (true, true) => "met",
                (true, false) => "not met",
            };
            table.add_row([what, format!("{ratio:.2}"), format!("{required:.2}"), verdict.to_owned()]);
        }
        write!(
            f,
            "{table}\n\nline: what a cache line took from one core to the other, before and after; if it took longer for \
             one of the figures of a ratio, they are not compared"
        )
    }
}
