//! Host side of the lab: scratch directory and programs.

use crate::error::{Context, Result};
use crate::image::Image;
use crate::log::Log;
use crate::program::Program;
use linerate_harness::namespace::Namespace;
use linerate_harness::process::sibling;
use std::path::PathBuf;
use std::process::Command;

/// Environment of all suites.
#[derive(Debug)]
pub struct Lab {
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
    /// Prepares the environment. Reports are written to `out`, or in the directory of this program.
    pub fn open(log: Log, out: Option<PathBuf>) -> Result<Lab> {
        let linerate = sibling("linerate", "build linerate-apps in the same profile")?;
        let scratch = tempfile::Builder::new().prefix("linerate-lab-").tempdir().context("a directory")?;
        let image = Image::open(&log)?;
        let initramfs = image.initramfs(scratch.path(), &log)?;
        let out = out.unwrap_or_else(|| linerate.with_file_name("lab-compare"));
        Ok(Lab { log, image, initramfs, linerate, out, scratch })
    }

    pub fn socket(&self, name: &str) -> PathBuf {
        self.file(&format!("{name}.sock"))
    }

    /// Returns a path in the scratch directory.
    pub fn file(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Starts `linerate` on the host, in `namespace` if given.
    pub fn linerate(&self, namespace: Option<&Namespace>, arguments: &str) -> Result<Program> {
        let mut command = match namespace {
            Some(namespace) => namespace.command(&self.linerate),
            None => Command::new(&self.linerate),
        };
        command.args(arguments.split_whitespace());
        Program::start(format!("host: linerate {}", command_name(arguments)), &command, &self.log)
    }

    /// Returns `linerate` with these arguments as a shell command for a guest.
    pub fn in_guest(&self, arguments: &str) -> String {
        format!("exec '{}' {arguments}", self.linerate.display())
    }
}

/// Returns the name of the command, such as `echo serve`.
pub fn command_name(arguments: &str) -> String {
    arguments.split_whitespace().take(2).collect::<Vec<_>>().join(" ")
}
