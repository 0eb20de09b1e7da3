//! Both ends of a memory link with TLS, and certificates.

use linerate_bypass::memory_nic::{Link, LinkConfig, MemoryNic};
use linerate_service::Service;
use linerate_service::time::{Duration, Instant};
use linerate_stack::{Config, Mailboxes, Worker};
use linerate_tls::{ClientOptions, Identity, ServerOptions, Tls, TlsClient, TlsConfig, TlsServer};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use std::fs;
use std::path::{Path, PathBuf};

/// Address of the server.
pub const SERVER: &str = "10.0.0.2:7";

/// Certificate authority with its files.
pub struct Authority {
    directory: tempfile::TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("ca.pem"), issuer.pem()).unwrap();
        Authority { directory, issuer }
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    pub fn ca(&self) -> PathBuf {
        self.path().join("ca.pem")
    }

    /// Issues a certificate for `names` and writes its files.
    pub fn identity(&self, file: &str, names: &[&str]) -> Identity {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(names.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let identity =
            Identity { chain: self.path().join(format!("{file}.pem")), key: self.path().join(format!("{file}.key")) };
        fs::write(&identity.chain, certificate.pem()).unwrap();
        fs::write(&identity.key, key.serialize_pem()).unwrap();
        identity
    }

    /// Returns the options of a server with the address [`SERVER`].
    pub fn server_options(&self) -> ServerOptions {
        ServerOptions { identities: vec![self.identity("server", &["10.0.0.2"])], ..ServerOptions::default() }
    }

    pub fn server(&self) -> TlsConfig {
        TlsServer::new(self.server_options()).unwrap().into()
    }

    pub fn client_options(&self) -> ClientOptions {
        ClientOptions { ca: Some(self.ca()), ..ClientOptions::default() }
    }

    pub fn client(&self) -> TlsConfig {
        TlsClient::new(&self.client_options()).unwrap().into()
    }
}

/// Two hosts on a memory link.
pub struct Ends<C: Service, S: Service> {
    pub client: Box<Worker<MemoryNic, C>>,
    pub server: Box<Worker<MemoryNic, S>>,
    link: Link,
    /// Clock advance of a turn.
    pub tick: Duration,
}

impl<C: Service<Message = ()>, S: Service<Message = ()>> Ends<C, S> {
    /// Creates the two hosts. The server listens at [`SERVER`].
    pub fn new(client: C, server: S) -> Self {
        let host = |n: u8| Config {
            addresses: vec![format!("10.0.0.{n}/24").parse().unwrap()],
            mac: Some(format!("02:00:00:00:00:{n:02x}").parse().unwrap()),
            ..Config::default()
        };
        let listening = Config { listen: vec!["0.0.0.0:7".parse().unwrap()], ..host(2) };
        let (a, b) = Link::pair(LinkConfig::default());
        let link = a.link().clone();
        let mailboxes = Mailboxes::for_workers(1).remove(0);
        let client = Box::new(Worker::new(&host(1), mailboxes, a, |_| client, Instant::ZERO));
        let mailboxes = Mailboxes::for_workers(1).remove(0);
        let server = Box::new(Worker::new(&listening, mailboxes, b, |_| server, Instant::ZERO));
        Ends { client, server, link, tick: Duration::from_micros(10) }
    }

    /// Runs one turn of both hosts.
    pub fn turn(&mut self) {
        self.link.clock().advance(self.tick);
        let now = self.link.clock().now();
        self.client.turn(now);
        self.server.turn(now);
    }

    #[track_caller]
    pub fn turn_until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        let begun = std::time::Instant::now();
        while !done(self) {
            assert!(begun.elapsed() < std::time::Duration::from_secs(60), "{what}");
            self.turn();
        }
    }
}

/// Returns both ends with TLS.
pub fn encrypted<C, S>(authority: &Authority, client: C, server: S) -> Ends<Tls<C>, Tls<S>>
where
    C: Service<Message = ()>,
    S: Service<Message = ()>,
{
    Ends::new(Tls::new(authority.client(), client), Tls::new(authority.server(), server))
}
