//! Router advertisements (RFC 4861 §4.2), parsed in place.

use crate::wire::drop_stats::DropCause;
use crate::wire::ethernet::ETHERNET_HEADER;
use linerate_bypass::MacAddr;
use linerate_service::time::Duration;
use smoltcp::wire::{Icmpv6Packet, IpProtocol, Ipv6Packet};
use std::net::Ipv6Addr;

/// ICMPv6 message type.
const ROUTER_ADVERTISEMENT: u8 = 134;
/// Length without options.
const HEADER: usize = 16;

/// Option types (RFC 4861 §4.6).
const SOURCE_LINK_LAYER: u8 = 1;
const PREFIX_INFORMATION: u8 = 3;
const MTU: u8 = 5;

/// Default router preference, in ascending order (RFC 4191 §2.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Preference {
    Low,
    Medium,
    High,
}

/// Router advertisement, valid by RFC 4861 §6.1.2.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Advertisement<'a> {
    /// Link-local address of the sender.
    pub router: Ipv6Addr,
    /// True if the advertisement was multicast, so that other hosts form addresses at the same time.
    pub to_all: bool,
    pub preference: Preference,
    /// Router lifetime; zero if the sender is not a default router.
    pub lifetime: Duration,
    /// Reachable time, if advertised.
    pub reachable: Option<Duration>,
    /// Retransmission timer, if advertised.
    pub retransmit: Option<Duration>,
    options: &'a [u8],
}

/// Prefix information option (RFC 4861 §4.6.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Prefix {
    /// Prefix with zero bits after it.
    pub bits: u128,
    pub len: u8,
    /// On-link flag.
    pub on_link: bool,
    /// Autonomous address-configuration flag.
    pub autonomous: bool,
    /// Valid lifetime; `None` for infinity.
    pub valid: Option<Duration>,
    /// Preferred lifetime; `None` for infinity.
    pub preferred: Option<Duration>,
}

impl<'a> Advertisement<'a> {
    /// Parses the Ethernet frame `frame`. Returns `None` if it is not a router advertisement, and an error if it is
    /// invalid.
    pub fn parse(frame: &'a [u8]) -> Result<Option<Self>, DropCause> {
        let ip = frame.get(ETHERNET_HEADER..).and_then(|data| Ipv6Packet::new_checked(data).ok());
        let Some(ip) = ip.filter(|ip| ip.next_header() == IpProtocol::Icmpv6) else { return Ok(None) };
        let (source, destination, hop_limit) = (ip.src_addr(), ip.dst_addr(), ip.hop_limit());
        // Slice of the frame, whose lifetime exceeds that of the packet view.
        let len = usize::from(ip.payload_len());
        let Some(message) = frame.get(ETHERNET_HEADER + 40..ETHERNET_HEADER + 40 + len) else { return Ok(None) };
        if message.first() != Some(&ROUTER_ADVERTISEMENT) {
            return Ok(None);
        }
        let Some((header, options)) = message.split_first_chunk::<HEADER>() else {
            return Err(DropCause::BadAdvertisement);
        };
        let is_sound = hop_limit == 255
            && source.is_unicast_link_local()
            && header[1] == 0
            && Icmpv6Packet::new_checked(message).is_ok_and(|icmp| icmp.verify_checksum(&source, &destination))
            && Options(options).all(|option| option.is_ok());
        if !is_sound {
            return Err(DropCause::BadAdvertisement);
        }
        let &[_, _, _, _, _, flags, lifetime @ .., a, b, c, d, e, f, g, h] = header;
        let milliseconds = |word: [u8; 4]| match u32::from_be_bytes(word) {
            0 => None,
            n => Some(Duration::from_millis(n.into())),
        };
        let preference = match flags >> 3 & 3 {
            1 => Preference::High,
            3 => Preference::Low,
            // RFC 4191 §2.2: the reserved value means medium.
            _ => Preference::Medium,
        };
        Ok(Some(Advertisement {
            router: source,
            to_all: destination.is_multicast(),
            preference,
            lifetime: Duration::from_secs(u16::from_be_bytes(lifetime).into()),
            reachable: milliseconds([a, b, c, d]),
            retransmit: milliseconds([e, f, g, h]),
            options,
        }))
    }

    /// Returns the router's Ethernet address, if advertised.
    pub fn station(&self) -> Option<MacAddr> {
        let body = self.options(SOURCE_LINK_LAYER).next()?;
        // Longer addresses belong to other link types.
        let mac = MacAddr(body.try_into().ok()?);
        mac.is_unicast().then_some(mac)
    }

    /// Returns the link MTU, if advertised.
    pub fn mtu(&self) -> Option<u32> {
        let &[_, _, a, b, c, d] = self.options(MTU).next()? else { return None };
        Some(u32::from_be_bytes([a, b, c, d]))
    }

