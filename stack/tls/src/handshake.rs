//! Handshakes by rustls, and the secrets that they result in. The rest of the crate does not depend on the API of
//! rustls for connections.

use crate::open_conn::Failure;
use crate::record::{ALERT, Algorithm, HEADER, OVERHEAD, Secret, length_of};
use linerate_service::{ConnId, Transport};
use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::kernel::KernelConnection;
use rustls::pki_types::ServerName;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncodeTlsData, InsufficientSizeError, UnbufferedConnectionCommon, UnbufferedStatus,
};
use rustls::{AlertDescription, ClientConfig, ConnectionTrafficSecrets, Error, HandshakeKind, ServerConfig};
use std::sync::Arc;

/// Handshake in progress.
pub enum Handshake {
    Server(UnbufferedServerConnection),
    Client(UnbufferedClientConnection),
}

/// Result of one step of a handshake.
pub enum Progress {
    /// Records of the peer are missing.
    NeedsInput,
    /// The handshake is complete, after the output has been sent.
    Complete,
    /// The handshake has failed. The output ends with the alert, if there is one for the error.
    Failed(Error),
}

/// Keys of a connection whose handshake is complete.
pub struct Established {
    pub tx: Secret,
    pub rx: Secret,
    pub updates: KeySchedule,
    /// True if a ticket of an earlier connection was used.
    pub is_resumed: bool,
}

/// Secrets from which the following traffic secrets are derived (RFC 8446 §7.2).
pub enum KeySchedule {
    Server(KernelConnection<ServerConnectionData>),
    Client(KernelConnection<ClientConnectionData>),
}

impl Handshake {
    /// Begins the handshake of a server.
    pub fn server(config: Arc<ServerConfig>) -> Result<Self, Error> {
        UnbufferedServerConnection::new(config).map(Handshake::Server)
    }

    /// Begins the handshake of a client with the server `name`.
    pub fn client(config: Arc<ClientConfig>, name: ServerName<'static>) -> Result<Self, Error> {
        UnbufferedClientConnection::new(config, name).map(Handshake::Client)
    }

    /// Processes `input`, which consists of whole records, and appends records to `output`. Removes the processed
    /// records from `input`; fragments of an incomplete message stay.
    pub fn advance(&mut self, input: &mut Vec<u8>, output: &mut Vec<u8>) -> Progress {
        match self {
            Handshake::Server(conn) => advance(conn, input, output, |conn, input| conn.process_tls_records(input)),
            Handshake::Client(conn) => advance(conn, input, output, |conn, input| conn.process_tls_records(input)),
        }
    }

    /// Returns the keys after [`Progress::Complete`].
    pub fn finish(self) -> Result<Established, Error> {
        let is_resumed = |kind| kind == Some(HandshakeKind::Resumed);
        let (secrets, updates, is_resumed) = match self {
            Handshake::Server(conn) => {
                let is_resumed = is_resumed(conn.handshake_kind());
                let (secrets, rest) = conn.dangerous_into_kernel_connection()?;
                (secrets, KeySchedule::Server(rest), is_resumed)
            }
            Handshake::Client(conn) => {
                let is_resumed = is_resumed(conn.handshake_kind());
                let (secrets, rest) = conn.dangerous_into_kernel_connection()?;
                (secrets, KeySchedule::Client(rest), is_resumed)
            }
        };
        let (tx, rx) = (secret(secrets.tx)?, secret(secrets.rx)?);
        Ok(Established { tx, rx, updates, is_resumed })
    }
}

impl KeySchedule {
    /// Returns the next secret for sending.
    pub fn update_tx(&mut self) -> Result<Secret, Error> {
        secret(match self {
            KeySchedule::Server(conn) => conn.update_tx_secret()?,
            KeySchedule::Client(conn) => conn.update_tx_secret()?,
        })
    }

    /// Returns the next secret for receiving.
    pub fn update_rx(&mut self) -> Result<Secret, Error> {
        secret(match self {
            KeySchedule::Server(conn) => conn.update_rx_secret()?,
            KeySchedule::Client(conn) => conn.update_rx_secret()?,
        })
    }

    /// Keeps a ticket for later connections. `body` is a NewSessionTicket without its header. Returns `None` at a
    /// server, which must not receive one.
    pub fn keep_ticket(&mut self, body: &[u8]) -> Option<Result<(), Error>> {
        match self {
            KeySchedule::Server(_) => None,
            KeySchedule::Client(conn) => Some(conn.handle_new_session_ticket(body)),
        }
    }
}

