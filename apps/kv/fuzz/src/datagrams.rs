//! Datagrams at a service of one worker or more: whatever comes, each is answered with one message of a bounded number of datagrams or
//! not at all, no answer is answered, and the next request is served.
//!
//! An input is a byte of choices, and then parts with [`PART`] in front: a byte for how it comes, and what.

use super::net::Host;
use super::sessions::{PART, expanded};
use linerate_kv::memcached::udp::{DATAGRAM, Frame, HEADER, MOST};

/// What a worker may keep.
const MEMORY: u64 = 2 << 20;
/// Parts that are looked at, and bytes in all.
const PARTS: usize = 100;
const BYTES: usize = 256 << 10;
/// The longest datagram.
const LONGEST: usize = 65_507;
/// Where they come from.
const FROM: u16 = 40_000;

/// Bits of a part's first byte, above those of the worker that it comes to.
struct Part;

impl Part {
    const WORKER: u8 = 3;
    /// Its header is in what follows.
    const RAW: u8 = 1 << 2;
    /// The next comes at the same time.
    const BURST: u8 = 1 << 3;
}

/// Plays the input.
pub fn datagrams(data: &[u8]) {
    let (&bits, rest) = data.split_first().unwrap_or((&0, &[]));
    fastrand::seed(bits.into());
    let workers = 1 + usize::from(bits % 3);
    let mut host = Host::with_datagrams(workers, |settings| settings.memory = MEMORY * workers as u64);
    let (mut sent, mut unanswered) = (0, 0);
    for (id, part) in rest.split(|byte| *byte == PART).skip(1).take(PARTS).enumerate() {
        let Some((how, said)) = part.split_first() else { continue };
        let mut datagram = if how & Part::RAW == 0 { Frame::request(id as u16).bytes().to_vec() } else { Vec::new() };
        datagram.extend(expanded(said));
        datagram.truncate(LONGEST);
        sent += datagram.len();
        if sent > BYTES {
            break;
        }
        host.datagram(usize::from(how & Part::WORKER) % workers, FROM, &datagram);
        unanswered += 1;
        if how & Part::BURST == 0 {
            check(&mut host, workers, unanswered);
            unanswered = 0;
        }
    }
    check(&mut host, workers, unanswered);
    for worker in 0..workers {
        host.datagram(worker, FROM, &[&Frame::request(7).bytes()[..], b"mn\r\n"].concat());
        host.settle();
        let [answer] = &host.datagrams(worker)[..] else { panic!("one answer") };
        assert_eq!(answer.payload[HEADER..], *b"MN\r\n");
    }
}

/// Checks the answers to so many datagrams.
fn check(host: &mut Host, workers: usize, count: usize) {
    host.settle();
    let mut messages = 0;
    for worker in 0..workers {
        let answers = host.datagrams(worker);
        let mut rest = &answers[..];
        while let [first, ..] = rest {
            let total = Frame::read(&first.payload).map_or(0, |(frame, _)| usize::from(frame.total));
            assert!((1..=MOST).contains(&total) && total <= rest.len(), "{total} of {}", rest.len());
            let id = first.payload[..2].to_vec();
            for (sequence, answer) in rest[..total].iter().enumerate() {
                let (frame, said) = Frame::read(&answer.payload).expect("a header");
                assert_eq!((usize::from(frame.sequence), usize::from(frame.total)), (sequence, total));
                assert!(answer.payload[..2] == id && answer.payload.len() <= DATAGRAM && !said.is_empty());
                assert_eq!((answer.local.port(), answer.remote.port()), (11211, FROM));
            }
            messages += 1;
            rest = &rest[total..];
        }
        for answer in answers {
            host.datagram(worker, FROM, &answer.payload);
            host.settle();
            assert!(host.datagrams(worker).is_empty(), "{} is answered", answer.payload.escape_ascii());
        }
    }
    assert!(messages <= count, "{messages} answers to {count}");
}
