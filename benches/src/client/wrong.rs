//! What can be wrong with a server.

/// What the server did that it should not have.
#[derive(Debug, thiserror::Error)]
pub enum Wrong {
    /// It sent something that is not the expected segment of any flow.
    #[error("the server sent a frame that is not the answer expected of any connection: {0}")]
    Frame(&'static str),
    /// Fewer answers came than were asked for.
    #[error("the server left {0} requests without an answer")]
    Missing(usize),
    /// Its answers are other than what was asked for.
    #[error("the server's answers are {0} bytes more or less than they should be")]
    Answers(u64),
    /// Connections are not over that should be.
    #[error("the server counts {finished} connections as finished of {closed} that were closed")]
    Unfinished {
        /// Connections that both ends have closed.
        closed: u64,
        /// Those that the server is done with.
        finished: u64,
    },
    /// The link or its packet pool was full, which a bench never fills by itself.
    #[error("the link took no more frames: the server does not give packets back")]
    Full,
    /// A request does not fit in a segment.
    #[error("a request of {size} bytes does not fit in one segment, which carries {most}")]
    TooLong {
        /// Its bytes.
        size: usize,
        /// What fits, beside the options that were agreed upon.
        most: usize,
    },
    /// The link cannot send what the client wants it to.
    #[error("the link cannot send frames of this kind")]
    Unsendable,
    /// What the system says of this process' memory could not be read.
    #[error("the memory in use is not known: /proc/self/status: {0}")]
    Memory(std::io::Error),
}
