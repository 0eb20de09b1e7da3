//! Goodput over an impaired path: the kernel's TCP at both ends, or Linerate's at one of them.

use crate::impair::path::{Path, PathConfig, PathStats};
use linerate_harness::Error;
use linerate_harness::interrupt::is_interrupted;
use linerate_harness::namespace::Host;
use linerate_harness::process::Process;
use rustix::net::sockopt::set_tcp_congestion;
use serde::{Deserialize, Serialize};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Listening port of senders: that of chargen (RFC 864).
const PORT: u16 = 19;
/// Maximum time to open a connection, including retransmissions of the handshake.
const PATIENCE: Duration = Duration::from_secs(20);
/// Interval of checks for interruption.
const TICK: Duration = Duration::from_millis(50);
/// Bytes per call of `read` or `write`.
const PIECE: usize = 1 << 16;

/// Sender and receiver. The sender listens on the near host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Pair {
    /// Kernel to kernel: the reference.
    LinuxToLinux,
    /// Linerate's chargen server to a kernel socket.
    LinerateToLinux,
    /// A kernel socket to Linerate's chargen load, which counts and discards.
    LinuxToLinerate,
}

impl Pair {
    /// All pairs.
    pub const ALL: [Pair; 3] = [Pair::LinuxToLinux, Pair::LinerateToLinux, Pair::LinuxToLinerate];

    /// Returns the name for tables.
    pub fn name(self) -> &'static str {
        match self {
            Pair::LinuxToLinux => "Linux to Linux",
            Pair::LinerateToLinux => "Linerate to Linux",
            Pair::LinuxToLinerate => "Linux to Linerate",
        }
    }
}

/// Parameters common to all measurements.
#[derive(Debug, Clone)]
pub struct Setting {
    /// `linerate` executable.
    pub linerate: PathBuf,
    /// Value of `--engine`, if any.
    pub engine: Option<String>,
    /// Value of `--buffer`.
    pub buffer: String,
    /// Core of linerate.
    pub linerate_core: usize,
    /// Congestion control of the kernel's sender.
    pub congestion: String,
    /// Uses IPv6 instead of IPv4.
    pub v6: bool,
    /// Duration of the count, from the first byte.
    pub duration: Duration,
}

/// Result of one measurement.
#[derive(Debug, Clone)]
pub struct Measured {
    /// Payload bytes read by the receiver.
    pub bytes: u64,
    /// Duration of the count.
    pub counted: Duration,
    /// Statistics of the path.
    pub crossing: PathStats,
}

impl Measured {
    /// Returns the payload rate in 10⁶ bits per second.
    pub fn mbit_per_s(&self) -> f64 {
        self.bytes as f64 * 8.0 / 1e6 / self.counted.as_secs_f64()
    }
}

/// Measures `pair` on a new path with new hosts.
pub fn measure(setting: &Setting, path: &PathConfig, pair: Pair) -> Result<Measured, Error> {
    let path = Path::new(path)?;
    let (near, far) = (path.near(), path.far());
    let sender = SocketAddr::new(near.ip(setting.v6), PORT);
    let (bytes, counted) = match pair {
        Pair::LinuxToLinux => {
            near.address()?;
            far.address()?;
            let _sending = Sending::start(near, sender, &setting.congestion)?;
            receive(far, sender, setting.duration)?
        }
        Pair::LinerateToLinux => {
            far.address()?;
            let mut serve = linerate(setting, near, "serve");
            serve.args(["--listen", &sender.to_string()]);
            let mut serve = Process::start(serve)?;
            serve.wait_for_line("ready")?;
            receive(far, sender, setting.duration)?
        }
        Pair::LinuxToLinerate => {
            near.address()?;
            let _sending = Sending::start(near, sender, &setting.congestion)?;
            load(setting, far, sender)?
        }
    };
    let crossing = path.stop()?;
    Ok(Measured { bytes, counted, crossing })
}

fn linerate(setting: &Setting, host: &Host, role: &str) -> Command {
    let mut command = host.command(&setting.linerate);
    command.args(["chargen", role]).args(host.via_args()).args(["--buffer", &setting.buffer]);
    command.arg(format!("--cores={}", setting.linerate_core));
    if let Some(engine) = &setting.engine {
        command.args(["--engine", engine]);
    }
    command
}

