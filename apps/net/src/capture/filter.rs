//! Which frames are kept, in the language of libpcap.

use linerate_bypass::capture::Filter;
use pcap::{BpfProgram, Capture, Linktype};

/// A filter of Ethernet frames from the words of pcap-filter(7), or what libpcap says of them.
pub fn compile(words: &str) -> Result<Filter, String> {
    let ethernet = Capture::dead(Linktype::ETHERNET).map_err(|error| error.to_string())?;
    let program: BpfProgram = ethernet.compile(words, true).map_err(|error| match error {
        pcap::Error::PcapError(said) => said,
        other => other.to_string(),
    })?;
    Ok(Box::new(move |frame| program.filter(frame)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame of ARP and one of IPv4 with TCP from port 7.
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
    fn words_say_which_frames_are_kept() {
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
    fn a_frame_that_is_cut_short_is_no_match() {
        let filter = compile("tcp port 7").unwrap();
        let [_, tcp] = frames();
        for len in 0..38 {
            assert!(!filter(&tcp[..len.min(34)]), "{len}");
        }
    }

    #[test]
    fn what_libpcap_does_not_understand_is_told_in_its_words() {
        let Err(said) = compile("tcp prot 7") else { panic!("it was understood") };
        assert!(said.contains("syntax error"), "{said}");
    }
}
