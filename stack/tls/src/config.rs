//! Certificates, keys and rules of both ends.

use crate::handshake::{is_traffic_secret, log_secret};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::ring::cipher_suite::{
    TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256,
};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring as provider};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{ClientHello, ParsedCertificate, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::TLS13;
use rustls::{ClientConfig, DigitallySignedStruct, KeyLog, RootCertStore, ServerConfig, SignatureScheme};
use std::fmt;
use std::fs::File;
use std::io::Write;
use std::ops::RangeInclusive;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, SystemTime};
use zeroize::Zeroizing;

/// Time before the end of a certificate from which a warning is logged.
const NEAR_END: Duration = Duration::from_secs(7 * 86_400);

/// Reason why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read, or contains no PEM section of the expected kind.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Reason.
        source: rustls::pki_types::pem::Error,
    },
    /// A file contains no certificate.
    #[error("{}: no certificate in PEM format", .0.display())]
    NoCertificate(PathBuf),
    /// The content of a file cannot be used.
    #[error("{}: {source}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// Reason.
        source: rustls::Error,
    },
    /// A server has no certificate.
    #[error("no certificate: a server needs at least one, with its key")]
    NoIdentity,
    /// A server is to verify clients, and has no authority for their certificates, or the reverse.
    #[error("certificates of clients are verified against an authority: give both, or neither")]
    ClientAuthority,
    /// A client has no authority to verify servers against.
    #[error("no authority to verify servers against")]
    NoAuthority,
    /// The name is neither a host name nor an address.
    #[error("{0:?} is neither a host name nor an address")]
    Name(String),
    /// The configuration cannot be used for another reason.
    #[error("{0}")]
    Other(String),
}

/// Files of a certificate chain and its private key, in PEM format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Certificate chain, the own certificate first.
    pub chain: PathBuf,
    /// Private key of the first certificate.
    pub key: PathBuf,
}

/// Verification of clients.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum ClientAuth {
    /// Clients are not asked for a certificate.
    #[default]
    No,
    /// A client may present no certificate; one that it presents is verified.
    Optional,
    /// A client must present a certificate.
    Required,
}

/// Options of servers.
#[derive(Debug, Default, Clone)]
pub struct ServerOptions {
    /// Identities. The first whose certificate is valid for the name that a client requests is used, or else the first.
    pub identities: Vec<Identity>,
    /// Authorities of the certificates of clients.
    pub client_ca: Option<PathBuf>,
    /// Verification of clients.
    pub client_auth: ClientAuth,
    /// Protocols in order of preference (ALPN), or empty for any.
    pub alpn: Vec<Vec<u8>>,
    /// File that the secrets of all connections are appended to.
    pub keylog: Option<PathBuf>,
}

/// Options of clients.
#[derive(Debug, Default, Clone)]
pub struct ClientOptions {
    /// Authorities of the certificates of servers.
    pub ca: Option<PathBuf>,
    /// True to accept every certificate.
    pub insecure: bool,
    /// Name that the certificate must be valid for, in place of the address of the server.
    pub name: Option<String>,
    /// Identity to present, if a server asks for one.
    pub identity: Option<Identity>,
    /// Protocols in order of preference (ALPN).
    pub alpn: Vec<Vec<u8>>,
    /// File that the secrets of all connections are appended to.
    pub keylog: Option<PathBuf>,
}

/// TLS of accepted and of outgoing connections. Connections of a kind without TLS are plain.
#[derive(Debug, Clone, Default)]
pub struct TlsConfig {
    /// TLS of accepted connections.
    pub server: Option<TlsServer>,
    /// TLS of outgoing connections.
    pub client: Option<TlsClient>,
    /// Ports whose accepted connections use TLS, or empty for all.
    pub ports: Vec<RangeInclusive<u16>>,
}

impl TlsConfig {
    /// Returns whether connections accepted on `port` use TLS.
    pub(crate) fn is_encrypted(&self, port: u16) -> bool {
        self.ports.is_empty() || self.ports.iter().any(|ports| ports.contains(&port))
    }
}

impl From<TlsServer> for TlsConfig {
    fn from(server: TlsServer) -> Self {
        TlsConfig { server: Some(server), ..TlsConfig::default() }
    }
}

impl From<TlsClient> for TlsConfig {
    fn from(client: TlsClient) -> Self {
        TlsConfig { client: Some(client), ..TlsConfig::default() }
    }
}

/// Server end of TLS, shared by all workers.
#[derive(Clone)]
pub struct TlsServer(Arc<ServerState>);

