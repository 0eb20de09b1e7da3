use super::*;
use crate::addresses::Addresses;
use crate::ipv6::router_advert::tests::{ROUTER, STATION, frame, message, mtu, prefix};
use linerate_bypass::Packet;
use linerate_bypass::memory_nic::{Link, LinkConfig, MemoryNic};
use proptest::prelude::*;

const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);
/// On the link, and addresses may be formed of it.
const BOTH: u8 = 0xc0;
const ON_LINK: u8 = 0x80;
const AUTONOMOUS: u8 = 0x40;
const OTHER_ROUTER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2);

/// What is known of the link, and the link.
struct Bench {
    autoconf: Autoconf,
    egress: Egress<MemoryNic>,
    peer: MemoryNic,
    now: Instant,
    told: RouterInfo,
    /// Changes that workers were told of.
    tellings: usize,
    asked: Vec<(Instant, Asked)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Routers,
    Who,
}

impl Bench {
    /// Addresses are tried by so many probes.
    fn new(transmits: u8) -> Self {
        let (nic, peer) = Link::pair(LinkConfig::default());
        let addresses = Addresses::new(&[], &[], MAC).with_link_local(MAC);
        let mut bench = Bench {
            autoconf: Autoconf::new(MAC, 1500, transmits, 7),
            egress: Egress::new(nic, addresses, MAC, 1500, 0),
            peer,
            now: Instant::ZERO,
            told: RouterInfo::default(),
            tellings: 0,
            asked: Vec::new(),
        };
        bench.autoconf.set_link(true, bench.now);
        bench
    }

    fn hear_from(&mut self, router: Ipv6Addr, message: &[u8]) -> bool {
        let frame = frame(router, message);
        let said = Advertisement::parse(&frame).unwrap().unwrap();
        let is_kept = self.autoconf.on_advertisement(&said, self.now);
        self.poll();
        is_kept
    }

    fn hear(&mut self, options: &[&[u8]]) -> bool {
        self.hear_from(ROUTER, &message(0, 1800, options))
    }

    fn poll(&mut self) {
        self.autoconf.expire(self.now);
        if let Some(network) = self.autoconf.poll(&mut self.egress, self.now) {
            self.told = network;
            self.tellings += 1;
        }
        self.egress.flush();
        let mut frames = Vec::with_capacity(32);
        while self.peer.rx_burst(&mut frames) > 0 {
            for frame in frames.drain(..) {
                let asked = match frame.data()[54] {
                    133 => Asked::Routers,
                    135 => Asked::Who,
                    kind => panic!("{kind}"),
                };
                self.asked.push((self.now, asked));
            }
        }
    }

    /// Goes on for so many seconds, as whoever asks for deadlines does.
    fn go_on(&mut self, seconds: u64) {
        let until = self.now + Duration::from_secs(seconds);
        let mut steps = 0;
        while let Some(at) = self.autoconf.next_deadline(self.now).filter(|at| *at <= until) {
            self.now = at.max(self.now);
            self.poll();
            steps += 1;
            assert!(steps < 100_000, "a deadline at which nothing is done: {at:?}");
        }
        self.now = until;
        self.poll();
    }

    fn addresses(&self) -> Vec<(String, bool)> {
        self.told.addresses().map(|(cidr, deprecated)| (cidr.to_string(), deprecated)).collect()
    }

    /// When the questions were asked, in milliseconds from the start.
    fn times(&self, of: Asked) -> Vec<u128> {
        let times = self.asked.iter().filter(|(_, asked)| *asked == of);
        times.map(|(at, _)| at.since(Instant::ZERO).as_millis()).collect()
    }
}

fn own(text: &str) -> Vec<(String, bool)> {
    vec![(text.to_owned(), false)]
}

const OURS: &str = "2001:db8::ff:fe00:9/64";

