//! Echoes over virtio-user and over kernel sockets: measurement, table and chart.

use super::{end, serve};
use crate::error::Error;
use crate::machine::Machine;
use crate::output::note;
use linerate_harness::cpu_time::{CoreWatch, DISTURBED};
use linerate_harness::process::Process;
use rustix::thread::{CpuSet, sched_getaffinity};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Timeout of a load.
const LOAD_LIMIT: Duration = Duration::from_secs(60);
/// Width of the longest bar of the chart.
const BAR: f64 = 48.0;

/// Network between server and load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Network {
    Virtio,
    Sleeping,
    Spinning,
}

impl Network {
    fn name(self) -> &'static str {
        match self {
            Network::Virtio => "virtio-user to vhost",
            Network::Sleeping => "kernel sockets",
            Network::Spinning => "kernel sockets, spinning",
        }
    }

    /// Returns the arguments of the server and of the load. `link` is the socket of the virtio link.
    fn arguments(self, link: &str) -> (String, String) {
        let kernel = |spin| {
            let options = format!("--via kernel{spin}");
            (format!("{options} --listen 127.0.0.1:7007"), format!("{options} --connect 127.0.0.1:7007"))
        };
        match self {
            Network::Virtio => (
                format!("--via vhost:{link} --ip 10.77.1.2/24 --listen 10.77.1.2:7"),
                format!("--via virtio-user:{link} --ip 10.77.1.1/24 --connect 10.77.1.2:7"),
            ),
            Network::Sleeping => kernel(""),
            Network::Spinning => kernel(" --spin"),
        }
    }
}

/// Measurement of one network.
#[derive(Debug)]
pub struct Row {
    connections: u32,
    network: Network,
    /// Requests per second.
    rate: f64,
    /// Round-trip times in microseconds: percentiles 50, 99 and 99.9.
    rtt: [f64; 3],
    /// Part of the time of the two cores that other programs had.
    others: f64,
}

impl Row {
    fn is_disturbed(&self) -> bool {
        self.others >= DISTURBED
    }
}

/// Measures the program `linerate` over each network for some seconds on 64 connections and on one.
pub fn measure(machine: &Machine, linerate: &Path, seconds: u32) -> Result<Vec<Row>, Error> {
    let directory = tempfile::Builder::new().prefix("linerate-demo.").tempdir()?;
    let link = directory.path().join("link.sock").display().to_string();
    let networks = [Network::Virtio, Network::Sleeping, Network::Spinning];
    let networks = networks.into_iter().filter(|network| machine.dpdk() || *network != Network::Virtio);
    let [server_core, load_core] = cores()?;
    let time = Duration::from_secs(seconds.into());
    let mut rows = Vec::new();
    for connections in [64, 1] {
        for network in networks.clone() {
            note(&format!("{connections} over {}", network.name()));
            let (served, loaded) = network.arguments(&link);
            let (server, _) = serve(Command::new(linerate), &format!("{served} --cores {server_core}"))?;
            let mut load = Command::new(linerate);
            let connected = format!("{loaded} --connections {connections} --cores {load_core}");
            load.args(["echo", "load"]).args(connected.split_whitespace());
            // The log shows the beginning of the measurement.
            load.args(["-v", "--size", "64", "--depth", "1", "--json", "--duration", &format!("{seconds}s")]);
            let mut load = Process::start(load)?;
            load.wait_for_stderr(&["measuring"], LOAD_LIMIT)?;
            let mut watch = CoreWatch::begin([server_core, load_core], &[server.id(), load.id()]);
            watch.watch(time);
            let report = load.output(LOAD_LIMIT)?;
            end(server)?;
            let field = |name| {
                number(&report, name).ok_or_else(|| Error::failed(format!("the load's report has no {name}: {report}")))
            };
            let rtt = [field("p50")?, field("p99")?, field("p999")?];
            let others = watch.others().unwrap_or(0.0);
            rows.push(Row { connections, network, rate: field("rate")?, rtt, others });
        }
    }
    Ok(rows)
}

/// Returns the cores of server and load: the first and the last usable one.
fn cores() -> Result<[usize; 2], Error> {
    let usable = sched_getaffinity(None).map_err(|error| Error::failed(format!("usable cores: {error}")))?;
    let cores = || (0..CpuSet::MAX_CPU).filter(|core| usable.is_set(*core));
    cores().next().zip(cores().next_back()).map(<[usize; 2]>::from).ok_or_else(|| Error::failed("no usable core"))
}

/// Returns the last number with a name in JSON of one line.
fn number(json: &str, name: &str) -> Option<f64> {
    let (_, rest) = json.rsplit_once(&format!("\"{name}\":"))?;
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    rest[..end].parse().ok()
}

