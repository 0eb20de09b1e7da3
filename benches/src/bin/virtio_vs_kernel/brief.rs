//! `--brief`: each network once, as a table without requirements.

use crate::{MANY, ONE};
use linerate_benches::echo_pair::{Measured, Network, Setting, StackEngine, measure};
use linerate_harness::Error;
use serde::Serialize;
use std::fmt;

/// One measurement of each network.
#[derive(Serialize)]
pub struct Brief(Vec<Row>);

#[derive(Serialize)]
struct Row {
    connections: u32,
    network: &'static str,
    #[serde(flatten)]
    measured: Measured,
}

const VIRTIO: &str = "virtio-user to vhost";
const SLEEPING: &str = "kernel sockets";
const SPINNING: &str = "kernel sockets, spinning";

/// Measures each network once, without virtio-user and vhost if `kernel_only`.
pub fn run(setting: &Setting, kernel_only: bool) -> Result<Brief, Error> {
    let networks =
        [(VIRTIO, Network::Virtio(StackEngine::Native)), (SLEEPING, Network::Sleeping), (SPINNING, Network::Spinning)];
    let mut rows = Vec::new();
    for (name, network) in networks.into_iter().skip(usize::from(kernel_only)) {
        eprintln!("{name}");
        let connections = [MANY, ONE];
        let measured = measure(setting, network, &connections)?;
        let row = |(connections, measured)| Row { connections, network: name, measured };
        rows.extend(connections.into_iter().zip(measured).map(row));
    }
    rows.sort_by_key(|row| std::cmp::Reverse(row.connections));
    Ok(Brief(rows))
}

impl Brief {
    /// Compares the rate and the median round trip of the stack with those of the kernel.
    fn comparison(&self, connections: u32) -> Option<String> {
        let of = |network| {
            let row = self.0.iter().find(|row| row.connections == connections && row.network == network)?;
            Some((row.measured.rate, row.measured.rtt_us.p50))
        };
        let ((rate, rtt), sleeping, spinning) = (of(VIRTIO)?, of(SLEEPING)?, of(SPINNING)?);
        Some(format!(
            "- {connections}: {:.1} times the requests/s of the faster kernel run; RTT p50 {:.1} times shorter than \
             sleeping, {:.1} than spinning",
            rate / f64::max(sleeping.0, spinning.0),
            sleeping.1 / rtt,
            spinning.1 / rtt
        ))
    }
}

impl fmt::Display for Brief {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| connections | 64-byte echoes over       | requests/s | RTT µs: p50 |     p99 |   p99.9 |")?;
        write!(f, "|------------:|---------------------------|-----------:|------------:|--------:|--------:|")?;
        for Row { connections, network, measured: Measured { rate, rtt_us, .. } } in &self.0 {
            write!(f, "\n| {connections:11} | {network:25} | {rate:10.0} | {:11.1} |", rtt_us.p50)?;
            write!(f, " {:7.1} | {:7.1} |", rtt_us.p99, rtt_us.p999)?;
        }
        let comparisons: Vec<String> = [MANY, ONE].into_iter().filter_map(|many| self.comparison(many)).collect();
        if comparisons.is_empty() { Ok(()) } else { write!(f, "\n\n{}", comparisons.join("\n")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_benches::echo_pair::Rtt;

    fn row(connections: u32, network: &'static str, rate: f64, p50: f64) -> Row {
        let rtt_us = Rtt { p50, p99: 2.0 * p50, p999: 3.0 * p50 };
        Row { connections, network, measured: Measured { rate, errors: 0, rtt_us } }
    }

    #[test]
    fn stack_is_compared_with_the_faster_kernel_run() {
        let kernel = [row(ONE, SLEEPING, 10_000.0, 80.0), row(ONE, SPINNING, 80_000.0, 12.0)];
        let brief = Brief([row(ONE, VIRTIO, 960_000.0, 1.0)].into_iter().chain(kernel).collect());
        let printed = brief.to_string();
        let line = "|           1 | kernel sockets, spinning  |      80000 |        12.0 |    24.0 |    36.0 |";
        assert!(printed.contains(line), "{printed}");
        let end = "- 1: 12.0 times the requests/s of the faster kernel run; RTT p50 80.0 times shorter than sleeping, \
                   12.0 than spinning";
        assert!(printed.ends_with(end), "{printed}");
        let kernel_only = Brief(vec![row(ONE, SLEEPING, 10_000.0, 80.0), row(ONE, SPINNING, 80_000.0, 12.0)]);
        assert!(kernel_only.to_string().ends_with("36.0 |"));
    }
}