#[test]
fn routers_are_asked_until_one_answers_and_again_when_there_is_none_any_more() {
    let mut bench = Bench::new(0);
    bench.go_on(10);
    let asked = bench.times(Asked::Routers);
    assert!(asked.len() == 3 && asked[0] < 1000, "{asked:?}");
    bench.hear(&[]);
    assert_eq!(bench.told.router(), Some(ROUTER));
    bench.go_on(1000);
    assert_eq!(bench.times(Asked::Routers).len(), 3);
    // RFC 4861 §6.3.4: a lifetime of zero.
    bench.hear_from(ROUTER, &message(0, 0, &[]));
    assert_eq!(bench.told.router(), None);
    bench.go_on(2);
    assert_eq!(bench.times(Asked::Routers).len(), 4);
    // And one that has run out.
    bench.hear_from(ROUTER, &message(0, 30, &[]));
    bench.go_on(29);
    assert_eq!(bench.told.router(), Some(ROUTER));
    bench.go_on(1);
    assert_eq!(bench.told.router(), None);
}

#[test]
fn the_router_is_the_one_that_answers_and_wants_it_most() {
    let mut bench = Bench::new(0);
    bench.hear(&[]);
    bench.hear_from(OTHER_ROUTER, &message(0, 1800, &[]));
    bench.go_on(2);
    assert_eq!(bench.told.router(), Some(ROUTER), "the first of equals");
    bench.hear_from(OTHER_ROUTER, &message(0x08, 1800, &[]));
    bench.go_on(2);
    assert_eq!(bench.told.router(), Some(OTHER_ROUTER));
    bench.autoconf.neighbor_unreachable(OTHER_ROUTER.into());
    bench.go_on(2);
    assert_eq!(bench.told.router(), Some(ROUTER));
    bench.hear_from(OTHER_ROUTER, &message(0x08, 1800, &[]));
    bench.go_on(2);
    assert_eq!(bench.told.router(), Some(OTHER_ROUTER), "it is there again");
}

#[test]
fn an_address_is_formed_of_a_prefix_and_tried() {
    let mut bench = Bench::new(1);
    bench.hear(&[&prefix("2001:db8::", 64, BOTH, 3600, 1800)]);
    assert_eq!(bench.told.on_link().map(|cidr| cidr.to_string()).collect::<Vec<_>>(), ["2001:db8::/64"]);
    bench.go_on(3);
    assert_eq!(bench.addresses(), own(OURS));
    let asked = bench.times(Asked::Who);
    // RFC 4862 §5.4.2: a part of a second after what all have heard.
    assert!(matches!(asked[..], [at] if at > 0 && at < 1000), "{asked:?}");
    // Deprecated, and gone.
    bench.go_on(1796);
    assert_eq!(bench.addresses(), own(OURS));
    bench.go_on(1);
    assert_eq!(bench.addresses(), [(OURS.to_owned(), true)]);
    bench.go_on(1800);
    assert_eq!((bench.addresses(), bench.told.on_link().count()), (vec![], 0));
}

#[test]
fn nothing_is_used_of_which_another_station_says_that_it_has_it() {
    let mut bench = Bench::new(1);
    bench.hear(&[&prefix("2001:db8::", 64, BOTH, 3600, 1800)]);
    let ip: Ipv6Addr = "2001:db8::ff:fe00:9".parse().unwrap();
    let mut solicitation = vec![135, 0, 0, 0, 0, 0, 0, 0];
    solicitation.extend_from_slice(&ip.octets());
    let probe = frame(Ipv6Addr::UNSPECIFIED, &solicitation);
    assert_eq!(bench.autoconf.on_conflict(&probe), Some(DuplicateAddress { address: ip, station: STATION }));
    bench.go_on(10);
    assert_eq!(bench.addresses(), []);
    // It is not tried over and over.
    let asked = bench.times(Asked::Who).len();
    bench.hear(&[&prefix("2001:db8::", 64, BOTH, 3600, 1800)]);
    bench.go_on(10);
    assert_eq!((bench.addresses(), bench.times(Asked::Who).len()), (vec![], asked));
    assert_eq!(bench.autoconf.on_conflict(&probe), None);
    // When it is over it may be.
    bench.go_on(4000);
    bench.hear(&[&prefix("2001:db8::", 64, BOTH, 3600, 1800)]);
    bench.go_on(10);
    assert_eq!(bench.addresses(), own(OURS));
}