/// Fields used from the output of `linerate chargen load --json`.
#[derive(Deserialize)]
struct Load {
    seconds: f64,
    bytes_down: u64,
}

/// Runs Linerate as receiver.
fn load(setting: &Setting, host: &Host, sender: SocketAddr) -> Result<(u64, Duration), Error> {
    let mut load = linerate(setting, host, "load");
    load.args(["--json", "--connect", &sender.to_string()]);
    load.args(["--duration", &format!("{}ms", setting.duration.as_millis())]);
    let load = Process::start(load)?;
    let command = load.command().to_owned();
    let printed = load.output(setting.duration + 2 * PATIENCE)?;
    match serde_json::from_str::<Load>(&printed) {
        Ok(load) if load.seconds > 0.0 => Ok((load.bytes_down, Duration::from_secs_f64(load.seconds))),
        _ => Err(Error::Unexpected { command, printed }),
    }
}

/// Thread that sends to every client until it is dropped.
struct Sending {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Sending {
    fn start(host: &Host, at: SocketAddr, congestion: &str) -> Result<Self, Error> {
        let listener = host.within(|| listen(at, congestion)).map_err(|error| failed("the kernel's sender", error))?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let over = move || stopped.load(Ordering::Relaxed) || is_interrupted();
        // The receiver ends a measurement by closing.
        let thread = thread::spawn(move || _ = send(&listener, over));
        Ok(Sending { stop, thread: Some(thread) })
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn listen(at: SocketAddr, congestion: &str) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(at)?;
    // Accepted connections inherit the congestion control, which may differ from the system's default.
    set_tcp_congestion(&listener, congestion)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn send(listener: &TcpListener, over: impl Fn() -> bool) -> io::Result<()> {
    let mut stream = loop {
        match listener.accept() {
            Ok((stream, _)) => break stream,
            Err(error) if error.kind() == ErrorKind::WouldBlock && !over() => thread::sleep(Duration::from_millis(1)),
            Err(error) => return Err(error),
        }
    };
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(TICK))?;
    let piece = vec![b'.'; PIECE];
    while !over() {
        match stream.write(&piece) {
            Ok(_) => {}
            Err(error) if is_timeout(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Receives from `sender` with a kernel socket on `host` and counts for `duration` from the first byte.
fn receive(host: &Host, sender: SocketAddr, duration: Duration) -> Result<(u64, Duration), Error> {
    let count = || count(TcpStream::connect_timeout(&sender, PATIENCE)?, duration);
    let counted = host.within(count).map_err(|error| failed("the kernel's receiver", error))?;
    if is_interrupted() { Err(Error::Interrupted) } else { Ok(counted) }
}

fn count(mut stream: TcpStream, duration: Duration) -> io::Result<(u64, Duration)> {
    stream.set_read_timeout(Some(TICK))?;
    let mut piece = vec![0; PIECE];
    let mut bytes = 0;
    let mut first = None;
    let mut latest = Instant::now() + PATIENCE;
    while Instant::now() < latest && !is_interrupted() {
        match stream.read(&mut piece) {
            Ok(0) => return Err(io::Error::other("the sender closed")),
            Ok(n) => {
                bytes += n as u64;
                latest = *first.get_or_insert_with(Instant::now) + duration;
            }
            Err(error) if is_timeout(&error) => {}
            Err(error) => return Err(error),
        }
    }
    match first {
        Some(first) => Ok((bytes, first.elapsed())),
        None => Err(io::Error::other("nothing arrived")),
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

fn failed(program: &str, error: io::Error) -> Error {
    Error::Start { program: program.to_owned(), error }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receiver_counts_for_its_duration() {
        let listener = listen("127.0.0.1:0".parse().unwrap(), "reno").unwrap();
        let to = listener.local_addr().unwrap();
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let sent = scope.spawn(|| send(&listener, || stop.load(Ordering::Relaxed)));
            let time = Duration::from_millis(200);
            let (bytes, counted) = count(TcpStream::connect(to).unwrap(), time).unwrap();
            stop.store(true, Ordering::Relaxed);
            assert!(bytes > 0 && counted >= time && counted < 2 * time + TICK, "{bytes} in {counted:?}");
            let _ = sent.join().unwrap();
        });
    }

    #[test]
    fn silent_sender_is_an_error() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        drop(listener.accept().unwrap());
        assert!(count(stream, TICK).is_err());
    }
}
