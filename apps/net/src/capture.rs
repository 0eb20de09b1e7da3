//! What passes a port, written to a file for tcpdump and Wireshark.

#[cfg(feature = "dpdk")]
mod filter;
#[cfg(feature = "dpdk")]
mod pcapng;
#[cfg(feature = "dpdk")]
mod writer;

#[cfg(feature = "dpdk")]
pub use writer::{Error, Output, Writing};

use crate::units::{parse_bytes, parse_size};
use std::path::PathBuf;

/// The file's size at most, if nobody says.
#[cfg(feature = "dpdk")]
const SIZE: u64 = 1 << 30;

/// What every command takes that opens a port.
#[derive(Debug, Default, Clone, clap::Args)]
pub struct CaptureArgs {
    /// Write the frames that pass the port to FILE, in pcapng, which tcpdump and Wireshark read
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,

    /// Write only the frames that match FILTER, in the words of pcap-filter(7): 'tcp port 7 and host 10.0.0.1'
    #[arg(long, value_name = "FILTER", requires = "pcap")]
    pcap_filter: Option<String>,

    /// Bytes of each frame that are written at most [default: a frame of the port's MTU]
    #[arg(long, value_name = "BYTES", requires = "pcap", value_parser = parse_size)]
    pcap_snap: Option<usize>,

    /// Bytes that FILE has at most, after which no more is written: 64m, 4g [default: 1g]
    #[arg(long, value_name = "BYTES", requires = "pcap", value_parser = parse_bytes)]
    pcap_size: Option<u64>,
}

impl CaptureArgs {
    /// Whether there is to be a file.
    pub fn is_given(&self) -> bool {
        self.pcap.is_some()
    }
}
