//! RDMA verbs over Soft-RoCE, between two guests: real RoCEv2 packets.

use super::Suite;
use super::pair::{Pair, Provider};
use crate::host::Lab;
use crate::report::Report;

pub const SUITE: Suite = Suite { name: "rxe", about: "RDMA verbs over Soft-RoCE, between two guests", run };

fn run(lab: &Lab, report: &mut Report) {
    let Some(pair) = report.case("two guests", || Pair::boot(lab, Provider::Rxe)) else { return };
    report.case("rping", || pair.rping());
}
