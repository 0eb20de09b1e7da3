//! Counters of a server that runs with `--metrics`.

use crate::Error;
use crate::{TIMEOUT, until};
use std::io::{Read, Write};
use std::net::TcpStream;

/// Waits until the metric `name`, summed over the workers of the server that printed `ready`, is at least `least`.
///
/// # Panics
/// After [`TIMEOUT`], or if the server does not answer.
#[track_caller]
pub fn await_metric(ready: &str, name: &str, least: u64) {
    let (_, address) = ready.split_once("metrics at http://").expect("a server with --metrics");
    let (address, _) = address.split_once('/').expect("a path");
    let mut page = String::new();
    let reached = until::<Error>(name, TIMEOUT, || {
        page = get(address).unwrap_or_else(|error| panic!("{address}: {error}"));
        let lines = page.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('{')?.rsplit_once(' '));
        Ok(lines.map(|(_, value)| value.parse::<u64>().expect("a number")).sum::<u64>() >= least)
    });
    assert!(reached.is_ok(), "{name} is not {least}: {page}");
}

fn get(address: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n")?;
    let mut page = String::new();
    stream.read_to_string(&mut page)?;
    Ok(page)
}
