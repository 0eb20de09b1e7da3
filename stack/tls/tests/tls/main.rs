//! TLS between services and transports: order of events, hostile peers, and allocations.

#[path = "../../../kernel/tests/services/lingering.rs"]
mod lingering;
#[path = "../../../kernel/tests/services/contract.rs"]
mod order;

#[path = "../../../fuzz/src/corpus.rs"]
#[allow(dead_code, reason = "the fuzz targets of the stack use the rest")]
mod corpus;
#[path = "../../fuzz/src/lib.rs"]
mod fuzz;

mod certificates;
mod common;
mod contract;

/// Short pass of the fuzz target: its corpus and seeded mutations of it.
#[test]
fn records() {
    let target = corpus::Target { name: "records", run: fuzz::records };
    corpus::Target::run_from_environment(&[target]);
    target.short_pass(include_str!("../../fuzz/corpus/records"), 1000);
}