/// RFC 4862 §5.5.3 a to d.
#[test]
fn no_address_is_formed_of_what_is_not_meant_for_that() {
    for (what, option) in [
        ("no A flag", prefix("2001:db8::", 64, ON_LINK, 3600, 1800)),
        ("link-local", prefix("fe80::", 64, AUTONOMOUS, 3600, 1800)),
        ("a group", prefix("ff02::", 64, AUTONOMOUS, 3600, 1800)),
        ("nothing", prefix("::", 64, AUTONOMOUS, 3600, 1800)),
        ("preferred for longer than valid", prefix("2001:db8::", 64, AUTONOMOUS, 1800, 3600)),
        ("preferred for ever", prefix("2001:db8::", 64, AUTONOMOUS, 1800, u32::MAX)),
        ("valid for no time", prefix("2001:db8::", 64, AUTONOMOUS, 0, 0)),
        ("too short", prefix("2001:db8::", 63, AUTONOMOUS, 3600, 1800)),
        ("too long", prefix("2001:db8::", 65, AUTONOMOUS, 3600, 1800)),
    ] {
        let mut bench = Bench::new(0);
        assert!(bench.hear(&[&option]), "{what}");
        bench.go_on(2);
        assert_eq!(bench.addresses(), [], "{what}");
    }
    // A prefix of which an address is formed need not be on the link.
    let mut bench = Bench::new(0);
    bench.hear(&[&prefix("2001:db8::", 64, AUTONOMOUS, 3600, 1800)]);
    assert_eq!((bench.addresses(), bench.told.on_link().count()), (own(OURS), 0));
    bench.hear(&[&prefix("fd00::", 48, ON_LINK, u32::MAX, 0)]);
    bench.go_on(2);
    assert_eq!(bench.told.on_link().count(), 1);
    bench.hear(&[&prefix("fd00::", 48, ON_LINK, 0, 0)]);
    bench.go_on(2);
    assert_eq!(bench.told.on_link().count(), 0);
}

/// RFC 4862 §5.5.3 e.
#[test]
fn no_advertisement_ends_an_address_within_two_hours_that_was_to_last_for_longer() {
    const HOUR: u32 = 3600;
    // What was promised, what is said then, and for how long it lasts.
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
        bench.hear(&[&prefix("2001:db8::", 64, AUTONOMOUS, first, 0)]);
        bench.hear(&[&prefix("2001:db8::", 64, AUTONOMOUS, then, 0)]);
        bench.go_on(u64::from(lasts) - 1);
        assert_eq!(bench.addresses().len(), 1, "{first} {then}");
        bench.go_on(1);
        assert_eq!(bench.addresses(), [], "{first} {then}");
    }
    // The time for which it is preferred is as it is said.
    let mut bench = Bench::new(0);
    bench.hear(&[&prefix("2001:db8::", 64, AUTONOMOUS, HOUR, HOUR)]);
    bench.go_on(2);
    assert_eq!(bench.addresses(), own(OURS));
    bench.hear(&[&prefix("2001:db8::", 64, AUTONOMOUS, HOUR, 0)]);
    bench.go_on(2);
    assert_eq!(bench.addresses(), [(OURS.to_owned(), true)]);
    bench.hear(&[&prefix("2001:db8::", 64, AUTONOMOUS, HOUR, HOUR)]);
    bench.go_on(2);
    assert_eq!(bench.addresses(), own(OURS));
}

