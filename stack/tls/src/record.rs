//! Protected records of TLS 1.3 (RFC 8446 §5).

use ring::aead::{self, AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf::{self, HKDF_SHA256, HKDF_SHA384, KeyType, Prk};
use std::hint::black_box;
use zeroize::Zeroizing;

/// Length of a record's header: type, version, length.
pub const HEADER: usize = 5;
/// Length of the tag of every suite.
const TAG: usize = 16;
/// Bytes of a record other than its data: header, content type and tag.
pub const OVERHEAD: usize = HEADER + 1 + TAG;
/// Maximum data of a record.
pub const MAX_DATA: usize = 1 << 14;
/// Maximum length of a protected record without its header (RFC 8446 §5.2).
pub const MAX_PROTECTED: usize = MAX_DATA + 256;

/// Content type of change_cipher_spec, which TLS 1.3 ignores in a handshake.
const CHANGE_CIPHER_SPEC: u8 = 20;
/// Content type of an alert.
pub const ALERT: u8 = 21;
/// Content type of a handshake message.
pub const HANDSHAKE: u8 = 22;
/// Content type of application data, and of every protected record.
pub const APPLICATION_DATA: u8 = 23;

/// Alerts (RFC 8446 §6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Alert {
    CloseNotify = 0,
    UnexpectedMessage = 10,
    BadRecordMac = 20,
    RecordOverflow = 22,
    IllegalParameter = 47,
    DecodeError = 50,
    InternalError = 80,
}

/// Alert that does not end a connection.
pub const USER_CANCELED: u8 = 90;

/// Algorithms of a suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    Aes128Gcm,
    Aes256Gcm,
    Chacha20Poly1305,
}

impl Algorithm {
    fn aead(self) -> &'static aead::Algorithm {
        match self {
            Algorithm::Aes128Gcm => &AES_128_GCM,
            Algorithm::Aes256Gcm => &AES_256_GCM,
            Algorithm::Chacha20Poly1305 => &CHACHA20_POLY1305,
        }
    }

    fn hkdf(self) -> hkdf::Algorithm {
        if self == Algorithm::Aes256Gcm { HKDF_SHA384 } else { HKDF_SHA256 }
    }

    /// Returns the bytes of a traffic secret.
    pub fn secret_len(self) -> usize {
        self.hkdf().len()
    }

    /// Returns the AEAD with a key of `bytes`, of which it takes as many as it needs.
    fn key(self, bytes: &[u8; MAX_KEY]) -> LessSafeKey {
        let key = UnboundKey::new(self.aead(), &bytes[..self.aead().key_len()]);
        LessSafeKey::new(key.expect("the length is that of the algorithm"))
    }

    /// Replaces `key` by another one, because ring does not overwrite its keys.
    fn overwrite(self, key: &mut LessSafeKey) {
        *key = self.key(&[0; MAX_KEY]);
        // The assignment would otherwise be removed before the memory is freed.
        black_box(key);
    }
}

/// Maximum length of a traffic secret, and of a key.
const MAX_SECRET: usize = 48;
const MAX_KEY: usize = 32;

/// Traffic secret of one direction (RFC 8446 §7.1), with the sequence number of its next record.
///
/// It is overwritten when it is dropped, and so is its key.
pub struct Secret {
    /// Expanded key, while it is in use.
    key: Option<Box<LessSafeKey>>,
    iv: [u8; NONCE_LEN],
    algorithm: Algorithm,
    /// True if the key has been used since the last [`rest`](Self::rest).
    is_used: bool,
    sequence: u64,
    limit: u64,
    traffic: Zeroizing<[u8; MAX_SECRET]>,
}

/// Length of derived bytes.
struct Len(usize);

impl KeyType for Len {
    fn len(&self) -> usize {
        self.0
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.forget_key();
    }
}

