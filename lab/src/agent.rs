//! The first process of a guest: it runs what the host asks for, and tells what becomes of it.
//!
//! Both sides write JSON objects, one a line, to a virtio-serial port.

use crate::process::{Event, Process};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Where the port appears in the guest.
const PORT: &str = "/dev/vport0p1";

/// What the host asks for.
#[derive(Debug, Serialize, Deserialize)]
pub enum Request {
    /// To run a script by bash.
    Run {
        /// What it will be called.
        id: u64,
        /// The script.
        script: String,
    },
    /// To send a signal to a script's process.
    Signal {
        /// The script.
        id: u64,
        /// The signal's number.
        signal: i32,
    },
}

/// What the guest tells.
#[derive(Debug, Serialize, Deserialize)]
pub enum Reply {
    /// It can be asked.
    Up,
    /// What became of a script.
    Event {
        /// The script.
        id: u64,
        /// What.
        event: Event,
    },
}

/// Serves requests for as long as the guest lives.
pub fn serve() -> io::Result<()> {
    // The driver makes the port a moment after it is loaded.
    while !Path::new(PORT).exists() {
        thread::sleep(Duration::from_millis(10));
    }
    let port = File::options().read(true).write(true).open(PORT)?;
    let output = Arc::new(Mutex::new(port.try_clone()?));
    let mut processes = HashMap::new();
    tell(&output, &Reply::Up);
    for line in BufReader::new(port).lines() {
        match serde_json::from_str(&line?)? {
            Request::Run { id, script } => {
                let mut command = Command::new("bash");
                command.args(["-euc", &script]).stdin(Stdio::null());
                let to = output.clone();
                match Process::spawn(command, move |event| tell(&to, &Reply::Event { id, event })) {
                    Ok(process) => drop(processes.insert(id, process)),
                    Err(error) => {
                        tell(&output, &Reply::Event { id, event: Event::Err(error.to_string()) });
                        tell(&output, &Reply::Event { id, event: Event::Ended(127) });
                    }
                }
            }
            Request::Signal { id, signal } => {
                if let (Some(process), Some(signal)) = (processes.get(&id), Signal::from_named_raw(signal)) {
                    process.signal(signal);
                }
            }
        }
    }
    Ok(())
}

fn tell(to: &Mutex<File>, reply: &Reply) {
    let mut line = serde_json::to_vec(reply).unwrap_or_default();
    line.push(b'\n');
    // The host that does not listen any more is about to end the guest.
    let _ = to.lock().unwrap_or_else(PoisonError::into_inner).write_all(&line);
}
