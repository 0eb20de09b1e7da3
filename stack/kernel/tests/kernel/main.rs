//! Services over kernel sockets, against ordinary sockets of the standard library.

mod common;
mod contract;
mod draining;
mod echo;
mod endings;
mod four_services;
mod limits;
mod lingering;
mod looks;
mod outgoing;
mod sending;
#[path = "../services/mod.rs"]
mod services;
#[path = "../../../../benches/src/unused_address.rs"]
mod unused_address;
