//! Tests with DPDK: packets, and ports of every kind that this machine supports.
//!
//! EAL starts once per process, so each test runs in its own process (`process.rs`), and links between two processes in
//! two.
#![cfg(feature = "dpdk")]

mod frames;
mod links;
mod network;
mod packets;
mod ports;
mod process;
mod survival;
mod virtqueues;
