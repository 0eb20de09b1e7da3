//! Records and handshakes of a server with TLS, without a network, in relation to the cryptography in them.

use crate::certificate::{Certificate, client};
use crate::client::BenchError;
use crate::engine::{Bench, measure};
use crate::kv::memory::Memory;
use crate::requirements::limit::Limit;
use linerate_load::services::Echo;
use linerate_service::{CloseReason, ConnId, Origin, Service, Transport};
use linerate_tls::{Tls, TlsError, TlsServer};
use ring::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::agreement::{EphemeralPrivateKey, UnparsedPublicKey, X25519, agree_ephemeral};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair};
use std::time::{Duration, Instant};

/// Bytes of a message, and of a buffer of the transport, which a record of that length fits into.
const MESSAGE: usize = 16 << 10;
const BUFFER: usize = MESSAGE + 256;
/// Bytes of a received message in one packet.
const SEGMENT: usize = 1448;
/// Messages and handshakes to measure, and rounds of each.
const MESSAGES: usize = 45_000;
const HANDSHAKES: usize = 9_000;
const ROUNDS: usize = 9;
/// Maximum time of a message and of a handshake, in relation to their cryptography.
const RECORD: f64 = 1.15;
const HANDSHAKE: f64 = 1.0 / 0.85;
/// Maximum time of a resumed handshake, in relation to a full one.
const RESUMED: f64 = 1.0 / 3.0;

/// Measures the ratios and returns them with their limits.
///
/// # Errors
/// TLS cannot be set up, or an end fails.
pub fn limits() -> Result<Vec<Limit>, BenchError> {
    let records = costs(vec![Box::new(BareRecords::new()), Box::new(Records::new()?)], MESSAGES)?;
    let handshakes = vec![
        Box::new(BareHandshakes::new()) as Box<dyn Bench>,
        Box::new(Handshakes::new(false)?),
        Box::new(Handshakes::new(true)?),
    ];
    let handshakes = costs(handshakes, HANDSHAKES)?;
    Ok(vec![
        Limit::new("nanoseconds per 16 KB message with TLS, to its AEAD", records[1] / records[0], RECORD),
        Limit::new("nanoseconds per TLS handshake, to its cryptography", handshakes[1] / handshakes[0], HANDSHAKE),
        Limit::new("nanoseconds per resumed handshake, to a full one", handshakes[2] / handshakes[1], RESUMED),
    ])
}

fn costs(mut benches: Vec<Box<dyn Bench>>, operations: usize) -> Result<Vec<f64>, BenchError> {
    Ok(measure(&mut benches, operations, ROUNDS)?.iter().map(|cost| cost.ns).collect())
}

/// Returns the duration of `work`.
fn timed(work: impl FnOnce()) -> Duration {
    let began = Instant::now();
    work();
    began.elapsed()
}

/// Bare AEAD of messages: sealed in place, and opened again.
struct BareRecords {
    key: LessSafeKey,
    record: Vec<u8>,
}

impl BareRecords {
    fn new() -> Self {
        let key = UnboundKey::new(&AES_128_GCM, &[7; 16]).expect("a key of 16 bytes");
        BareRecords { key: LessSafeKey::new(key), record: vec![0; MESSAGE + 1] }
    }
}

impl Bench for BareRecords {
    fn run(&mut self, operations: usize) -> Result<Duration, BenchError> {
        let nonce = || Nonce::assume_unique_for_key([0; 12]);
        Ok(timed(|| {
            for _ in 0..operations {
                // The tag takes the place of the last one.
                self.record.truncate(MESSAGE + 1);
                self.key.seal_in_place_append_tag(nonce(), Aad::from([0; 5]), &mut self.record).expect("a record");
                self.key.open_in_place(nonce(), Aad::from([0; 5]), &mut self.record).expect("the same record");
            }
        }))
    }
}

/// Bare cryptography of a server's handshake: key pair, agreement and signature, without hashes and key derivation.
struct BareHandshakes {
    random: SystemRandom,
    key: EcdsaKeyPair,
}

impl BareHandshakes {
    fn new() -> Self {
        let random = SystemRandom::new();
        let algorithm = &ECDSA_P256_SHA256_ASN1_SIGNING;
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(algorithm, &random).expect("random numbers");
        let key = EcdsaKeyPair::from_pkcs8(algorithm, pkcs8.as_ref(), &random).expect("a new key");
        BareHandshakes { random, key }
    }
}

impl Bench for BareHandshakes {
    fn run(&mut self, operations: usize) -> Result<Duration, BenchError> {
        let peer = EphemeralPrivateKey::generate(&X25519, &self.random).expect("random numbers");
        let peer = UnparsedPublicKey::new(&X25519, peer.compute_public_key().expect("a public key"));
        Ok(timed(|| {
            for _ in 0..operations {
                let own = EphemeralPrivateKey::generate(&X25519, &self.random).expect("random numbers");
                own.compute_public_key().expect("a public key");
                agree_ephemeral(own, &peer, |_| ()).expect("a public key");
                self.key.sign(&self.random, &[7; 130]).expect("a signature");
            }
        }))
    }
}

/// Client that sends messages on request.
struct Sender;

impl Service for Sender {
    type Conn = ();
    type Message = ConnId;

