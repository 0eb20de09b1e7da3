use super::*;
use crate::ip::addresses::Addresses;
use linerate_bypass::memory_nic::{Link, LinkConfig, MemoryNic};
use proptest::prelude::*;

const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);
const LINK_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0xff, 0xfe00, 9);
const ROUTER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

fn group(n: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, n)
}

/// Sent report: message type, source, destination and records.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Report {
    kind: u8,
    source: Ipv6Addr,
    to: Ipv6Addr,
    records: Vec<(u8, Ipv6Addr)>,
}

fn report(records: &[(u8, u16)]) -> Report {
    let records = records.iter().map(|(kind, n)| (*kind, group(*n))).collect();
    Report { kind: REPORT_V2, source: LINK_LOCAL, to: ALL_V2_ROUTERS, records }
}

struct Bench {
    listener: MldListener,
    egress: Egress<MemoryNic>,
    peer: MemoryNic,
    now: Instant,
}

impl Bench {
    fn new(has_address: bool) -> Self {
        let (nic, peer) = Link::pair(LinkConfig::default());
        let addresses = Addresses::new(&[], &[], MAC);
        let addresses = if has_address { addresses.with_link_local(MAC) } else { addresses };
        let egress = Egress::new(nic, addresses, MAC, 1500, 0);
        let mut listener = MldListener::new(3);
        listener.set_link(true, Instant::ZERO);
        Bench { listener, egress, peer, now: Instant::ZERO }
    }

    fn listen(&mut self, groups: &[u16]) {
        self.listener.set_groups(groups.iter().copied().map(group), self.now);
    }

    /// Returns the reports sent within `time`, with their times.
    fn advance(&mut self, time: Duration) -> Vec<(Duration, Report)> {
        let (start, end) = (self.now, self.now + time);
        let mut reports = Vec::new();
        while let Some(at) = self.listener.next_deadline().filter(|at| *at <= end) {
            self.now = at.max(self.now);
            reports.extend(self.poll().into_iter().map(|report_sent| (self.now.since(start), report_sent)));
        }
        self.now = end;
        reports
    }

    fn poll(&mut self) -> Vec<Report> {
        self.listener.poll(&mut self.egress, self.now);
        self.egress.flush();
        let mut frames = Vec::with_capacity(32);
        self.peer.rx_burst(&mut frames);
        frames.iter().map(|frame| read(frame.data())).collect()
    }

    fn reports_sent(&mut self) -> Vec<Report> {
        self.advance(Duration::from_secs(20)).into_iter().map(|(_, reports)| reports).collect()
    }
}

/// Parses a report whose headers conform to RFC 3810 §5.2.
fn read(frame: &[u8]) -> Report {
    let ip = &frame[ETHERNET_HEADER..];
    let address = |at: usize| Ipv6Addr::from(*ip[at..].first_chunk::<16>().unwrap());
    let (source, to) = (address(8), address(24));
    assert_eq!((ip[0], ip[6], ip[7], &ip[40..48]), (0x60, 0, 1, &ROUTER_ALERT[..]));
    assert_eq!(usize::from(u16::from_be_bytes([ip[4], ip[5]])), ip.len() - 40);
    assert_eq!(frame[..6], group_address(to.into()).0);
    let message = &ip[48..];
    let pseudo = checksum::pseudo_header_sum(source.into(), to.into(), ICMPV6, message.len());
    assert_eq!(checksum::sum_of([&pseudo.to_be_bytes()[..], message].into_iter()), 0xffff);
    let records = match message[0] {
        REPORT_V2 => {
            let records = message[8..].chunks_exact(20);
            assert_eq!(records.len(), usize::from(message[7]));
            records.map(|record| (record[0], Ipv6Addr::from(*record[4..].first_chunk::<16>().unwrap()))).collect()
        }
        _ => vec![(0, Ipv6Addr::from(*message[8..].first_chunk::<16>().unwrap()))],
    };
    Report { kind: message[0], source, to, records }
}

/// Returns a query for `group`, or a general query if unspecified: version 1 with 24 bytes, version 2 with more.
fn query(group: Ipv6Addr, code: u16, len: usize) -> Vec<u8> {
    let mut frame = vec![0; ETHERNET_HEADER + HEADERS + len];
    let bytes = &mut frame[ETHERNET_HEADER..];
    bytes[HEADERS] = QUERY;
    bytes[HEADERS + 4..HEADERS + 6].copy_from_slice(&code.to_be_bytes());
    bytes[HEADERS + 8..HEADERS + 24].copy_from_slice(&group.octets());
    finish(bytes, ROUTER, ALL_NODES).unwrap();
    frame
}

#[test]
fn join_and_leave_are_reported_twice() {
    let mut bench = Bench::new(true);
    bench.listen(&[1, 2]);
    let reports = bench.advance(Duration::from_secs(5));
    assert_eq!(reports[0], (Duration::ZERO, report(&[(TO_EXCLUDE, 1), (TO_EXCLUDE, 2)])));
    let of = |n: u16| reports.iter().filter(|(_, reports)| reports.records.contains(&(TO_EXCLUDE, group(n)))).count();
    assert_eq!((of(1), of(2)), (2, 2));
    assert!(reports.iter().all(|(at, _)| *at < Duration::from_secs(1)));
    bench.listen(&[2, 3]);
    let reports = bench.reports_sent();
    assert_eq!(reports[0], report(&[(TO_INCLUDE, 1), (TO_EXCLUDE, 3)]));
    assert_eq!(reports.iter().flat_map(|reports| &reports.records).filter(|(kind, _)| *kind == TO_INCLUDE).count(), 2);
    assert_eq!(bench.listener.groups.iter().flatten().count(), 2);
}

