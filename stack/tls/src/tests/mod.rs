//! Records, alerts and ends of connections, over a transport in memory.

mod memory;
mod wire;

use crate::config::TlsConfig;
use crate::handshake::{Established, Handshake, Progress};
use crate::limits::{HANDSHAKE_TIME, MAX_HANDSHAKES};
use crate::record::OVERHEAD;
use crate::service::Tls;
use linerate_service::time::{Duration, Instant};
use linerate_service::{CloseReason, ConnId, Origin, Service};
use memory::{Recorder, Seen, Wire, conn};
use wire::{Pair, accepted, client_hello, configs, deliver};

const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const DATA: u8 = 23;

#[test]
fn streams_cut_at_every_byte_are_equal() {
    let text: Vec<u8> = (0..100).collect();
    for cut in (1..=text.len() + OVERHEAD + 1).step_by(3) {
        let mut pair = Pair::new(cut);
        let mut records = pair.record(DATA, &text);
        records.extend(pair.record(DATA, b""));
        records.extend(pair.record(DATA, &text[..1]));
        records.extend(pair.record(DATA, &text));
        deliver(&mut pair.tls, &mut pair.wire, &records, cut);
        let expected = [&text[..], &text[..1], &text[..]].concat();
        assert_eq!(pair.tls.service().received, expected, "cut {cut}");
        assert_eq!(pair.data(), expected, "cut {cut}");
    }
}

#[test]
fn long_records_are_gathered_and_short_ones_are_read_together() {
    let mut pair = Pair::new(usize::MAX);
    let long = vec![0x5a; 1 << 14];
    let record = pair.record(DATA, &long);
    deliver(&mut pair.tls, &mut pair.wire, &record, 1400);
    assert_eq!(pair.tls.service().seen, [Seen::Opened, Seen::Readable(1 << 14)]);
    assert_eq!(pair.data(), long);
    let records = [pair.record(DATA, b"ab"), pair.record(DATA, b"cd"), pair.record(DATA, b"ef")].concat();
    pair.deliver(&records);
    assert_eq!(pair.tls.service().seen.last(), Some(&Seen::Readable(6)));
    // One record for the three responses.
    assert_eq!(pair.read(), [(DATA, b"abcdef".to_vec())]);
}

#[test]
fn unread_plaintext_is_bounded() {
    let mut pair = Pair::new(usize::MAX);
    pair.tls.service_mut().is_lazy = true;
    for _ in 0..40 {
        let record = pair.record(DATA, &[7; 1 << 14]);
        pair.deliver(&record);
    }
    let left: usize = pair.wire.received.iter().map(|slice| slice.len()).sum();
    assert_eq!(left, 24 * ((1 << 14) + OVERHEAD));
    pair.tls.service_mut().is_lazy = false;
    pair.wire.space = usize::MAX / 2;
    let more = pair.record(DATA, b"x");
    pair.tls.message(&mut pair.wire, ());
    pair.tls.read_all(&mut pair.wire, conn());
    pair.deliver(&more);
    assert_eq!(pair.tls.service().received.len(), 40 * (1 << 14) + 1);
}

#[test]
fn changed_replayed_and_reordered_records_end_the_connection() {
    let mut pair = Pair::new(usize::MAX);
    let mut record = pair.record(DATA, b"abc");
    *record.last_mut().unwrap() ^= 1;
    pair.deliver(&record);
    pair.assert_alert(20);

    let mut pair = Pair::new(usize::MAX);
    let record = pair.record(DATA, b"abc");
    pair.deliver(&record);
    assert_eq!(pair.data(), b"abc");
    pair.deliver(&record);
    pair.assert_alert(20);

    let mut pair = Pair::new(usize::MAX);
    let (first, second) = (pair.record(DATA, b"abc"), pair.record(DATA, b"def"));
    pair.deliver(&[second, first].concat());
    pair.assert_alert(20);
    assert_eq!(pair.tls.service().received, b"");
}

#[test]
fn plain_and_long_records_after_the_handshake_end_the_connection() {
    for (record, alert) in [
        (&[23, 3, 3, 0x41, 1][..], 22),
        (&[20, 3, 3, 0, 1, 1], 10),
        (&[21, 3, 3, 0, 2, 2, 0], 10),
        (&[22, 3, 3, 0, 5, 24, 0, 0, 1, 0], 10),
        (b"GET / HTTP/1.1\r\n", 10),
    ] {
        for cut in [1, usize::MAX] {
            let mut pair = Pair::new(usize::MAX);
            deliver(&mut pair.tls, &mut pair.wire, record, cut);
            pair.assert_alert(alert);
        }
    }
}

