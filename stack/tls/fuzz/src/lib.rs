//! Fuzz target of TLS: two ends whose stream is cut, changed, replayed and truncated.
//!
//! The fuzzer calls [`records`] with generated input, and a test of the crate with the corpus and mutations of it.

#[path = "../../src/tests/memory.rs"]
#[allow(dead_code, reason = "the tests of the crate use the rest")]
mod memory;

use linerate_service::{Origin, Service};
use linerate_tls::{ClientOptions, Identity, ServerOptions, Tls, TlsClient, TlsConfig, TlsServer};
use memory::{Recorder, Seen, Wire, conn};
use std::sync::OnceLock;

/// Maximum number of operations of an input.
const OPERATIONS: usize = 200;

/// End of the connection.
struct End {
    tls: Tls<Recorder>,
    wire: Wire,
}

impl End {
    fn open(config: TlsConfig, origin: Origin) -> Self {
        let recorder = Recorder { is_sink: origin != Origin::Accepted, ..Recorder::default() };
        let mut end = End { tls: Tls::new(config, recorder), wire: Wire::default() };
        end.tls.opened(&mut end.wire, conn(), origin);
        end
    }

    /// Receives `bytes`, unless the connection has ended.
    fn receive(&mut self, bytes: Vec<u8>) {
        if self.wire.is_aborted || self.wire.is_lingering || bytes.is_empty() {
            return;
        }
        self.wire.received.push_back(bytes.into());
        self.tls.turn(&mut self.wire);
        self.tls.burst(&mut self.wire, &[conn()]);
    }

    fn recorder(&mut self) -> &mut Recorder {
        self.tls.service_mut()
    }
}

/// Returns the configurations of both ends.
fn configs() -> [TlsConfig; 2] {
    static CONFIGS: OnceLock<[TlsConfig; 2]> = OnceLock::new();
    let create = || {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let (chain, key) = (directory.path().join("a.pem"), directory.path().join("a.key"));
        let certified = rcgen::generate_simple_self_signed(["a.test".to_owned()]).expect("a certificate");
        std::fs::write(&chain, certified.cert.pem()).expect("a file");
        std::fs::write(&key, certified.signing_key.serialize_pem()).expect("a file");
        let server = ServerOptions { identities: vec![Identity { chain, key }], ..ServerOptions::default() };
        let client = ClientOptions { insecure: true, ..ClientOptions::default() };
        [
            TlsServer::new(server).expect("a valid configuration").into(),
            TlsClient::new(&client).expect("a valid configuration").into(),
        ]
    };
    CONFIGS.get_or_init(create).clone()
}

/// Plays operations of two bytes. The first byte of `data` tells whether the handshake is complete before them.
///
/// # Panics
/// If an end receives other data than was sent, or the end of a stream that was not closed.
pub fn records(data: &[u8]) {
    let Some((first, operations)) = data.split_first() else { return };
    let [server, client] = configs();
    let mut ends = [End::open(server, Origin::Accepted), End::open(client, Origin::Connected(1))];
    while first % 2 == 0 && ends.iter().any(|end| !end.wire.sent.is_empty()) {
        for to in 0..2 {
            let bytes = std::mem::take(&mut ends[1 - to].wire.sent);
            ends[to].receive(bytes);
        }
    }
    let mut last = Vec::new();
    for (n, operation) in operations.chunks_exact(2).take(OPERATIONS).enumerate() {
        let (kind, value) = (operation[0], usize::from(operation[1]));
        let to = usize::from(kind >> 7);
        let bytes = &mut ends[1 - to].wire.sent;
        let some = |bytes: &mut Vec<u8>, n: usize| bytes.drain(..n.min(bytes.len())).collect::<Vec<_>>();
        match kind & 0x0f {
            // Delivers everything, or some bytes.
            0..4 => {
                last = some(bytes, usize::MAX);
                ends[to].receive(last.clone());
            }
            4..8 => {
                last = some(bytes, 1 + value);
                ends[to].receive(last.clone());
            }
            8 => drop(some(bytes, value)),
            9 => {
                let at = value * bytes.len() / 256;
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << (kind >> 4 & 7);
                }
            }
            10 => bytes.insert((value * bytes.len()) / 256, kind),
            11 => ends[to].receive(last.clone()),
            12 => ends[to].receive(vec![value as u8; 1 + value % 7]),
            13 => {
                let End { tls, wire } = &mut ends[to];
                if wire.received.is_empty() {
                    tls.peer_closed(wire, conn(), &mut ());
                }
            }
            kind => {
                // The client sends, or closes.
                let recorder = ends[1].recorder();
                recorder.outgoing = vec![n as u8; 1 + value * value / 4];
                recorder.is_closing = kind == 15 && value < 64;
                let End { tls, wire } = &mut ends[1];
                tls.message(wire, ());
            }
        }
        for end in &mut ends {
            end.wire.space = 1 << 20;
            end.tls.writable(&mut end.wire, conn(), &mut ());
        }
    }
    let [server, client] = &mut ends;
    let sent = std::mem::take(&mut client.recorder().accepted);
    assert!(sent.starts_with(&server.recorder().received), "the server received other data");
    assert!(sent.starts_with(&client.recorder().received), "the client received other data");
    let has_end = server.recorder().seen.contains(&Seen::PeerClosed);
    assert!(!has_end || client.recorder().is_closing || client.wire.is_closed, "a truncated stream has ended");
}
