//! A certificate for TLS, its key, and what clients make of it.

use super::{Check, State, Subject};
use linerate::tls::Identity;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

/// Days before the end of a certificate from which it should be renewed.
const NEAR_END: u64 = 14;
const SECONDS_OF_DAY: u64 = 86_400;
/// Longest signature without a warning. One of RSA takes 0.6 ms with 2048 bits, and 4.5 ms with 4096.
const LONGEST_SIGNATURE: Duration = Duration::from_millis(1);

/// Certificate to check.
#[derive(Debug, Default, clap::Args)]
pub struct TlsCheckArgs {
    /// Also check this certificate chain for --tls-cert of servers, and its period of validity (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_key", help_heading = "TLS")]
    tls_cert: Option<PathBuf>,

    /// Private key that must belong to --tls-cert (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert", help_heading = "TLS")]
    tls_key: Option<PathBuf>,

    /// Authorities that clients trust (PEM): checks that --tls-cert is accepted for --tls-name
    #[arg(long, value_name = "FILE", requires_all = ["tls_cert", "tls_name"], help_heading = "TLS")]
    tls_ca: Option<PathBuf>,

    /// Name or address that clients connect to
    #[arg(long, value_name = "NAME", requires = "tls_ca", help_heading = "TLS")]
    tls_name: Option<String>,
}

/// Checks the certificate, if one is given.
pub fn checks(args: &TlsCheckArgs) -> Vec<Check> {
    let Some((chain, key)) = args.tls_cert.clone().zip(args.tls_key.clone()) else { return Vec::new() };
    let identity = Identity { chain, key };
    let check = |name: &str, state, found: String| Check::new(Subject::Tls, name, state, found);
    let file = identity.chain.display();
    let days = |period: Duration| period.as_secs() / SECONDS_OF_DAY;
    let certificate = match identity.validity() {
        Err(error) => check("certificate", State::Missing, error.to_string()),
        Ok(period) => {
            let now = SystemTime::now();
            let (state, found) = match (now.duration_since(period.start), period.end.duration_since(now)) {
                (Err(early), _) => (State::Missing, format!("valid in {} days only", days(early.duration()) + 1)),
                (_, Err(late)) => (State::Missing, format!("expired {} days ago", days(late.duration()))),
                (_, Ok(left)) if days(left) < NEAR_END => (State::Warn, format!("expires in {} days", days(left))),
                (_, Ok(left)) => (State::Ok, format!("valid for {} days, with its key", days(left))),
            };
            check("certificate", state, format!("{file}: {found}"))
        }
    };
    let verified = args.tls_ca.as_ref().zip(args.tls_name.as_ref()).map(|(ca, name)| match identity.verify(ca, name) {
        Ok(()) => check("clients", State::Ok, format!("accepted for {name} with the authorities in {}", ca.display())),
        Err(error) => check("clients", State::Missing, format!("refused for {name}: {error}")),
    });
    // Other causes of an error are those of the certificate.
    let signature = identity.signature_time().ok().map(|time| {
        let found = format!("a signature takes {:.2} ms", time.as_secs_f64() * 1e3);
        if time <= LONGEST_SIGNATURE {
            return check("signature", State::Ok, found);
        }
        let cost = "for which the connections of a worker wait in each handshake";
        check("signature", State::Warn, format!("{found}, {cost}; use a key of ECDSA P-256"))
    });
    [certificate].into_iter().chain(signature).chain(verified).collect()
}
