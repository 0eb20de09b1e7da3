//! Responses of a server: a greeting, or the files of a directory.

use crate::body::Body;
use crate::content_type;
use hyper::body::Bytes;
use hyper::header::{ALLOW, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, Response, StatusCode, Version};
use percent_encoding::percent_decode_str;
use std::borrow::Cow;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Response of a server without files.
const GREETING: &[u8] = b"hello\n";
/// File of a path that ends with a slash.
const INDEX: &str = "index.html";
/// Memory that a file is assumed to take beside its contents, so that empty files count, too.
const OVERHEAD: u64 = 256;

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const METHODS: HeaderValue = HeaderValue::from_static("GET, HEAD");

/// Directory that could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum SiteError {
    /// A file or directory could not be read.
    #[error("{}: {error}: name a directory whose files can be read", path.display())]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// Cause.
        error: io::Error,
    },
    /// The files exceed the limit.
    #[error("{}: the files up to here take more than {limit} bytes of memory", path.display())]
    TooLarge {
        /// The file that exceeds the limit.
        path: PathBuf,
        /// Limit in bytes.
        limit: u64,
    },
}

/// Responses in memory, shared by all workers.
#[derive(Debug)]
pub struct Site {
    content: Content,
}

#[derive(Debug)]
enum Content {
    Greeting,
    /// Files by their decoded paths, without a leading slash.
    Files(HashMap<Box<str>, Page>),
}

#[derive(Debug)]
struct Page {
    content_type: HeaderValue,
    bytes: Bytes,
}

impl Site {
    /// Creates a site that greets at every path.
    pub fn greeting() -> Self {
        Site { content: Content::Greeting }
    }

    /// Loads the files of `directory` and the directories in it, up to `limit` bytes. Only loaded files are served, so
    /// no request leads out of the directory. Hidden files, symbolic links, special files, and names that are not UTF-8
    /// are left out.
    ///
    /// # Errors
    /// [`SiteError`].
    pub fn load(directory: &Path, limit: u64) -> Result<Self, SiteError> {
        let mut loader = Loader { files: HashMap::new(), limit, left: limit };
        loader.load(directory, "")?;
        Ok(Site { content: Content::Files(loader.files) })
    }

    /// Returns the number of files.
    pub fn files(&self) -> usize {
        match &self.content {
            Content::Greeting => 0,
            Content::Files(files) => files.len(),
        }
    }

    /// Returns the response to `request`, whose body is ignored.
    #[inline]
    pub fn respond<B>(&self, request: &Request<B>) -> Response<Body> {
        let is_head = request.method() == Method::HEAD;
        if !is_head && request.method() != Method::GET {
            let mut response = text(StatusCode::METHOD_NOT_ALLOWED, false);
            response.headers_mut().insert(ALLOW, METHODS);
            return response;
        }
        // RFC 9112 section 3.2.
        if request.version() == Version::HTTP_11 && !request.headers().contains_key(HOST) {
            return text(StatusCode::BAD_REQUEST, is_head);
        }
        match &self.content {
            Content::Greeting => reply(StatusCode::OK, TEXT, Bytes::from_static(GREETING), is_head),
            Content::Files(files) => match find(files, request.uri().path()) {
                Ok(page) => reply(StatusCode::OK, page.content_type.clone(), page.bytes.clone(), is_head),
                Err(status) => text(status, is_head),
            },
        }
    }
}

/// Returns the file at `path`, which is percent-encoded.
fn find<'a>(files: &'a HashMap<Box<str>, Page>, path: &str) -> Result<&'a Page, StatusCode> {
    let path = path.strip_prefix('/').ok_or(StatusCode::BAD_REQUEST)?;
    let path = percent_decode_str(path).decode_utf8().map_err(|_| StatusCode::BAD_REQUEST)?;
    let path = if path.is_empty() || path.ends_with('/') { Cow::Owned(path.into_owned() + INDEX) } else { path };
    files.get(&*path).ok_or(StatusCode::NOT_FOUND)
}

/// Returns a response without a file.
fn text(status: StatusCode, is_head: bool) -> Response<Body> {
    let reason = status.canonical_reason().unwrap_or_default();
    reply(status, TEXT, Bytes::from(format!("{} {reason}\n", status.as_str())), is_head)
}

#[inline]
fn reply(status: StatusCode, content_type: HeaderValue, bytes: Bytes, is_head: bool) -> Response<Body> {
    let length = bytes.len();
    let mut response = Response::new(Body::from(if is_head { Bytes::new() } else { bytes }));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    if is_head {
        response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    response
}

struct Loader {
    files: HashMap<Box<str>, Page>,
    limit: u64,
    left: u64,
}

impl Loader {
    /// Loads `directory`, whose files have paths that begin with `prefix`.
    fn load(&mut self, directory: &Path, prefix: &str) -> Result<(), SiteError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |error| SiteError::Read { path, error }
        };
        for entry in fs::read_dir(directory).map_err(failed(directory))? {
            let entry = entry.map_err(failed(directory))?;
            let path = entry.path();
            // Does not follow symbolic links.
            let kind = entry.file_type().map_err(failed(&path))?;
            let name = entry.file_name();
            let Some(name) = served_name(&name).filter(|_| kind.is_file() || kind.is_dir()) else {
                tracing::info!("{}: not served: hidden, a link, not a file, or not UTF-8", path.display());
                continue;
            };
            if kind.is_dir() {
                self.load(&path, &format!("{prefix}{name}/"))?;
                continue;
            }
            let too_large = || SiteError::TooLarge { path: path.clone(), limit: self.limit };
            let left = self.left.checked_sub(OVERHEAD).ok_or_else(too_large)?;
            let mut contents = Vec::new();
            // Reads one byte more, to detect a file that is too large or grows while it is read.
            let opened = File::open(&path).and_then(|file| file.take(left + 1).read_to_end(&mut contents));
            opened.map_err(failed(&path))?;
            self.left = left.checked_sub(contents.len() as u64).ok_or_else(too_large)?;
            let content_type = HeaderValue::from_static(content_type::of(&path));
            let page = Page { content_type, bytes: contents.into_boxed_slice().into() };
            self.files.insert(format!("{prefix}{name}").into(), page);
        }
        Ok(())
    }
}

/// Returns the name of a file as text, unless it is hidden or not UTF-8.
fn served_name(name: &OsStr) -> Option<&str> {
    name.to_str().filter(|name| !name.starts_with('.'))
}

#[cfg(test)]
mod tests;
