//! Workers and the services on them, on a link in memory and in virtual time: all that a host does, seen from outside. One program, for
//! each of them would have the engines compiled into it once more.

#[macro_use]
mod common;

mod connections;
mod contract;
mod datagrams;
mod dhcp;
mod found;
mod hostile;
mod hosts;
mod inspect;
mod lingering;
mod martians;
mod messages;
mod neighbors;
mod pool;
mod presence;
mod services;
mod slaac;
mod sources;
mod streams;
mod vlan;
mod zero_copy;
