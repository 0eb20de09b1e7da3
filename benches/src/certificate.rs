//! Certificates of servers with TLS.

use linerate_compare::certificate;
use linerate_tls::{ClientOptions, Identity, ServerOptions, TlsClient, TlsError, TlsServer};
use std::path::Path;

/// Files of a new certificate with a P-256 key.
pub struct Certificate(Identity);

impl Certificate {
    /// Writes `server.pem` and `server.key` to `directory`.
    ///
    /// # Errors
    /// If the files cannot be written.
    pub fn new(directory: &Path) -> Result<Self, TlsError> {
        let failed = |reason: String| TlsError::Other(format!("{}: {reason}", directory.display()));
        let [chain, key] = certificate::write(directory).map_err(|error| failed(error.to_string()))?;
        Ok(Certificate(Identity { chain, key }))
    }

    /// Returns the server end.
    ///
    /// # Errors
    /// If the files cannot be read.
    pub fn server(&self) -> Result<TlsServer, TlsError> {
        TlsServer::new(ServerOptions { identities: vec![self.0.clone()], ..ServerOptions::default() })
    }
}

/// Returns a client end that accepts any certificate.
///
/// # Errors
/// If the provider of the cryptography has no TLS 1.3.
pub fn client() -> Result<TlsClient, TlsError> {
    TlsClient::new(&ClientOptions { insecure: true, ..ClientOptions::default() })
}
