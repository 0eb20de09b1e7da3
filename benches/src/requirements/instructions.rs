//! Instructions per operation, as counted by `instructions.sh`, of all measured paths.

use std::path::Path;
use std::process::{Command, Stdio};

/// Path through the stack or the key-value service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation {
    /// Name in `baseline.json`.
    pub name: &'static str,
    /// Arguments of `instructions.sh`.
    pub args: &'static str,
    /// True if every `./run test` counts this path.
    pub quick: bool,
}

/// All paths; with 1 000 connections, timestamps and checksum offload unless stated otherwise.
pub const OPERATIONS: [Operation; 22] = [
    rarely("64-byte echo", "--engine native").always(),
    rarely("64-byte echo, one connection", "--engine native --flows 1"),
    rarely("64-byte echo, read and written by the service", "--engine native --service write"),
    rarely("64-byte echo by tasks", "--engine native --service async-forward"),
    rarely("64-byte echo by tasks, copied", "--engine native --service async-copy"),
    rarely("HTTP/1.1 request to hyper by tasks", "http --over tasks"),
    rarely("HTTP/1.1 request to hyper over streams in memory", "http --over duplex"),
    rarely("64-byte echo, at the load", "--engine native --mode load"),
    rarely("connection, one request and close", "--engine native --mode connect").always(),
    rarely("64-byte datagram, echo", "--engine native --mode datagram"),
    rarely("64-byte echo with TLS, 64 connections", "--engine native --mode tls --flows 64"),
    rarely("64-byte echo over RoCEv2, 64 queue pairs", "--mode roce --flows 64"),
    rarely("16 KB message, TSO and LRO", "--engine native --mode stream"),
    rarely("16 KB message, neither", "--engine native --mode stream --no-offload"),
    rarely("smoltcp: 64-byte echo", "--engine smoltcp"),
    rarely("smoltcp: 64-byte echo, checksums in software", "--engine smoltcp --software-checksum"),
    rarely("smoltcp: connection, one request and close", "--engine smoltcp --mode connect"),
    rarely("smoltcp: 16 KB message, TSO and LRO", "--engine smoltcp --mode stream"),
    rarely("smoltcp: 16 KB message, neither", "--engine smoltcp --mode stream --no-offload"),
    rarely("key-value GET, one at a time", "kv --depth 1"),
    rarely("key-value SET, one at a time", "kv --depth 1 --gets 0"),
    rarely("key-value GET, 16 together", "kv --depth 16").always(),
];

const fn rarely(name: &'static str, args: &'static str) -> Operation {
    Operation { name, args, quick: false }
}

impl Operation {
    const fn always(self) -> Self {
        Operation { quick: true, ..self }
    }
}

/// Error that prevents a count.
#[derive(Debug, thiserror::Error)]
#[error("{command} {reason}")]
pub struct CommandError {
    pub command: String,
    /// Failure.
    pub reason: String,
}

/// Runs `instructions.sh` with these arguments and returns the numbers it prints, those per operation first.
pub fn count(args: &str) -> Result<Vec<f64>, CommandError> {
    let printed = run(&Path::new(env!("CARGO_MANIFEST_DIR")).join("instructions.sh"), args)?;
    let numbers: Vec<f64> = printed.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    if numbers.is_empty() {
        return Err(CommandError {
            command: format!("instructions.sh {args}"),
            reason: format!("printed no number: {printed}"),
        });
    }
    Ok(numbers)
}

/// Runs a program and returns its output. The exit status is ignored: the program may fail because of a limit, which
/// the caller reports.
pub fn run(program: &Path, args: &str) -> Result<String, CommandError> {
    let command = format!("{} {args}", program.file_name().unwrap_or_default().display());
    eprintln!("{command}");
    let output = Command::new(program).args(args.split(' ')).stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| CommandError { command: command.clone(), reason: error.to_string() })?;
    match String::from_utf8(output.stdout) {
        Ok(printed) if !printed.is_empty() => Ok(printed),
        _ => Err(CommandError { command, reason: format!("failed ({})", output.status) }),
    }
}
