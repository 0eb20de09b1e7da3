//! `RdmaCore` on a device, against itself: queue pairs of one device are connected with each other, which reaches the driver
//! and not the wire. `LINERATE_RDMA_DEVICE` names it; without it nothing is tried.

mod allocations;
mod atomics;
mod connections;
mod datagrams;
mod messages;
mod remote_memory;
mod reset;
mod rig;
