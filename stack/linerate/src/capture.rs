//! `--pcap`: capture of a port's frames to a file for tcpdump and Wireshark.

#[cfg(feature = "dpdk")]
mod filter;
#[cfg(feature = "dpdk")]
mod pcapng;
#[cfg(feature = "dpdk")]
mod writer;

#[cfg(feature = "dpdk")]
pub use writer::{CaptureFile, Error, RunningCapture};

use std::path::PathBuf;

/// Capture of a port's frames to a file.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(rename_all = "kebab-case", deny_unknown_fields))]
#[non_exhaustive]
pub struct CaptureConfig {
    /// File in pcapng format, which is created or truncated.
    pub file: PathBuf,
    /// Filter of frames in pcap-filter(7) syntax; all frames if `None`.
    pub filter: Option<String>,
    /// Largest number of bytes written of each frame; a frame of the port's MTU if `None`.
    pub snap: Option<usize>,
    /// Largest size of the file in bytes, after which capturing stops.
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
