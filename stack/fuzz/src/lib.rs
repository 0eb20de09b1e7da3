//! Fuzz targets of the native TCP engine: hostile input, and the properties that hold for any input.
//!
//! Each target is an ordinary function of bytes. The fuzzer calls it with generated input, and the test
//! `stack/tests/corpus/main.rs`, which includes this file, with the kept corpora and seeded mutations of them.

mod corpus;
mod flow;
mod frames;
mod options;
mod probe;
mod raw;
mod rig;
mod setup;
pub mod steps;

pub use corpus::Target;
pub use options::options;
pub use probe::Op;
pub use raw::{closing, connected, listening};
pub use setup::Setup;
pub use steps::sequences;