struct ServerState {
    options: ServerOptions,
    current: RwLock<Arc<ServerConfig>>,
}

impl TlsServer {
    /// Reads the files of `options`.
    ///
    /// # Errors
    /// If a file cannot be read or used, or the options exclude each other.
    pub fn new(options: ServerOptions) -> Result<Self, TlsError> {
        let current = RwLock::new(server_config(&options)?);
        Ok(TlsServer(Arc::new(ServerState { options, current })))
    }

    /// Reads the files again. Connections that exist keep their keys; handshakes that begin later use the new files.
    ///
    /// # Errors
    /// As [`new`](Self::new). The previous files stay in use.
    pub fn reload(&self) -> Result<(), TlsError> {
        let config = server_config(&self.0.options)?;
        *self.0.current.write().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(())
    }

    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        self.0.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Client end of TLS, shared by all workers.
#[derive(Clone)]
pub struct TlsClient {
    config: Arc<ClientConfig>,
    name: Option<ServerName<'static>>,
}

impl TlsClient {
    /// Reads the files of `options`.
    ///
    /// # Errors
    /// If a file cannot be read or used, or there is no authority and `insecure` is not set.
    pub fn new(options: &ClientOptions) -> Result<Self, TlsError> {
        // SHA-384 has no instructions of its own: a handshake with SHA-256 takes a fifth less time.
        let cipher_suites = vec![TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256];
        let provider = Arc::new(CryptoProvider { cipher_suites, ..provider::default_provider() });
        let algorithms = provider.signature_verification_algorithms;
        let verifier: Arc<dyn ServerCertVerifier> = match &options.ca {
            _ if options.insecure => Arc::new(Unverified(algorithms)),
            None => return Err(TlsError::NoAuthority),
            Some(ca) => WebPkiServerVerifier::builder_with_provider(roots(ca)?, provider.clone())
                .build()
                .map_err(|error| TlsError::Other(error.to_string()))?,
        };
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| TlsError::Other(error.to_string()))?
            .dangerous()
            .with_custom_certificate_verifier(verifier);
        let mut config = match &options.identity {
            None => builder.with_no_client_auth(),
            Some(identity) => builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(identity.read()?))),
        };
        config.enable_secret_extraction = true;
        config.alpn_protocols.clone_from(&options.alpn);
        config.key_log = key_log(options.keylog.as_deref())?;
        let name = options
            .name
            .as_ref()
            .map(|name| ServerName::try_from(name.clone()).map_err(|_| TlsError::Name(name.clone())));
        Ok(TlsClient { config: Arc::new(config), name: name.transpose()? })
    }

    pub(crate) fn config(&self) -> Arc<ClientConfig> {
        self.config.clone()
    }

    /// Returns the name that the certificate of a server must be valid for, if it is not the server's address.
    pub(crate) fn name(&self) -> Option<ServerName<'static>> {
        self.name.clone()
    }
}

impl fmt::Debug for TlsServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TlsServer").field(&self.0.options).finish()
    }
}

impl fmt::Debug for TlsClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsClient").field("name", &self.name).finish_non_exhaustive()
    }
}

pub(crate) fn chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let failed = |source| TlsError::File { path: path.to_owned(), source };
    let chain = CertificateDer::pem_file_iter(path).map_err(failed)?.collect::<Result<Vec<_>, _>>().map_err(failed)?;
    if chain.is_empty() { Err(TlsError::NoCertificate(path.to_owned())) } else { Ok(chain) }
}

/// Returns a private key, which is overwritten when it is dropped, as the content of its file is.
pub(crate) fn key(path: &Path) -> Result<Zeroizing<PrivateKeyDer<'static>>, TlsError> {
    let pem = std::fs::read(path).map(Zeroizing::new).map_err(pem::Error::Io);
    let key = pem.and_then(|pem| PrivateKeyDer::from_pem_slice(&pem)).map(Zeroizing::new);
    key.map_err(|source| TlsError::File { path: path.to_owned(), source })
}

pub(crate) fn roots(path: &Path) -> Result<Arc<RootCertStore>, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in chain(path)? {
        roots.add(certificate).map_err(|source| TlsError::Content { path: path.to_owned(), source })?;
    }
    Ok(Arc::new(roots))
}