impl Secret {
    /// Creates the state of a traffic secret whose next record has the number `sequence`. Returns `None` if `traffic`
    /// has another length than the hash of the suite.
    pub fn new(algorithm: Algorithm, traffic: &[u8], sequence: u64) -> Option<Self> {
        // Half of 2^24.5 records for AES-GCM (RFC 8446 §5.5).
        let limit = if algorithm == Algorithm::Chacha20Poly1305 { 1 << 48 } else { 1 << 23 };
        let mut bytes = Zeroizing::new([0; MAX_SECRET]);
        bytes.get_mut(..traffic.len()).filter(|_| traffic.len() == algorithm.secret_len())?.copy_from_slice(traffic);
        let iv = [0; NONCE_LEN];
        let mut secret = Secret { key: None, iv, algorithm, is_used: true, sequence, limit, traffic: bytes };
        let mut iv = [0; NONCE_LEN];
        secret.derive("iv", &mut iv);
        secret.iv = iv;
        secret.key = Some(secret.expand());
        Some(secret)
    }

    /// Returns the secret after a KeyUpdate.
    pub fn next(&self) -> Self {
        let mut next = Zeroizing::new([0; MAX_SECRET]);
        let next = &mut next[..self.algorithm.secret_len()];
        self.derive("traffic upd", next);
        Secret::new(self.algorithm, next, 0).expect("the length is that of the hash")
    }

    /// Fills `to` by HKDF-Expand-Label with an empty context (RFC 8446 §7.1).
    fn derive(&self, label: &str, to: &mut [u8]) {
        let secret = Prk::new_less_safe(self.algorithm.hkdf(), &self.traffic[..self.algorithm.secret_len()]);
        let [len, label_len] = [(to.len() as u16).to_be_bytes(), [0, 6 + label.len() as u8]];
        let info = [&len, &label_len[1..], b"tls13 ", label.as_bytes(), &[0]];
        let derived = secret.expand(&info, Len(to.len())).and_then(|derived| derived.fill(to));
        derived.expect("the length is below the maximum of HKDF");
    }

    #[cold]
    fn expand(&self) -> Box<LessSafeKey> {
        let mut key = Zeroizing::new([0; MAX_KEY]);
        self.derive("key", &mut key[..self.algorithm.aead().key_len()]);
        Box::new(self.algorithm.key(&key))
    }

    /// Forgets the expanded key, which takes more memory than the rest, if it has not been used since the last call.
    /// Returns whether it is in use.
    pub fn rest(&mut self) -> bool {
        if !std::mem::take(&mut self.is_used) {
            self.forget_key();
        }
        self.key.is_some()
    }

    fn forget_key(&mut self) {
        if let Some(mut key) = self.key.take() {
            self.algorithm.overwrite(&mut key);
        }
    }

