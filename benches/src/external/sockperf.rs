//! `sockperf`, the reference of the kernel-socket baseline: a weak baseline would flatter the other figures.

use linerate_harness::Error;
use linerate_harness::address::{unused_address, wait_until_listening};
use linerate_harness::process::{Process, pinned};
use std::process::Command;
use std::time::Duration;

/// Warm-up and other time in addition to the measurement.
const AROUND: Duration = Duration::from_secs(10);

/// Result of `sockperf ping-pong --full-rtt` over one TCP connection.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PingPong {
    /// Round trips per second.
    pub rate: f64,
    /// Median round-trip time in microseconds.
    pub rtt_p50_us: f64,
}

/// Returns true if sockperf is installed.
pub fn is_installed() -> bool {
    Command::new("sockperf").arg("--version").output().is_ok()
}

/// Runs a server on `server_core` and a client on `client_core`, over loopback with blocking sockets and messages of
/// `size` bytes, for `duration` in whole seconds.
pub fn ping_pong(server_core: usize, client_core: usize, size: u32, duration: Duration) -> Result<PingPong, Error> {
    let address = unused_address();
    let (ip, port) = (address.ip().to_string(), address.port().to_string());
    let sockperf = |core, args: &[&str]| {
        let mut command = pinned(core, "sockperf");
        command.args(args);
        Process::start(command)
    };
    let server = sockperf(server_core, &["server", "--tcp", "-i", &ip, "-p", &port])?;
    wait_until_listening(address, "sockperf")?;
    let (size, seconds) = (size.to_string(), duration.as_secs().max(1).to_string());
    let client = ["ping-pong", "--tcp", "--full-rtt", "-i", &ip, "-p", &port, "-m", &size, "-t", &seconds];
    let client = sockperf(client_core, &client)?;
    let command = client.command().to_owned();
    let printed = client.output(duration + AROUND)?;
    drop(server);
    parse(&printed).ok_or(Error::Unexpected { command, printed })
}

fn parse(printed: &str) -> Option<PingPong> {
    let after = |line: &str, key: &str| -> Option<f64> {
        let rest = line.split_once(key)?.1.trim_start();
        rest.split(|c: char| !(c.is_ascii_digit() || c == '.')).next()?.parse().ok()
    };
    let valid = printed.lines().find(|line| line.contains("[Valid Duration]"))?;
    let rate = after(valid, "ReceivedMessages=")? / after(valid, "RunTime=")?;
    let rtt_p50_us = printed.lines().find_map(|line| after(line, "percentile 50.000 ="))?;
    Some(PingPong { rate, rtt_p50_us })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_is_taken_from_valid_duration() {
        let printed = "sockperf: [Total Run] RunTime=2.002 sec; SentMessages=3; ReceivedMessages=2\n\
                       sockperf: \u{1b}[2;35m[Valid Duration] RunTime=1.600 sec; SentMessages=9; ReceivedMessages=8\n\
                       sockperf: ---> percentile 75.000 =   22.403\n\
                       sockperf: ---> percentile 50.000 =   20.029\n";
        assert_eq!(parse(printed), Some(PingPong { rate: 5.0, rtt_p50_us: 20.029 }));
        assert_eq!(parse("sockperf: nothing"), None);
    }
}
