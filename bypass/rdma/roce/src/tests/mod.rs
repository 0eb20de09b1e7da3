//! Tests of the engine.

// The rules that the simulator of devices follows too.
#[path = "../../../sim/src/tests/completions.rs"]
mod completions;
#[path = "../../../sim/src/tests/connecting.rs"]
mod connecting;
#[path = "../../../sim/src/tests/ends.rs"]
mod ends;
#[path = "../../../sim/src/tests/rc/mod.rs"]
mod rc;

pub use ends::*;
