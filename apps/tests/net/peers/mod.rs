//! TCP of `linerate` and of the Linux kernel as client and server: options on and off, bulk transfer from iperf, many
//! connections, and floods.
//!
//! The kernel peer is a network namespace, which needs root: without root, tests print a message and pass. The engine
//! is the default of the program or the value of `LINERATE_TEST_ENGINE` ([`engine`]).

mod connects;
mod engine;
mod flood;
mod iperf;
mod options;
mod spoofed;
mod starvation;
