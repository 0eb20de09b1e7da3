//! Instructions per operation, as `instructions.sh` counts them, of all paths of which they are counted.

use std::path::Path;
use std::process::{Command, Stdio};

/// A path through the stack or the key-value service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation {
    /// By which it is known in `baseline.json`.
    pub name: &'static str,
    /// What `instructions.sh` is asked for.
    pub args: &'static str,
    /// Whether it is among the few that every `./run test` counts.
    pub quick: bool,
}

/// All of them; of 1 000 connections, with time stamps, checksums offloaded unless it says otherwise.
pub const OPERATIONS: [Operation; 13] = [
    rarely("64-byte echo", "--engine native").always(),
    rarely("64-byte echo, read and written by the service", "--engine native --write"),
    rarely("connection, one request and close", "--engine native --mode connect").always(),
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

/// Why there is no count.
#[derive(Debug, thiserror::Error)]
#[error("{command} {what}")]
pub struct Failed {
    /// What was run.
    pub command: String,
    /// What it did.
    pub what: String,
}

/// What `instructions.sh` prints, given these arguments: the numbers in it, those per operation first.
pub fn count(args: &str) -> Result<Vec<f64>, Failed> {
    let printed = run(&Path::new(env!("CARGO_MANIFEST_DIR")).join("instructions.sh"), args)?;
    let numbers: Vec<f64> = printed.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    if numbers.is_empty() {
        return Err(Failed {
            command: format!("instructions.sh {args}"),
            what: format!("printed no number: {printed}"),
        });
    }
    Ok(numbers)
}

/// What the program prints. Its status is not asked: it may fail because of a limit, which is for the caller to say.
pub fn run(program: &Path, args: &str) -> Result<String, Failed> {
    let command = format!("{} {args}", program.file_name().unwrap_or_default().display());
    eprintln!("{command}");
    let output = Command::new(program).args(args.split(' ')).stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| Failed { command: command.clone(), what: error.to_string() })?;
    match String::from_utf8(output.stdout) {
        Ok(printed) if !printed.is_empty() => Ok(printed),
        _ => Err(Failed { command, what: format!("failed ({})", output.status) }),
    }
}
