//! Content types by the extensions of file names.

use std::path::Path;

/// Content type of other files.
const OTHER: &str = "application/octet-stream";

/// Extensions in lower case, and their content types.
const TYPES: [(&str, &str); 34] = [
    ("avif", "image/avif"),
    ("css", "text/css; charset=utf-8"),
    ("csv", "text/csv; charset=utf-8"),
    ("gif", "image/gif"),
    ("gz", "application/gzip"),
    ("htm", "text/html; charset=utf-8"),
    ("html", "text/html; charset=utf-8"),
    ("ico", "image/vnd.microsoft.icon"),
    ("jpeg", "image/jpeg"),
    ("jpg", "image/jpeg"),
    ("js", "text/javascript; charset=utf-8"),
    ("json", "application/json"),
    ("md", "text/markdown; charset=utf-8"),
    ("mjs", "text/javascript; charset=utf-8"),
    ("mp3", "audio/mpeg"),
    ("mp4", "video/mp4"),
    ("oga", "audio/ogg"),
    ("ogv", "video/ogg"),
    ("otf", "font/otf"),
    ("pdf", "application/pdf"),
    ("png", "image/png"),
    ("svg", "image/svg+xml"),
    ("tar", "application/x-tar"),
    ("toml", "application/toml"),
    ("ttf", "font/ttf"),
    ("txt", "text/plain; charset=utf-8"),
    ("wasm", "application/wasm"),
    ("wav", "audio/wav"),
    ("webm", "video/webm"),
    ("webp", "image/webp"),
    ("woff", "font/woff"),
    ("woff2", "font/woff2"),
    ("xml", "application/xml"),
    ("zip", "application/zip"),
];

/// Returns the content type of the file `name`.
pub(crate) fn from_name(name: &Path) -> &'static str {
    let extension = name.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    let found = TYPES.iter().find(|(other, _)| extension.eq_ignore_ascii_case(other));
    found.map_or(OTHER, |(_, content_type)| content_type)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_type_follows_the_extension() {
        for (name, expected) in [
            ("a/index.html", "text/html; charset=utf-8"),
            ("LOGO.PNG", "image/png"),
            ("a.tar.gz", "application/gzip"),
            ("README", OTHER),
            ("a.html.unknown", OTHER),
        ] {
            assert_eq!(from_name(Path::new(name)), expected, "{name}");
        }
    }
}
