//! Addresses, routes and neighbours of the kernel.

use linerate_bypass::MacAddr;
use linerate_bypass::rtnetlink::{Changes, InterfaceMonitor, Neighbor};
use linerate_harness::program::ip;
use linerate_harness::rerun::alone_in_a_namespace;
use linerate_harness::wait_for;
use std::net::IpAddr;

fn of(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Waits until a change satisfies `is_wanted`.
fn await_change(monitor: &mut InterfaceMonitor, what: &str, is_wanted: impl Fn(&InterfaceMonitor, &Changes) -> bool) {
    wait_for(what, || {
        let changes = monitor.poll().unwrap();
        is_wanted(monitor, &changes)
    });
}

#[test]
fn monitor_follows_addresses_routes_and_neighbors() {
    alone_in_a_namespace(|| {
        ip("link add lr0 type veth peer name lr1");
        ip("link set lr0 address 02:00:00:00:00:01 up");
        ip("link set lr1 up");
        ip("addr add 10.9.0.4/24 dev lr0");
        ip("route add default via 10.9.0.1 dev lr0");
        assert!(InterfaceMonitor::open("nonsense0").is_err());
        let mut monitor = InterfaceMonitor::open("lr0").unwrap();
        let network = monitor.network();
        assert_eq!(network.mac, Some(MacAddr([2, 0, 0, 0, 0, 1])));
        assert!(network.addresses.iter().any(|own| own.ip == of("10.9.0.4") && own.prefix_len == 24), "{network:?}");
        let v4: Vec<_> = network.routes.iter().filter(|route| route.destination.is_ipv4()).collect();
        let [link, default] = v4[..] else { panic!("{network:?}") };
        assert_eq!((link.destination, link.prefix_len, link.gateway), (of("10.9.0.0"), 24, None));
        assert_eq!((default.prefix_len, default.gateway), (0, Some(of("10.9.0.1"))));
        ip("addr add fd09::4/64 dev lr0 nodad");
        await_change(&mut monitor, "an address", |monitor, changes| {
            changes.network && monitor.network().addresses.iter().any(|own| own.ip == of("fd09::4"))
        });
        ip("route change default via 10.9.0.254 dev lr0");
        await_change(&mut monitor, "a route", |monitor, _| {
            monitor.network().routes.iter().any(|route| route.gateway == Some(of("10.9.0.254")))
        });
        ip("link set lr0 address 02:00:00:00:00:02");
        await_change(&mut monitor, "an Ethernet address", |monitor, changes| {
            changes.network && monitor.network().mac == Some(MacAddr([2, 0, 0, 0, 0, 2]))
        });
        assert!(!monitor.poll().unwrap().network, "a change is reported once");

        let mac = |last| Some(MacAddr([2, 0, 0, 0, 0, last]));
        let neighbor = |ip: &str, mac| Neighbor { ip: of(ip), mac };
        ip("neigh add 10.9.0.9 lladdr 02:00:00:00:00:09 dev lr0 nud permanent");
        ip("neigh add fd09::9 lladdr 02:00:00:00:00:0a dev lr0 nud stale");
        assert!(monitor.neighbors().unwrap().contains(&neighbor("fd09::9", mac(10))));
        monitor.poll().unwrap();
        ip("neigh change 10.9.0.9 lladdr 02:00:00:00:00:0b dev lr0 nud permanent");
        await_change(&mut monitor, "a neighbour that moved", |_, changes| {
            changes.neighbors.contains(&neighbor("10.9.0.9", mac(11)))
        });
        for _ in 0..2 {
            // The second time shows that the first has not made the entry an ordinary one.
            assert_eq!(monitor.resolve(of("10.9.0.9")).unwrap(), Some(neighbor("10.9.0.9", mac(11))));
            assert!(!monitor.poll().unwrap().network);
        }
        assert_eq!(
            monitor.resolve(of("fd09::9")).unwrap(),
            Some(neighbor("fd09::9", mac(10))),
            "usable while verified"
        );
        assert_eq!(monitor.resolve(of("10.9.0.77")).unwrap(), None);
        await_change(&mut monitor, "a neighbour that does not answer", |_, changes| {
            changes.neighbors.contains(&neighbor("10.9.0.77", None))
        });
        ip("addr del 10.9.0.4/24 dev lr0");
        await_change(&mut monitor, "removal of an address", |monitor, changes| {
            changes.network && monitor.network().routes.iter().all(|route| route.destination.is_ipv6())
        });
    });
}
