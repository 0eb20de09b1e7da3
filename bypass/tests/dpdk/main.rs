//! The DPDK part for real: packets, and ports of every kind that this machine can make.
//!
//! EAL starts once a process, so each test runs in a process of its own (`process.rs`), and links between two
//! processes in two of them.
#![cfg(feature = "dpdk")]

mod frames;
mod links;
mod network;
mod packets;
mod ports;
mod process;
mod survival;
mod virtqueues;
