//! RDMA verbs over iWARP between two guests, with connections by rdma_cm only.

use super::Suite;
use super::pair::{Pair, Provider};
use super::service::ALL;
use crate::host::Lab;
use crate::report::Report;

pub const SUITE: Suite = Suite { name: "siw", about: "RDMA verbs over iWARP, between two guests", run };

fn run(lab: &Lab, report: &mut Report) {
    let Some(module) = report.case("the module", || lab.image.siw(&lab.log)) else { return };
    let Some(pair) = report.case("two guests", || Pair::boot(lab, Provider::Siw(&module))) else { return };
    report.case("rping", || pair.rping());
    for service in ALL {
        report.case(service.name, || pair.answers(lab, service, ""));
    }
    report.case("rping is refused by a server", || pair.rping_is_refused(lab));
}
