//! Rendezvous: the peer reads long slices from the sender's memory instead of receiving them in messages.

use crate::provider::{DeviceLimits, TransportKind};

/// Driver name of Soft-RoCE in [`Provider::emulated_by`](crate::provider::Provider::emulated_by).
const RXE: &str = "rxe";

/// Method by which a device exposes a slice to one peer while that peer reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rendezvous {
    /// Type 2 memory window on the arena's registration.
    Windows,
    /// Type 2 memory window on a registration of the slice alone.
    RegisteredWindows,
    /// No rendezvous: slices are sent in messages.
    None,
}

impl Rendezvous {
    /// Returns the method for a device with these limits, emulated by this driver if any.
    pub fn of(limits: &DeviceLimits, emulated_by: Option<&str>) -> Self {
        if limits.transport == TransportKind::Iwarp || !limits.mw_type_2 {
            Rendezvous::None
        } else if emulated_by == Some(RXE) {
            Rendezvous::RegisteredWindows
        } else {
            Rendezvous::Windows
        }
    }

    /// Describes the method and its reason.
    pub fn description(self) -> &'static str {
        match self {
            Rendezvous::Windows => "offered through memory windows of type 2, and read by the peer",
            Rendezvous::RegisteredWindows => {
                "offered through memory windows on registrations for each, and read by the peer: rxe permits reads of \
                 the whole region that a window is bound to"
            }
            Rendezvous::None => {
                "sent in messages: rendezvous needs memory windows of type 2, and is not used over iWARP"
            }
        }
    }
}
