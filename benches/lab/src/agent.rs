//! The first process of a guest: it runs what the host asks for, and tells what becomes of it.
//!
//! Both sides write JSON objects, one a line, to a virtio-serial port.

use crate::process::{Event, Process};
use rustix::process::{Resource, Rlimit, Signal, setrlimit};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::{self, DirEntry, File};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Where the guest's kernel lists its ports.
const PORTS: &str = "/sys/class/virtio-ports";
/// What ours is called.
pub const PORT: &str = "agent";

/// What the host asks for.
#[derive(Debug, Serialize, Deserialize)]
pub enum Request {
    /// To run a script by bash.
    Run {
        /// What it will be called.
        id: u64,
        /// The script.
        script: String,
        /// Whether its standard input is what [`Request::Input`] says, in place of nothing.
        #[serde(default)]
        reads: bool,
    },
    /// To give a script's process a line to read.
    Input {
        /// The script.
        id: u64,
        /// The line; none: there are no more.
        line: Option<String>,
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
    // Memory that a device reaches: siw asks nobody's capabilities.
    setrlimit(Resource::Memlock, Rlimit { current: None, maximum: None })?;
    // The driver makes the port a moment after it is loaded, and then learns its name.
    let port = loop {
        match find_port() {
            Some(path) => break File::options().read(true).write(true).open(path)?,
            None => thread::sleep(Duration::from_millis(10)),
        }
    };
    let output = Arc::new(Mutex::new(port.try_clone()?));
    let (mut processes, mut inputs) = (HashMap::new(), HashMap::new());
    tell(&output, &Reply::Up);
    for line in BufReader::new(port).lines() {
        match serde_json::from_str(&line?)? {
            Request::Run { id, script, reads } => {
                let mut command = Command::new("bash");
                command.args(["-euc", &script]).stdin(if reads { Stdio::piped() } else { Stdio::null() });
                let to = output.clone();
                match Process::spawn(command, move |event| tell(&to, &Reply::Event { id, event })) {
                    Ok(mut process) => {
                        inputs.extend(process.take_stdin().map(|input| (id, input)));
                        processes.insert(id, process);
                    }
                    Err(error) => {
                        tell(&output, &Reply::Event { id, event: Event::Err(error.to_string()) });
                        tell(&output, &Reply::Event { id, event: Event::Ended(127) });
                    }
                }
            }
            Request::Input { id, line: Some(line) } => {
                // One that reads no more is about to end.
                let _ = inputs.get_mut(&id).map(|input| writeln!(input, "{line}"));
            }
            Request::Input { id, line: None } => drop(inputs.remove(&id)),
            Request::Signal { id, signal } => {
                if let (Some(process), Some(signal)) = (processes.get(&id), Signal::from_named_raw(signal)) {
                    process.signal(signal);
                }
            }
        }
    }
    Ok(())
}

/// The device of our port, whose number depends on what else there is.
fn find_port() -> Option<PathBuf> {
    let is_ours = |port: &DirEntry| fs::read_to_string(port.path().join("name")).is_ok_and(|name| name.trim() == PORT);
    let port = fs::read_dir(PORTS).ok()?.flatten().find(is_ours)?;
    Some(Path::new("/dev").join(port.file_name())).filter(|path| path.exists())
}

fn tell(to: &Mutex<File>, reply: &Reply) {
    let mut line = serde_json::to_vec(reply).unwrap_or_default();
    line.push(b'\n');
    // The host that does not listen any more is about to end the guest.
    let _ = to.lock().unwrap_or_else(PoisonError::into_inner).write_all(&line);
}