    /// Returns the prefix information options.
    pub fn prefixes(&self) -> impl Iterator<Item = Prefix> + use<'a> {
        self.options(PREFIX_INFORMATION).filter_map(|body| {
            let (&[len, flags], rest) = body.split_first_chunk()?;
            let (&valid, rest) = rest.split_first_chunk()?;
            let (&preferred, rest) = rest.split_first_chunk()?;
            let (_reserved, prefix) = rest.split_first_chunk::<4>()?;
            let bits = u128::from_be_bytes(prefix.try_into().ok()?);
            let seconds = |word| match u32::from_be_bytes(word) {
                u32::MAX => None,
                n => Some(Duration::from_secs(n.into())),
            };
            (len <= 128).then(|| Prefix {
                bits: bits & u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0),
                len,
                on_link: flags & 0x80 != 0,
                autonomous: flags & 0x40 != 0,
                valid: seconds(valid),
                preferred: seconds(preferred),
            })
        })
    }

    /// Returns the bodies of the options of the type `kind`.
    fn options(&self, kind: u8) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        Options(self.options).flatten().filter_map(move |(of, body)| (of == kind).then_some(body))
    }
}

/// Iterator over NDP options: type and body. A malformed option yields an error as the last item.
struct Options<'a>(&'a [u8]);