/// Returns the rows as a Markdown table, and the ratios of the DPDK link to the kernel. If the machine was busy, the
/// first line says so, and rows that this disturbed are in no ratio.
pub fn table(rows: &[Row]) -> String {
    let disturbed = rows.iter().filter(|row| row.is_disturbed()).map(|row| row.others);
    let mut table = match disturbed.clone().max_by(f64::total_cmp) {
        Some(most) => format!(
            "The machine was busy: other programs or virtual machines had up to {:.0} % of the time of the cores in {} \
             of {} measurements (*), whose figures do not hold for an idle machine.\n\n",
            most * 100.0,
            disturbed.count(),
            rows.len()
        ),
        None => String::new(),
    };
    table.push_str(
        "| connections | 64-byte echoes over       | requests/s | RTT µs: p50 |     p99 |   p99.9 |\n\
         |------------:|---------------------------|-----------:|------------:|--------:|--------:|\n",
    );
    for row @ Row { connections, network, rate, rtt: [p50, p99, p999], .. } in rows {
        let name = format!("{}{}", network.name(), if row.is_disturbed() { " *" } else { "" });
        table +=
            &format!("| {connections:>11} | {name:<25} | {rate:>10.0} | {p50:>11.1} | {p99:>7.1} | {p999:>7.1} |\n");
    }
    let mut separator = "\n";
    let quiet = || rows.iter().filter(|row| !row.is_disturbed());
    for Row { connections, rate, rtt: [rtt, ..], .. } in quiet().filter(|row| row.network == Network::Virtio) {
        let kernel = |network| quiet().find(|row| row.connections == *connections && row.network == network);
        let (Some(sleeping), Some(spinning)) = (kernel(Network::Sleeping), kernel(Network::Spinning)) else { continue };
        let best = sleeping.rate.max(spinning.rate);
        if best > 0.0 && *rtt > 0.0 {
            table += &format!(
                "{separator}- {connections}: {:.1} times the requests/s of the faster kernel run; RTT p50 {:.1} times \
                 shorter than sleeping, {:.1} than spinning\n",
                rate / best,
                sleeping.rtt[0] / rtt,
                spinning.rtt[0] / rtt
            );
            separator = "";
        }
    }
    table
}

/// Returns bars of the requests per second, with one scale for each number of connections.
pub fn chart(rows: &[Row]) -> String {
    let mut chart = String::new();
    for rows in rows.chunk_by(|a, b| a.connections == b.connections) {
        let plural = if rows[0].connections == 1 { "" } else { "s" };
        chart += &format!("{} connection{plural}\n", rows[0].connections);
        let most = rows.iter().map(|row| row.rate).fold(1.0, f64::max);
        for Row { network, rate, .. } in rows {
            chart += &format!("  {:<25} {} {rate:.0}\n", network.name(), bar(rate / most));
        }
    }
    chart
}

/// Returns a bar for a part of the full width, in steps of an eighth of a character.
fn bar(part: f64) -> String {
    let eighths = (part * BAR * 8.0).round().max(1.0) as usize;
    let rest = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"][eighths % 8];
    format!("{}{rest}", "█".repeat(eighths / 8))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<Row> {
        let row = |connections, network, rate, rtt| Row { connections, network, rate, rtt, others: 0.01 };
        vec![
            row(64, Network::Virtio, 3_320_845.2, [20.04, 52.1, 104.0]),
            row(64, Network::Sleeping, 136_891.0, [445.7, 966.1, 2998.3]),
            row(64, Network::Spinning, 146_896.0, [411.9, 900.6, 2932.7]),
            row(1, Network::Sleeping, 11_450.0, [83.6, 144.0, 296.2]),
        ]
    }

    #[test]
    fn table_has_ratios_where_all_networks_were_measured() {
        let expected = "\
| connections | 64-byte echoes over       | requests/s | RTT µs: p50 |     p99 |   p99.9 |
|------------:|---------------------------|-----------:|------------:|--------:|--------:|
|          64 | virtio-user to vhost      |    3320845 |        20.0 |    52.1 |   104.0 |
|          64 | kernel sockets            |     136891 |       445.7 |   966.1 |  2998.3 |
|          64 | kernel sockets, spinning  |     146896 |       411.9 |   900.6 |  2932.7 |
|           1 | kernel sockets            |      11450 |        83.6 |   144.0 |   296.2 |

- 64: 22.6 times the requests/s of the faster kernel run; RTT p50 22.2 times shorter than sleeping, 20.6 than spinning
";
        assert_eq!(table(&rows()), expected);
    }

    #[test]
    fn busy_machine_is_stated_first_and_its_rows_have_no_ratios() {
        let mut rows = rows();
        (rows[1].others, rows[3].others) = (0.12, 0.43);
        let table = table(&rows);
        let first = "The machine was busy: other programs or virtual machines had up to 43 % of the time of the cores \
                     in 2 of 4 measurements (*),";
        assert!(table.starts_with(first), "{table}");
        assert!(table.contains("| kernel sockets *          |     136891 |"), "{table}");
        assert!(table.contains("| virtio-user to vhost      |") && !table.contains("times"), "{table}");
    }

    #[test]
    fn bars_are_proportional_within_a_number_of_connections() {
        let chart = chart(&rows());
        let lines: Vec<&str> = chart.lines().collect();
        assert_eq!(lines[0], "64 connections");
        assert_eq!(lines[1], format!("  virtio-user to vhost      {} 3320845", "█".repeat(48)));
        assert_eq!(lines[2], "  kernel sockets            ██ 136891");
        assert_eq!(lines[4], "1 connection");
        assert_eq!(lines[5], format!("  kernel sockets            {} 11450", "█".repeat(48)));
        assert_eq!(bar(0.0), "▏");
    }

    #[test]
    fn numbers_are_read_from_json() {
        let json = r#"{"rate":12.5,"rtt_us":{"p50":1,"p99":2.25}}"#;
        assert_eq!(number(json, "rate"), Some(12.5));
        assert_eq!(number(json, "p50"), Some(1.0));
        assert_eq!(number(json, "p99"), Some(2.25));
        assert_eq!(number(json, "p999"), None);
    }
}