#[test]
fn records_of_wrong_content_end_the_connection() {
    for (content, data, alert) in [
        (ALERT, &b""[..], 10),
        (HANDSHAKE, b"", 10),
        (20, b"\x01", 10),
        (24, b"\x01", 10),
        (ALERT, b"\x01", 50),
        (ALERT, b"\x01\x00\x00", 50),
        // KeyUpdate: another length, another value, and not alone.
        (HANDSHAKE, b"\x18\0\0\x02\0\0", 50),
        (HANDSHAKE, b"\x18\0\0\x01\x02", 47),
        (HANDSHAKE, b"\x18\0\0\x01\0\x18\0\0\x01\0", 10),
        // NewSessionTicket, Finished and ClientHello.
        (HANDSHAKE, b"\x04\0\0\0", 10),
        (HANDSHAKE, b"\x14\0\0\0", 10),
        (HANDSHAKE, b"\x01\0\0\0", 10),
    ] {
        let mut pair = Pair::new(usize::MAX);
        pair.send(content, data);
        pair.assert_alert(alert);
    }
}

#[test]
fn empty_records_without_end_are_refused() {
    for (content, data) in [(DATA, &b""[..]), (ALERT, b"\x01\x5a")] {
        let mut pair = Pair::new(usize::MAX);
        for _ in 0..3 {
            (0..32).for_each(|_| pair.send(content, data));
            pair.send(DATA, b"a");
        }
        assert_eq!(pair.data(), b"aaa");
        (0..33).for_each(|_| pair.send(content, data));
        pair.assert_alert(10);
    }
}

#[test]
fn key_updates_are_answered_once_and_bounded() {
    let mut pair = Pair::new(usize::MAX);
    for requested in [1, 0, 1] {
        pair.send(HANDSHAKE, &[24, 0, 0, 1, requested]);
        pair.tx = pair.tx.next();
        let answer = pair.read();
        assert_eq!(answer.len(), usize::from(requested));
        assert!(answer.iter().all(|answer| *answer == (HANDSHAKE, vec![24, 0, 0, 1, 0])));
        pair.send(DATA, b"after");
        assert_eq!(pair.data(), b"after");
    }
    for _ in 0..33 {
        pair.send(HANDSHAKE, b"\x18\0\0\x01\0");
        pair.tx = pair.tx.next();
    }
    pair.assert_alert(10);
}

#[test]
fn messages_in_fragments_are_joined_and_not_interleaved() {
    let mut pair = Pair::new(usize::MAX);
    pair.send(HANDSHAKE, b"\x18\0");
    pair.send(HANDSHAKE, b"\0\x01\0");
    pair.tx = pair.tx.next();
    pair.send(DATA, b"after");
    assert_eq!(pair.data(), b"after");
    pair.send(HANDSHAKE, b"\x18\0");
    pair.send(DATA, b"between");
    pair.assert_alert(10);
}

#[test]
fn close_notify_follows_the_data_and_is_answered() {
    for cut in [1, 7, usize::MAX] {
        let mut pair = Pair::new(usize::MAX);
        let mut records = pair.record(DATA, b"last");
        records.extend(pair.record(ALERT, &[1, 0]));
        records.extend(b"ignored");
        deliver(&mut pair.tls, &mut pair.wire, &records, cut);
        assert_eq!(pair.read().last(), Some(&(ALERT, vec![1, 0])));
        assert!(pair.wire.is_closed && pair.wire.received.is_empty());
        pair.tls.peer_closed(&mut pair.wire, conn(), &mut ());
        pair.tls.closed(&mut pair.wire, conn(), (), CloseReason::Finished);
        let seen = &pair.tls.service().seen;
        assert_eq!(seen[seen.len() - 2..], [Seen::PeerClosed, Seen::Closed(CloseReason::Finished)]);
        assert_eq!((pair.tls.service().received.as_slice(), pair.tls.counters().truncated), (&b"last"[..], 0));
    }
}

