//! How long slices are opened to be read by the peer.

use crate::provider::{DeviceLimits, TransportKind};

/// The driver of Soft-RoCE, as [`Provider::emulated_by`](linerate_rdma_provider::Provider::emulated_by) has it.
const RXE: &str = "rxe";

/// How a device opens a slice of memory to one peer, for as long as that reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rendezvous {
    /// Through a memory window of type 2.
    Windows,
    /// Through one that is bound to a registration of the slice alone.
    MrPart,
    /// Not at all.
    None,
}

impl Rendezvous {
    /// What a device with these limits does, emulated by this driver if it is.
    pub fn of(limits: &DeviceLimits, emulated_by: Option<&str>) -> Self {
        if limits.transport == TransportKind::Iwarp || !limits.mw_type_2 {
            Rendezvous::None
        } else if emulated_by == Some(RXE) {
            Rendezvous::MrPart
        } else {
            Rendezvous::Windows
        }
    }

    /// In words, with the reason.
    pub fn why(self) -> &'static str {
        match self {
            Rendezvous::Windows => "offered through memory windows of type 2, and read by the peer",
            Rendezvous::MrPart => {
                "offered through memory windows on registrations for each, and read by the peer: rxe lets a peer read all of what a \
                 window is bound to"
            }
            Rendezvous::None => {
                "sent in messages: over iWARP, and without memory windows of type 2, nothing is offered"
            }
        }
    }
}
