//! Responses of a server: a greeting, or the files of a directory.

mod loader;

use crate::body::Body;
use hyper::body::Bytes;
use hyper::header::{
    ALLOW, CONTENT_LENGTH, CONTENT_TYPE, ETAG, HOST, HeaderMap, HeaderValue, IF_MODIFIED_SINCE, IF_NONE_MATCH,
    LAST_MODIFIED, LOCATION,
};
use hyper::{Method, Request, Response, StatusCode, Uri, Version};
use percent_encoding::percent_decode_str;
use std::borrow::Cow;
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Response of a server without files.
const GREETING: &[u8] = b"hello\n";
/// File of a path that ends with a slash.
const INDEX: &str = "index.html";

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
    #[error("{}: the files up to here take more than {limit} bytes of memory: raise --dir-memory", path.display())]
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
    /// Entity tag.
    tag: HeaderValue,
    /// Time of the last modification, in seconds since 1970 and as a date.
    modified: Option<(u64, HeaderValue)>,
    bytes: Bytes,
}

impl Site {
    /// Creates a site that greets at every path.
    pub fn greeting() -> Self {
        Site { content: Content::Greeting }
    }

    /// Loads the files of `directory` and the directories in it, up to `limit` bytes. Only loaded files are served, so
    /// no request leads out of the directory. Symbolic links that lead out of it, hidden files, special files, and
    /// names that are not UTF-8 are left out.
    ///
    /// # Errors
    /// [`SiteError`].
    pub fn load(directory: &Path, limit: u64) -> Result<Self, SiteError> {
        Ok(Site { content: Content::Files(loader::load(directory, limit)?) })
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
        // RFC 9112 section 3.2.
        let hosts = request.headers().get_all(HOST).iter().count();
        if hosts > 1 || hosts == 0 && request.version() == Version::HTTP_11 {
            return text(StatusCode::BAD_REQUEST, is_head);
        }
        if !is_head && request.method() != Method::GET {
            let mut response = text(StatusCode::METHOD_NOT_ALLOWED, false);
            response.headers_mut().insert(ALLOW, METHODS);
            return response;
        }
        match &self.content {
            Content::Greeting => reply(StatusCode::OK, TEXT, Bytes::from_static(GREETING), is_head),
            Content::Files(files) => match find(files, request.uri().path()) {
                Found::Page(page) => page.respond(request.headers(), is_head),
                Found::Directory => moved(request.uri(), is_head),
                Found::Nothing(status) => text(status, is_head),
            },
        }
    }
}

impl Page {
    #[inline]
    fn respond(&self, headers: &HeaderMap, is_head: bool) -> Response<Body> {
        let mut response = if self.is_known(headers) {
            let mut response = Response::default();
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            response
        } else {
            reply(StatusCode::OK, self.content_type.clone(), self.bytes.clone(), is_head)
        };
        response.headers_mut().insert(ETAG, self.tag.clone());
        if let Some((_, date)) = &self.modified {
            response.headers_mut().insert(LAST_MODIFIED, date.clone());
        }
        response
    }

    /// Returns whether the client has the file (RFC 9110 sections 13.1.2 and 13.1.3).
    fn is_known(&self, headers: &HeaderMap) -> bool {
        let mut tags = headers.get_all(IF_NONE_MATCH).iter().peekable();
        if tags.peek().is_some() {
            let listed = tags.flat_map(|value| value.as_bytes().split(|&byte| byte == b','));
            let mut listed = listed.map(<[u8]>::trim_ascii);
            return listed.any(|tag| tag == b"*" || tag.strip_prefix(b"W/").unwrap_or(tag) == self.tag.as_bytes());
        }
        let since =
            headers.get(IF_MODIFIED_SINCE).and_then(|value| httpdate::parse_http_date(value.to_str().ok()?).ok());
        let since = since.and_then(|since| since.duration_since(SystemTime::UNIX_EPOCH).ok());
        since.zip(self.modified.as_ref()).is_some_and(|(since, (modified, _))| *modified <= since.as_secs())
    }
}

/// Result of a look-up.
enum Found<'a> {
    Page(&'a Page),
    /// The path of a directory with an index lacks the slash at its end.
    Directory,
    Nothing(StatusCode),
}

/// Returns the file at `path`, which is percent-encoded.
fn find<'a>(files: &'a HashMap<Box<str>, Page>, path: &str) -> Found<'a> {
    let decoded = path.strip_prefix('/').and_then(|path| percent_decode_str(path).decode_utf8().ok());
    let Some(path) = decoded else { return Found::Nothing(StatusCode::BAD_REQUEST) };
    let is_directory = path.is_empty() || path.ends_with('/');
    let path = if is_directory { Cow::Owned(path.into_owned() + INDEX) } else { path };
    match files.get(&*path) {
        Some(page) => Found::Page(page),
        None if !is_directory && files.contains_key(&*format!("{path}/{INDEX}")) => Found::Directory,
        None => Found::Nothing(StatusCode::NOT_FOUND),
    }
}

/// Returns a redirection to the directory at `uri`, so that links of its index are relative to it.
fn moved(uri: &Uri, is_head: bool) -> Response<Body> {
    let query = uri.query().map_or(String::new(), |query| format!("?{query}"));
    let Ok(location) = HeaderValue::try_from(format!("{}/{query}", uri.path())) else {
        return text(StatusCode::NOT_FOUND, is_head);
    };
    let mut response = text(StatusCode::MOVED_PERMANENTLY, is_head);
    response.headers_mut().insert(LOCATION, location);
    response
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

#[cfg(test)]
mod tests;