impl<'a> Iterator for Options<'a> {
    type Item = Result<(u8, &'a [u8]), DropCause>;

    fn next(&mut self) -> Option<Self::Item> {
        let (&[kind, units], _) = match self.0 {
            [] => return None,
            bytes => bytes.split_first_chunk().unwrap_or((&[0, 0], &[])),
        };
        let len = 8 * usize::from(units);
        if len == 0 || len > self.0.len() {
            self.0 = &[];
            return Some(Err(DropCause::BadAdvertisement));
        }
        let (option, rest) = self.0.split_at(len);
        self.0 = rest;
        Some(Ok((kind, &option[2..])))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;
    use smoltcp::wire::{EthernetAddress, EthernetFrame, EthernetProtocol};

    /// Address and station of a router on the link.
    pub const ROUTER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
    pub const STATION: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

    /// Returns a multicast frame with the ICMPv6 message `message` and its checksum.
    pub fn frame(source: Ipv6Addr, message: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; ETHERNET_HEADER + 40];
        let mut ethernet = EthernetFrame::new_unchecked(&mut frame[..]);
        ethernet.set_src_addr(EthernetAddress(STATION.0));
        ethernet.set_dst_addr(EthernetAddress([0x33, 0x33, 0, 0, 0, 1]));
        ethernet.set_ethertype(EthernetProtocol::Ipv6);
        let mut ip = Ipv6Packet::new_unchecked(&mut frame[ETHERNET_HEADER..]);
        ip.set_version(6);
        ip.set_hop_limit(255);
        ip.set_next_header(IpProtocol::Icmpv6);
        ip.set_payload_len(message.len() as u16);
        ip.set_src_addr(source);
        ip.set_dst_addr(ALL_NODES);
        frame.extend_from_slice(message);
        if message.len() >= 4 {
            Icmpv6Packet::new_unchecked(&mut frame[ETHERNET_HEADER + 40..]).fill_checksum(&source, &ALL_NODES);
        }
        frame
    }

    /// Returns a router advertisement with the router lifetime `lifetime` in seconds and `options`.
    pub fn message(flags: u8, lifetime: u16, options: &[&[u8]]) -> Vec<u8> {
        let [a, b] = lifetime.to_be_bytes();
        let mut message = vec![134, 0, 0, 0, 64, flags, a, b, 0, 0, 0, 0, 0, 0, 0, 0];
        options.iter().for_each(|option| message.extend_from_slice(option));
        message
    }

    /// Returns a prefix information option: `flags` are L 0x80 and A 0x40.
    pub fn prefix(text: &str, len: u8, flags: u8, valid: u32, preferred: u32) -> Vec<u8> {
        let mut option = vec![3, 4, len, flags];
        option.extend_from_slice(&valid.to_be_bytes());
        option.extend_from_slice(&preferred.to_be_bytes());
        option.extend_from_slice(&[0; 4]);
        option.extend_from_slice(&text.parse::<Ipv6Addr>().unwrap().octets());
        option
    }

    pub fn mtu(mtu: u32) -> Vec<u8> {
        let mut option = vec![5, 1, 0, 0];
        option.extend_from_slice(&mtu.to_be_bytes());
        option
    }

    #[test]
    fn advertisement_fields_are_parsed() {
        let station = [1, 1, 2, 0, 0, 0, 0, 1];
        let (mtu, prefix) = (mtu(1400), prefix("2001:db8::77", 64, 0xc0, 100, u32::MAX));
        let mut message = message(0x08, 1800, &[&station, &mtu, &[200, 1, 0, 0, 0, 0, 0, 0], &prefix]);
        message[8..16].copy_from_slice(&[0, 0, 0x75, 0x30, 0, 0, 3, 0xe8]);
        let frame = frame(ROUTER, &message);
        let advert = Advertisement::parse(&frame).unwrap().unwrap();
        assert_eq!((advert.router, advert.to_all, advert.preference), (ROUTER, true, Preference::High));
        assert_eq!(advert.lifetime, Duration::from_secs(1800));
        assert_eq!(
            (advert.reachable, advert.retransmit),
            (Some(Duration::from_secs(30)), Some(Duration::from_secs(1)))
        );
        assert_eq!((advert.station(), advert.mtu()), (Some(STATION), Some(1400)));
        let prefixes: Vec<_> = advert.prefixes().collect();
        let bits = "2001:db8::".parse::<Ipv6Addr>().unwrap().to_bits();
        let valid = Some(Duration::from_secs(100));
        assert_eq!(prefixes, [Prefix { bits, len: 64, on_link: true, autonomous: true, valid, preferred: None }]);
    }

    #[test]
    fn preferences_follow_rfc_4191() {
        for (flags, preference) in
            [(0x00, Preference::Medium), (0x08, Preference::High), (0x10, Preference::Medium), (0x18, Preference::Low)]
        {
            let frame = frame(ROUTER, &message(flags, 1, &[]));
            assert_eq!(Advertisement::parse(&frame).unwrap().unwrap().preference, preference);
        }
    }

    /// Tests each of the conditions of RFC 4861 §6.1.2.
    #[test]
    fn invalid_advertisements_are_rejected() {
        let good = message(0, 1800, &[&mtu(1400)]);
        assert!(Advertisement::parse(&frame(ROUTER, &good)).unwrap().is_some());
        let changed = |at: usize, byte: u8| {
            let mut frame = frame(ROUTER, &good);
            frame[at] = byte;
            frame
        };
        let code = {
            let mut message = good.clone();
            message[1] = 1;
            frame(ROUTER, &message)
        };
        for (case, frame) in [
            ("hop limit", changed(ETHERNET_HEADER + 7, 254)),
            ("source", frame("2001:db8::1".parse().unwrap(), &good)),
            ("no source", frame(Ipv6Addr::UNSPECIFIED, &good)),
            ("checksum", changed(ETHERNET_HEADER + 40 + 7, 7)),
            ("code", code),
            ("short", frame(ROUTER, &good[..15])),
            ("option of zero length", frame(ROUTER, &message(0, 1, &[&[5, 0, 0, 0, 0, 0, 5, 0x78]]))),
            ("option beyond the end", frame(ROUTER, &message(0, 1, &[&[5, 2, 0, 0, 0, 0, 5, 0x78]]))),
            ("half an option", frame(ROUTER, &message(0, 1, &[&[5]]))),
        ] {
            assert_eq!(Advertisement::parse(&frame).err(), Some(DropCause::BadAdvertisement), "{case}");
        }
        // Other NDP messages are not advertisements.
        let solicitation = frame(ROUTER, &[133, 0, 0, 0, 0, 0, 0, 0]);
        assert!(matches!(Advertisement::parse(&solicitation), Ok(None)));
        assert!(matches!(Advertisement::parse(&[]), Ok(None)));
    }

    #[test]
    fn options_of_wrong_length_are_ignored() {
        let long_mtu = [&mtu(1400)[..], &[0; 8]].concat();
        let long_mtu = [&[5, 2], &long_mtu[2..]].concat();
        let short_prefix = [&[3, 3], &prefix("2001:db8::", 64, 0xc0, 1, 1)[2..24]].concat();
        let far_prefix = prefix("2001:db8::", 129, 0xc0, 1, 1);
        let frame = frame(ROUTER, &message(0, 1, &[&long_mtu, &short_prefix, &far_prefix]));
        let advert = Advertisement::parse(&frame).unwrap().unwrap();
        assert_eq!((advert.mtu(), advert.station(), advert.prefixes().count()), (None, None, 0));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), link_local: bool) {
            let source = if link_local { ROUTER } else { Ipv6Addr::UNSPECIFIED };
            let mut message = message(0, 1800, &[]);
            message.extend_from_slice(&bytes);
            for frame in [bytes.clone(), frame(source, &message), frame(source, &bytes)] {
                if let Ok(Some(advert)) = Advertisement::parse(&frame) {
                    prop_assert!(advert.router.is_unicast_link_local());
                    prop_assert!(advert.prefixes().all(|prefix| prefix.len <= 128));
                    let _ = (advert.mtu(), advert.station());
                }
            }
        }
    }
}
