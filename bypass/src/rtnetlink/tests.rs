use super::message::{Message, messages};
use super::parse::{self, Reachability};
use super::*;
use crate::MacAddr;

const INDEX: u32 = 3;
const RTM_NEWADDR: u16 = 20;
const RTM_NEWROUTE: u16 = 24;

fn of(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Returns the bytes of a message.
fn encoded(kind: u16, header: &[u8], attributes: &[(u16, Vec<u8>)]) -> Vec<u8> {
    let request = Request::new(kind, 0, header);
    attributes.iter().fold(request, |request, (kind, value)| request.attribute(*kind, value)).finish(0, 1)
}

fn with_message<T>(bytes: &[u8], read: impl FnOnce(&Message) -> T) -> T {
    read(&messages(bytes).next().unwrap())
}

fn header(start: &[u8], length: usize) -> Vec<u8> {
    let mut header = start.to_vec();
    header.resize(length, 0);
    header
}

fn word(value: u32) -> Vec<u8> {
    value.to_ne_bytes().into()
}

#[test]
fn requests_are_read_back_as_messages() {
    let bytes = encoded(RTM_NEWADDR, &[1; 8], &[(1, vec![5; 3]), (2, vec![])]);
    assert_eq!(bytes.len(), 16 + 8 + 8 + 4, "attributes are padded");
    with_message(&bytes, |message| {
        assert_eq!((message.kind, message.sequence), (RTM_NEWADDR, 1));
        let read: Vec<_> = message::attributes(&message.body[8..]).collect();
        assert_eq!(read, [(1, &[5, 5, 5][..]), (2, &[])]);
    });
}

#[test]
fn ethernet_address_is_read_from_messages_about_the_interface() {
    let link = |index: u32, value: &[u8]| {
        let bytes = encoded(16, &parse::link_header(index), &[(3, b"eth0\0".into()), (1, value.into())]);
        with_message(&bytes, |message| parse::link(message, INDEX))
    };
    assert_eq!(link(INDEX, &[2, 0, 0, 0, 0, 9]), Some(MacAddr([2, 0, 0, 0, 0, 9])));
    assert_eq!(link(4, &[2, 0, 0, 0, 0, 9]), None);
    assert_eq!(link(INDEX, &[10, 0, 0, 1]), None, "not an Ethernet address");
}

#[test]
fn tentative_and_foreign_addresses_are_not_usable() {
    let address = |index: u32, flags: u32| {
        let header = [&[parse::IPV6, 64, 0x80, 0][..], &index.to_ne_bytes()].concat();
        let bytes = encoded(RTM_NEWADDR, &header, &[(1, octets(of("fd00::5"))), (8, word(flags))]);
        with_message(&bytes, |message| parse::address(message, INDEX))
    };
    let usable = address(INDEX, 0x80).unwrap();
    assert_eq!((usable.ip, usable.prefix_len, usable.is_deprecated), (of("fd00::5"), 64, false));
    assert!(address(INDEX, 0x21).is_some_and(|address| address.is_deprecated && address.is_temporary));
    assert_eq!(address(INDEX, 0x40), None, "tentative");
    assert!(address(INDEX, 0x44).is_some(), "optimistic");
    assert_eq!(address(INDEX, 0x08), None, "a duplicate");
    assert_eq!(address(4, 0), None);
}

#[test]
fn local_address_is_preferred_to_the_peer_address_of_a_point_to_point_link() {
    let header = [&[parse::IPV4, 32, 0, 0][..], &INDEX.to_ne_bytes()].concat();
    let attributes = [(1, octets(of("10.0.0.2"))), (2, octets(of("10.0.0.1")))];
    let bytes = encoded(RTM_NEWADDR, &header, &attributes);
    assert_eq!(with_message(&bytes, |message| parse::address(message, INDEX)).unwrap().ip, of("10.0.0.1"));
}

#[test]
fn routes_have_the_next_hop_of_their_interface() {
    let route = |table: u8, attributes: &[(u16, Vec<u8>)]| {
        let header = header(&[parse::IPV4, 0, 0, 0, table, 0, 0, 1], 12);
        with_message(&encoded(RTM_NEWROUTE, &header, attributes), |message| parse::route(message, INDEX))
    };
    let plain = [(4, word(INDEX)), (5, octets(of("10.0.0.1"))), (6, word(100)), (7, octets(of("10.0.0.4")))];
    let read = route(254, &plain).unwrap();
    assert_eq!((read.gateway, read.metric, read.source), (Some(of("10.0.0.1")), 100, Some(of("10.0.0.4"))));
    assert_eq!(route(255, &plain), None, "the table of local addresses");
    assert_eq!(route(252, &[&plain[..], &[(15, word(1000))]].concat()), None, "a table above 255");
    assert_eq!(route(254, &[(4, word(4))]), None, "of another interface");
    assert_eq!(route(254, &[(4, word(INDEX))]).unwrap().gateway, None, "on the link");
    let via = [&parse::IPV6.to_ne_bytes()[..], &[0], &octets(of("fe80::1"))].concat();
    assert_eq!(route(254, &[(4, word(INDEX)), (18, via)]).unwrap().gateway, Some(of("fe80::1")));
    // Two next hops, the second through this interface.
    let hop = |index: u32, gateway: &str| {
        [&[16, 0, 0, 0][..], &index.to_ne_bytes(), &[8, 0, 5, 0], &octets(of(gateway))].concat()
    };
    let hops = [hop(4, "10.0.0.8"), hop(INDEX, "10.0.0.9")].concat();
    assert_eq!(route(254, &[(9, hops)]).unwrap().gateway, Some(of("10.0.0.9")));
    assert_eq!(route(254, &[(9, hop(4, "10.0.0.8"))]), None);
}

#[test]
fn neighbors_are_reported_once_their_state_is_known() {
    let entry = |state: u16, station: &[u8]| {
        let mut header = parse::neighbor_header(parse::IPV4, INDEX, 0);
        header[8..10].copy_from_slice(&state.to_ne_bytes());
        let attributes = [(1, octets(of("10.0.0.9"))), (2, station.to_vec())];
        with_message(&encoded(RTM_NEWNEIGH, &header, &attributes), |message| parse::neighbor(message, INDEX)).unwrap()
    };
    let mac = Some(MacAddr([2, 0, 0, 0, 0, 9]));
    for (state, reported, reachability) in [
        (0x02, Some(mac), Reachability::Current),
        (0x04, Some(mac), Reachability::Unverified),
        (0x80, Some(mac), Reachability::Current),
        (0x01, None, Reachability::Current),
        (0x20, Some(None), Reachability::Unverified),
    ] {
        let entry = entry(state, &[2, 0, 0, 0, 0, 9]);
        assert_eq!(entry.report().map(|neighbor| neighbor.mac), reported, "{state:#x}");
        assert_eq!(entry.reachability, reachability, "{state:#x}");
    }
    assert_eq!(entry(0x02, &[1, 2, 3]).report(), None, "not an Ethernet address");
}

#[test]
fn truncated_messages_are_ignored() {
    let header = header(&[parse::IPV4, 24, 0, 0, 254, 0, 0, 1], 12);
    let hops = [&[16, 0, 0, 0][..], &INDEX.to_ne_bytes(), &[8, 0, 5, 0, 10, 0, 0, 1]].concat();
    for kind in [16, RTM_NEWADDR, RTM_NEWROUTE, RTM_NEWNEIGH] {
        let whole = encoded(kind, &header, &[(1, vec![10, 0, 0, 0]), (9, hops.clone()), (18, vec![2, 0, 10])]);
        for end in 0..whole.len() {
            assert_eq!(messages(&whole[..end]).count(), 0, "{kind}, {end} bytes");
            let mut shorter = whole[..end].to_vec();
            if end >= 16 {
                shorter[..4].copy_from_slice(&(end as u32).to_ne_bytes());
            }
            for message in messages(&shorter) {
                parse::link(&message, INDEX);
                parse::address(&message, INDEX);
                parse::route(&message, INDEX);
                parse::neighbor(&message, INDEX);
            }
        }
    }
}
