//! A private certificate authority, made with the openssl command as the book describes it.

use linerate_harness::address::unused_address;
use linerate_harness::rerun::is_installed;
use std::path::Path;
use std::process::Command;

/// Directory with the certificates `ca`, `server`, `other` and `client`, and their keys.
pub struct Certificates(tempfile::TempDir);

impl Certificates {
    /// Creates the certificates, or prints a message and returns `None` without openssl.
    pub fn new() -> Option<Self> {
        if !is_installed("openssl", &["version"], "openssl") {
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let certificates = Certificates(directory);
        certificates.openssl(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj /CN=ca -keyout ca.key \
             -out ca.pem",
        );
        certificates.issue("server", &format!("DNS:localhost,IP:127.0.0.1,IP:{}", unused_address().ip()));
        certificates.issue("other", "DNS:other.test");
        certificates.issue("client", "DNS:client.test");
        Some(certificates)
    }

    /// Issues a certificate for `names`, or replaces it.
    pub fn issue(&self, file: &str, names: &str) {
        std::fs::write(self.path().join("names"), format!("subjectAltName={names}")).unwrap();
        self.openssl(&format!(
            "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN={file} -keyout {file}.key -out {file}.csr"
        ));
        self.openssl(&format!(
            "x509 -req -in {file}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 30 -extfile names -out {file}.pem"
        ));
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Returns the path of a file.
    pub fn file(&self, name: &str) -> String {
        self.path().join(name).display().to_string()
    }

    /// Returns the options of a server.
    pub fn server(&self) -> String {
        format!("--tls-cert {} --tls-key {}", self.file("server.pem"), self.file("server.key"))
    }

    /// Returns the options of a load.
    pub fn load(&self) -> String {
        format!("--tls --tls-ca {}", self.file("ca.pem"))
    }

    /// Runs openssl in the directory.
    pub fn openssl(&self, args: &str) {
        let output = Command::new("openssl").args(args.split_whitespace()).current_dir(self.path()).output().unwrap();
        assert!(output.status.success(), "openssl {args}: {}", String::from_utf8_lossy(&output.stderr));
    }
}
