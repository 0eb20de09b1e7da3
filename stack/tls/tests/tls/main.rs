//! TLS between services and transports: order of events, hostile peers, and allocations.

#[path = "../../../kernel/tests/services/lingering.rs"]
mod lingering;
#[path = "../../../kernel/tests/services/contract.rs"]
mod order;

mod certificates;
mod common;
mod contract;
