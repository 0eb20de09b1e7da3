//! Host side of the lab: scratch directory, network namespaces, and programs in them.

use crate::error::{Context, Result, failed};
use crate::image::Image;
use crate::log::Log;
use crate::program::Program;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// Prefix of namespace names, followed by the lab's process and a number.
const NAMESPACE: &str = "lr-lab-";

/// Environment of all suites.
#[derive(Debug)]
pub struct Lab {
    /// Log.
    pub log: Log,
    /// Guest kernel.
    pub image: Image,
    /// Initial RAM filesystem.
    pub initramfs: PathBuf,
    /// Program under test.
    pub linerate: PathBuf,
    /// Directory of reports.
    pub out: PathBuf,
    scratch: tempfile::TempDir,
}

impl Lab {
    /// Prepares the environment. Reports are written to `out`, or beside this program.
    pub fn open(log: Log, out: Option<PathBuf>) -> Result<Lab> {
        sweep(&log)?;
        let lab = std::env::current_exe().context("this program")?;
        let linerate = lab.with_file_name("linerate");
        if !linerate.exists() {
            return failed(format!("{}: build linerate-apps in the same profile", linerate.display()));
        }
        let scratch = tempfile::Builder::new().prefix("linerate-lab-").tempdir().context("a directory")?;
        let image = Image::open(&log)?;
        let initramfs = image.initramfs(scratch.path(), &log)?;
        let out = out.unwrap_or_else(|| lab.with_file_name("lab-compare"));
        Ok(Lab { log, image, initramfs, linerate, out, scratch })
    }

    /// Returns the path of a socket.
    pub fn socket(&self, name: &str) -> PathBuf {
        self.scratch.path().join(format!("{name}.sock"))
    }

    /// Starts `linerate` on the host, in `namespace` if given.
    pub fn linerate(&self, namespace: Option<&Namespace>, arguments: &str) -> Result<Program> {
        let mut command = match namespace {
            Some(namespace) => namespace.command(&self.linerate.to_string_lossy()),
            None => Command::new(&self.linerate),
        };
        command.args(arguments.split_whitespace());
        Program::start(format!("host: linerate {}", first_words(arguments)), &command, &self.log)
    }

    /// Returns `linerate` with these arguments as a shell command for a guest.
    pub fn in_guest(&self, arguments: &str) -> String {
        format!("exec '{}' {arguments}", self.linerate.display())
    }

    /// Creates a network namespace, which is removed on drop.
    pub fn namespace(&self) -> Result<Namespace> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let namespace =
            Namespace { name: format!("{NAMESPACE}{}-{number}", std::process::id()), log: self.log.clone() };
        ip(&format!("netns add {}", namespace.name), &self.log)?;
        ip(&format!("-n {} link set lo up", namespace.name), &self.log)?;
        Ok(namespace)
    }
}

/// Returns the first two words, such as `echo serve`.
pub fn first_words(arguments: &str) -> String {
    arguments.split_whitespace().take(2).collect::<Vec<_>>().join(" ")
}

/// Network namespace of the lab.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    log: Log,
}

impl Namespace {
    /// Returns a command to be run in the namespace.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, program]);
        command
    }

    /// Gives an interface an address and takes it up.
    pub fn address(&self, interface: &str, address: &str) -> Result<()> {
        ip(&format!("-n {} addr add {address} dev {interface}", self.name), &self.log)?;
        ip(&format!("-n {} link set {interface} up", self.name), &self.log)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        remove(&self.name);
    }
}

/// Runs `ip` with the words of `arguments`.
fn ip(arguments: &str, log: &Log) -> Result<()> {
    let mut command = Command::new("ip");
    command.args(arguments.split(' '));
    Program::start("ip", &command, log)?.succeed().map(drop)
}

/// Removes a namespace, even while the lab is being interrupted.
fn remove(name: &str) {
    match Command::new("ip").args(["netns", "del", name]).status() {
        Ok(status) if status.success() => {}
        _ => eprintln!("   the network namespace {name} is left behind"),
    }
}

/// Removes namespaces of labs that were killed.
fn sweep(log: &Log) -> Result<()> {
    for entry in std::fs::read_dir("/run/netns").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name.strip_prefix(NAMESPACE).and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            log.line("lab", &format!("removed left-over {name}"));
            remove(&name);
        }
    }
    Ok(())
}
