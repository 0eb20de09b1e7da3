//! Certificate of servers with TLS, for loads that accept any.

use std::io;
use std::path::{Path, PathBuf};

/// Returns the paths of the certificate and of its key in `directory`.
pub fn paths(directory: &Path) -> [PathBuf; 2] {
    ["server.pem", "server.key"].map(|name| directory.join(name))
}

/// Writes a new self-signed certificate and its P-256 key to `directory`, and returns their paths.
///
/// # Errors
/// The files cannot be written.
pub fn write(directory: &Path) -> io::Result<[PathBuf; 2]> {
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).map_err(io::Error::other)?;
    let [chain, key] = paths(directory);
    std::fs::write(&chain, certified.cert.pem())?;
    std::fs::write(&key, certified.signing_key.serialize_pem())?;
    Ok([chain, key])
}
