//! What the connection manager says and is told.

use super::Handle;

/// Bytes that a request for a connection can carry over every transport (RoCE and InfiniBand: 56 with `RDMA_PS_TCP`).
const PRIVATE: usize = 56;

/// Some bytes that go with a request for a connection, its acceptance or its refusal.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Private {
    bytes: [u8; PRIVATE],
    len: u8,
}

impl Private {
    /// The most bytes.
    pub const LEN: usize = PRIVATE;

    /// As much of `bytes` as there is room for: devices fill what the peer sent with zeros up to their own length.
    pub fn new(bytes: &[u8]) -> Self {
        let len = bytes.len().min(PRIVATE);
        let mut private = Private { bytes: [0; PRIVATE], len: len as u8 };
        private.bytes[..len].copy_from_slice(&bytes[..len]);
        private
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl Default for Private {
    fn default() -> Self {
        Private::new(&[])
    }
}

impl std::fmt::Debug for Private {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:02x?}", self.bytes())
    }
}

/// What a connection is asked for or accepted with (`struct rdma_conn_param`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CmParameters {
    /// The number of our queue pair.
    pub pair: u32,
    /// READs and atomics of the peer's that we answer at a time.
    pub reads_answered: u8,
    /// READs and atomics that we ask for at a time.
    pub reads_asked: u8,
    /// How often the device asks again when there is no answer, up to 7.
    pub retries: u8,
    /// How often when the peer has no buffer; 7 is for ever.
    pub not_ready_retries: u8,
    /// Whether the queue pair has a shared receive queue.
    pub is_shared: bool,
    /// For the peer's program.
    pub private: Private,
}

/// What has happened to an identifier (`rdma_get_cm_event(3)`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CmEventKind {
    /// The device and the way are known.
    AddressResolved,
    /// There is no way.
    AddressFailed,
    /// The route is known.
    RouteResolved,
    /// There is no route.
    RouteFailed,
    /// A peer asks for a connection; the event's identifier is new, and `listener` is whom it asks.
    Request {
        /// The identifier that listens.
        listener: Handle,
    },
    /// The peer accepts; our queue pair is to be made ready.
    Response,
    /// The connection is there.
    Established,
    /// The peer's program refused.
    Rejected,
    /// Nobody answered.
    Unreachable,
    /// It could not be made, for another reason.
    Failed,
    /// It is over.
    Disconnected,
    /// The identifier's device is gone.
    Removed,
    /// The identifier's address moved to another port.
    AddressChanged,
    /// The time in which old packets may arrive is over.
    TimeWaitExit,
    /// Another one, by its number.
    Other(u32),
}

/// An event of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CmEvent {
    /// Whose.
    pub id: Handle,
    /// What.
    pub kind: CmEventKind,
    /// 0, or why: an error's number below 0, or a code of the transport's above.
    pub status: i32,
    /// READs and atomics that the peer asks for at a time, in a `Request`, and a `Response`.
    pub reads_asked: u8,
    /// READs and atomics that the peer answers at a time.
    pub reads_answered: u8,
    /// The number of the peer's queue pair.
    pub pair: u32,
    /// What the peer's program said.
    pub private: Private,
}
