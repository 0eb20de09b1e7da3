//! VLANs (IEEE 802.1Q). Tags are removed at reception and inserted at transmission; the stack sees untagged frames.

use crate::wire::drop_stats::DropCause;
use linerate_bypass::{Packet, VLAN_TAG};
use std::fmt;
use std::str::FromStr;

/// Mask of the VID in a tag, below the priority and the drop-eligible bit.
const VID: u16 = 0x0fff;
/// VID of a priority tag (IEEE 802.1Q §9.6, table 9-2).
const NO_VLAN: u16 = 0;
/// EtherType of a service tag (IEEE 802.1Q §9.5).
const SERVICE_TAG: u16 = 0x88a8;

/// VLAN identifier: 1 to 4094.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VlanId(u16);

impl VlanId {
    /// Creates the identifier `id`, from 1 to 4094: 0 and 4095 are reserved (IEEE 802.1Q §9.6).
    pub fn new(id: u16) -> Result<Self, InvalidVlan> {
        if (1..VID).contains(&id) { Ok(VlanId(id)) } else { Err(InvalidVlan(id.to_string())) }
    }

    /// Returns the number.
    pub fn get(self) -> u16 {
        self.0
    }
}

impl fmt::Display for VlanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Error for a text or number that is not a VLAN identifier.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a VLAN identifier: use 1 to 4094")]
pub struct InvalidVlan(String);

impl FromStr for VlanId {
    type Err = InvalidVlan;

    fn from_str(text: &str) -> Result<Self, InvalidVlan> {
        let id = text.parse().map_err(|_| InvalidVlan(text.to_owned()))?;
        VlanId::new(id)
    }
}

fn ether_type(frame: &impl Packet) -> Option<u16> {
    frame.data().get(12..)?.first_chunk().copied().map(u16::from_be_bytes)
}

/// Returns whether the frame data contain an 802.1Q tag.
#[inline]
pub(crate) fn is_tagged(frame: &impl Packet) -> bool {
    ether_type(frame) == Some(VLAN_TAG)
}

/// Removes the tag of a received frame. With `vlan`, the frame must carry the tag of that VLAN; without `vlan`, no
/// tag or a priority tag.
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
