//! Runtime directory with one introspection socket per process, accessible only to its user.

use rustix::process::{Pid, geteuid, test_kill_process};
use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Name of the directory.
const NAME: &str = "linerate";
/// Extension of socket names, after the process id.
const SUFFIX: &str = "sock";

/// Error in creating a socket.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// No runtime directory is configured for this user.
    #[error("XDG_RUNTIME_DIR is not set, and only root uses /run")]
    NoRuntimeDir,
    /// The directory cannot be created or examined.
    #[error("{}: {error}", path.display())]
    Directory { path: PathBuf, error: io::Error },
    /// The directory is accessible to other users.
    #[error("{}: accessible to other users: chown it to this user and chmod it to 700", .0.display())]
    NotPrivate(PathBuf),
    /// The socket cannot be bound.
    #[error("{}: {error}", path.display())]
    Socket { path: PathBuf, error: io::Error },
}

/// Returns the directory of this process's socket, below `RUNTIME_DIRECTORY` if systemd set it, otherwise below /run
/// for root and `XDG_RUNTIME_DIR` for other users.
fn own_directory() -> Option<PathBuf> {
    // Multiple directories are separated by colons (systemd.exec(5)).
    let first = |paths: String| paths.split(':').next().map(PathBuf::from);
    let systemd = std::env::var("RUNTIME_DIRECTORY").ok().and_then(first).filter(|path| path.is_absolute());
    let session = || std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let base = systemd.or_else(|| if geteuid().is_root() { Some(PathBuf::from("/run")) } else { session() })?;
    Some(base.join(NAME))
}

/// Returns the directories to search for sockets: the directory of this process; for root also those of other users and
/// of systemd services named `linerate-*`, and for others that of root, whose error is the reason its processes are
/// not found. If `RUNTIME_DIRECTORY` is set, it is the only one.
pub fn directories() -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = own_directory().into_iter().collect();
    if std::env::var_os("RUNTIME_DIRECTORY").is_some() {
        return all;
    }
    if !geteuid().is_root() {
        all.push(Path::new("/run").join(NAME));
    } else {
        let below = |path: &str| fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
        all.extend(below("/run/user").map(|path| path.join(NAME)));
        let is_service =
            |path: &PathBuf| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"linerate-"));
        all.extend(below("/run").filter(is_service).map(|path| path.join(NAME)));
    }
    all
}

/// Returns the sockets in `directory`, sorted by process id. A socket may be stale.
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

/// Socket file of this process. Dropping it removes the file.
pub struct Socket {
    path: PathBuf,
}

impl Socket {
    /// Binds the socket of this process, after removing stale sockets.
    pub fn bind() -> Result<(UnixListener, Socket), SocketError> {
        Self::bind_in(&own_directory().ok_or(SocketError::NoRuntimeDir)?)
    }

    fn bind_in(directory: &Path) -> Result<(UnixListener, Socket), SocketError> {
        make_private(directory)?;
        // A stale socket that cannot be removed is harmless.
        for (pid, path) in sockets(directory).unwrap_or_default() {
            if is_stale(pid, &path) {
                let _ = fs::remove_file(path);
            }
        }
        let path = directory.join(format!("{}.{SUFFIX}", std::process::id()));
        let failed = |error| SocketError::Socket { path: path.clone(), error };
        let listener = UnixListener::bind(&path).map_err(failed)?;
        let socket = Socket { path: path.clone() };
        // The directory keeps other users out until the permissions are set.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).map_err(failed)?;
        Ok((listener, socket))
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // Another process may have removed it as stale.
        let _ = fs::remove_file(&self.path);
    }
}

/// Creates the directory for this user only. An existing directory must already be private.
fn make_private(path: &Path) -> Result<(), SocketError> {
    let failed = |error| SocketError::Directory { path: path.to_owned(), error };
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(failed(error)),
        _ => {}
    }
    // symlink_metadata: another user could have created a link to a directory of this user.
    let found = fs::symlink_metadata(path).map_err(failed)?;
    let is_private = found.is_dir() && found.uid() == geteuid().as_raw() && found.mode() & 0o077 == 0;
    if is_private { Ok(()) } else { Err(SocketError::NotPrivate(path.to_owned())) }
}

/// Returns whether no process listens on the socket of process `pid`. A live process may be about to listen.
fn is_stale(pid: u32, path: &Path) -> bool {
    let refused = || UnixStream::connect(path).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused);
    let is_gone = match i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // This process has not bound its socket yet: the file belongs to an earlier process with the same id.
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
    fn socket_is_private_and_removed_on_drop() {
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
    fn stale_sockets_of_dead_processes_are_removed() {
        let base = tempfile::tempdir().unwrap();
        let directory = base.path().join("linerate");
        make_private(&directory).unwrap();
        // Above PID_MAX_LIMIT, so no process has this id.
        let left = directory.join("2147483647.sock");
        drop(UnixListener::bind(&left).unwrap());
        // Has a listener, whatever its id.
        let kept = directory.join("2147483646.sock");
        let _listens = UnixListener::bind(&kept).unwrap();
        // Not a socket.
        let file = directory.join("2147483645.sock");
        fs::write(&file, "").unwrap();
        // Process 1 exists and may be about to listen.
        let init = directory.join("1.sock");
        drop(UnixListener::bind(&init).unwrap());
        // Left by an earlier process with the id of this process.
        let own = directory.join(format!("{}.sock", std::process::id()));
        drop(UnixListener::bind(&own).unwrap());
        let _socket = Socket::bind_in(&directory).unwrap();
        assert!(!left.exists() && kept.exists() && file.exists() && init.exists() && own.exists());
    }

    #[test]
    fn shared_or_linked_directory_is_rejected() {
        let base = tempfile::tempdir().unwrap();
        let open = base.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o750)).unwrap();
        assert!(matches!(Socket::bind_in(&open), Err(SocketError::NotPrivate(_))));
        let (private, link) = (base.path().join("private"), base.path().join("link"));
        make_private(&private).unwrap();
        std::os::unix::fs::symlink(&private, &link).unwrap();
        assert!(matches!(Socket::bind_in(&link), Err(SocketError::NotPrivate(_))));
        let nowhere = base.path().join("no").join("such");
        assert!(matches!(Socket::bind_in(&nowhere), Err(SocketError::Directory { .. })));
    }
}
