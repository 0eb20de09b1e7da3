//! Where processes that can be looked into are found: a socket each, in a directory that is its user's alone.

use rustix::process::{Pid, geteuid, test_kill_process};
use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// What the directory is called, wherever it is.
const NAME: &str = "linerate";
/// What is behind the number of a process in the name of its socket.
const SUFFIX: &str = "sock";

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub enum NoPlace {
    /// Nobody says where sockets of this user belong.
    #[error("XDG_RUNTIME_DIR is not set, and only root's sockets are in /run")]
    Nowhere,
    /// The directory cannot be had.
    #[error("{}: {error}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// Others may do something in it.
    #[error("{}: it is not this user's alone: chown it, and chmod it to 700", .0.display())]
    NotPrivate(PathBuf),
    /// The socket cannot be had.
    #[error("{}: {error}", path.display())]
    Socket {
        /// The socket.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
}

/// The directory in which this process has its socket: below what systemd has made for it, else in /run for root, and in the user's
/// directory of its session for others.
fn own() -> Option<PathBuf> {
    // Several are separated by colons (systemd.exec(5)).
    let first = |paths: String| paths.split(':').next().map(PathBuf::from);
    let made = std::env::var("RUNTIME_DIRECTORY").ok().and_then(first).filter(|path| path.is_absolute());
    let session = || std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let base = made.or_else(|| if geteuid().is_root() { Some(PathBuf::from("/run")) } else { session() })?;
    Some(base.join(NAME))
}

/// The directories in which somebody may look for sockets: the own one; root also looks in those of other users, and of services that
/// systemd runs with a directory called after us. `RUNTIME_DIRECTORY`, where it is set, is the only one.
pub fn directories() -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = own().into_iter().collect();
    if std::env::var_os("RUNTIME_DIRECTORY").is_none() && geteuid().is_root() {
        let below = |path: &str| fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
        all.extend(below("/run/user").map(|path| path.join(NAME)));
        let ours =
            |path: &PathBuf| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"linerate-"));
        all.extend(below("/run").filter(ours).map(|path| path.join(NAME)));
    }
    all
}

/// The sockets in `directory`, by the numbers of their processes. There may be nobody behind one.
pub fn sockets(directory: &Path) -> io::Result<Vec<(u32, PathBuf)>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut sockets: Vec<_> = entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_socket()))
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|suffix| suffix == SUFFIX))
        .filter_map(|path| Some((path.file_stem()?.to_str()?.parse().ok()?, path)))
        .collect();
    sockets.sort();
    Ok(sockets)
}

/// The socket of this process, which goes when this is dropped.
pub struct Socket {
    path: PathBuf,
}

impl Socket {
    /// Listens where this process is looked for. Sockets there that nobody listens on any more go.
    pub fn bind() -> Result<(UnixListener, Socket), NoPlace> {
        Self::bind_in(&own().ok_or(NoPlace::Nowhere)?)
    }

    fn bind_in(directory: &Path) -> Result<(UnixListener, Socket), NoPlace> {
        make_private(directory)?;
        // What is left behind harms nobody, so that what cannot be removed stays.
        for (pid, path) in sockets(directory).unwrap_or_default() {
            if is_stale(pid, &path) {
                let _ = fs::remove_file(path);
            }
        }
        let path = directory.join(format!("{}.{SUFFIX}", std::process::id()));
        let failed = |error| NoPlace::Socket { path: path.clone(), error };
        let listener = UnixListener::bind(&path).map_err(failed)?;
        let socket = Socket { path: path.clone() };
        // Nobody else gets through the directory meanwhile.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).map_err(failed)?;
        Ok((listener, socket))
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // Somebody may have been tidying up.
        let _ = fs::remove_file(&self.path);
    }
}

/// Makes the directory, for this user alone; one that is there has to be like that.
fn make_private(path: &Path) -> Result<(), NoPlace> {
    let failed = |error| NoPlace::Directory { path: path.to_owned(), error };
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(failed(error)),
        _ => {}
    }
    // Not of what a link leads to, which somebody else could have laid.
    let found = fs::symlink_metadata(path).map_err(failed)?;
    let is_private = found.is_dir() && found.uid() == geteuid().as_raw() && found.mode() & 0o077 == 0;
    if is_private { Ok(()) } else { Err(NoPlace::NotPrivate(path.to_owned())) }
}

/// Whether nobody listens on the socket of the process `pid` any more. One that has bound it and is just about to listen is there.
fn is_stale(pid: u32, path: &Path) -> bool {
    let refused = || UnixStream::connect(path).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused);
    let is_gone = match i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // We have not bound it yet: it was another process of this number.
        Some(pid) if pid == rustix::process::getpid() => true,
        Some(pid) => test_kill_process(pid) == Err(rustix::io::Errno::SRCH),
        None => true,
    };
    is_gone && refused()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn a_socket_is_its_users_alone_and_goes_with_who_holds_it() {
        let base = tempfile::tempdir().unwrap();
        let directory = base.path().join("linerate");
        let (_listener, socket) = Socket::bind_in(&directory).unwrap();
        let path = directory.join(format!("{}.sock", std::process::id()));
        assert_eq!((mode(&directory), mode(&path)), (0o700, 0o600));
        assert_eq!(sockets(&directory).unwrap(), [(std::process::id(), path.clone())]);
        drop(socket);
        assert!(!path.exists() && directory.exists());
    }

    #[test]
    fn what_processes_left_behind_that_are_no_more_is_removed() {
        let base = tempfile::tempdir().unwrap();
        let directory = base.path().join("linerate");
        make_private(&directory).unwrap();
        // No process has this number, which is beyond what the kernel gives (PID_MAX_LIMIT).
        let left = directory.join("2147483647.sock");
        drop(UnixListener::bind(&left).unwrap());
        // Somebody listens here, whatever its number says.
        let kept = directory.join("2147483646.sock");
        let _listens = UnixListener::bind(&kept).unwrap();
        // This is no socket.
        let file = directory.join("2147483645.sock");
        fs::write(&file, "").unwrap();
        // Process 1 is there, and may be about to listen.
        let init = directory.join("1.sock");
        drop(UnixListener::bind(&init).unwrap());
        // Left by another process of our number.
        let own = directory.join(format!("{}.sock", std::process::id()));
        drop(UnixListener::bind(&own).unwrap());
        let _socket = Socket::bind_in(&directory).unwrap();
        assert!(!left.exists() && kept.exists() && file.exists() && init.exists() && own.exists());
    }

    #[test]
    fn a_directory_that_others_can_write_to_or_that_is_a_link_is_not_used() {
        let base = tempfile::tempdir().unwrap();
        let open = base.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o750)).unwrap();
        assert!(matches!(Socket::bind_in(&open), Err(NoPlace::NotPrivate(_))));
        let (private, link) = (base.path().join("private"), base.path().join("link"));
        make_private(&private).unwrap();
        std::os::unix::fs::symlink(&private, &link).unwrap();
        assert!(matches!(Socket::bind_in(&link), Err(NoPlace::NotPrivate(_))));
        let nowhere = base.path().join("no").join("such");
        assert!(matches!(Socket::bind_in(&nowhere), Err(NoPlace::Directory { .. })));
    }
}
