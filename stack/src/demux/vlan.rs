//! VLANs (IEEE 802.1Q): which frames are ours, and the tags of those that we send.
//!
//! Inside there are no tags: they are taken off where frames come from the port, and put in where they go to it.

use crate::drop_stats::DropCause;
use linerate_bypass::{Packet, VLAN_TAG};
use std::fmt;
use std::str::FromStr;

/// The VID in a tag; above it are the priority and whether the frame may be dropped first.
const VID: u16 = 0x0fff;
/// The VID of a tag that tells a priority and no VLAN (IEEE 802.1Q §9.6, table 9-2).
const NO_VLAN: u16 = 0;
/// The EtherType of a service provider's tag (IEEE 802.1Q §9.5).
const SERVICE_TAG: u16 = 0x88a8;

/// The number of a VLAN: 1 to 4094.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VlanId(u16);

impl VlanId {
    /// The VLAN number `id`, from 1 to 4094: 0 and 4095 are reserved (IEEE 802.1Q §9.6).
    pub fn new(id: u16) -> Result<Self, InvalidVlan> {
        if (1..VID).contains(&id) { Ok(VlanId(id)) } else { Err(InvalidVlan(id.to_string())) }
    }

    /// The number.
    pub fn get(self) -> u16 {
        self.0
    }
}

impl fmt::Display for VlanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Text or a number that is not that of a VLAN.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not the number of a VLAN: give one from 1 to 4094")]
pub struct InvalidVlan(String);

impl FromStr for VlanId {
    type Err = InvalidVlan;

    fn from_str(text: &str) -> Result<Self, InvalidVlan> {
        let id = text.parse().map_err(|_| InvalidVlan(text.to_owned()))?;
        VlanId::new(id)
    }
}

/// The EtherType, if the frame has one.
fn ether_type(frame: &impl Packet) -> Option<u16> {
    frame.data().get(12..)?.first_chunk().copied().map(u16::from_be_bytes)
}

/// Whether a frame has a tag of 802.1Q's in it.
#[inline]
pub(crate) fn is_tagged(frame: &impl Packet) -> bool {
    ether_type(frame) == Some(VLAN_TAG)
}

/// Takes the tag off a frame that the port received, if that is to have one of `vlan`; without, one that tells a priority alone.
pub(crate) fn take_tag(frame: &mut impl Packet, vlan: Option<VlanId>) -> Result<(), DropCause> {
    let wanted = vlan.map_or(NO_VLAN, VlanId::get);
    let tag = match frame.rx_info().vlan {
        Some(tag) => tag,
        None if is_tagged(frame) => {
            let tag = frame.data().get(14..).and_then(|data| data.first_chunk()).ok_or(DropCause::Truncated)?;
            u16::from_be_bytes(*tag)
        }
        None => return if vlan.is_none() { Ok(()) } else { Err(DropCause::Vlan) },
    };
    if tag & VID != wanted {
        return Err(DropCause::Vlan);
    }
    if frame.rx_info().vlan.is_none() {
        frame.untag().ok_or(DropCause::NoPacket)?;
    }
    match ether_type(frame) {
        Some(VLAN_TAG | SERVICE_TAG) => Err(DropCause::Vlan),
        _ => Ok(()),
    }
}