#[test]
fn close_notify_is_reported_after_the_service_has_read() {
    let mut pair = Pair::new(usize::MAX);
    pair.tls.service_mut().is_lazy = true;
    let records = [pair.record(DATA, b"unread"), pair.record(ALERT, &[1, 0])].concat();
    pair.deliver(&records);
    assert_eq!(pair.tls.service().seen, [Seen::Opened, Seen::Readable(6)]);
    // The transport does not finish before.
    assert!(!pair.wire.received.is_empty());
    pair.tls.service_mut().is_lazy = false;
    pair.tls.read_all(&mut pair.wire, conn());
    assert_eq!(pair.tls.service().seen.last(), Some(&Seen::PeerClosed));
    assert!(pair.wire.received.is_empty());
}

#[test]
fn end_without_close_notify_is_a_truncation() {
    let mut pair = Pair::new(usize::MAX);
    pair.send(DATA, b"some");
    pair.tls.peer_closed(&mut pair.wire, conn(), &mut ());
    assert!(pair.wire.is_aborted);
    pair.tls.closed(&mut pair.wire, conn(), (), CloseReason::Aborted);
    assert_eq!(pair.tls.service().seen.last(), Some(&Seen::Closed(CloseReason::Reset)));
    assert_eq!(pair.tls.counters().truncated, 1);
}

#[test]
fn fatal_alert_of_the_peer_is_a_reset() {
    let mut pair = Pair::new(usize::MAX);
    pair.send(ALERT, &[2, 80]);
    assert!(pair.wire.is_aborted && pair.read().is_empty());
    pair.tls.closed(&mut pair.wire, conn(), (), CloseReason::Aborted);
    assert_eq!(pair.tls.service().seen.last(), Some(&Seen::Closed(CloseReason::Reset)));
    assert_eq!(pair.tls.counters().alerts_received.get(&80), Some(&1));
}

#[test]
fn records_without_space_are_kept_and_writable_follows() {
    let mut pair = Pair::new(usize::MAX);
    let text: Vec<u8> = (0..5000_u32).map(|n| n as u8).collect();
    // The data fits, and its records do not.
    pair.wire.space = 5000;
    pair.send(DATA, &text);
    assert_eq!(pair.wire.space, 0);
    assert!(!pair.tls.service().seen.contains(&Seen::Writable));
    while pair.tls.service().seen.last() != Some(&Seen::Writable) {
        pair.wire.space += 10;
        pair.tls.writable(&mut pair.wire, conn(), &mut ());
        assert!(pair.wire.sent.len() < 6000, "{:?}", pair.tls.service().seen);
    }
    assert_eq!(pair.data(), text);
}

#[test]
fn close_waits_for_records_without_space() {
    let mut pair = Pair::new(usize::MAX);
    pair.wire.space = 10;
    pair.send(ALERT, &[1, 0]);
    assert!(!pair.wire.is_closed);
    pair.wire.space = 100;
    pair.tls.writable(&mut pair.wire, conn(), &mut ());
    assert!(pair.wire.is_closed);
    assert_eq!(pair.read(), [(ALERT, vec![1, 0])]);
}

#[test]
fn unfinished_handshake_ends_after_its_time() {
    let (server, _) = configs();
    let (mut tls, mut wire) = accepted(server);
    assert_eq!(wire.timer, Some(HANDSHAKE_TIME));
    deliver(&mut tls, &mut wire, &[22, 3, 1], 1);
    tls.timer(&mut wire, conn(), &mut ());
    assert!(wire.is_aborted);
    tls.closed(&mut wire, conn(), (), CloseReason::Aborted);
    assert_eq!((tls.counters().timed_out, tls.counters().failed), (1, 0));
    assert_eq!(tls.service().seen, []);
    assert_eq!(Pair::new(100).wire.timer, None);
}

/// Returns a ClientHello of TLS 1.2 with the given suite and extensions.
fn hello(suite: u16, extensions: &[u8]) -> Vec<u8> {
    let len = |bytes: &[u8]| (bytes.len() as u16).to_be_bytes();
    let suite = suite.to_be_bytes();
    let body = [&[3, 3][..], &[7; 32], &[0, 0, 2], &suite, &[1, 0], &len(extensions), extensions].concat();
    let message = [&[1, 0][..], &len(&body), &body].concat();
    [&[22, 3, 1][..], &len(&message), &message].concat()
}

