//! Services over kernel sockets, against sockets of the standard library.

#[path = "../services/clients.rs"]
mod clients;
mod common;
mod contract;
mod draining;
mod echo;
mod endings;
mod four_services;
mod inspect;
mod limits;
mod lingering;
mod outgoing;
mod sending;
#[path = "../services/mod.rs"]
mod services;
