use super::*;
use crate::ip::addresses::Addresses;
use crate::ip::v6::router_advert::tests::{ROUTER, STATION, frame, message, mtu, prefix};
use linerate_bypass::Packet;
use linerate_bypass::memory_nic::{Link, LinkConfig, MemoryNic};
use proptest::prelude::*;

const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);
/// Flags: on-link and autonomous.
const BOTH: u8 = 0xc0;
const ON_LINK: u8 = 0x80;
const AUTONOMOUS: u8 = 0x40;
const OTHER_ROUTER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2);

/// Autoconfiguration and its link.
struct Bench {
    slaac: Slaac,
    egress: Egress<MemoryNic>,
    peer: MemoryNic,
    now: Instant,
    reported: RouterInfo,
    /// Number of changes passed to workers.
    reports: usize,
    solicited: Vec<(Instant, Solicitation)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Solicitation {
    Routers,
    Neighbor,
}

impl Bench {
    /// Creates a bench with `transmits` DAD probes per address.
    fn new(transmits: u8) -> Self {
        let (nic, peer) = Link::pair(LinkConfig::default());
        let addresses = Addresses::new(&[], &[], MAC).with_link_local(MAC);
        let mut bench = Bench {
            slaac: Slaac::new(MAC, 1500, transmits, 7),
            egress: Egress::new(nic, addresses, MAC, 1500, 0),
            peer,
            now: Instant::ZERO,
            reported: RouterInfo::default(),
            reports: 0,
            solicited: Vec::new(),
        };
        bench.slaac.set_link(true, bench.now);
        bench
    }

    fn receive_from(&mut self, router: Ipv6Addr, message: &[u8]) -> bool {
        let frame = frame(router, message);
        let announced = Advertisement::parse(&frame).unwrap().unwrap();
        let is_kept = self.slaac.on_advertisement(&announced, self.now);
        self.poll();
        is_kept
    }

    fn receive(&mut self, options: &[&[u8]]) -> bool {
        self.receive_from(ROUTER, &message(0, 1800, options))
    }

    fn poll(&mut self) {
        self.slaac.expire(self.now);
        if let Some(network) = self.slaac.poll(&mut self.egress, self.now) {
            self.reported = network;
            self.reports += 1;
        }
        self.egress.flush();
        let mut frames = Vec::with_capacity(32);
        while self.peer.rx_burst(&mut frames) > 0 {
            for frame in frames.drain(..) {
                let solicited = match frame.data()[54] {
                    133 => Solicitation::Routers,
                    135 => Solicitation::Neighbor,
                    kind => panic!("{kind}"),
                };
                self.solicited.push((self.now, solicited));
            }
        }
    }

    /// Advances by `seconds`, polling at each deadline.
    fn advance(&mut self, seconds: u64) {
        let until = self.now + Duration::from_secs(seconds);
        let mut steps = 0;
        while let Some(at) = self.slaac.next_deadline(self.now).filter(|at| *at <= until) {
            self.now = at.max(self.now);
            self.poll();
            steps += 1;
            assert!(steps < 100_000, "a deadline without work: {at:?}");
        }
        self.now = until;
        self.poll();
    }

    fn addresses(&self) -> Vec<(String, bool)> {
        self.reported.addresses().map(|(cidr, deprecated)| (cidr.to_string(), deprecated)).collect()
    }

