//! Handshakes by rustls, and the secrets that they result in. The rest of the crate does not depend on the API of
//! rustls for connections.

use crate::open_conn::Failure;
use crate::record::{ALERT, Algorithm, HEADER, OVERHEAD, Secret, length_of};
use linerate_service::{ConnId, Transport};
use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::kernel::KernelConnection;
use rustls::pki_types::ServerName;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncodeTlsData, InsufficientSizeError, UnbufferedConnectionCommon, UnbufferedStatus,
};
use rustls::{AlertDescription, ClientConfig, ConnectionTrafficSecrets, Error, HandshakeKind, ServerConfig};
use std::cell::RefCell;
use std::sync::Arc;
use zeroize::Zeroizing;

/// Handshake in progress.
pub struct Handshake {
    end: HandshakeEnd,
    secrets: TrafficSecrets,
}

enum HandshakeEnd {
    Server(UnbufferedServerConnection),
    Client(UnbufferedClientConnection),
}

/// First traffic secrets of client and server, once they are known.
type TrafficSecrets = [Option<Zeroizing<Vec<u8>>>; 2];

/// Labels of the first traffic secrets in a key log.
const LABELS: [&str; 2] = ["CLIENT_TRAFFIC_SECRET_0", "SERVER_TRAFFIC_SECRET_0"];

thread_local! {
    /// Traffic secrets of the handshake that this thread advances.
    static SECRETS: RefCell<TrafficSecrets> = RefCell::default();
}

/// Returns true for the label of a secret that [`log_secret`] takes.
pub fn is_traffic_secret(label: &str) -> bool {
    LABELS.contains(&label)
}

/// Takes a secret from the key log of the handshake that this thread advances.
///
/// rustls gives traffic secrets to key logs only. Its `KernelConnection` derives later ones, but takes more memory than
/// all other state of an idle connection.
pub fn log_secret(label: &str, secret: &[u8]) {
    if let Some(end) = LABELS.iter().position(|name| *name == label) {
        SECRETS.with_borrow_mut(|secrets| secrets[end] = Some(Zeroizing::new(secret.to_vec())));
    }
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
    /// Receiver of tickets, at a client.
    pub tickets: Option<Tickets>,
    /// True if a ticket of an earlier connection was used.
    pub is_resumed: bool,
}

/// Receiver of tickets for later connections.
pub struct Tickets(Box<KernelConnection<ClientConnectionData>>);

impl Handshake {
    /// Begins the handshake of a server.
    pub fn server(config: Arc<ServerConfig>) -> Result<Self, Error> {
        UnbufferedServerConnection::new(config).map(|conn| Handshake::new(HandshakeEnd::Server(conn)))
    }

    /// Begins the handshake of a client with the server `name`.
    pub fn client(config: Arc<ClientConfig>, name: ServerName<'static>) -> Result<Self, Error> {
        UnbufferedClientConnection::new(config, name).map(|conn| Handshake::new(HandshakeEnd::Client(conn)))
    }

    fn new(end: HandshakeEnd) -> Self {
        Handshake { end, secrets: TrafficSecrets::default() }
    }

    /// Processes `input`, which consists of whole records, and appends records to `output`. Removes the processed
    /// records from `input`; fragments of an incomplete message stay.
    pub fn advance(&mut self, input: &mut Vec<u8>, output: &mut Vec<u8>) -> Progress {
        SECRETS.set(std::mem::take(&mut self.secrets));
        let progress = match &mut self.end {
            HandshakeEnd::Server(conn) => advance(conn, input, output, |conn, input| conn.process_tls_records(input)),
            HandshakeEnd::Client(conn) => advance(conn, input, output, |conn, input| conn.process_tls_records(input)),
        };
        self.secrets = SECRETS.take();
        progress
    }

    /// Returns the keys after [`Progress::Complete`].
    pub fn finish(self) -> Result<Established, Error> {
        let Handshake { end, secrets: [client, server] } = self;
        let is_resumed = |kind| kind == Some(HandshakeKind::Resumed);
        let (keys, [tx, rx], tickets, is_resumed) = match end {
            HandshakeEnd::Server(conn) => {
                let is_resumed = is_resumed(conn.handshake_kind());
                (conn.dangerous_into_kernel_connection()?.0, [server, client], None, is_resumed)
            }
            HandshakeEnd::Client(conn) => {
                let is_resumed = is_resumed(conn.handshake_kind());
                let (keys, rest) = conn.dangerous_into_kernel_connection()?;
                (keys, [client, server], Some(Tickets(Box::new(rest))), is_resumed)
            }
        };
        Ok(Established { tx: secret(keys.tx, tx)?, rx: secret(keys.rx, rx)?, tickets, is_resumed })
    }
}

impl Tickets {
    /// Keeps a ticket. `body` is a NewSessionTicket without its header.
    pub fn keep(&mut self, body: &[u8]) -> Result<(), Error> {
        self.0.handle_new_session_ticket(body)
    }
}

fn secret(
    (sequence, keys): (u64, ConnectionTrafficSecrets),
    traffic: Option<Zeroizing<Vec<u8>>>,
) -> Result<Secret, Error> {
    let algorithm = match keys {
        ConnectionTrafficSecrets::Aes128Gcm { .. } => Algorithm::Aes128Gcm,
        ConnectionTrafficSecrets::Aes256Gcm { .. } => Algorithm::Aes256Gcm,
        ConnectionTrafficSecrets::Chacha20Poly1305 { .. } => Algorithm::Chacha20Poly1305,
        _ => return Err(Error::General("unknown cipher suite".to_owned())),
    };
    let secret = traffic.and_then(|traffic| Secret::new(algorithm, &traffic, sequence));
    secret.ok_or_else(|| Error::General("no traffic secret".to_owned()))
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
