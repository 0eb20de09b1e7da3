//! Tests with DPDK: packets, and ports of every kind that this machine supports.
//!
//! EAL starts once per process, so each test runs in its own process (`linerate_harness::rerun`), and links between two
//! processes in two.
#![cfg(feature = "dpdk")]

mod frames;
mod links;
mod network;
mod packets;
mod ports;
mod process;
mod rtnetlink;
mod survival;
mod virtqueues;
mod wakeups;
