//! `RdmaCore` on one device: its queue pairs are connected with each other, which tests the driver but not the wire.
//! `LINERATE_RDMA_DEVICE` names the device; without it all tests are skipped.

mod allocations;
mod atomics;
mod connections;
mod datagrams;
mod messages;
mod remote_memory;
mod reset;
mod rig;
