//! Printed report.

use crate::args::{EchoBy, EngineName, Flows, Mode};
use comfy_table::Table;
use linerate_benches::client::Agreed;
use linerate_benches::client::echo::Acks;
use linerate_benches::client::messages::Segments;
use linerate_benches::engine::Cost;
use linerate_benches::engine::idle::Idle;
use linerate_benches::report::table;
use serde::{Serialize, Serializer};
use std::fmt;

/// Results of one run.
#[derive(Serialize)]
pub struct Report {
    pub engine: EngineName,
    pub mode: Mode,
    pub size: usize,
    pub software_checksum: bool,
    pub segmentation: bool,
    pub acks: Option<Acks>,
    pub service: EchoBy,
    pub agreed: Option<Agreed>,
    pub rounds: u32,
    pub points: Vec<Point>,
    pub idle: Option<Idle>,
}

/// Cost of an operation at one number of connections.
#[derive(Serialize)]
pub struct Point {
    flows: usize,
    #[serde(flatten)]
    cost: Cost,
    /// Ratio to the cost at the first point.
    ratio: f64,
    /// Maximum ratio.
    limit: Option<f64>,
    per_operation: Option<PerOperation>,
}

/// Frames or segments that the server received and sent per operation, by name.
#[derive(Debug, Clone)]
pub struct PerOperation(Vec<(&'static str, f64)>);

impl PerOperation {
    /// Returns the frames that the server received and sent during the measurement of `cost`.
    pub fn frames([received, sent]: [u64; 2], cost: Cost) -> Self {
        let each = |n: u64| n as f64 / cost.operations as f64;
        PerOperation(vec![("frames in", each(received)), ("frames out", each(sent))])
    }

    /// Returns the handshakes that have failed during the measurement of `cost`.
    pub fn failed(failed: u64, cost: Cost) -> Self {
        PerOperation(vec![("failed handshakes per 1000", 1e3 * failed as f64 / cost.operations as f64)])
    }

    /// Returns the segments from the client's counters before and after the measurement.
    pub fn segments(before: Segments, after: Segments, copied_bytes: u64, cost: Cost) -> Self {
        let each = |n: u64| n as f64 / cost.operations as f64;
        let received = each(after.data_sent - before.data_sent);
        let sent = each(after.data_received - before.data_received);
        PerOperation(vec![
            ("data segments in", received),
            ("data segments out", sent),
            ("ACKs in", each(after.acks_sent - before.acks_sent)),
            ("ACKs out", each(after.acks_received - before.acks_received)),
            ("bytes copied", each(copied_bytes)),
            ("ns per data segment", cost.ns / (received + sent)),
        ])
    }
}

impl Serialize for PerOperation {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().copied())
    }
}

impl Point {
    /// Returns the cost of an operation at `flows`; `first` is the cost at the first number of connections.
    pub fn new(flows: Flows, cost: Cost, first: f64) -> Self {
        Point { flows: flows.flows, cost, ratio: cost.ns / first, limit: flows.limit, per_operation: None }
    }

    pub fn with(self, per_operation: PerOperation) -> Self {
        Point { per_operation: Some(per_operation), ..self }
    }
}

impl Report {
    /// Returns a message for each exceeded limit.
    pub fn excesses(&self) -> Vec<String> {
        let excess = |point: &Point| {
            let limit = point.limit.filter(|limit| point.ratio > *limit)?;
            let (flows, first, ratio) = (point.flows, self.points[0].flows, point.ratio);
            Some(format!("{flows} connections cost {ratio:.2} times as much as {first} per echo: limit {limit}"))
        };
        self.points.iter().filter_map(excess).collect()
    }

    fn operation(&self) -> &'static str {
        match self.mode {
            Mode::Echo | Mode::Load | Mode::Tls | Mode::Roce | Mode::Idle => "echo",
            Mode::Connect => "connection",
            Mode::Stream => "message",
            Mode::Datagram => "datagram",
        }
    }

    fn costs(&self) -> Table {
        let mut heads = vec!["#connections".to_owned(), format!("#ns per {}", self.operation())];
        heads.extend(["#fastest round", "#ratio to the first"].map(str::to_owned));
        heads.extend(self.points[0].per_operation.iter().flat_map(|per| &per.0).map(|(name, _)| format!("#{name}")));
        let mut table = table(&heads);
        for Point { flows, cost, ratio, per_operation, .. } in &self.points {
            let mut row = vec![flows.to_string(), format!("{:.0}", cost.ns), format!("{:.0}", cost.best_ns)];
            row.push(format!("{ratio:.2}"));
            row.extend(per_operation.iter().flat_map(|per| &per.0).map(|(_, value)| format!("{value:.1}")));
            table.add_row(row);
        }
        table
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut settings = vec![format!("{:?}", self.engine).to_lowercase(), format!("{} bytes", self.size)];
        settings.push(if self.software_checksum { "checksums in software" } else { "checksums offloaded" }.to_owned());
        if self.mode == Mode::Stream {
            settings.push(if self.segmentation { "TSO and LRO" } else { "no TSO, no LRO" }.to_owned());
        }
        if let Some(Agreed { timestamps, window_scale, sack, .. }) = self.agreed {
            let yes = |agreed| if agreed { "" } else { "no " };
            settings.push(format!("{}time stamps", yes(timestamps)));
            settings.push(format!("{}window scale", yes(window_scale.is_some())));
            settings.push(format!("{}SACK", yes(sack)));
        }
        match self.acks {
            Some(Acks::WithRequest) => settings.push("echoes acknowledged by the next request".to_owned()),
            Some(Acks::Alone) => settings.push("echoes acknowledged by segments of their own".to_owned()),
            None => {}
        }
        match self.service {
            EchoBy::Forward => {}
            EchoBy::Write => settings.push("written by the service".to_owned()),
            EchoBy::AsyncForward => settings.push("forwarded by tasks".to_owned()),
            EchoBy::AsyncCopy => settings.push("copied by tasks".to_owned()),
        }
        writeln!(f, "{}\n", settings.join(", "))?;
        let Some(Idle { connections, first_half, second_half, bytes, packets_held }) = self.idle else {
            return write!(f, "{}", self.costs());
        };
        let mut table = table(["#connections", "#bytes each"]);
        table.add_row([format!("0 to {connections}"), format!("{first_half:.0}")]);
        table.add_row([format!("{connections} to {}", 2 * connections), format!("{second_half:.0}")]);
        table.add_row([format!("0 to {}", 2 * connections), format!("{bytes:.0}")]);
        writeln!(f, "{table}\n")?;
        write!(
            f,
            "Growth of the process' anonymous resident memory, everything included; each connection established, used \
             once and silent. Packets held in the pools: {packets_held}."
        )
    }
}
