//! Hostile input for the native TCP engine: what is done with an input, and what must hold whatever the input.
//!
//! Each target is an ordinary function of bytes. The fuzzer calls it with what it makes up, and an ordinary test
//! (`stack/tests/corpus.rs`, which includes this file) with the corpora that are kept and with seeded mutations of them.

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
