use super::*;
use crate::services::Discard;
use crate::testing::FakeTransport;
use linerate_service::time::Duration;

const REQUEST: &[u8] = b"GET /a HTTP/1.1\r\nHost: 10.0.0.2:80\r\n\r\n";
const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nhello\n";

struct Bench {
    load: HttpLoad,
    stream: HttpStream,
    net: FakeTransport<()>,
    conn: ConnId,
}

impl Bench {
    fn new(depth: usize, room: usize) -> Self {
        let load = HttpLoad::new("10.0.0.2:80".parse().unwrap(), "/a", depth, None);
        let mut net = FakeTransport::new(room);
        let conn = net.accept(&mut Discard::default());
        Bench { stream: load.stream(0), load, net, conn }
    }

    fn send(&mut self) -> Vec<u8> {
        self.load.send(&mut self.net, self.conn, &mut self.stream);
        self.net.drain(&mut Discard::default(), self.conn)
    }

    fn receive(&mut self, bytes: &[u8]) -> Result<(), Corrupt> {
        struct Put;
        impl linerate_service::Service for Put {
            type Conn = ();
            type Message = std::convert::Infallible;
            fn opened(&mut self, _: &mut impl Transport, _: ConnId, _: linerate_service::Origin) {}
        }
        self.net.arrive(&mut Put, self.conn, bytes);
        self.load.receive(&mut self.net, self.conn, &mut self.stream, true)
    }
}

#[test]
fn next_request_follows_a_complete_response() {
    let mut bench = Bench::new(1, 1000);
    assert_eq!(bench.send(), REQUEST);
    bench.net.now += Duration::from_micros(100);
    let (first, rest) = RESPONSE.split_at(20);
    bench.receive(first).unwrap();
    assert_eq!((bench.send().len(), bench.load.requests()), (0, 0));
    bench.receive(rest).unwrap();
    assert_eq!((bench.send(), bench.load.requests(), bench.load.bytes()), (REQUEST.to_vec(), 1, 6));
    bench.load.record_unanswered(&bench.stream, bench.net.now + Duration::from_secs(1));
    let (times, all) = (&bench.load.times, bench.load.times.all());
    assert!(times.answered().equivalent(times.answered().max(), 100_000));
    assert_eq!((all.len(), times.stalled(), all.equivalent(all.max(), 1_000_000_000)), (2, 1, true));
}

#[test]
fn requests_are_sent_in_parts_without_a_gap() {
    for room in 1..2 * REQUEST.len() {
        let mut bench = Bench::new(3, room);
        let mut sent = Vec::new();
        while sent.len() < 3 * REQUEST.len() {
            let part = bench.send();
            assert!(!part.is_empty());
            sent.extend(part);
        }
        assert!(sent == REQUEST.repeat(3) && bench.send().is_empty(), "{room}");
        bench.receive(&RESPONSE.repeat(2)).unwrap();
        while sent.len() < 5 * REQUEST.len() {
            sent.extend(bench.send());
        }
        assert_eq!((sent, bench.load.requests()), (REQUEST.repeat(5), 2), "{room}");
    }
}

#[test]
fn error_status_is_not_an_answer() {
    let mut bench = Bench::new(1, 1000);
    bench.send();
    bench.receive(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n").unwrap();
    assert_eq!((bench.load.requests(), bench.load.refused()), (0, 1));
    assert_eq!(bench.load.first_error().as_deref(), Some("status 404"));
}

#[test]
fn response_without_a_request_is_corrupt() {
    let mut bench = Bench::new(1, 1000);
    bench.send();
    assert_eq!(bench.receive(&RESPONSE.repeat(2)), Err(Corrupt));
    // The rest of the request is unsent.
    let mut bench = Bench::new(1, 5);
    bench.send();
    assert_eq!(bench.receive(RESPONSE), Err(Corrupt));
    assert!(bench.load.first_error().unwrap().contains("more than the responses"));
}