    /// Returns the times of solicitations in milliseconds from the start.
    fn times(&self, of: Solicitation) -> Vec<u128> {
        let times = self.solicited.iter().filter(|(_, solicited)| *solicited == of);
        times.map(|(at, _)| at.since(Instant::ZERO).as_millis()).collect()
    }
}

fn own(text: &str) -> Vec<(String, bool)> {
    vec![(text.to_owned(), false)]
}

const OURS: &str = "2001:db8::ff:fe00:9/64";

#[test]
fn routers_are_solicited_until_one_answers_and_again_after_the_last_expires() {
    let mut bench = Bench::new(0);
    bench.advance(10);
    let solicited = bench.times(Solicitation::Routers);
    assert!(solicited.len() == 3 && solicited[0] < 1000, "{solicited:?}");
    bench.receive(&[]);
    assert_eq!(bench.reported.router(), Some(ROUTER));
    bench.advance(1000);
    assert_eq!(bench.times(Solicitation::Routers).len(), 3);
    // RFC 4861 §6.3.4: a lifetime of zero.
    bench.receive_from(ROUTER, &message(0, 0, &[]));
    assert_eq!(bench.reported.router(), None);
    bench.advance(2);
    assert_eq!(bench.times(Solicitation::Routers).len(), 4);
    // Expiry of the lifetime.
    bench.receive_from(ROUTER, &message(0, 30, &[]));
    bench.advance(29);
    assert_eq!(bench.reported.router(), Some(ROUTER));
    bench.advance(1);
    assert_eq!(bench.reported.router(), None);
}

#[test]
fn default_router_is_reachable_and_most_preferred() {
    let mut bench = Bench::new(0);
    bench.receive(&[]);
    bench.receive_from(OTHER_ROUTER, &message(0, 1800, &[]));
    bench.advance(2);
    assert_eq!(bench.reported.router(), Some(ROUTER), "first among equals");
    bench.receive_from(OTHER_ROUTER, &message(0x08, 1800, &[]));
    bench.advance(2);
    assert_eq!(bench.reported.router(), Some(OTHER_ROUTER));
    bench.slaac.neighbor_unreachable(OTHER_ROUTER.into());
    bench.advance(2);
    assert_eq!(bench.reported.router(), Some(ROUTER));
    bench.receive_from(OTHER_ROUTER, &message(0x08, 1800, &[]));
    bench.advance(2);
    assert_eq!(bench.reported.router(), Some(OTHER_ROUTER), "reachable again");
}

#[test]
fn address_is_formed_from_prefix_and_probed() {
    let mut bench = Bench::new(1);
    bench.receive(&[&prefix("2001:db8::", 64, BOTH, 3600, 1800)]);
    assert_eq!(bench.reported.on_link().map(|cidr| cidr.to_string()).collect::<Vec<_>>(), ["2001:db8::/64"]);
    bench.advance(3);
    assert_eq!(bench.addresses(), own(OURS));
    let solicited = bench.times(Solicitation::Neighbor);
    // RFC 4862 §5.4.2: a random delay below one second after a multicast advertisement.
    assert!(matches!(solicited[..], [at] if at > 0 && at < 1000), "{solicited:?}");
    // First deprecated, then removed.
    bench.advance(1796);
    assert_eq!(bench.addresses(), own(OURS));
    bench.advance(1);
    assert_eq!(bench.addresses(), [(OURS.to_owned(), true)]);
    bench.advance(1800);
    assert_eq!((bench.addresses(), bench.reported.on_link().count()), (vec![], 0));
}

#[test]
fn duplicate_address_is_not_used() {
    let mut bench = Bench::new(1);
    bench.receive(&[&prefix("2001:db8::", 64, BOTH, 3600, 1800)]);
    let ip: Ipv6Addr = "2001:db8::ff:fe00:9".parse().unwrap();
    let mut solicitation = vec![135, 0, 0, 0, 0, 0, 0, 0];
    solicitation.extend_from_slice(&ip.octets());
    let probe = frame(Ipv6Addr::UNSPECIFIED, &solicitation);
    assert_eq!(bench.slaac.on_conflict(&probe), Some(DuplicateAddress { address: ip, station: STATION }));
    bench.advance(10);
    assert_eq!(bench.addresses(), []);
    // DAD is not repeated.
    let solicited = bench.times(Solicitation::Neighbor).len();
    bench.receive(&[&prefix("2001:db8::", 64, BOTH, 3600, 1800)]);
    bench.advance(10);
    assert_eq!((bench.addresses(), bench.times(Solicitation::Neighbor).len()), (vec![], solicited));
    assert_eq!(bench.slaac.on_conflict(&probe), None);
    // After expiry it may be probed again.
    bench.advance(4000);
    bench.receive(&[&prefix("2001:db8::", 64, BOTH, 3600, 1800)]);
    bench.advance(10);
    assert_eq!(bench.addresses(), own(OURS));
}

/// RFC 4862 §5.5.3 a to d.
#[test]
fn unsuitable_prefix_forms_no_address() {
    for (case, option) in [
        ("no A flag", prefix("2001:db8::", 64, ON_LINK, 3600, 1800)),
        ("link-local", prefix("fe80::", 64, AUTONOMOUS, 3600, 1800)),
        ("a group", prefix("ff02::", 64, AUTONOMOUS, 3600, 1800)),
        ("nothing", prefix("::", 64, AUTONOMOUS, 3600, 1800)),
        ("preferred longer than valid", prefix("2001:db8::", 64, AUTONOMOUS, 1800, 3600)),
        ("preferred forever", prefix("2001:db8::", 64, AUTONOMOUS, 1800, u32::MAX)),
        ("zero valid lifetime", prefix("2001:db8::", 64, AUTONOMOUS, 0, 0)),
        ("too short", prefix("2001:db8::", 63, AUTONOMOUS, 3600, 1800)),
        ("too long", prefix("2001:db8::", 65, AUTONOMOUS, 3600, 1800)),
    ] {
        let mut bench = Bench::new(0);
        assert!(bench.receive(&[&option]), "{case}");
        bench.advance(2);
        assert_eq!(bench.addresses(), [], "{case}");
    }
    // An address may be formed from a prefix that is not on-link.
    let mut bench = Bench::new(0);
    bench.receive(&[&prefix("2001:db8::", 64, AUTONOMOUS, 3600, 1800)]);
    assert_eq!((bench.addresses(), bench.reported.on_link().count()), (own(OURS), 0));
    bench.receive(&[&prefix("fd00::", 48, ON_LINK, u32::MAX, 0)]);
    bench.advance(2);
    assert_eq!(bench.reported.on_link().count(), 1);
    bench.receive(&[&prefix("fd00::", 48, ON_LINK, 0, 0)]);
    bench.advance(2);
    assert_eq!(bench.reported.on_link().count(), 0);
}

/// RFC 4862 §5.5.3 e.
#[test]
fn advertisement_cannot_shorten_a_lifetime_below_two_hours() {
    const HOUR: u32 = 3600;
    // Initial lifetime, advertised lifetime, and resulting lifetime.
    for (first, then, lasts) in [
        (24 * HOUR, 0, 2 * HOUR),
        (24 * HOUR, HOUR, 2 * HOUR),
        (24 * HOUR, 3 * HOUR, 3 * HOUR),
        (24 * HOUR, 48 * HOUR, 48 * HOUR),
        (u32::MAX, 0, 2 * HOUR),
        (HOUR, 0, HOUR),
        (HOUR, HOUR / 2, HOUR),
        (HOUR, HOUR + HOUR / 2, HOUR + HOUR / 2),
        (HOUR, 48 * HOUR, 48 * HOUR),
    ] {
        let mut bench = Bench::new(0);
        bench.receive(&[&prefix("2001:db8::", 64, AUTONOMOUS, first, 0)]);
        bench.receive(&[&prefix("2001:db8::", 64, AUTONOMOUS, then, 0)]);
        bench.advance(u64::from(lasts) - 1);
        assert_eq!(bench.addresses().len(), 1, "{first} {then}");
        bench.advance(1);
        assert_eq!(bench.addresses(), [], "{first} {then}");
    }
    // The preferred lifetime is taken as advertised.
    let mut bench = Bench::new(0);
    bench.receive(&[&prefix("2001:db8::", 64, AUTONOMOUS, HOUR, HOUR)]);
    bench.advance(2);
    assert_eq!(bench.addresses(), own(OURS));
    bench.receive(&[&prefix("2001:db8::", 64, AUTONOMOUS, HOUR, 0)]);
    bench.advance(2);
    assert_eq!(bench.addresses(), [(OURS.to_owned(), true)]);
    bench.receive(&[&prefix("2001:db8::", 64, AUTONOMOUS, HOUR, HOUR)]);
    bench.advance(2);
    assert_eq!(bench.addresses(), own(OURS));
}

#[test]
fn mtu_outside_bounds_is_ignored() {
    let mut bench = Bench::new(0);
    for (announced, then) in
        [(1279, None), (1501, None), (u32::MAX, None), (1280, Some(1280)), (0, Some(1280)), (1500, Some(1500))]
    {
        bench.receive(&[&mtu(announced)]);
        bench.advance(2);
        assert_eq!(bench.reported.mtu, then, "{announced}");
    }
}

#[test]
fn ndp_times_outside_bounds_are_ignored() {
    for (announced, least, most) in [(1, 500, 1500), (30_000, 15_000, 45_000), (u32::MAX, 1_800_000, 5_400_000)] {
        let mut bench = Bench::new(0);
        let mut message = message(0, 1800, &[]);
        message[8..12].copy_from_slice(&u32::to_be_bytes(announced));
        message[12..16].copy_from_slice(&u32::to_be_bytes(announced));
        bench.receive_from(ROUTER, &message);
        let reachable = bench.reported.reachable.unwrap().as_millis();
        assert!((least..=most).contains(&reachable), "{announced}: {reachable}");
        let retransmit = bench.reported.retransmit.unwrap().as_millis();
        assert!((100..=10_000).contains(&retransmit), "{announced}: {retransmit}");
        // A value stays until another is advertised.
        bench.advance(2);
        bench.receive_from(ROUTER, &message);
        bench.advance(2);
        assert_eq!(bench.reported.reachable.unwrap().as_millis(), reachable);
    }
}

#[test]
fn flood_takes_only_free_entries() {
    let mut bench = Bench::new(0);
    bench.receive(&[&prefix("2001:db8::", 64, BOTH, 3600, 1800)]);
    let mut kept = [0, 0];
    for n in 0..100_u16 {
        let router = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 1, n);
        kept[0] += usize::from(bench.receive_from(router, &message(0x08, 9000, &[])));
        kept[1] += usize::from(bench.receive(&[&prefix(&format!("2001:db8:1:{n:x}::"), 64, BOTH, u32::MAX, u32::MAX)]));
    }
    assert_eq!(kept, [ROUTERS - 1, ADDRESSES - 1]);
    bench.advance(2);
    assert_eq!(bench.reported.addresses().count(), ADDRESSES);
    assert_eq!(bench.addresses()[0], own(OURS)[0]);
    // Existing entries are still updated.
    assert!(bench.receive(&[&prefix("2001:db8::", 64, BOTH, 7200, 3600)]));
}

