//! Server under test, and its peer.

use super::memory::{Recorder, Seen, Wire, conn};
use crate::config::{ClientOptions, Identity, ServerOptions, TlsClient, TlsServer};
use crate::handshake::{Established, Handshake, Progress};
use crate::record::{HEADER, OVERHEAD, Secret, length_of};
use crate::service::Tls;
use linerate_service::{Bytes, CloseReason, Origin, Service};

/// Server under test with one connection, and its peer.
pub struct Pair {
    pub tls: Tls<Recorder>,
    pub wire: Wire,
    pub tx: Secret,
    pub rx: Secret,
}

/// Returns a client and its first flight.
pub fn client_hello(client: &TlsClient) -> (Handshake, Vec<u8>) {
    let mut handshake = Handshake::client(client.config(), client.name().unwrap()).unwrap();
    let mut hello = Vec::new();
    assert!(matches!(handshake.advance(&mut Vec::new(), &mut hello), Progress::NeedsInput));
    (handshake, hello)
}

/// Returns configurations of a server and of a client that accepts it.
pub fn configs() -> (TlsServer, TlsClient) {
    let directory = tempfile::tempdir().unwrap();
    let (chain, key) = (directory.path().join("a.pem"), directory.path().join("a.key"));
    let certified = rcgen::generate_simple_self_signed(["a.test".to_owned()]).unwrap();
    std::fs::write(&chain, certified.cert.pem()).unwrap();
    std::fs::write(&key, certified.signing_key.serialize_pem()).unwrap();
    let server = ServerOptions { identities: vec![Identity { chain, key }], ..ServerOptions::default() };
    let client = ClientOptions { insecure: true, name: Some("a.test".to_owned()), ..ClientOptions::default() };
    (TlsServer::new(server).unwrap(), TlsClient::new(&client).unwrap())
}

/// Returns a server that has accepted a connection.
pub fn accepted(server: TlsServer) -> (Tls<Recorder>, Wire) {
    let mut tls = Tls::new(server.into(), Recorder::default());
    let mut wire = Wire::default();
    tls.opened(&mut wire, conn(), Origin::Accepted);
    (tls, wire)
}

/// Delivers `bytes` in slices of `cut` bytes.
pub fn deliver(tls: &mut Tls<Recorder>, wire: &mut Wire, bytes: &[u8], cut: usize) {
    for slice in bytes.chunks(cut) {
        wire.received.push_back(Bytes::from(slice.to_vec()));
        tls.turn(wire);
        tls.burst(wire, &[conn()]);
    }
}

impl Pair {
    /// Completes a handshake whose bytes reach the server in slices of `cut` bytes.
    pub fn new(cut: usize) -> Self {
        let (server, client) = configs();
        let (mut tls, mut wire) = accepted(server);
        let mut handshake = Handshake::client(client.config(), client.name().unwrap()).unwrap();
        let mut input = Vec::new();
        loop {
            let mut output = Vec::new();
            input.append(&mut wire.sent);
            let progress = handshake.advance(&mut input, &mut output);
            deliver(&mut tls, &mut wire, &output, cut);
            match progress {
                Progress::NeedsInput => {}
                Progress::Complete => break,
                Progress::Failed(error) => panic!("{error}"),
            }
        }
        assert_eq!(tls.service().seen, [Seen::Opened]);
        let Established { tx, rx, .. } = handshake.finish().unwrap();
        let mut pair = Pair { tls, wire, tx, rx };
        // Tickets.
        assert!(pair.read().iter().all(|(content, _)| *content == 22));
        pair
    }

    /// Returns a record of the peer.
    pub fn record(&mut self, content: u8, data: &[u8]) -> Vec<u8> {
        let mut record = vec![0; data.len() + OVERHEAD];
        record[HEADER..HEADER + data.len()].copy_from_slice(data);
        self.tx.seal(content, &mut record);
        record
    }

    pub fn deliver(&mut self, bytes: &[u8]) {
        deliver(&mut self.tls, &mut self.wire, bytes, usize::MAX);
    }

    /// Sends one record of the peer.
    pub fn send(&mut self, content: u8, data: &[u8]) {
        let record = self.record(content, data);
        self.deliver(&record);
    }

    /// Returns the records that the server has sent.
    pub fn read(&mut self) -> Vec<(u8, Vec<u8>)> {
        let sent = std::mem::take(&mut self.wire.sent);
        let (mut rest, mut records) = (&sent[..], Vec::new());
        while let Some((header, after)) = rest.split_first_chunk::<HEADER>() {
            let (record, after) = after.split_at(length_of(*header));
            let mut record = record.to_vec();
            let (content, len) = self.rx.open(&mut record).unwrap();
            record.truncate(len);
            if content == 22 && record[0] == 24 {
                self.rx = self.rx.next();
            }
            records.push((content, record));
            rest = after;
        }
        assert!(rest.is_empty());
        records
    }

    /// Returns the application data that the server has sent.
    pub fn data(&mut self) -> Vec<u8> {
        self.read().into_iter().filter(|(content, _)| *content == 23).flat_map(|(_, data)| data).collect()
    }

    /// Asserts that the server has sent the fatal `alert`, and ends the connection.
    #[track_caller]
    pub fn assert_alert(&mut self, alert: u8) {
        let last = self.read().pop().expect("an alert");
        assert_eq!(last, (21, vec![2, alert]));
        assert!(self.wire.is_lingering);
        assert_eq!(self.tls.counters().alerts_sent.get(&alert), Some(&1));
        self.tls.closed(&mut self.wire, conn(), (), CloseReason::Finished);
        assert_eq!(self.tls.service().seen.last(), Some(&Seen::Closed(CloseReason::Aborted)));
    }
}
