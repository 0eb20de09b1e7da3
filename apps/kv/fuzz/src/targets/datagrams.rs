//! Datagrams to a service of one or more workers. For any input, a datagram gets one reply message of a bounded number
//! of datagrams or none, no reply gets a reply, and the next request is served.
//!
//! An input is a byte of choices, followed by parts that start with [`PART`]: a byte for the kind of delivery, and the
//! datagram.

use super::sessions::{PART, expanded};
use crate::net::TestServer;
use linerate_kv::memcached::udp::{DATAGRAM, Frame, HEADER, MAX_DATAGRAMS};

/// Memory per worker.
const MEMORY: u64 = 2 << 20;
/// Limits of the number of parts, and of the total number of bytes.
const PARTS: usize = 100;
const BYTES: usize = 256 << 10;
/// Length limit of a datagram.
const LONGEST: usize = 65_507;
/// Port of the client.
const FROM: u16 = 40_000;

/// Bits of a part's first byte, above the worker number.
struct Part;

impl Part {
    const WORKER: u8 = 3;
    /// The part includes the frame header.
    const RAW: u8 = 1 << 2;
    /// The next part is delivered in the same turn.
    const BURST: u8 = 1 << 3;
}

/// Runs the input.
pub fn datagrams(data: &[u8]) {
    let (&bits, rest) = data.split_first().unwrap_or((&0, &[]));
    fastrand::seed(bits.into());
    let workers = 1 + usize::from(bits % 3);
    let mut server = TestServer::with_datagrams(workers, |settings| settings.memory = MEMORY * workers as u64);
    let (mut sent, mut unanswered) = (0, 0);
    for (id, part) in rest.split(|byte| *byte == PART).skip(1).take(PARTS).enumerate() {
        let Some((delivery, bytes)) = part.split_first() else { continue };
        let mut datagram =
            if delivery & Part::RAW == 0 { Frame::request(id as u16).bytes().to_vec() } else { Vec::new() };
        datagram.extend(expanded(bytes));
        datagram.truncate(LONGEST);
        sent += datagram.len();
        if sent > BYTES {
            break;
        }
        server.datagram(usize::from(delivery & Part::WORKER) % workers, FROM, &datagram);
        unanswered += 1;
        if delivery & Part::BURST == 0 {
            check(&mut server, workers, unanswered);
            unanswered = 0;
        }
    }
    check(&mut server, workers, unanswered);
    for worker in 0..workers {
        server.datagram(worker, FROM, &[&Frame::request(7).bytes()[..], b"mn\r\n"].concat());
        server.settle();
        let [answer] = &server.datagrams(worker)[..] else { panic!("one reply") };
        assert_eq!(answer.payload[HEADER..], *b"MN\r\n");
    }
}

/// Checks the replies to `count` datagrams.
fn check(server: &mut TestServer, workers: usize, count: usize) {
    server.settle();
    let mut messages = 0;
    for worker in 0..workers {
        let answers = server.datagrams(worker);
        let mut rest = &answers[..];
        while let [first, ..] = rest {
            let total = Frame::read(&first.payload).map_or(0, |(frame, _)| usize::from(frame.total));
            assert!((1..=MAX_DATAGRAMS).contains(&total) && total <= rest.len(), "{total} of {}", rest.len());
            let id = first.payload[..2].to_vec();
            for (sequence, answer) in rest[..total].iter().enumerate() {
                let (frame, bytes) = Frame::read(&answer.payload).expect("a header");
                assert_eq!((usize::from(frame.sequence), usize::from(frame.total)), (sequence, total));
                assert!(answer.payload[..2] == id && answer.payload.len() <= DATAGRAM && !bytes.is_empty());
                assert_eq!((answer.local.port(), answer.remote.port()), (11211, FROM));
            }
            messages += 1;
            rest = &rest[total..];
        }
        for answer in answers {
            server.datagram(worker, FROM, &answer.payload);
            server.settle();
            assert!(server.datagrams(worker).is_empty(), "{} gets a reply", answer.payload.escape_ascii());
        }
    }
    assert!(messages <= count, "{messages} replies to {count}");
}
