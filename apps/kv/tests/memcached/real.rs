//! Real memcached.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Longest time to wait for a reply.
const TIMEOUT: Duration = Duration::from_secs(20);

/// memcached process with its own socket directory. Dropping it ends the process.
pub struct Real {
    child: Child,
    directory: PathBuf,
    stream: UnixStream,
}

impl Real {
    pub fn start() -> Self {
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        let (process, number) = (std::process::id(), STARTED.fetch_add(1, Ordering::Relaxed));
        let directory = std::env::temp_dir().join(format!("linerate-memcached-{process}-{number}"));
        std::fs::create_dir_all(&directory).expect("a directory for the socket");
        let socket = directory.join("socket");
        let mut memcached = Command::new("memcached");
        // memcached's background threads hold references to items, which makes it copy numbers now and then.
        memcached.args(["-m", "64", "-t", "1", "-u", "root", "-o", "no_lru_maintainer,no_lru_crawler"]);
        memcached.arg("-s").arg(&socket);
        let mut child = match memcached.stdin(Stdio::null()).stderr(Stdio::null()).spawn() {
            Ok(child) => child,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                panic!("memcached is not installed: `apt-get install memcached`, version 1.6")
            }
            Err(error) => panic!("memcached: {error}"),
        };
        let started = Instant::now();
        let stream = loop {
            match UnixStream::connect(&socket) {
                Ok(stream) => break stream,
                Err(error) => {
                    assert!(child.try_wait().unwrap().is_none(), "memcached ended at once");
                    assert!(started.elapsed() < TIMEOUT, "memcached does not listen: {error}");
                    std::thread::yield_now();
                }
            }
        };
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        Real { child, directory, stream }
    }

    /// Sends `bytes` and returns the reply up to `end`.
    pub fn ask(&mut self, bytes: &[u8], end: &[u8]) -> Vec<u8> {
        self.stream.write_all(bytes).expect("memcached reads");
        let mut out = Vec::new();
        let mut part = [0; 1 << 16];
        while !out.ends_with(end) {
            let n = self.stream.read(&mut part).unwrap_or_else(|error| {
                panic!("memcached sent only {} in reply to {}: {error}", out.escape_ascii(), bytes.escape_ascii())
            });
            assert!(n > 0, "memcached closed the connection after {}", bytes.escape_ascii());
            out.extend_from_slice(&part[..n]);
        }
        out
    }

    /// Returns memcached's clock in seconds since 1970.
    pub fn time(&mut self) -> u64 {
        let stats = self.ask(b"stats\r\n", b"END\r\n");
        let stats = String::from_utf8(stats).unwrap();
        let time = stats.lines().find_map(|line| line.strip_prefix("STAT time "));
        time.expect("stats have the time").parse().unwrap()
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
        _ = std::fs::remove_dir_all(&self.directory);
    }
}
