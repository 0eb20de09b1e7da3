//! How long slices are opened to be read by the peer.

use crate::calls::{DeviceLimits, TransportKind};

/// The driver of Soft-RoCE, as [`Calls::emulated_by`](crate::calls::Calls::emulated_by) has it.
const RXE: &str = "rxe";

/// How a device opens a slice of memory to one peer, for as long as that reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offers {
    /// Through a memory window of type 2.
    Windows,
    /// Through one that is bound to a registration of the slice alone.
    Registered,
    /// Not at all.
    None,
}

impl Offers {
    /// What a device with these limits does, emulated by this driver if it is.
    pub fn of(limits: &DeviceLimits, emulated_by: Option<&str>) -> Self {
        if limits.transport == TransportKind::Iwarp || !limits.windows_type_2 {
            Offers::None
        } else if emulated_by == Some(RXE) {
            Offers::Registered
        } else {
            Offers::Windows
        }
    }

    /// In words, with the reason.
    pub fn why(self) -> &'static str {
        match self {
            Offers::Windows => "offered through memory windows of type 2, and read by the peer",
            Offers::Registered => {
                "offered through memory windows on registrations for each, and read by the peer: rxe lets a peer read all of what a \
                 window is bound to"
            }
            Offers::None => "sent in messages: over iWARP, and without memory windows of type 2, nothing is offered",
        }
    }
}
