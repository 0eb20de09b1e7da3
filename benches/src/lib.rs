//! What the benches share. Each published figure comes from one of the programs in `src/bin`.
#![forbid(unsafe_code)]

pub mod client;
pub mod echo_pair;
<<<<<<< HEAD
pub mod engine;
=======
pub mod goodput;
pub mod impair;
>>>>>>> f1488fa833f07abf598d594e6ddd924cb4943981
pub mod process;
pub mod sockperf;
