//! Errors of a bench.
/// Deviation of the server from the expected behaviour, or failure of the bench.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The server sent an unexpected segment.
    #[error("the server sent an unexpected frame: {0}")]
    Frame(&'static str),
    /// Answers are missing.
    #[error("the server left {0} requests unanswered")]
    Missing(usize),
    /// The answers have a wrong total length.
    #[error("the server's answers are {0} bytes too long or too short")]
    Answers(u64),
    /// Closed connections remain open at the server.
    #[error("the server counts {finished} of {closed} closed connections as finished")]
    Unfinished {
        /// Connections closed by both ends.
        closed: u64,
        /// Connections that the server has finished.
        finished: u64,
    },
    /// The link or its packet pool is full, which a bench avoids.
    #[error("the link accepts no more frames: the server does not release packets")]
    Full,
    /// A request exceeds a segment.
    #[error("a request of {size} bytes does not fit into one segment, which carries {most}")]
    TooLong {
        /// Size of the request.
        size: usize,
        /// Maximum size, with the agreed options.
        most: usize,
    },
    /// The link does not support the client's frames.
    #[error("the link cannot send frames of this kind")]
    Unsendable,
    /// The memory of this process is unknown.
    #[error("the memory in use is unknown: /proc/self/status: {0}")]
    Memory(std::io::Error),
    /// TLS cannot be set up.
    #[error(transparent)]
    Tls(#[from] linerate_tls::TlsError),
}
