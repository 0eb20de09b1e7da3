//! The host's side: the lab's directory, its network namespaces, and what runs in them.

use crate::error::{Context, Result, failed};
use crate::image::Image;
use crate::log::Log;
use crate::program::Program;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// How the lab's namespaces are called, before the lab's process and a number.
const NAMESPACE: &str = "lr-lab-";

/// What all suites need.
#[derive(Debug)]
pub struct Lab {
    /// What is said.
    pub log: Log,
    /// The kernel.
    pub image: Image,
    /// What it boots with.
    pub initramfs: PathBuf,
    /// The program under test.
    pub linerate: PathBuf,
    /// Where reports go.
    pub out: PathBuf,
    scratch: tempfile::TempDir,
}

impl Lab {
    /// Looks for everything, and makes the rest. Reports go to `out`, or beside this program.
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

    /// The path of a socket.
    pub fn socket(&self, name: &str) -> PathBuf {
        self.scratch.path().join(format!("{name}.sock"))
    }

    /// `linerate` with the words of `arguments`, on the host and in `namespace` if one is given.
    pub fn linerate(&self, namespace: Option<&Namespace>, arguments: &str) -> Result<Program> {
        let mut command = match namespace {
            Some(namespace) => namespace.command(&self.linerate.to_string_lossy()),
            None => Command::new(&self.linerate),
        };
        command.args(arguments.split_whitespace());
        Program::start(format!("host: linerate {}", first_words(arguments)), &command, &self.log)
    }

    /// `linerate` with these arguments, as a command for a guest's shell.
    pub fn in_guest(&self, arguments: &str) -> String {
        format!("exec '{}' {arguments}", self.linerate.display())
    }

    /// A network namespace that is removed with everything in it.
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

/// The first two words: `echo serve`.
pub fn first_words(arguments: &str) -> String {
    arguments.split_whitespace().take(2).collect::<Vec<_>>().join(" ")
}

/// A network namespace of the lab's.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    log: Log,
}

impl Namespace {
    /// A command that is run in it.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, program]);
        command
    }

    /// Gives one of its interfaces an address and takes it up.
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

/// Removes a namespace, also while the lab is being interrupted.
fn remove(name: &str) {
    match Command::new("ip").args(["netns", "del", name]).status() {
        Ok(status) if status.success() => {}
        _ => eprintln!("   the network namespace {name} is left behind"),
    }
}

/// Removes the namespaces that a lab left that was killed.
fn sweep(log: &Log) -> Result<()> {
    for entry in std::fs::read_dir("/run/netns").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name.strip_prefix(NAMESPACE).and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            log.line("lab", &format!("{name} was left behind"));
            remove(&name);
        }
    }
    Ok(())
}