#[test]
fn an_mtu_counts_within_bounds() {
    let mut bench = Bench::new(0);
    for (said, then) in
        [(1279, None), (1501, None), (u32::MAX, None), (1280, Some(1280)), (0, Some(1280)), (1500, Some(1500))]
    {
        bench.hear(&[&mtu(said)]);
        bench.go_on(2);
        assert_eq!(bench.told.mtu, then, "{said}");
    }
}

#[test]
fn times_of_neighbour_discovery_are_bounded() {
    for (said, least, most) in [(1, 500, 1500), (30_000, 15_000, 45_000), (u32::MAX, 1_800_000, 5_400_000)] {
        let mut bench = Bench::new(0);
        let mut message = message(0, 1800, &[]);
        message[8..12].copy_from_slice(&u32::to_be_bytes(said));
        message[12..16].copy_from_slice(&u32::to_be_bytes(said));
        bench.hear_from(ROUTER, &message);
        let reachable = bench.told.reachable.unwrap().as_millis();
        assert!((least..=most).contains(&reachable), "{said}: {reachable}");
        let retransmit = bench.told.retransmit.unwrap().as_millis();
        assert!((100..=10_000).contains(&retransmit), "{said}: {retransmit}");
        // It stays until another is said.
        bench.go_on(2);
        bench.hear_from(ROUTER, &message);
        bench.go_on(2);
        assert_eq!(bench.told.reachable.unwrap().as_millis(), reachable);
    }
}

#[test]
fn a_flood_takes_free_places_only() {
    let mut bench = Bench::new(0);
    bench.hear(&[&prefix("2001:db8::", 64, BOTH, 3600, 1800)]);
    let mut kept = [0, 0];
    for n in 0..100_u16 {
        let router = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 1, n);
        kept[0] += usize::from(bench.hear_from(router, &message(0x08, 9000, &[])));
        kept[1] += usize::from(bench.hear(&[&prefix(&format!("2001:db8:1:{n:x}::"), 64, BOTH, u32::MAX, u32::MAX)]));
    }
    assert_eq!(kept, [ROUTERS - 1, ADDRESSES - 1]);
    bench.go_on(2);
    assert_eq!(bench.told.addresses().count(), ADDRESSES);
    assert_eq!(bench.addresses()[0], own(OURS)[0]);
    // Who was there first is heard still.
    assert!(bench.hear(&[&prefix("2001:db8::", 64, BOTH, 7200, 3600)]));
}

#[test]
fn workers_are_told_once_a_second_at_most() {
    let mut bench = Bench::new(0);
    for n in 0..1000_u32 {
        bench.hear(&[&mtu(1280 + n % 2)]);
        bench.now += Duration::from_millis(10);
    }
    assert!(bench.tellings <= 11, "{}", bench.tellings);
    assert!(bench.times(Asked::Routers).len() <= 3);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whatever routers say, and when: nothing panics, no deadline is in vain, and no more is told or asked than there may be.
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
        for (router, flags, lifetime, prefixes, said, seconds) in steps {
            let router = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, router);
            let prefixes: Vec<_> = prefixes
                .into_iter()
                .map(|(n, len, flags, valid, preferred)| prefix(&format!("2001:db8:{n:x}::"), len, flags, valid, preferred))
                .collect();
            let mtu = mtu(said);
            let options: Vec<&[u8]> = prefixes.iter().map(Vec::as_slice).chain([&mtu[..]]).collect();
            bench.hear_from(router, &message(flags, lifetime, &options));
            bench.go_on(seconds);
            prop_assert!(bench.told.addresses().all(|(cidr, _)| cidr.prefix() == 64));
            prop_assert!(bench.told.mtu.is_none_or(|mtu| (1280..=1500).contains(&mtu)));
        }
        let seconds = bench.now.since(Instant::ZERO).as_secs() as usize;
        prop_assert!(bench.tellings <= seconds + 2);
        prop_assert!(bench.times(Asked::Routers).len() <= seconds / 4 + 2);
    }
}
