//! Real memcached.

use linerate_harness::program::Program;
use linerate_harness::rerun::is_installed;
use linerate_harness::wait_for;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

/// Longest time to wait for a reply.
const TIMEOUT: Duration = Duration::from_secs(20);

/// memcached process with its own socket directory. Dropping it ends the process.
pub struct Real {
    stream: UnixStream,
    _program: Program,
    _directory: TempDir,
}

impl Real {
    pub fn start() -> Self {
        let directory = tempfile::tempdir().expect("a directory for the socket");
        let socket = directory.path().join("socket");
        assert!(
            is_installed("memcached", &["--version"], "memcached"),
            "memcached is not installed: `apt-get install memcached`, version 1.6"
        );
        let mut memcached = Command::new("memcached");
        // memcached's background threads hold references to items, which makes it copy numbers now and then.
        memcached.args(["-m", "64", "-t", "1", "-u", "root", "-o", "no_lru_maintainer,no_lru_crawler"]);
        let program = Program::start(memcached.arg("-s").arg(&socket));
        wait_for("memcached's socket", || UnixStream::connect(&socket).is_ok());
        let stream = UnixStream::connect(&socket).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        Real { stream, _program: program, _directory: directory }
    }

    /// Sends `bytes` and returns the reply up to `end`.
    pub fn call(&mut self, bytes: &[u8], end: &[u8]) -> Vec<u8> {
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
        let stats = self.call(b"stats\r\n", b"END\r\n");
        let stats = String::from_utf8(stats).unwrap();
        let time = stats.lines().find_map(|line| line.strip_prefix("STAT time "));
        time.expect("stats have the time").parse().unwrap()
    }
}
