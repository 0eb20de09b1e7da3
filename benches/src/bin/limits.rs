//! Limits of the native engine: instructions, cost of many connections, and memory, in one table.
#![forbid(unsafe_code)]

use clap::Parser;
use linerate_benches::client::BenchError;
use linerate_benches::report::finish;
use linerate_benches::requirements::instructions::{CommandError, count, run};
use linerate_benches::requirements::limit::{Limit, table};
use linerate_benches::tls;
use serde::Deserialize;
use std::process::ExitCode;

/// Server instructions per 64-byte echo on one of 1 000 connections, with checksum offload.
const ECHO: f64 = 700.0;
/// Ratio to the instructions of the smoltcp engine.
const ECHO_OF_SMOLTCP: f64 = 0.25;
/// Instructions per connection that is opened, used for one request and closed.
const CONNECT: f64 = 4000.0;
/// Instructions per 16 KB message with TSO and LRO.
const MESSAGE: f64 = 7000.0;
/// Instructions per segment of such a message without TSO and LRO, checksum excluded.
const SEGMENT: f64 = 900.0;
/// Total bytes per idle connection, among this many.
const IDLE: f64 = 256.0;
const IDLE_CONNECTIONS: &str = "500000";

/// Compare the native engine with its limits: instructions per operation (needs valgrind), cost of many connections and
/// of TLS, bytes per idle connection
#[derive(Parser)]
struct Args {}

fn main() -> ExitCode {
    let Args {} = Args::parse();
    let measured = measure();
    let is_met = measured.as_ref().is_ok_and(|limits| limits.iter().all(|limit| limit.met));
    finish("limits", measured.map(|limits| table("native engine", &limits)), |_| is_met)
}

fn measure() -> Result<Vec<Limit>, CommandError> {
    let first = |args: &str| Ok(count(args)?[0]);
    let echo = first("--engine native")?;
    let smoltcp = first("--engine smoltcp")?;
    let per_segment = count("--engine native --mode stream --no-offload")?;
    let mut limits = vec![
        Limit::new("instructions per 64-byte echo, 1 000 connections", echo, ECHO),
        Limit::new("the same, to the smoltcp engine's", echo / smoltcp, ECHO_OF_SMOLTCP),
        Limit::new("instructions per connection, request and close", first("--engine native --mode connect")?, CONNECT),
        Limit::new("instructions per 16 KB message, TSO and LRO", first("--engine native --mode stream")?, MESSAGE),
        Limit::new("instructions per segment, neither", per_segment.get(1).copied().unwrap_or(f64::NAN), SEGMENT),
    ];
    limits.extend(curve(&engine("--engine native --curve")?)?);
    limits.extend(flood(&engine("--engine native --mode tls --flood --flows 64")?)?);
    let failed = |error: BenchError| CommandError { command: "TLS".to_owned(), reason: format!("failed: {error}") };
    limits.extend(tls::limits().map_err(failed)?);
    limits.push(idle(&engine(&format!("--engine native --mode idle --flows {IDLE_CONNECTIONS}"))?)?);
    Ok(limits)
}

/// Runs `engine` with these arguments and returns its JSON output.
fn engine(args: &str) -> Result<String, CommandError> {
    let failed = |error: std::io::Error| CommandError { command: "engine".to_owned(), reason: error.to_string() };
    let engine = std::env::current_exe().map_err(failed)?.with_file_name("engine");
    run(&engine, &format!("{args} --json"))
}

/// Returns the limited ratios of a curve.
fn curve(printed: &str) -> Result<Vec<Limit>, CommandError> {
    ratios(printed, |flows, first| format!("nanoseconds per echo on {flows} connections, to those on {first}"))
}

/// Returns the limited ratio of a flood.
fn flood(printed: &str) -> Result<Vec<Limit>, CommandError> {
    ratios(printed, |_, _| "nanoseconds per echo with TLS in a flood of ClientHellos, to those without".to_owned())
}

/// Returns the limited ratios, with names by the connections of the point and of the first one.
fn ratios(printed: &str, name: impl Fn(u64, u64) -> String) -> Result<Vec<Limit>, CommandError> {
    #[derive(Deserialize)]
    struct Curve {
        points: Vec<Point>,
    }
    #[derive(Deserialize)]
    struct Point {
        flows: u64,
        ratio: f64,
        limit: Option<f64>,
    }
    let Curve { points } = parse(printed)?;
    let limit = |point: &Point| Some(Limit::new(name(point.flows, points[0].flows), point.ratio, point.limit?));
    Ok(points.iter().filter_map(limit).collect())
}

fn idle(printed: &str) -> Result<Limit, CommandError> {
    #[derive(Deserialize)]
    struct Report {
        idle: Idle,
    }
    #[derive(Deserialize)]
    struct Idle {
        connections: u64,
        bytes: f64,
    }
    let Report { idle: Idle { connections, bytes } } = parse(printed)?;
    Ok(Limit::new(format!("bytes per idle connection, of {}", 2 * connections), bytes, IDLE))
}

fn parse<'a, T: Deserialize<'a>>(printed: &'a str) -> Result<T, CommandError> {
    let unexpected =
        |error| CommandError { command: "engine".to_owned(), reason: format!("printed {printed}: {error}") };
    serde_json::from_str(printed).map_err(unexpected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_curve_and_idle_connections_are_parsed() {
        let printed = r#"{"engine":"native","points":[{"flows":1000,"ns":50.0,"ratio":1.0,"limit":null},
            {"flows":100000,"ns":150.0,"ratio":3.0,"limit":3.0},{"flows":1000000,"ns":300.0,"ratio":6.0,"limit":5.0}]}"#;
        let limits = curve(printed).unwrap();
        assert_eq!(
            limits.iter().map(|limit| (limit.value, limit.met)).collect::<Vec<_>>(),
            [(3.0, true), (6.0, false)]
        );
        let limit = idle(r#"{"points":[],"idle":{"connections":500,"first_half":1.0,"bytes":256.5}}"#).unwrap();
        assert_eq!((limit.value, limit.limit, limit.met), (256.5, 256.0, false));
        assert!(limit.requirement.ends_with("of 1000"));
        assert!(idle("nothing").unwrap_err().to_string().contains("printed nothing"));
    }
}
