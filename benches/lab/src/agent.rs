//! Agent: the init process of a guest. It runs scripts for the host and reports their output and status.
//!
//! Both sides exchange JSON objects, one per line, over a virtio-serial port.

use linerate_harness::child::{Child, Event, Target};
use rustix::process::{Resource, Rlimit, Signal, setrlimit};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::{self, DirEntry, File};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Directory of the guest's virtio ports.
const PORTS: &str = "/sys/class/virtio-ports";
/// Name of the agent's port.
pub const PORT: &str = "agent";

/// Request of the host.
#[derive(Debug, Serialize, Deserialize)]
pub enum Request {
    /// Run a script with bash.
    Run {
        /// Identifier of the script.
        id: u64,
        /// Text of the script.
        script: String,
        /// Standard input is fed by [`Request::Input`] instead of being empty.
        #[serde(default)]
        reads: bool,
    },
    /// Pass a line to the standard input of a script.
    Input {
        /// Identifier of the script.
        id: u64,
        /// Line; `None` closes the input.
        line: Option<String>,
    },
    /// Send a signal to a script.
    Signal {
        /// Identifier of the script.
        id: u64,
        signal: i32,
    },
}

/// Message of the guest.
#[derive(Debug, Serialize, Deserialize)]
pub enum Reply {
    /// The agent is ready.
    Up,
    /// Event of a script.
    Event {
        /// Identifier of the script.
        id: u64,
        event: Event,
    },
}

/// Serves requests until the guest ends.
pub fn serve() -> io::Result<()> {
    // Locked memory for devices: siw ignores capabilities.
    setrlimit(Resource::Memlock, Rlimit { current: None, maximum: None })?;
    // The port appears shortly after its driver is loaded, and is named later.
    let port = loop {
        match find_port() {
            Some(path) => break File::options().read(true).write(true).open(path)?,
            None => thread::sleep(Duration::from_millis(10)),
        }
    };
    let output = Arc::new(Mutex::new(port.try_clone()?));
    let (mut processes, mut inputs) = (HashMap::new(), HashMap::new());
    send_reply(&output, &Reply::Up);
    for line in BufReader::new(port).lines() {
        match serde_json::from_str(&line?)? {
            Request::Run { id, script, reads } => {
                let mut command = Command::new("bash");
                command.args(["-euc", &script]).process_group(0).stdin(if reads {
                    Stdio::piped()
                } else {
                    Stdio::null()
                });
                let to = output.clone();
                match Child::spawn(command, move |event| send_reply(&to, &Reply::Event { id, event })) {
                    Ok(mut process) => {
                        inputs.extend(process.take_stdin().map(|input| (id, input)));
                        processes.insert(id, process);
                    }
                    Err(error) => {
                        send_reply(&output, &Reply::Event { id, event: Event::Err(error.to_string()) });
                        send_reply(&output, &Reply::Event { id, event: Event::exited(127) });
                    }
                }
            }
            Request::Input { id, line: Some(line) } => {
                // A script that no longer reads is about to end.
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

/// Returns the device of the agent's port, whose number varies.
fn find_port() -> Option<PathBuf> {
    let is_own = |port: &DirEntry| fs::read_to_string(port.path().join("name")).is_ok_and(|name| name.trim() == PORT);
    let port = fs::read_dir(PORTS).ok()?.flatten().find(is_own)?;
    Some(Path::new("/dev").join(port.file_name())).filter(|path| path.exists())
}

fn send_reply(to: &Mutex<File>, reply: &Reply) {
    let mut line = serde_json::to_vec(reply).unwrap_or_default();
    line.push(b'\n');
    // If the host no longer reads, it is about to end the guest.
    let _ = to.lock().unwrap_or_else(PoisonError::into_inner).write_all(&line);
}
