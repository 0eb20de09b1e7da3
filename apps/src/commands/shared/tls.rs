//! Options of TLS.

use crate::error::Error;
use linerate::tls::{ClientAuth, ClientOptions, Identity, ServerOptions, TlsClient, TlsConfig, TlsServer};
use signal_hook::consts::SIGHUP;
use signal_hook::iterator::Signals;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::thread;

/// TLS arguments of every serve command.
#[derive(Debug, Default, clap::Args)]
pub struct TlsServeArgs {
    /// Serve TLS 1.3 with the certificate chain in this file (PEM); repeatable, each with a --tls-key: the first valid
    /// for the name that a client requests is used, or else the first [default: no TLS]
    #[arg(long, value_name = "FILE", requires = "tls_key", help_heading = "TLS")]
    pub tls_cert: Vec<PathBuf>,

    /// Private key of the certificate (PEM); one for each --tls-cert, in the same order
    #[arg(long, value_name = "FILE", requires = "tls_cert", help_heading = "TLS")]
    pub tls_key: Vec<PathBuf>,

    /// Certificates of the authorities that issue certificates of clients (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert", help_heading = "TLS")]
    pub tls_client_ca: Option<PathBuf>,

    /// Certificates of clients: no (not requested), optional, or required [default: required with --tls-client-ca, else
    /// no]
    #[arg(long, value_name = "RULE", value_enum, hide_possible_values = true, help_heading = "TLS")]
    tls_client_auth: Option<AuthArg>,

    /// Append the secrets of all connections to this file, with which Wireshark decrypts captures; for debugging
    #[arg(long, value_name = "FILE", requires = "tls_cert", help_heading = "TLS")]
    tls_keylog: Option<PathBuf>,
}

/// Values of `--tls-client-auth`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum AuthArg {
    No,
    Optional,
    Required,
}

impl TlsServeArgs {
    /// Returns whether TLS is requested.
    pub fn is_used(&self) -> bool {
        !self.tls_cert.is_empty()
    }

    /// Returns the verification of clients.
    pub fn client_auth(&self) -> ClientAuth {
        match self.tls_client_auth {
            None if self.tls_client_ca.is_some() => ClientAuth::Required,
            None | Some(AuthArg::No) => ClientAuth::No,
            Some(AuthArg::Optional) => ClientAuth::Optional,
            Some(AuthArg::Required) => ClientAuth::Required,
        }
    }

    /// Reads the files and returns the configuration of a server with the protocols `alpn` and TLS on `ports`, if TLS
    /// is requested. SIGHUP reads the files again from then on.
    pub fn config(&self, alpn: &[&[u8]], ports: &[RangeInclusive<u16>]) -> Result<Option<TlsConfig>, Error> {
        if !self.is_used() {
            return Ok(None);
        }
        if self.tls_cert.len() != self.tls_key.len() {
            return Err(Error::Usage(format!(
                "--tls-cert: {} certificates and {} keys: give one --tls-key for each",
                self.tls_cert.len(),
                self.tls_key.len()
            )));
        }
        let client_auth = self.client_auth();
        if (client_auth == ClientAuth::No) != self.tls_client_ca.is_none() {
            return Err(Error::Usage(
                "--tls-client-auth: certificates of clients are verified with --tls-client-ca: give both, or neither"
                    .to_owned(),
            ));
        }
        let identities = self.tls_cert.iter().zip(&self.tls_key);
        let server = TlsServer::new(ServerOptions {
            identities: identities.map(|(chain, key)| Identity { chain: chain.clone(), key: key.clone() }).collect(),
            client_ca: self.tls_client_ca.clone(),
            client_auth,
            alpn: alpn.iter().map(|protocol| protocol.to_vec()).collect(),
            keylog: self.tls_keylog.clone(),
        })
        .map_err(Error::TlsServer)?;
        reload_on_sighup(server.clone())?;
        Ok(Some(TlsConfig { ports: ports.to_vec(), ..server.into() }))
    }
}

/// Reads certificates and keys again on each SIGHUP.
fn reload_on_sighup(server: TlsServer) -> Result<(), Error> {
    let mut signals = Signals::new([SIGHUP]).map_err(Error::Signals)?;
    let reload = move || {
        for _ in signals.forever() {
            match server.reload() {
                Ok(()) => tracing::info!("--tls-cert: the files have been read again"),
                Err(error) => tracing::error!("--tls-cert: {error}; the previous certificates stay in use"),
            }
        }
    };
    thread::Builder::new().name("certificates".to_owned()).spawn(reload).map_err(Error::Signals)?;
    Ok(())
}

/// TLS arguments of every load command.
#[derive(Debug, clap::Args)]
pub struct TlsLoadArgs {
    /// Use TLS 1.3
    #[arg(long, help_heading = "TLS")]
    tls: bool,

    /// Certificates of the authorities that issue the certificate of the server (PEM)
    #[arg(long, value_name = "FILE", requires = "tls", help_heading = "TLS")]
    tls_ca: Option<PathBuf>,

    /// Accept any certificate of the server
    #[arg(long, requires = "tls", conflicts_with = "tls_ca", help_heading = "TLS")]
    tls_insecure: bool,

    /// Name that the certificate of the server must be valid for [default: the address of --connect]
    #[arg(long, value_name = "NAME", requires = "tls", help_heading = "TLS")]
    tls_name: Option<String>,

    /// Certificate chain to present to a server that requests one (PEM)
    #[arg(long, value_name = "FILE", requires_all = ["tls", "tls_key"], help_heading = "TLS")]
    tls_cert: Option<PathBuf>,

    /// Private key of --tls-cert (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert", help_heading = "TLS")]
    tls_key: Option<PathBuf>,

    /// Append the secrets of all connections to this file, with which Wireshark decrypts captures; for debugging
    #[arg(long, value_name = "FILE", requires = "tls", help_heading = "TLS")]
    tls_keylog: Option<PathBuf>,
}

impl TlsLoadArgs {
    /// Returns whether TLS is requested.
    pub fn is_used(&self) -> bool {
        self.tls
    }

    /// Reads the files and returns the configuration, if TLS is requested.
    pub fn config(&self) -> Result<Option<TlsConfig>, Error> {
        if !self.tls {
            return Ok(None);
        }
        if self.tls_ca.is_none() && !self.tls_insecure {
            return Err(Error::Usage(
                "--tls: the certificate of the server is verified: give its authority by --tls-ca FILE, or accept any \
                 certificate by --tls-insecure"
                    .to_owned(),
            ));
        }
        let identity = self.tls_cert.clone().zip(self.tls_key.clone());
        let client = TlsClient::new(&ClientOptions {
            ca: self.tls_ca.clone(),
            insecure: self.tls_insecure,
            name: self.tls_name.clone(),
            identity: identity.map(|(chain, key)| Identity { chain, key }),
            alpn: Vec::new(),
            keylog: self.tls_keylog.clone(),
        })
        .map_err(Error::TlsClient)?;
        Ok(Some(client.into()))
    }
}
