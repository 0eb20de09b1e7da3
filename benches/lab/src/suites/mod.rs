//! The suites, a file each. A suite boots what it needs, and reports cases.

mod af_xdp;
mod compare;
mod connect_bench;
mod counts;
mod kills;
mod one_sided;
mod pair;
mod perf;
mod perftest;
mod rxe;
mod service;
mod siw;
mod vhost;
mod virtio_pci;

use crate::host::Lab;
use crate::report::Report;

/// A suite.
#[derive(Debug)]
pub struct Suite {
    /// What it is called on the command line.
    pub name: &'static str,
    /// What it shows.
    pub about: &'static str,
    /// Runs its cases.
    pub run: fn(&Lab, &mut Report),
}

/// All of them, in the order in which they run.
pub const SUITES: &[Suite] = &[rxe::SUITE, siw::SUITE, virtio_pci::SUITE, af_xdp::SUITE, vhost::SUITE, compare::SUITE];

/// Parts of these, which run when they are named.
pub const PARTS: &[Suite] =
    &[rxe::QUICK, counts::SUITE, perf::SUITE, connect_bench::SUITE, one_sided::SUITE, kills::SUITE, one_sided::MILLION];