#[test]
fn wrong_handshakes_get_their_alert_and_are_counted() {
    const SIGNATURES: &[u8] = &[0, 13, 0, 4, 0, 2, 4, 3];
    const VERSION: &[u8] = &[0, 43, 0, 3, 2, 3, 4];
    let old = hello(0xc02f, SIGNATURES);
    let [twice, no_groups] = [[VERSION, VERSION].concat(), [VERSION, SIGNATURES].concat()];
    for (bytes, alert) in [
        (&b"GET / HTTP/1.1\r\n"[..], 10),
        (&[22, 3, 1, 0x40, 1], 22),
        (&[23, 3, 3, 0x41, 1], 22),
        (&[22, 3, 1, 0, 0], 10),
        // Between the parts of a ClientHello.
        (&[22, 3, 1, 0, 4, 1, 0, 0, 40, 20, 3, 3, 0, 1, 1], 10),
        // Application data, an end of early data, a fragment without end, and a plain alert.
        (&[23, 3, 3, 0, 1, 0], 10),
        (&[22, 3, 1, 0, 4, 5, 0, 0, 0], 10),
        (&[22, 3, 1, 0, 4, 1, 0xff, 0xff, 0xff], 50),
        (&[22, 3, 1, 0, 4, 2, 0, 0, 0], 50),
        // TLS 1.2.
        (&old, 70),
        (&hello(0x1301, &twice), 47),
        (&hello(0x1301, &no_groups), 40),
        (&hello(0xc02f, &no_groups), 40),
    ] {
        let (server, _) = configs();
        let (mut tls, mut wire) = accepted(server);
        let mut bytes = bytes.to_vec();
        bytes.resize(70_000, 0);
        deliver(&mut tls, &mut wire, &bytes, 1400);
        assert_eq!(wire.sent, [ALERT, 3, 3, 0, 2, 2, alert], "{:?}", &bytes[..20]);
        assert!(wire.is_lingering);
        let counters = tls.counters();
        assert_eq!((counters.failed, counters.alerts_sent.get(&alert)), (1, Some(&1)));
        assert!(counters.metrics().any(|metric| metric.name == "tls alerts sent" && metric.part != "other"));
        assert_eq!(tls.service().seen, []);
    }
}

#[test]
fn alert_of_the_peer_in_a_handshake_is_counted() {
    let (server, _) = configs();
    let (mut tls, mut wire) = accepted(server);
    deliver(&mut tls, &mut wire, &[ALERT, 3, 1, 0, 2, 2, 48], usize::MAX);
    assert_eq!((tls.counters().failed, tls.counters().alerts_received.get(&48)), (1, Some(&1)));
}

#[test]
fn source_with_many_unfinished_handshakes_displaces_none() {
    let (server, _) = configs();
    let (mut tls, _) = accepted(server);
    let mut open = |slot: usize| {
        let mut wire = Wire::default();
        tls.opened(&mut wire, ConnId::new(0, slot, 0), Origin::Accepted);
        (wire.is_aborted, tls.counters().refused)
    };
    let limit = MAX_HANDSHAKES;
    assert!((10..limit + 9).all(|slot| open(slot) == (false, 0)));
    assert_eq!(open(limit + 9), (true, 1));
    // An ended one makes space.
    tls.closed(&mut Wire::default(), ConnId::new(0, 10, 0), (), CloseReason::Reset);
    let mut wire = Wire::default();
    tls.opened(&mut wire, ConnId::new(0, 10, 1), Origin::Accepted);
    assert!(!wire.is_aborted);
}

