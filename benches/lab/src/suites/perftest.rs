//! perftest in guests, and counts of verbs calls. The same preloaded library counts all programs.

use super::pair::{DEVICE, Pair};
use crate::error::{Result, failed};
use crate::host::Lab;
use linerate_harness::process::Ended;
use serde::Deserialize;
use std::ops::Add;
use std::path::Path;

/// Counts printed by the library.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct Counts {
    pub requests: u64,
    pub bytes: u64,
    pub buffers: u64,
    pub requests_completed: u64,
    pub buffers_completed: u64,
    pub unseen: u64,
}

impl Add for Counts {
    type Output = Counts;

    fn add(self, other: Counts) -> Counts {
        Counts {
            requests: self.requests + other.requests,
            bytes: self.bytes + other.bytes,
            buffers: self.buffers + other.buffers,
            requests_completed: self.requests_completed + other.requests_completed,
            buffers_completed: self.buffers_completed + other.buffers_completed,
            unseen: self.unseen + other.unseen,
        }
    }
}

impl Counts {
    /// Parses the counts in a program's output.
    pub fn read(ended: &Ended) -> Result<Counts> {
        let line = ended.stderr.lines().rfind(|line| line.starts_with(r#"{"requests":"#));
        let Some(line) = line else { return failed(format!("no counts: {ended:?}")) };
        Ok(serde_json::from_str(line)?)
    }

    /// Returns the number of polled completions.
    pub fn completions(&self) -> u64 {
        self.requests_completed + self.buffers_completed
    }
}

/// Returns the first line of a script, which preloads the counting library into its program.
pub fn counted(lab: &Lab) -> Result<String> {
    let library = lab.linerate.with_file_name("liblinerate_verbs_count.so");
    if !library.exists() {
        return failed(format!("{}: build linerate-verbs-count in the same profile", library.display()));
    }
    Ok(format!("export LD_PRELOAD='{}'\n", library.display()))
}

/// Runs a `test` of perftest and returns the counts of its client and server. Its exchange over TCP is not counted.
pub fn run(lab: &Lab, pair: &Pair, perftest: &Path, test: &str, options: &str) -> Result<[Counts; 2]> {
    let script = |of: &str| -> Result<String> {
        Ok(format!(
            "{}export LD_LIBRARY_PATH={1}/usr/lib/x86_64-linux-gnu
            gid=$(grep -ls '^0000:0000:0000:0000:0000:ffff:' /sys/class/infiniband/{DEVICE}/ports/1/gids/* | sed -n '1s#.*/##p')
            exec stdbuf -oL {1}/usr/bin/{test} --CPU-freq --ib-dev {DEVICE} --gid-index $gid {options} {of}",
            counted(lab)?,
            perftest.display(),
        ))
    };
    let mut server = pair.server.start_script("perftest", &script("")?)?;
    // Printed shortly before the server listens, but only if it accepts its options.
    server.wait_for_line("Waiting for client")?;
    pair.server.run("listening", "until ss -Htln 'sport = :18515' | grep -q .; do sleep 0.05; done")?;
    let client = pair.client.run("perftest", &script(Pair::SERVER)?)?;
    let server = server.succeed()?;
    Ok([Counts::read(&client)?, Counts::read(&server)?])
}