fn secret((sequence, secrets): (u64, ConnectionTrafficSecrets)) -> Result<Secret, Error> {
    let (algorithm, key, iv) = match secrets {
        ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (Algorithm::Aes128Gcm, key, iv),
        ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (Algorithm::Aes256Gcm, key, iv),
        ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (Algorithm::Chacha20Poly1305, key, iv),
        _ => return Err(Error::General("unknown cipher suite".to_owned())),
    };
    let invalid = || Error::General("invalid traffic secret".to_owned());
    Secret::new(algorithm, key.as_ref(), iv.as_ref().try_into().map_err(|_| invalid())?, sequence).ok_or_else(invalid)
}

fn advance<D>(
    conn: &mut UnbufferedConnectionCommon<D>,
    input: &mut Vec<u8>,
    output: &mut Vec<u8>,
    process: impl for<'c, 'i> Fn(&'c mut UnbufferedConnectionCommon<D>, &'i mut [u8]) -> UnbufferedStatus<'c, 'i, D>,
) -> Progress {
    loop {
        let UnbufferedStatus { discard, state } = process(conn, input);
        let result = match state {
            Ok(ConnectionState::EncodeTlsData(data)) => encode(data, output).err().map(Progress::Failed),
            Ok(ConnectionState::TransmitTlsData(sent)) => {
                sent.done();
                None
            }
            Ok(ConnectionState::BlockedHandshake) => Some(Progress::NeedsInput),
            Ok(ConnectionState::WriteTraffic(_)) => Some(Progress::Complete),
            // The peer has sent close_notify.
            Ok(_) => Some(Progress::Failed(Error::HandshakeNotComplete)),
            Err(error) => {
                // rustls refers to messages in the input until it has encoded the alert, the last record. It must not
                // be called after that.
                while let Ok(ConnectionState::EncodeTlsData(data)) = process(conn, input).state {
                    let start = output.len();
                    if encode(data, output).is_err() || is_alert(&output[start..]) {
                        break;
                    }
                }
                Some(Progress::Failed(error))
            }
        };
        input.drain(..discard.min(input.len()));
        if let Some(progress) = result {
            return progress;
        }
    }
}

/// Appends a record to `output`.
fn encode<D>(mut data: EncodeTlsData<'_, D>, output: &mut Vec<u8>) -> Result<(), Error> {
    let start = output.len();
    let encoded = match data.encode(&mut []) {
        Err(EncodeError::InsufficientSize(InsufficientSizeError { required_size })) => {
            output.resize(start + required_size, 0);
            data.encode(&mut output[start..])
        }
        encoded => encoded,
    };
    encoded.map(drop).map_err(|_| Error::General("a record could not be encoded".to_owned()))
}

/// Returns whether a record of a handshake is an alert. A protected one is shorter than any other.
fn is_alert(record: &[u8]) -> bool {
    record.first() == Some(&ALERT) || record.len() == OVERHEAD + 2
}

/// Returns the alert that a handshake has failed with, if `error` has one.
pub fn alert_of(error: &Error, output: &[u8]) -> Option<Failure> {
    match (error, output) {
        (Error::AlertReceived(alert), _) => Some(Failure::Peer((*alert).into())),
        // A plain alert is the last record.
        (_, [.., ALERT, 3, 3, 0, 2, 2, alert]) => Some(Failure::Local(*alert)),
        (_, []) => None,
        (Error::InvalidCertificate(error), _) => Some(Failure::Local(AlertDescription::from(error.clone()).into())),
        (Error::NoCertificatesPresented, _) => Some(Failure::Local(AlertDescription::CertificateRequired.into())),
        _ => Some(Failure::Local(AlertDescription::Unknown(u8::MAX).into())),
    }
}

/// Moves received bytes of the next record to `partial`. Returns whether the record is complete.
pub fn read_record(net: &mut impl Transport, conn: ConnId, partial: &mut Vec<u8>) -> bool {
    loop {
        let needed = match partial.first_chunk::<HEADER>() {
            None => HEADER,
            Some(header) => HEADER + length_of(*header),
        };
        // rustls rejects a header with a wrong type or length before the rest has arrived.
        let is_wrong = partial.first_chunk::<HEADER>().is_some_and(|header| !(20..=23).contains(&header[0]));
        if needed > HEADER && partial.len() == needed || is_wrong {
            return true;
        }
        let slice = net.peek(conn);
        let n = slice.len().min(needed - partial.len());
        if n == 0 {
            // An empty record has no more bytes.
            return needed == HEADER && partial.len() == HEADER;
        }
        partial.extend_from_slice(&slice[..n]);
        net.consume(conn, n);
    }
}