#[test]
fn handshakes_that_come_to_nothing_wait_while_others_are_served() {
    let (_, client) = configs();
    let mut pair = Pair::new(usize::MAX);
    let (_, hello) = client_hello(&client);
    let answered = |pair: &mut Pair, slot: usize| {
        let mut wire = Wire { now: pair.wire.now, ..Wire::default() };
        pair.tls.opened(&mut wire, ConnId::new(0, slot, 0), Origin::Accepted);
        wire.received.push_back(hello.clone().into());
        pair.tls.burst(&mut wire, &[ConnId::new(0, slot, 0)]);
        !wire.sent.is_empty()
    };
    // A turn has time for a few.
    assert!((10..500).position(|slot| !answered(&mut pair, slot)).is_some_and(|answered| answered > 0));
    let answered = |pair: &mut Pair, slot: usize| {
        pair.tls.turn(&mut pair.wire);
        answered(pair, slot)
    };
    // Without other connections to serve, none waits for a later one.
    pair.wire.now = Instant::ZERO + Duration::from_secs(1);
    assert!((500..1000).all(|slot| answered(&mut pair, slot)));
    pair.send(DATA, b"served");
    assert!((1000..2000).any(|slot| !answered(&mut pair, slot)));
    // They wait for their share.
    let mut later = (2000..2100).map(|slot| {
        pair.wire.now += Duration::from_millis(10);
        pair.send(DATA, b"served");
        answered(&mut pair, slot)
    });
    assert!(later.any(|answered| answered));
    assert!((2100..3000).any(|slot| !answered(&mut pair, slot)));
}

#[test]
fn handshakes_wait_while_plain_connections_are_served() {
    let (server, client) = configs();
    let mut tls = Tls::new(TlsConfig { ports: vec![10..=9999], ..server.into() }, Recorder::default());
    tls.opened(&mut Wire::default(), conn(), Origin::Accepted);
    let mut answered = |slot: usize| {
        let mut wire = Wire::default();
        wire.received.push_back(b"plain".to_vec().into());
        tls.burst(&mut wire, &[conn()]);
        let conn = ConnId::new(0, slot, 0);
        tls.turn(&mut wire);
        tls.opened(&mut wire, conn, Origin::Accepted);
        (wire.sent, wire.received) = (Vec::new(), [client_hello(&client).1.into()].into());
        tls.burst(&mut wire, &[conn]);
        !wire.sent.is_empty()
    };
    assert!((10..2000).position(|slot| !answered(slot)).is_some_and(|answered| answered > 0));
}

#[test]
fn response_takes_the_place_of_its_request() {
    let (data, whole) = ([7; 64], 64 + OVERHEAD);
    let mut pair = Pair::new(usize::MAX);
    // Sent back, then written.
    for is_silent in [true, false] {
        pair.tls.service_mut().is_silent = is_silent;
        pair.send(DATA, &data);
        assert_eq!((pair.data(), std::mem::take(&mut pair.wire.responses)), (data.to_vec(), vec![(whole, whole)]));
    }
    // A request without a response is consumed when the event ends.
    pair.tls.service_mut().is_lazy = true;
    pair.send(DATA, &data);
    assert!(pair.wire.received.is_empty() && pair.wire.responses.is_empty());
    // Nothing is left to consume for a later response.
    pair.tls.service_mut().is_lazy = false;
    pair.tls.read_all(&mut pair.wire, conn());
    assert_eq!((pair.data(), pair.wire.responses), (data.to_vec(), vec![]));
}

#[test]
fn idle_connection_takes_little_memory() {
    const LIMIT: i64 = 700;
    const CONNECTIONS: usize = 64;
    let (server, client) = configs();
    let mut tls = Tls::new(server.into(), Recorder { is_silent: true, ..Recorder::default() });
    let mut used = 0;
    // The first has the highest slot, which makes the tables large enough.
    for slot in (0..=CONNECTIONS).rev() {
        let (conn, mut wire) = (ConnId::new(0, slot, 0), Wire::default());
        wire.now += Duration::from_secs(10 * (CONNECTIONS - slot) as u64);
        wire.sent.reserve(1 << 16);
        let (mut handshake, hello) = client_hello(&client);
        let of_server = |tls: &mut Tls<Recorder>, wire: &mut Wire, bytes: Vec<u8>| {
            wire.received.push_back(bytes.into());
            // Each step has an interval of its own.
            wire.now += Duration::from_secs(1);
            let info = allocation_counter::measure(|| {
                tls.turn(wire);
                tls.burst(wire, &[conn]);
            });
            info.bytes_current
        };
        let info = allocation_counter::measure(|| tls.opened(&mut wire, conn, Origin::Accepted));
        let mut of_conn = info.bytes_current + of_server(&mut tls, &mut wire, hello);
        let (mut input, mut output) = (std::mem::take(&mut wire.sent), Vec::new());
        wire.sent.reserve(1 << 16);
        assert!(matches!(handshake.advance(&mut input, &mut output), Progress::Complete));
        of_conn += of_server(&mut tls, &mut wire, output);
        let Established { mut tx, .. } = handshake.finish().unwrap();
        let mut record = vec![0; 64 + OVERHEAD];
        tx.seal(DATA, &mut record);
        of_conn += of_server(&mut tls, &mut wire, record);
        used += if slot < CONNECTIONS { of_conn } else { 0 };
    }
    assert_eq!(tls.counters().handshakes, CONNECTIONS as u64 + 1);
    // Two passes without records, of two turns each.
    let mut wire = Wire { now: Instant::ZERO + Duration::from_secs(2000), ..Wire::default() };
    let rested = allocation_counter::measure(|| {
        for _ in 0..4 {
            tls.turn(&mut wire);
            wire.now += Duration::from_secs(10);
        }
    });
    let each = (used + rested.bytes_current) / CONNECTIONS as i64;
    println!("an idle connection takes {each} bytes");
    assert!(each < LIMIT, "{each}");
    // No pass follows one without keys, until there are records.
    assert_eq!(tls.turn(&mut wire), None);
}

