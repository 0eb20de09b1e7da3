//! What the benches share. Each published figure comes from one of the programs in `src/bin`.
#![forbid(unsafe_code)]

pub mod echo_bench;
pub mod echo_pair;
pub mod goodput;
pub mod impair;
pub mod process;
pub mod sockperf;
pub mod synthetic_client;
