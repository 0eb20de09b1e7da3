//! The TCP of `linerate` against that of the Linux kernel, both ways: options on and off, bulk from a well-known
//! program, many connections, and a flood.
//!
//! The kernel is a network namespace, which needs root: without it a test says so in one line and does nothing. The
//! engine is the program's default, or the one that `LINERATE_TEST_ENGINE` names ([`engine`]).

#[path = "../net/client.rs"]
mod client;
#[path = "../net/namespace.rs"]
#[expect(dead_code, reason = "each target of tests uses a part of it")]
mod namespace;
#[path = "../net/program.rs"]
#[expect(dead_code, reason = "each target of tests uses a part of it")]
mod program;
#[path = "../net/wire.rs"]
mod wire;

mod connects;
mod engine;
mod flood;
mod iperf;
mod options;
mod spoofed;
mod starvation;
