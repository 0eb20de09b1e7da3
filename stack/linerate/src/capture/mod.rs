//! `--pcap`: capture of a port's frames to a file for tcpdump and Wireshark.

#[cfg(feature = "dpdk")]
mod filter;
#[cfg(feature = "dpdk")]
mod writer;

#[cfg(feature = "dpdk")]
pub use writer::{CaptureFile, Error, RunningCapture};

use std::path::PathBuf;

/// Capture of a port's frames to a file.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(rename_all = "kebab-case", deny_unknown_fields))]
#[allow(rustdoc::broken_intra_doc_links, reason = "defaults are in brackets, as on the command line")]
#[non_exhaustive]
pub struct CaptureConfig {
    /// Write the port's frames to FILE in pcapng format, which tcpdump and Wireshark read
    #[cfg_attr(
        feature = "clap",
        arg(id = "pcap", long, required = false, value_name = "FILE", help_heading = "Capture")
    )]
    pub file: PathBuf,
    /// Write only frames that match FILTER, in pcap-filter(7) syntax: 'tcp port 7 and host 10.0.0.1'
    #[cfg_attr(
        feature = "clap",
        arg(id = "pcap-filter", long, value_name = "FILTER", requires = "pcap", help_heading = "Capture")
    )]
    pub filter: Option<String>,
    /// Largest number of bytes written of each frame [default: a frame of the port's MTU]
    #[cfg_attr(
        feature = "clap",
        arg(
            id = "pcap-snap",
            long,
            value_name = "BYTES",
            requires = "pcap",
            value_parser = crate::units::parse_size,
            help_heading = "Capture",
        )
    )]
    pub snap: Option<usize>,
    /// Largest size of FILE, after which capturing stops: 64m, 4g [default: 1g]
    #[cfg_attr(
        feature = "clap",
        arg(
            id = "pcap-size",
            long,
            value_name = "BYTES",
            requires = "pcap",
            value_parser = crate::units::parse_bytes,
            default_value_t = CaptureConfig::SIZE,
            hide_default_value = true,
            help_heading = "Capture",
        )
    )]
    #[cfg_attr(feature = "serde", serde(default = "CaptureConfig::default_size"))]
    pub size: u64,
}

impl CaptureConfig {
    /// Default of [`size`](Self::size).
    pub const SIZE: u64 = 1 << 30;

    #[cfg(feature = "serde")]
    fn default_size() -> u64 {
        Self::SIZE
    }

    /// Returns a capture of all frames to `file`.
    pub fn new(file: impl Into<PathBuf>) -> Self {
        CaptureConfig { file: file.into(), filter: None, snap: None, size: Self::SIZE }
    }
}