#[test]
fn forwarded_data_arrives_whole() {
    for space in [10, 100, 1000, 1 << 20] {
        let mut pair = Pair::new(usize::MAX);
        pair.tls.service_mut().is_silent = true;
        let mut expected = Vec::new();
        for n in 0..30 {
            let part = vec![n; 20 * usize::from(n)];
            pair.wire.space = space;
            pair.send(DATA, &part);
            expected.extend(part);
        }
        for _ in 0..2000 {
            pair.wire.space = space.max(100);
            pair.tls.writable(&mut pair.wire, conn(), &mut ());
            pair.tls.read_all(&mut pair.wire, conn());
        }
        assert!(pair.data() == expected, "space {space}");
    }
}

/// Runs a handshake in which `change` modifies the bytes of each flight, by its number. Returns whether both ends
/// complete it.
fn handshake(change: impl Fn(usize, &mut Vec<u8>)) -> bool {
    let (server, client) = configs();
    let (mut tls, mut wire) = accepted(server);
    let mut handshake = Handshake::client(client.config(), client.name().unwrap()).unwrap();
    let (mut input, mut is_complete) = (Vec::new(), false);
    for flight in 0..4 {
        let mut output = Vec::new();
        if flight % 2 == 1 {
            input.append(&mut wire.sent);
            change(flight, &mut input);
            continue;
        }
        match handshake.advance(&mut input, &mut output) {
            Progress::NeedsInput => {}
            Progress::Complete => is_complete = true,
            Progress::Failed(_) => {
                deliver(&mut tls, &mut wire, &output, usize::MAX);
                break;
            }
        }
        change(flight, &mut output);
        deliver(&mut tls, &mut wire, &output, usize::MAX);
    }
    is_complete && tls.service().seen == [Seen::Opened]
}

#[test]
fn handshakes_with_a_changed_byte_end_without_a_panic() {
    assert!(handshake(|_, _| {}));
    for flight in 0..3 {
        for at in (0..600).step_by(if flight == 1 { 5 } else { 1 }) {
            handshake(|number, bytes| {
                if number == flight
                    && let Some(byte) = bytes.get_mut(at)
                {
                    *byte ^= 0x11;
                }
            });
        }
    }
    // Truncated and repeated flights.
    for flight in 0..3 {
        for cut in [1, 5, 6, 50] {
            handshake(|number, bytes| bytes.truncate(if number == flight { cut } else { usize::MAX }));
        }
        handshake(|number, bytes| {
            if number == flight {
                bytes.extend_from_within(..);
            }
        });
    }
}

#[test]
fn records_in_steady_state_allocate_nothing() {
    let mut pair = Pair::new(usize::MAX);
    *pair.tls.service_mut() = Recorder { is_silent: true, ..Recorder::default() };
    pair.wire.sent.reserve(1 << 20);
    pair.wire.responses.reserve(100);
    let mut allocated = 0;
    for n in 0..100 {
        let record = pair.record(DATA, &[7; 64]);
        pair.wire.received.push_back(record.into());
        let info = allocation_counter::measure(|| {
            pair.tls.burst(&mut pair.wire, &[conn()]);
        });
        // The wire drops the received slice.
        allocated += if n < 10 { 0 } else { info.count_total };
    }
    assert_eq!(allocated, 0);
    assert_eq!(pair.data().len(), 6400);
}
