//! Tests of the engine.

#[path = "../../fuzz/src/attack.rs"]
mod attack;
// The rules that the simulator of devices follows too.
#[path = "../../../sim/src/tests/completions.rs"]
mod completions;
#[path = "../../../sim/src/tests/connecting.rs"]
mod connecting;
#[path = "../../../sim/src/tests/datagrams.rs"]
mod datagrams;
#[path = "../../../sim/src/tests/ends.rs"]
mod ends;
mod hostile;
mod network;
#[path = "../../../sim/src/tests/objects.rs"]
mod objects;
mod packets;
#[path = "../../../sim/src/tests/random.rs"]
mod random;
#[path = "../../../sim/src/tests/rc/mod.rs"]
mod rc;
mod refusals;
mod scenarios;
mod wire;

pub use ends::*;
