//! Checks of a certificate and its key before they are used.

use crate::config::{Identity, TlsError, chain, key, roots};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::ring as provider;
use rustls::pki_types::{ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::{Error, InconsistentKeys};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

impl Identity {
    /// Reads both files, and returns the key with its chain.
    pub(crate) fn read(&self) -> Result<CertifiedKey, TlsError> {
        let failed = |source| TlsError::Content { path: self.key.clone(), source };
        let key = provider::sign::any_supported_type(&*key(&self.key)?).map_err(failed)?;
        let certified = CertifiedKey::new(chain(&self.chain)?, key);
        match certified.keys_match() {
            // The key may not tell its public key.
            Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(certified),
            Err(source) => Err(failed(source)),
        }
    }

    /// Returns the period of validity of the certificate.
    ///
    /// # Errors
    /// If a file cannot be read or used, or the key is that of another certificate.
    pub fn validity(&self) -> Result<Range<SystemTime>, TlsError> {
        let key = self.read()?;
        let period = key.cert.first().and_then(|certificate| validity(certificate));
        period.ok_or_else(|| TlsError::Other(format!("{}: no period of validity", self.chain.display())))
    }

    /// Measures a signature of the key. The other connections of a worker wait for one in each full handshake.
    ///
    /// # Errors
    /// If a file cannot be read or used, or the key does not sign.
    pub fn signature_time(&self) -> Result<Duration, TlsError> {
        let failed = |source| TlsError::Content { path: self.key.clone(), source };
        let schemes = provider::default_provider().signature_verification_algorithms.supported_schemes();
        let signer = self.read()?.key.choose_scheme(&schemes);
        let signer = signer.ok_or_else(|| failed(Error::General("no signature of TLS 1.3".to_owned())))?;
        let mut shortest = Duration::MAX;
        for _ in 0..10 {
            let begun = Instant::now();
            signer.sign(&[0; 130]).map_err(failed)?;
            shortest = shortest.min(begun.elapsed());
        }
        Ok(shortest)
    }

    /// Verifies the certificate as a client does that trusts the authorities in `ca` and connects to `name`.
    ///
    /// # Errors
    /// If a file cannot be read or used, or the client would refuse the certificate.
    pub fn verify(&self, ca: &Path, name: &str) -> Result<(), TlsError> {
        let name = ServerName::try_from(name).map_err(|_| TlsError::Name(name.to_owned()))?;
        let verifier = WebPkiServerVerifier::builder_with_provider(roots(ca)?, Arc::new(provider::default_provider()))
            .build()
            .map_err(|error| TlsError::Other(error.to_string()))?;
        let chain = chain(&self.chain)?;
        verifier
            .verify_server_cert(&chain[0], &chain[1..], &name, &[], UnixTime::now())
            .map(drop)
            .map_err(|source| TlsError::Content { path: self.chain.clone(), source })
    }
}

/// Returns the tag, the content and the rest after the first element of DER.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&[tag, first], rest) = der.split_first_chunk()?;
    let (len, rest) = match first {
        0..0x80 => (usize::from(first), rest),
        _ => {
            let (len, rest) = rest.split_at_checked(usize::from(first & 0x7f)).filter(|(len, _)| len.len() <= 4)?;
            (len.iter().fold(0, |all, byte| all << 8 | usize::from(*byte)), rest)
        }
    };
    let (content, rest) = rest.split_at_checked(len)?;
    Some((tag, content, rest))
}

/// Returns the period of validity of a certificate (RFC 5280 §4.1).
fn validity(der: &[u8]) -> Option<Range<SystemTime>> {
    let (_, certificate, _) = element(der)?;
    let (_, mut rest, _) = element(certificate)?;
    // Version, which may be absent, serial number, algorithm and issuer.
    let skipped = if rest.first() == Some(&0xa0) { 4 } else { 3 };
    for _ in 0..skipped {
        rest = element(rest)?.2;
    }
    let (_, period, _) = element(rest)?;
    let (tag, from, rest) = element(period)?;
    let from = time(tag, from)?;
    let (tag, until, _) = element(rest)?;
    Some(from..time(tag, until)?)
}

/// Parses UTCTime or GeneralizedTime of a certificate, which have seconds and end with `Z`.
fn time(tag: u8, text: &[u8]) -> Option<SystemTime> {
    let digits = if tag == 0x17 { 2 } else { 4 };
    let number = |at: usize, len: usize| std::str::from_utf8(text.get(at..at + len)?).ok()?.parse::<u64>().ok();
    let year = match number(0, digits)? {
        short @ 0..50 if digits == 2 => 2000 + short,
        short if digits == 2 => 1900 + short,
        year => year.max(1970),
    };
    let part = |index: usize| number(digits + 2 * index, 2);
    let [month, day, hour, minute, second] = [part(0)?, part(1)?, part(2)?, part(3)?, part(4)?];
    // Days since 1970, in years that begin with March.
    let (year, month) = if month < 3 { (year - 1, month + 9) } else { (year, month - 3) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 719_469;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(((days * 24 + hour) * 60 + minute) * 60 + second))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_certificates_are_seconds_since_1970() {
        for (tag, text, seconds) in [
            (0x17, "700101000000Z", 0),
            (0x17, "491231235959Z", 2_524_607_999),
            (0x18, "20500101000000Z", 2_524_608_000),
            (0x17, "240229120001Z", 1_709_208_001),
            (0x18, "20000301000000Z", 951_868_800),
        ] {
            let expected = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            assert_eq!(time(tag, text.as_bytes()), Some(expected), "{text}");
        }
        for text in ["", "7001010000", "70010100000xZ"] {
            assert_eq!(time(0x17, text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn damaged_certificate_has_no_validity() {
        let der = rcgen::generate_simple_self_signed(["a.test".to_owned()]).unwrap().cert.der().to_vec();
        let day = |year: u64| Duration::from_secs(86_400 * 365 * year);
        let period = validity(&der).unwrap();
        // The default of the generator.
        assert_eq!(period.start, time(0x17, b"750101000000Z").unwrap());
        assert!(period.end > SystemTime::UNIX_EPOCH + day(2000));
        for cut in 0..120 {
            let _ = validity(&der[..cut]);
        }
        assert_eq!(validity(&der[..60]), None);
    }
}
