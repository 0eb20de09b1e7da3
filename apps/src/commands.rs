//! One file for each subcommand, and what they share.

pub mod chargen;
pub mod discard;
pub mod echo;
mod load;
mod serve;

pub use load::LoadArgs;
pub use serve::ServeArgs;