#[test]
fn reports_use_the_unspecified_source_without_an_address_and_start_with_the_link() {
    let mut bench = Bench::new(false);
    bench.listener.set_link(false, bench.now);
    bench.listen(&[1]);
    assert_eq!(bench.reports_sent(), []);
    bench.listener.set_link(true, bench.now);
    let reports = bench.reports_sent();
    assert_eq!((reports.len(), reports[0].source), (2, Ipv6Addr::UNSPECIFIED));
    bench.listener.report_again(bench.now);
    assert_eq!(bench.reports_sent().len(), 2);
}

#[test]
fn queries_are_answered_within_the_response_delay() {
    let mut bench = Bench::new(true);
    bench.listen(&[1, 2]);
    bench.reports_sent();
    for (of, len, is_answered) in [
        (Ipv6Addr::UNSPECIFIED, 28, true),
        (Ipv6Addr::UNSPECIFIED, 44, true),
        (group(2), 28, true),
        (group(3), 28, false),
        (Ipv6Addr::UNSPECIFIED, 26, false),
    ] {
        bench.listener.on_query(&query(of, 10_000, len), bench.now);
        // Two queries, one response.
        bench.listener.on_query(&query(of, 10_000, len), bench.now);
        let reports = bench.advance(Duration::from_secs(10));
        let expected = if is_answered { vec![report(&[(IS_EXCLUDE, 1), (IS_EXCLUDE, 2)])] } else { vec![] };
        assert_eq!(reports.into_iter().map(|(_, reports)| reports).collect::<Vec<_>>(), expected, "{of} {len}");
    }
}

#[test]
fn version_1_querier_gets_version_1_reports() {
    let mut bench = Bench::new(true);
    bench.listen(&[1]);
    bench.reports_sent();
    bench.listener.on_query(&query(Ipv6Addr::UNSPECIFIED, 1000, 24), bench.now);
    let reports = |kind, to| Report { kind, source: LINK_LOCAL, to, records: vec![(0, group(1))] };
    assert_eq!(bench.reports_sent(), [reports(REPORT_V1, group(1))]);
    bench.listen(&[]);
    assert_eq!(bench.reports_sent()[0], reports(DONE_V1, ALL_ROUTERS));
    bench.advance(OLD_QUERIER);
    bench.listen(&[2]);
    assert_eq!(bench.reports_sent()[0], report(&[(TO_EXCLUDE, 2)]));
}

#[test]
fn invalid_queries_are_ignored() {
    let mut bench = Bench::new(true);
    bench.listen(&[1]);
    bench.reports_sent();
    let good = query(Ipv6Addr::UNSPECIFIED, 0, 28);
    let changed = |at: usize, byte: u8| {
        let mut frame = good.clone();
        frame[ETHERNET_HEADER + at] = byte;
        frame
    };
    for (case, frame) in [
        ("hop limit", changed(7, 2)),
        ("source", changed(8, 0x20)),
        ("no router alert", changed(42, 6)),
        ("checksum", changed(HEADERS + 2, 0x55)),
        ("not ICMPv6", changed(40, 59)),
        ("a length beyond the frame", changed(5, 255)),
    ] {
        bench.listener.on_query(&frame, bench.now);
        assert_eq!(bench.reports_sent(), [], "{case}");
    }
    bench.listener.on_query(&good, bench.now);
    assert_eq!(bench.reports_sent().len(), 1);
}

#[test]
fn flood_of_queries_causes_no_flood_of_reports() {
    let mut bench = Bench::new(true);
    bench.listen(&[1]);
    bench.reports_sent();
    let mut answers = 0;
    for _ in 0..1000 {
        bench.listener.on_query(&query(Ipv6Addr::UNSPECIFIED, 0, 28), bench.now);
        answers += bench.poll().len();
        bench.now += Duration::from_millis(1);
    }
    assert!((1..=11).contains(&answers), "{answers}");
}

#[test]
fn response_codes_follow_rfc_3810() {
    for (code, time) in [(0, 0), (0x7fff, 0x7fff), (0x8000, 0x8000), (0x8001, 0x8008), (0xffff, 0x1fff << 10)] {
        assert_eq!(milliseconds(code), time, "{code:#x}");
    }
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..120), at in 0_usize..100, kept in 0_usize..100) {
        let mut bench = Bench::new(true);
        bench.listen(&[1]);
        bench.listener.on_query(&bytes, bench.now);
        let mut frame = query(group(1), 5, 28);
        let at = at.min(frame.len());
        frame.splice(at.., bytes);
        frame.truncate(at + kept);
        bench.listener.on_query(&frame, bench.now);
        prop_assert!(bench.reports_sent().len() <= 3);
    }

    /// For any number of current and former groups, the entries suffice and the reports are correct.
    #[test]
    fn groups_are_bounded(changes in prop::collection::vec(prop::collection::vec(0_u16..40, 0..30), 1..20)) {
        let mut bench = Bench::new(true);
        for groups in changes {
            bench.listen(&groups);
            bench.advance(Duration::from_millis(200));
        }
        bench.listen(&[5]);
        bench.reports_sent();
        bench.listener.on_query(&query(Ipv6Addr::UNSPECIFIED, 0, 28), bench.now);
        prop_assert_eq!(bench.reports_sent(), [report(&[(IS_EXCLUDE, 5)])]);
    }
}