    /// Returns the name of the cipher suite.
    pub fn suite(&self) -> &'static str {
        match self.algorithm {
            Algorithm::Aes128Gcm => "TLS_AES_128_GCM_SHA256",
            Algorithm::Aes256Gcm => "TLS_AES_256_GCM_SHA384",
            Algorithm::Chacha20Poly1305 => "TLS_CHACHA20_POLY1305_SHA256",
        }
    }

    /// Returns whether the key must be replaced before it seals more records.
    pub fn is_exhausted(&self) -> bool {
        self.sequence >= self.limit
    }

    /// Sets the number of records after which the key must be replaced, if it is lower than that of the algorithm.
    pub fn limit_records(&mut self, limit: u64) {
        self.limit = self.limit.min(limit);
    }

    /// Returns the nonce of the next record, and the key.
    #[inline]
    fn next_nonce(&mut self) -> (Nonce, &LessSafeKey) {
        let mut nonce = self.iv;
        for (byte, sequence) in nonce[NONCE_LEN - 8..].iter_mut().zip(self.sequence.to_be_bytes()) {
            *byte ^= sequence;
        }
        self.sequence += 1;
        self.is_used = true;
        if self.key.is_none() {
            self.key = Some(self.expand());
        }
        (Nonce::assume_unique_for_key(nonce), self.key.as_ref().expect("the key has been expanded"))
    }

    /// Seals a record in place. `record` has space for the header, the data, and space for content type and tag.
    ///
    /// # Panics
    /// If `record` is shorter than [`OVERHEAD`] or longer than the maximum.
    #[inline]
    pub fn seal(&mut self, content: u8, record: &mut [u8]) {
        let protected = record.len() - HEADER;
        assert!(protected <= MAX_DATA + 1 + TAG, "a record of {protected} bytes");
        let header = header_of(protected);
        record[..HEADER].copy_from_slice(&header);
        let (inner, tag) = record[HEADER..].split_at_mut(protected - TAG);
        inner[protected - TAG - 1] = content;
        let (nonce, key) = self.next_nonce();
        // Sealing fails only for lengths far beyond those of records.
        let sealed = key.seal_in_place_separate_tag(nonce, Aad::from(header), inner);
        tag.copy_from_slice(sealed.expect("the length is that of a record").as_ref());
    }

    /// Opens a record in place. `protected` follows the header. Returns the content type and the length of the data,
    /// which begin where `protected` does.
    ///
    /// # Errors
    /// Returns the alert to send.
    #[inline]
    pub fn open(&mut self, protected: &mut [u8]) -> Result<(u8, usize), Alert> {
        let (nonce, key) = self.next_nonce();
        let header = header_of(protected.len());
        let inner = key.open_in_place(nonce, Aad::from(header), protected).map_err(|_| Alert::BadRecordMac)?;
        // Zeros after the content type are padding.
        let last = match inner.split_last() {
            Some((&content, data)) if content != 0 => Some((content, data.len())),
            _ => inner.iter().rposition(|byte| *byte != 0).map(|at| (inner[at], at)),
        };
        match last {
            None => Err(Alert::UnexpectedMessage),
            // Padding counts.
            Some(_) if inner.len() > MAX_DATA + 1 => Err(Alert::RecordOverflow),
            Some(last) => Ok(last),
        }
    }
}

/// Returns the header of a protected record, which is also its additional data.
#[inline]
fn header_of(protected: usize) -> [u8; HEADER] {
    let [high, low] = (protected as u16).to_be_bytes();
    [APPLICATION_DATA, 3, 3, high, low]
}

/// Returns the length of the record after `header`.
#[inline]
pub fn length_of(header: [u8; HEADER]) -> usize {
    usize::from(u16::from_be_bytes([header[3], header[4]]))
}

/// Returns a record with a fatal alert, before there are keys.
pub fn plain_alert(alert: Alert) -> [u8; HEADER + 2] {
    [ALERT, 3, 3, 0, 2, 2, alert as u8]
}

/// Returns the alert for the header of a record that is wrong before the keys of the handshake.
pub fn alert_of_plain(header: [u8; HEADER]) -> Option<Alert> {
    match (header[0], length_of(header)) {
        (APPLICATION_DATA, ..=MAX_PROTECTED) | (CHANGE_CIPHER_SPEC..=HANDSHAKE, 1..=MAX_DATA) => None,
        (CHANGE_CIPHER_SPEC..=APPLICATION_DATA, 1..) => Some(Alert::RecordOverflow),
        _ => Some(Alert::UnexpectedMessage),
    }
}