#[test]
fn changes_are_passed_on_at_most_once_a_second() {
    let mut bench = Bench::new(0);
    for n in 0..1000_u32 {
        bench.receive(&[&mtu(1280 + n % 2)]);
        bench.now += Duration::from_millis(10);
    }
    assert!(bench.reports <= 11, "{}", bench.reports);
    assert!(bench.times(Solicitation::Routers).len() <= 3);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// For any advertisements at any time: no panic, no deadline without work, and bounded output.
    #[test]
    fn no_advertisements_exceed_the_bounds(
        steps in prop::collection::vec(
            (0_u16..8, any::<u8>(), prop_oneof![Just(0_u16), any::<u16>()],
             prop::collection::vec(
                 ((0_u16..12), prop_oneof![Just(64_u8), any::<u8>()], any::<u8>(),
                  prop_oneof![Just(0_u32), 0_u32..100, Just(u32::MAX), any::<u32>()],
                  prop_oneof![Just(0_u32), 0_u32..100, Just(u32::MAX), any::<u32>()]), 0..5),
             any::<u32>(), 0_u64..20),
            1..60),
        transmits in 0_u8..3,
    ) {
        let mut bench = Bench::new(transmits);
        for (router, flags, lifetime, prefixes, announced, seconds) in steps {
            let router = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, router);
            let prefixes: Vec<_> = prefixes
                .into_iter()
                .map(|(n, len, flags, valid, preferred)| prefix(&format!("2001:db8:{n:x}::"), len, flags, valid, preferred))
                .collect();
            let mtu = mtu(announced);
            let options: Vec<&[u8]> = prefixes.iter().map(Vec::as_slice).chain([&mtu[..]]).collect();
            bench.receive_from(router, &message(flags, lifetime, &options));
            bench.advance(seconds);
            prop_assert!(bench.reported.addresses().all(|(cidr, _)| cidr.prefix() == 64));
            prop_assert!(bench.reported.mtu.is_none_or(|mtu| (1280..=1500).contains(&mtu)));
        }
        let seconds = bench.now.since(Instant::ZERO).as_secs() as usize;
        prop_assert!(bench.reports <= seconds + 2);
        prop_assert!(bench.times(Solicitation::Routers).len() <= seconds / 4 + 2);
    }
}