    fn opened(&mut self, _: &mut impl Transport, _: ConnId, _: Origin) {}

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, (): &mut ()) {
        net.consume(conn, usize::MAX);
    }

    fn message(&mut self, net: &mut impl Transport, conn: ConnId) {
        net.write(conn, &[7; MESSAGE]);
    }
}

/// End of a connection.
struct End<S: Service> {
    tls: Tls<S>,
    net: Memory,
}

impl<S: Service> End<S> {
    fn new(tls: Tls<S>) -> Self {
        let mut net = Memory::new(0, 1, BUFFER);
        net.kept = Some(Vec::new());
        End { tls, net }
    }

    /// Returns the bytes that this end has sent.
    fn sent(&mut self) -> Vec<u8> {
        self.net.kept.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Receives `bytes` and returns the time until they have been processed.
    fn receive(&mut self, conn: ConnId, bytes: Vec<u8>) -> Duration {
        let end = &mut self.net.ends[0];
        end.clear();
        end.requests = bytes;
        end.arrived = end.requests.len();
        timed(|| {
            self.tls.turn(&mut self.net);
            self.tls.burst(&mut self.net, &[conn]);
        })
    }
}

/// Full or resumed handshakes, each on a new connection.
struct Handshakes {
    client: End<Sender>,
    server: End<Echo>,
    is_resumed: bool,
    done: u32,
}

impl Handshakes {
    fn new(is_resumed: bool) -> Result<Self, BenchError> {
        let client = End::new(Tls::new(client()?.into(), Sender));
        let mut bench = Handshakes { client, server: End::new(Tls::new(server()?.into(), Echo)), is_resumed, done: 0 };
        // The first one leaves tickets.
        bench.handshake();
        Ok(bench)
    }

    /// Returns the connection of the last handshake.
    fn conn(&self) -> ConnId {
        ConnId::new(0, 0, self.done)
    }

    /// Performs a handshake and returns the time of the server.
    fn handshake(&mut self) -> Duration {
        self.done += 1;
        let conn = self.conn();
        let Handshakes { client, server, is_resumed, .. } = self;
        client.tls.opened(&mut client.net, conn, Origin::Connected(0));
        let mut spent = timed(|| server.tls.opened(&mut server.net, conn, Origin::Accepted));
        spent += server.receive(conn, client.sent());
        client.receive(conn, server.sent());
        spent += server.receive(conn, client.sent());
        let tickets = server.sent();
        if *is_resumed {
            client.receive(conn, tickets);
        }
        spent
    }

    /// Closes the connection of the last handshake at both ends.
    fn close(&mut self) {
        let conn = self.conn();
        let Handshakes { client, server, .. } = self;
        client.tls.closed(&mut client.net, conn, (), CloseReason::Reset);
        server.tls.closed(&mut server.net, conn, (), CloseReason::Reset);
    }
}

/// Returns the server end with a new certificate.
fn server() -> Result<TlsServer, TlsError> {
    let files = tempfile::tempdir().map_err(|error| TlsError::Other(format!("temporary files: {error}")))?;
    Certificate::new(files.path())?.server()
}

impl Bench for Handshakes {
    fn run(&mut self, operations: usize) -> Result<Duration, BenchError> {
        let before = self.server.tls.counters().clone();
        let mut spent = Duration::ZERO;
        for _ in 0..operations {
            self.close();
            spent += self.handshake();
        }
        let after = self.server.tls.counters();
        let done = after.handshakes - before.handshakes;
        let resumed = if self.is_resumed { operations as u64 } else { 0 };
        if (done, after.resumed - before.resumed) != (operations as u64, resumed) {
            return Err(BenchError::Missing(operations - done as usize));
        }
        Ok(spent)
    }
}

/// Messages of one record that the server sends back.
struct Records(Handshakes);

impl Records {
    fn new() -> Result<Self, BenchError> {
        let mut bench = Handshakes::new(false)?;
        bench.server.net.kept = None;
        bench.server.net.segment = SEGMENT;
        Ok(Records(bench))
    }
}

impl Bench for Records {
    fn run(&mut self, operations: usize) -> Result<Duration, BenchError> {
        let Records(bench) = self;
        let conn = bench.conn();
        let before = bench.server.tls.counters().records_sent;
        let mut spent = Duration::ZERO;
        for _ in 0..operations {
            bench.client.tls.message(&mut bench.client.net, conn);
            spent += bench.server.receive(conn, bench.client.sent());
        }
        let sent = (bench.server.tls.counters().records_sent - before) as usize;
        if sent == operations { Ok(spent) } else { Err(BenchError::Missing(operations.abs_diff(sent))) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_and_handshakes_are_complete() {
        let mut records = Records::new().unwrap();
        assert_eq!(records.0.server.tls.tls_info(records.0.conn()).unwrap().suite, "TLS_AES_128_GCM_SHA256");
        assert!(records.run(100).unwrap() > Duration::ZERO);
        for is_resumed in [false, true] {
            assert!(Handshakes::new(is_resumed).unwrap().run(20).unwrap() > Duration::ZERO);
        }
        BareRecords::new().run(2).unwrap();
        BareHandshakes::new().run(2).unwrap();
    }
}