fn server_config(options: &ServerOptions) -> Result<Arc<ServerConfig>, TlsError> {
    let provider = Arc::new(provider::default_provider());
    let other = |error: String| TlsError::Other(error);
    let mut keys = Vec::new();
    for identity in &options.identities {
        keys.push(Arc::new(identity.read()?));
        let now = SystemTime::now();
        if let Ok(period) = identity.validity()
            && !(period.contains(&now) && period.contains(&(now + NEAR_END)))
        {
            tracing::warn!("{}: not yet valid, expired, or expires within a week: renew it", identity.chain.display());
        }
    }
    if keys.is_empty() {
        return Err(TlsError::NoIdentity);
    }
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| other(error.to_string()))?;
    let builder = match (&options.client_ca, options.client_auth) {
        (None, ClientAuth::No) => builder.with_no_client_auth(),
        (Some(ca), auth) if auth != ClientAuth::No => {
            let mut verifier = WebPkiClientVerifier::builder_with_provider(roots(ca)?, provider);
            if auth == ClientAuth::Optional {
                verifier = verifier.allow_unauthenticated();
            }
            builder.with_client_cert_verifier(verifier.build().map_err(|error| other(error.to_string()))?)
        }
        _ => return Err(TlsError::ClientAuthority),
    };
    let mut config = builder.with_cert_resolver(Arc::new(ByName(keys)));
    config.enable_secret_extraction = true;
    config.alpn_protocols.clone_from(&options.alpn);
    config.key_log = key_log(options.keylog.as_deref())?;
    // Tickets are encrypted with keys that all workers share and that change every six hours.
    config.ticketer = provider::Ticketer::new().map_err(|error| other(error.to_string()))?;
    Ok(Arc::new(config))
}

/// Receiver of the secrets of connections, with a file in the format of NSS that Wireshark reads.
#[derive(Debug)]
struct Secrets(Option<Mutex<File>>);

impl KeyLog for Secrets {
    fn will_log(&self, label: &str) -> bool {
        self.0.is_some() || is_traffic_secret(label)
    }

    fn log(&self, label: &str, client_random: &[u8], secret: &[u8]) {
        log_secret(label, secret);
        let Some(file) = &self.0 else { return };
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let line = format!("{label} {} {}\n", hex(client_random), hex(secret));
        // A missing line makes one connection unreadable.
        let _ = file.lock().unwrap_or_else(PoisonError::into_inner).write_all(line.as_bytes());
    }
}

fn key_log(path: Option<&Path>) -> Result<Arc<dyn KeyLog>, TlsError> {
    let Some(path) = path else { return Ok(Arc::new(Secrets(None))) };
    let failed = |error: std::io::Error| TlsError::Other(format!("{}: {error}", path.display()));
    let file = File::options().create(true).append(true).mode(0o600).open(path).map_err(failed)?;
    tracing::warn!("{}: receives the secrets of all connections, which decrypt them", path.display());
    Ok(Arc::new(Secrets(Some(Mutex::new(file)))))
}

/// Identities of a server, selected by the name that the client requests.
#[derive(Debug)]
struct ByName(Vec<Arc<CertifiedKey>>);

impl ResolvesServerCert for ByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let is_valid = |key: &&Arc<CertifiedKey>, name: &ServerName<'_>| {
            let parsed = key.cert.first().and_then(|certificate| ParsedCertificate::try_from(certificate).ok());
            parsed.is_some_and(|parsed| verify_server_name(&parsed, name).is_ok())
        };
        let name = hello.server_name().filter(|_| self.0.len() > 1).and_then(|name| ServerName::try_from(name).ok());
        let named = name.and_then(|name| self.0.iter().find(|key| is_valid(key, &name)));
        named.or(self.0.first()).cloned()
    }
}

/// Verifier that accepts every certificate. The server must have its key all the same.
#[derive(Debug)]
struct Unverified(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, certificate, signature, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, certificate, signature, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incomplete_options_are_errors() {
        assert!(matches!(TlsServer::new(ServerOptions::default()), Err(TlsError::NoIdentity)));
        assert!(matches!(TlsClient::new(&ClientOptions::default()), Err(TlsError::NoAuthority)));
        let missing = ClientOptions { ca: Some("/nonexistent/ca.pem".into()), ..ClientOptions::default() };
        let error = TlsClient::new(&missing).err().unwrap().to_string();
        assert!(error.starts_with("/nonexistent/ca.pem: "), "{error}");
        let named = |name: &str| {
            let options = ClientOptions { insecure: true, name: Some(name.to_owned()), ..ClientOptions::default() };
            TlsClient::new(&options).map(drop).map_err(|error| error.to_string())
        };
        assert_eq!((named("example.org"), named("10.0.0.1")), (Ok(()), Ok(())));
        assert_eq!(named("a b").unwrap_err(), "\"a b\" is neither a host name nor an address");
    }
}