/// Returns the length of a protected record after its header.
///
/// # Errors
/// Returns the alert for a record that is not protected, or too long. The version is ignored (RFC 8446 §5.1).
#[inline]
pub fn protected_length(header: [u8; HEADER]) -> Result<usize, Alert> {
    match length_of(header) {
        _ if header[0] != APPLICATION_DATA => Err(Alert::UnexpectedMessage),
        length if length > MAX_PROTECTED => Err(Alert::RecordOverflow),
        length => Ok(length),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
        digits.chunks(2).map(|byte| u8::from_str_radix(std::str::from_utf8(byte).unwrap(), 16).unwrap()).collect()
    }

    fn secret(traffic: &str, sequence: u64) -> Secret {
        Secret::new(Algorithm::Aes128Gcm, &bytes(traffic), sequence).unwrap()
    }

    /// Traffic secrets and application data of client and server in RFC 8448 §3, whose server has sent a ticket before.
    const CLIENT: (&str, u64, &str) = (
        "9e40646ce79a7f9dc05af8889bce6552875afa0b06df0087f792ebb7c17504a5",
        0,
        "1703030043a23f7054b62c94d0affafe8228ba55cbefacea42f914aa66bcab3f2b9819a8a5b46b395bd54a9a20441e2b62974e1f5a6292\
         a2977014bd1e3deae63aeebb21694915e4",
    );
    const SERVER: (&str, u64, &str) = (
        "a11af9f05531f856ad47116b45a950328204b4f44bfb6b3a4b4f1f3fcb631643",
        1,
        "17030300432e937e11ef4ac740e538ad36005fc4a46932fc3225d05f82aa1b36e30efaf97d90e6dffc602dcb501a59a8fcc49c4bf2e5f0\
         a21c0047c2abf332540dd032e167c2955d",
    );

    #[test]
    fn records_equal_the_trace_of_rfc_8448() {
        for (traffic, sequence, record) in [CLIENT, SERVER] {
            let (record, data) = (bytes(record), (0..50).collect::<Vec<u8>>());
            let mut sealed = vec![0xff; data.len() + OVERHEAD];
            sealed[HEADER..HEADER + data.len()].copy_from_slice(&data);
            secret(traffic, sequence).seal(APPLICATION_DATA, &mut sealed);
            assert_eq!(sealed, record);
            let mut opened = record[HEADER..].to_vec();
            assert_eq!(secret(traffic, sequence).open(&mut opened), Ok((APPLICATION_DATA, 50)));
            assert_eq!(opened[..50], data);
        }
    }

    /// Pair of keys of one direction.
    fn pair(algorithm: Algorithm) -> (Secret, Secret) {
        let traffic = vec![9; algorithm.secret_len()];
        let secret = || Secret::new(algorithm, &traffic, u64::from(u32::MAX)).unwrap();
        (secret(), secret())
    }

    fn seal(secret: &mut Secret, content: u8, data: &[u8]) -> Vec<u8> {
        let mut record = vec![0; data.len() + OVERHEAD];
        record[HEADER..HEADER + data.len()].copy_from_slice(data);
        secret.seal(content, &mut record);
        record
    }

    #[test]
    fn key_that_rests_is_forgotten_and_expanded_again() {
        let (mut tx, mut rx) = pair(Algorithm::Aes256Gcm);
        assert!(tx.rest() && tx.key.is_some());
        assert!(!tx.rest() && tx.key.is_none());
        let mut record = seal(&mut tx, APPLICATION_DATA, b"again");
        assert!(tx.rest());
        assert_eq!(rx.open(&mut record[HEADER..]), Ok((APPLICATION_DATA, 5)));
        let [mut tx, mut rx] = [tx.next(), rx.next()];
        let mut record = seal(&mut tx, APPLICATION_DATA, b"updated");
        assert_eq!(rx.open(&mut record[HEADER..]), Ok((APPLICATION_DATA, 7)));
    }

    #[test]
    fn overwritten_key_is_that_of_zeros() {
        let tag = |key: &LessSafeKey| {
            let nonce = Nonce::assume_unique_for_key([0; NONCE_LEN]);
            key.seal_in_place_separate_tag(nonce, Aad::empty(), &mut []).unwrap().as_ref().to_vec()
        };
        for algorithm in [Algorithm::Aes128Gcm, Algorithm::Aes256Gcm, Algorithm::Chacha20Poly1305] {
            let (mut key, zeros) = (algorithm.key(&[7; MAX_KEY]), algorithm.key(&[0; MAX_KEY]));
            assert_ne!(tag(&key), tag(&zeros));
            algorithm.overwrite(&mut key);
            assert_eq!(tag(&key), tag(&zeros));
        }
    }

    #[test]
    fn records_of_every_suite_and_length_are_opened() {
        for algorithm in [Algorithm::Aes128Gcm, Algorithm::Aes256Gcm, Algorithm::Chacha20Poly1305] {
            let (mut tx, mut rx) = pair(algorithm);
            for length in [0, 1, 15, 16, 17, 1000, MAX_DATA] {
                let data = vec![0x5a; length];
                let mut record = seal(&mut tx, HANDSHAKE, &data);
                assert_eq!(protected_length(record[..HEADER].try_into().unwrap()), Ok(length + 17));
                assert_eq!(rx.open(&mut record[HEADER..]), Ok((HANDSHAKE, length)));
                assert_eq!(record[HEADER..HEADER + length], data);
            }
        }
    }

    #[test]
    fn changed_replayed_and_short_records_have_a_bad_mac() {
        for at in 0..27 - HEADER {
            let (mut tx, mut rx) = pair(Algorithm::Aes128Gcm);
            let mut record = seal(&mut tx, APPLICATION_DATA, b"abcde");
            record[HEADER + at] ^= 1;
            assert_eq!(rx.open(&mut record[HEADER..]), Err(Alert::BadRecordMac), "byte {at}");
        }
        let (mut tx, mut rx) = pair(Algorithm::Aes128Gcm);
        let record = seal(&mut tx, APPLICATION_DATA, b"abcde");
        assert_eq!(rx.open(&mut record[HEADER..].to_vec()), Ok((APPLICATION_DATA, 5)));
        assert_eq!(rx.open(&mut record[HEADER..].to_vec()), Err(Alert::BadRecordMac));
        for length in 0..=16 {
            let (_, mut rx) = pair(Algorithm::Aes128Gcm);
            assert_eq!(rx.open(&mut vec![0; length]), Err(Alert::BadRecordMac), "{length} bytes");
        }
    }

    /// Seals `inner`, which includes content type and padding.
    fn seal_inner(inner: &[u8]) -> Vec<u8> {
        let (mut tx, _) = pair(Algorithm::Aes128Gcm);
        let mut inner = inner.to_vec();
        let header = header_of(inner.len() + TAG);
        let (nonce, key) = tx.next_nonce();
        let tag = key.seal_in_place_separate_tag(nonce, Aad::from(header), &mut inner).unwrap();
        inner.extend_from_slice(tag.as_ref());
        inner
    }

    #[test]
    fn padding_is_removed_and_counts_as_length() {
        let open = |inner: &[u8]| pair(Algorithm::Aes128Gcm).1.open(&mut seal_inner(inner));
        assert_eq!(open(b"ab\x17"), Ok((APPLICATION_DATA, 2)));
        assert_eq!(open(b"ab\0\x17\0\0\0"), Ok((APPLICATION_DATA, 3)));
        assert_eq!(open(b"\x15\0"), Ok((ALERT, 0)));
        assert_eq!(open(b"\0\0\0"), Err(Alert::UnexpectedMessage));
        let mut long = vec![1; MAX_DATA + 1];
        assert_eq!(open(&long), Ok((1, MAX_DATA)));
        long.push(0);
        assert_eq!(open(&long), Err(Alert::RecordOverflow));
    }

    #[test]
    fn headers_of_plain_and_long_records_have_their_alerts() {
        assert_eq!(protected_length([23, 3, 3, 0x41, 0]), Ok(MAX_PROTECTED));
        assert_eq!(protected_length([23, 0xff, 0xff, 0, 17]), Ok(17));
        assert_eq!(protected_length([23, 3, 3, 0x41, 1]), Err(Alert::RecordOverflow));
        for plain in [20, 21, 22, 24, 0x47] {
            assert_eq!(protected_length([plain, 3, 3, 0, 1]), Err(Alert::UnexpectedMessage));
        }
    }

    #[test]
    fn key_is_exhausted_at_its_limit() {
        let (mut tx, _) = pair(Algorithm::Chacha20Poly1305);
        assert!(!tx.is_exhausted());
        tx.limit_records(u64::from(u32::MAX) + 1);
        assert!(!tx.is_exhausted());
        seal(&mut tx, APPLICATION_DATA, b"");
        assert!(tx.is_exhausted());
        assert!(Secret::new(Algorithm::Aes128Gcm, &[0; 31], 0).is_none());
    }
}
