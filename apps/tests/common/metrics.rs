//! Counters of a server that runs with `--metrics`.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

/// Time limit for a counter to reach its value on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until the metric `name`, summed over the workers of the server that printed `ready`, is at least `least`.
#[track_caller]
pub fn await_metric(ready: &str, name: &str, least: u64) {
    let (_, address) = ready.split_once("metrics at http://").expect("a server with --metrics");
    let address = address.split_once('/').unwrap().0;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).unwrap();
        let lines = page.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('{')?.rsplit_once(' '));
        let sum: u64 = lines.map(|(_, value)| value.parse::<u64>().unwrap()).sum();
        if sum >= least {
            return;
        }
        assert!(Instant::now() < deadline, "{name} is {sum}, not {least}: {page}");
        thread::sleep(Duration::from_millis(5));
    }
}
