//! Capture filters in libpcap's language.

use linerate_bypass::capture::Filter;
use pcap::{BpfProgram, Capture, Linktype};

/// Compiles a filter of Ethernet frames in pcap-filter(7) syntax. The error is libpcap's message.
pub fn compile(words: &str) -> Result<Filter, String> {
    let ethernet = Capture::dead(Linktype::ETHERNET).map_err(|error| error.to_string())?;
    let program: BpfProgram = ethernet.compile(words, true).map_err(|error| match error {
        pcap::Error::PcapError(message) => message,
        other => other.to_string(),
    })?;
    Ok(Box::new(move |frame| program.filter(frame)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an ARP frame and an IPv4 frame with TCP from port 7.
    fn frames() -> [Vec<u8>; 2] {
        let mut arp = vec![0; 60];
        arp[12..14].copy_from_slice(&[8, 6]);
        let mut tcp = vec![0; 60];
        tcp[12..15].copy_from_slice(&[8, 0, 0x45]);
        tcp[23] = 6;
        tcp[34..36].copy_from_slice(&[0, 7]);
        [arp, tcp]
    }

    #[test]
    fn filter_selects_frames() {
        for (words, kept) in [
            ("", [true, true]),
            ("arp", [true, false]),
            ("tcp port 7", [false, true]),
            ("tcp dst port 7", [false, false]),
            ("arp or src port 7", [true, true]),
        ] {
            let filter = compile(words).unwrap();
            assert_eq!(frames().map(|frame| filter(&frame)), kept, "{words}");
        }
    }

    #[test]
    fn truncated_frame_does_not_match() {
        let filter = compile("tcp port 7").unwrap();
        let [_, tcp] = frames();
        for len in 0..38 {
            assert!(!filter(&tcp[..len.min(34)]), "{len}");
        }
    }

    #[test]
    fn invalid_filter_is_reported_with_libpcaps_message() {
        let Err(message) = compile("tcp prot 7") else { panic!("the filter was accepted") };
        assert!(message.contains("syntax error"), "{message}");
    }
}
