//! Switches of the fast paths, for tests that compare a fast path with the general path.
//!
//! Without the feature `fast-path-switches` every fast path is enabled: [`FastPaths`] has no size, and
//! [`FastPaths::has`] is a constant.

/// A fast path of the worker or of the native engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FastPath {
    /// Demultiplexing of an ordinary TCP segment (`worker/demux/fast`).
    Demux,
    /// Processing of each segment as it is demultiplexed, instead of after the burst
    /// ([`Engine::rx_segment`](crate::Engine::rx_segment)).
    Immediate,
    /// Processing of an ordinary SYN (`tcp/fast_path/syn.rs`).
    Syn,
    /// Completion of a handshake, FINs and their acknowledgements (`tcp/fast_path/lifecycle.rs`).
    Lifecycle,
    /// Header prediction (`tcp/fast_path/established.rs`).
    HeaderPrediction,
    /// Transmission of the only received packet as its own echo (`tcp/fast_path/established.rs`).
    EchoLone,
    /// Transmission of whole packets, each as one segment (`tcp/fast_path/established.rs`).
    SendWhole,
    /// Request-response mode (`tcp/fast_path/rr`).
    RequestResponse,
}

/// Set of the fast paths in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FastPaths {
    /// A bit for each [`FastPath`] that is not in the set.
    #[cfg(feature = "fast-path-switches")]
    disabled: u16,
}

impl FastPaths {
    /// Every fast path.
    pub const ALL: FastPaths = FastPaths {
        #[cfg(feature = "fast-path-switches")]
        disabled: 0,
    };

    #[cfg(not(feature = "fast-path-switches"))]
    #[inline(always)]
    pub(crate) const fn has(self, _path: FastPath) -> bool {
        true
    }
}

#[cfg(feature = "fast-path-switches")]
impl FastPaths {
    /// No fast path.
    pub const NONE: FastPaths = FastPaths { disabled: u16::MAX };

    /// Returns the set without `path`.
    pub const fn without(self, path: FastPath) -> Self {
        FastPaths { disabled: self.disabled | 1 << path as u16 }
    }

    /// Returns whether `path` is in the set.
    #[inline(always)]
    pub const fn has(self, path: FastPath) -> bool {
        self.disabled & 1 << path as u16 == 0
    }
}

#[cfg(feature = "fast-path-switches")]
impl FastPath {
    /// Every fast path, in the order in which the worker applies them.
    pub const EACH: [FastPath; 8] = [
        FastPath::Demux,
        FastPath::Immediate,
        FastPath::Syn,
        FastPath::Lifecycle,
        FastPath::HeaderPrediction,
        FastPath::EchoLone,
        FastPath::SendWhole,
        FastPath::RequestResponse,
    ];
}
