//! Test suites, one per file. Each boots its guests and reports its cases.

mod af_xdp;
mod compare;
mod connect_bench;
mod kills;
mod loss;
mod one_sided;
mod pair;
mod roce;
mod roce_verbs;
mod rxe;
mod service;
mod share;
mod siw;
mod vhost;
mod virtio_pci;

use crate::host::Lab;
use crate::report::Report;

/// Test suite.
#[derive(Debug)]
pub struct Suite {
    /// Name on the command line.
    pub name: &'static str,
    /// Description.
    pub about: &'static str,
    /// Runs the cases.
    pub run: fn(&Lab, &mut Report),
}

/// All suites, in the order in which they run.
pub const SUITES: &[Suite] = &[
    rxe::SUITE,
    roce::SUITE,
    roce_verbs::SUITE,
    siw::SUITE,
    virtio_pci::SUITE,
    af_xdp::SUITE,
    share::SUITE,
    vhost::SUITE,
    compare::SUITE,
];

/// Parts of suites, which run only when named.
pub const PARTS: &[Suite] =
    &[rxe::QUICK, connect_bench::SUITE, one_sided::SUITE, kills::SUITE, loss::SUITE, one_sided::MILLION];
