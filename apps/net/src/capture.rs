//! `--pcap`: capture of a port's frames to a file for tcpdump and Wireshark.

#[cfg(feature = "dpdk")]
mod filter;
#[cfg(feature = "dpdk")]
mod pcapng;
#[cfg(feature = "dpdk")]
mod writer;

#[cfg(feature = "dpdk")]
pub use writer::{CaptureFile, Error, RunningCapture};

use crate::units::{parse_bytes, parse_size};
use std::path::PathBuf;

/// Default of `--pcap-size`.
#[cfg(feature = "dpdk")]
const SIZE: u64 = 1 << 30;

/// Capture options of every command that opens a port.
#[derive(Debug, Default, Clone, clap::Args)]
pub struct CaptureArgs {
    /// Write the port's frames to FILE in pcapng format, which tcpdump and Wireshark read
    #[arg(long, value_name = "FILE", help_heading = "Capture")]
    pcap: Option<PathBuf>,

    /// Write only frames that match FILTER, in pcap-filter(7) syntax: 'tcp port 7 and host 10.0.0.1'
    #[arg(long, value_name = "FILTER", requires = "pcap", help_heading = "Capture")]
    pcap_filter: Option<String>,

    /// Largest number of bytes written of each frame [default: a frame of the port's MTU]
    #[arg(long, value_name = "BYTES", requires = "pcap", value_parser = parse_size, help_heading = "Capture")]
    pcap_snap: Option<usize>,

    /// Largest size of FILE, after which capturing stops: 64m, 4g [default: 1g]
    #[arg(long, value_name = "BYTES", requires = "pcap", value_parser = parse_bytes, help_heading = "Capture")]
    pcap_size: Option<u64>,
}

impl CaptureArgs {
    /// Returns whether `--pcap` was given.
    pub fn is_given(&self) -> bool {
        self.pcap.is_some()
    }
}
