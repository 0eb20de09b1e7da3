//! Parameters and events of the connection manager (`rdma_cm(7)`).

use super::Handle;

/// Private data size in bytes that every transport carries (RoCE and InfiniBand with `RDMA_PS_TCP`: 56).
const PRIVATE_DATA: usize = 56;

/// Private data of a connect request, accept or reject.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PrivateData {
    bytes: [u8; PRIVATE_DATA],
    len: u8,
}

impl PrivateData {
    /// Maximum length in bytes.
    pub const LEN: usize = PRIVATE_DATA;

    /// Copies `bytes`, truncated to [`LEN`](Self::LEN): devices pad received private data with zeros to their own
    /// length.
    pub fn new(bytes: &[u8]) -> Self {
        let len = bytes.len().min(PRIVATE_DATA);
        let mut private = PrivateData { bytes: [0; PRIVATE_DATA], len: len as u8 };
        private.bytes[..len].copy_from_slice(&bytes[..len]);
        private
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl Default for PrivateData {
    fn default() -> Self {
        PrivateData::new(&[])
    }
}

impl std::fmt::Debug for PrivateData {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:02x?}", self.bytes())
    }
}

/// Connection parameters of `rdma_connect` and `rdma_accept` (`struct rdma_conn_param`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CmConnParam {
    /// Local queue pair number.
    pub qp: u32,
    /// Maximum outstanding READ and atomic operations accepted from the peer.
    pub responder_resources: u8,
    /// Maximum outstanding READ and atomic operations initiated locally.
    pub initiator_depth: u8,
    /// Transport retries without an acknowledgement, at most 7.
    pub retries: u8,
    /// Retries after receiver-not-ready; 7 is unlimited.
    pub rnr_retries: u8,
    /// Set if the queue pair has a shared receive queue.
    pub is_shared: bool,
    /// Data for the peer's program.
    pub private_data: PrivateData,
}

/// Type of a connection manager event (`rdma_get_cm_event(3)`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CmEventKind {
    /// `rdma_resolve_addr` has found the device and address.
    AddressResolved,
    /// `rdma_resolve_addr` failed.
    AddressFailed,
    /// `rdma_resolve_route` has found the route.
    RouteResolved,
    /// `rdma_resolve_route` failed.
    RouteFailed,
    /// A peer requests a connection. The identifier of the event is new.
    Request {
        /// Listening identifier.
        listener: Handle,
    },
    /// The peer accepts. The queue pair must now be brought to RTS.
    Response,
    /// The connection is established.
    Established,
    /// The peer's program rejected the request.
    Rejected,
    /// The peer did not answer.
    Unreachable,
    /// The connection failed for another reason (`RDMA_CM_EVENT_CONNECT_ERROR`).
    Failed,
    /// The connection has ended.
    Disconnected,
    /// The device of the identifier was removed.
    Removed,
    /// The address of the identifier moved to another port.
    AddressChanged,
    /// Time-wait has ended: packets of the old connection can no longer arrive.
    TimeWaitExit,
    /// Any other event, by its number.
    Other(u32),
}

impl CmEvent {
    /// Describes the failure that the event reports: the reason of the transport, and the peer's text of a rejection.
    pub fn reason(&self) -> String {
        let reason = match self.status {
            0 => "no reason given".to_owned(),
            number if number < 0 => std::io::Error::from_raw_os_error(-number).to_string(),
            number => reject_reason(number)
                .map_or_else(|| format!("reject reason {number}"), |text| format!("{text} (reject reason {number})")),
        };
        // Devices pad private data with zeros.
        let text = self.private_data.bytes().split(|byte| *byte == 0).next().unwrap_or_default();
        match std::str::from_utf8(text) {
            Ok(text) if !text.is_empty() && text.chars().all(|c| c == ' ' || c.is_ascii_graphic()) => {
                format!("{reason}: {text}")
            }
            _ => reason,
        }
    }
}

/// Returns the meaning of a reject reason (IBA 12.6.7.2), if it can occur with reliable connections.
fn reject_reason(number: i32) -> Option<&'static str> {
    Some(match number {
        1 => "no queue pair available",
        3 => "no resources available",
        4 => "time-out",
        5 => "unsupported request",
        8 => "nothing listens at this address",
        9 => "the service has another transport",
        10 => "stale connection",
        12 | 13 | 24 | 25 => "the peer is at another port",
        14 => "invalid service level",
        15 => "invalid traffic class",
        26 => "the path MTU is not supported",
        27 => "insufficient responder resources",
        28 => "the program refused",
        _ => return None,
    })
}

/// Connection manager event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CmEvent {
    /// Identifier that the event is about.
    pub id: Handle,
    /// Type.
    pub kind: CmEventKind,
    /// 0, a negative error number, or a positive reason code of the transport.
    pub status: i32,
    /// Outstanding READ and atomic operations that the peer initiates, in a `Request` or `Response`.
    pub initiator_depth: u8,
    /// Outstanding READ and atomic operations that the peer accepts, in a `Request` or `Response`.
    pub responder_resources: u8,
    /// Queue pair number of the peer.
    pub qp: u32,
    /// Data from the peer's program.
    pub private_data: PrivateData,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(status: i32, private_data: &[u8]) -> CmEvent {
        CmEvent {
            id: Handle(1),
            kind: CmEventKind::Rejected,
            status,
            initiator_depth: 0,
            responder_resources: 0,
            qp: 0,
            private_data: PrivateData::new(private_data),
        }
    }

    #[test]
    fn reason_has_meaning_number_and_text_of_the_peer() {
        assert_eq!(event(8, b"").reason(), "nothing listens at this address (reject reason 8)");
        assert_eq!(event(77, &[0; 56]).reason(), "reject reason 77");
        let full = [&b"too many connections"[..], &[0; 36]].concat();
        assert_eq!(event(28, &full).reason(), "the program refused (reject reason 28): too many connections");
        // Control characters of a hostile peer reach no terminal.
        assert_eq!(event(28, b"\x1b[2J").reason(), "the program refused (reject reason 28)");
        assert!(event(-111, b"").reason().contains("refused"));
    }
}
