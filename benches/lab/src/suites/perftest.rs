//! perftest in guests, and what a program asks of its device. Ours and perftest are counted by the same means: a library that is
//! loaded into either.

use super::pair::{DEVICE, Pair};
use crate::error::{Result, failed};
use crate::host::Lab;
use crate::program::Ended;
use serde::Deserialize;
use std::ops::Add;
use std::path::Path;

/// What the library tells.
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
    /// What a program told last but for itself.
    pub fn read(ended: &Ended) -> Result<Counts> {
        let line = ended.err.iter().rfind(|line| line.starts_with(r#"{"requests":"#));
        let Some(line) = line else { return failed(format!("nothing was counted: {ended:?}")) };
        Ok(serde_json::from_str(line)?)
    }

    /// Completions that were polled.
    pub fn completions(&self) -> u64 {
        self.requests_completed + self.buffers_completed
    }
}

/// A script's beginning, by which the program that it ends in is counted.
pub fn counted(lab: &Lab) -> Result<String> {
    let library = lab.linerate.with_file_name("liblinerate_verbs_count.so");
    if !library.exists() {
        return failed(format!("{}: build linerate-verbs-count in the same profile", library.display()));
    }
    Ok(format!("export LD_PRELOAD='{}'\n", library.display()))
}

/// Runs a `test` of perftest with these options, and returns what its client and its server asked for. What they exchange by TCP is
/// not counted.
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
    // It says so a little too early; but who does not like its options ends before.
    server.wait_for_line("Waiting for client")?;
    pair.server.run("listening", "until ss -Htln 'sport = :18515' | grep -q .; do sleep 0.05; done")?;
    let client = pair.client.run("perftest", &script(Pair::SERVER)?)?;
    let server = server.succeed()?;
    Ok([Counts::read(&client)?, Counts::read(&server)?])
}
