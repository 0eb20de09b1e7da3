//! Tasks on the stack, over a link in memory and in virtual time.

mod allocations;
mod network;
mod sockets;
mod streams;
mod tasks;
