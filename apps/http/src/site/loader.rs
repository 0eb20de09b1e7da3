//! Files of a directory, and of the directories in it.

use super::{Page, SiteError};
use crate::content_type;
use hyper::header::HeaderValue;
use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use std::collections::HashMap;
use std::fs::{File, Metadata, OpenOptions};
use std::hash::{DefaultHasher, Hasher};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Memory that a file is assumed to take in addition to its contents, so that empty files count, too.
pub(super) const OVERHEAD: u64 = 512;
/// Attempts to open a file while other files are renamed.
const ATTEMPTS: usize = 1000;
/// Seconds of the first time that has no date in HTTP.
const END_OF_DATES: u64 = 253_402_300_800;

/// Loads the files of `directory`, up to `limit` bytes.
pub(super) fn load(directory: &Path, limit: u64) -> Result<HashMap<Box<str>, Page>, SiteError> {
    let failed = |error| SiteError::Read { path: directory.to_owned(), error };
    let flags = OFlags::DIRECTORY.bits().cast_signed();
    let root = OpenOptions::new().read(true).custom_flags(flags).open(directory).map_err(failed)?;
    let found = root.metadata().map_err(failed)?;
    let start = root.try_clone().map_err(failed)?;
    let mut loader = Loader { root, path: directory, files: HashMap::new(), limit, left: limit, open: Vec::new() };
    loader.load_directory(start, &found, "")?;
    Ok(loader.files)
}

struct Loader<'a> {
    root: File,
    path: &'a Path,
    files: HashMap<Box<str>, Page>,
    limit: u64,
    left: u64,
    /// Device and inode of each directory from the root to the current one.
    open: Vec<(u64, u64)>,
}

impl Loader<'_> {
    /// Loads `directory`, whose files have paths that begin with `prefix`.
    fn load_directory(&mut self, directory: File, found: &Metadata, prefix: &str) -> Result<(), SiteError> {
        let id = (found.dev(), found.ino());
        if self.open.contains(&id) {
            tracing::warn!("{}: not served: a link to a directory that contains it", self.shown(prefix).display());
            return Ok(());
        }
        self.open.push(id);
        let failed = |errno: Errno| SiteError::Read { path: self.shown(prefix), error: errno.into() };
        for entry in Dir::new(directory).map_err(failed)? {
            let entry = entry.map_err(|errno| SiteError::Read { path: self.shown(prefix), error: errno.into() })?;
            let name = entry.file_name();
            let is_file = matches!(
                entry.file_type(),
                FileType::RegularFile | FileType::Directory | FileType::Symlink | FileType::Unknown
            );
            match name.to_str() {
                Ok("." | "..") => {}
                Ok(text) if is_file && !text.starts_with('.') => self.load_entry(format!("{prefix}{text}"))?,
                _ => {
                    let path = self.shown(&format!("{prefix}{}", name.to_string_lossy()));
                    tracing::info!("{}: not served: hidden, not a file, or not UTF-8", path.display());
                }
            }
        }
        self.open.pop();
        Ok(())
    }

    /// Loads the file or directory at `path` in the root.
    fn load_entry(&mut self, path: String) -> Result<(), SiteError> {
        let failed = |error| SiteError::Read { path: self.shown(&path), error };
        let file = match self.open_beneath(&path) {
            Ok(file) => file,
            Err(Errno::XDEV | Errno::LOOP | Errno::NOENT | Errno::NXIO) => {
                let shown = self.shown(&path);
                tracing::warn!("{}: not served: a link that leads out of --dir, or to no file", shown.display());
                return Ok(());
            }
            Err(errno) => return Err(failed(errno.into())),
        };
        let found = file.metadata().map_err(failed)?;
        let too_large = || SiteError::TooLarge { path: self.shown(&path), limit: self.limit };
        let left = self.left.checked_sub(OVERHEAD).ok_or_else(too_large)?;
        if found.is_dir() {
            self.left = left;
            return self.load_directory(file, &found, &format!("{path}/"));
        }
        if !found.is_file() {
            tracing::warn!("{}: not served: a link to no file", self.shown(&path).display());
            return Ok(());
        }
        let mut contents = Vec::new();
        // Reads one byte more, to detect a file that is too large or grows while it is read.
        file.take(left + 1).read_to_end(&mut contents).map_err(failed)?;
        self.left = left.checked_sub(contents.len() as u64).ok_or_else(too_large)?;
        let page = page(contents, &path, found.modified().ok());
        self.files.insert(path.into(), page);
        Ok(())
    }

    /// Opens a file. The kernel resolves its path, so that neither a link nor a directory that is replaced meanwhile
    /// leads out of the root.
    fn open_beneath(&self, path: &str) -> Result<File, Errno> {
        // Opening a FIFO does not wait.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let mut opened = Err(Errno::AGAIN);
        for _ in 0..ATTEMPTS {
            opened = openat2(&self.root, path, flags, Mode::empty(), ResolveFlags::BENEATH);
            // EAGAIN: a rename during `..` (openat2(2)).
            if !matches!(opened, Err(Errno::AGAIN | Errno::INTR)) {
                break;
            }
        }
        opened.map(File::from)
    }

    fn shown(&self, path: &str) -> PathBuf {
        self.path.join(path)
    }
}

/// Returns the page of a file with these contents.
fn page(contents: Vec<u8>, path: &str, modified: Option<SystemTime>) -> Page {
    // Equal files have equal tags, in all instances of a server.
    let mut hasher = DefaultHasher::new();
    hasher.write(&contents);
    let tag = HeaderValue::try_from(format!("\"{:016x}\"", hasher.finish())).expect("ASCII");
    // Not later than the time of a response (RFC 9110 section 8.8.2.1).
    let modified = modified.map(|at| at.min(SystemTime::now()));
    let since = modified.and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok());
    let modified = since.filter(|since| since.as_secs() < END_OF_DATES).map(|since| {
        let date = httpdate::fmt_http_date(SystemTime::UNIX_EPOCH + since);
        (since.as_secs(), HeaderValue::try_from(date).expect("ASCII"))
    });
    Page {
        content_type: HeaderValue::from_static(content_type::from_name(Path::new(path))),
        tag,
        modified,
        bytes: contents.into_boxed_slice().into(),
    }
}
