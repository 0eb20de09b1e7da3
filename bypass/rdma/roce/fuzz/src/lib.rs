//! Fuzz target of the software RoCEv2 engine.

mod attack;
#[path = "../../src/tests/packets.rs"]
pub mod packets;

use linerate_roce::{Config, Device, Driver, Engine, Path, Port};

/// Plays an input to a new device.
pub fn packets(data: &[u8]) {
    let mut victim = attack::Victim::new();
    victim.attack(data);
    victim.assert_intact();
}
