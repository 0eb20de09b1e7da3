//! Preloaded library of `linerate run`: replaces the socket calls of libc, and carries the sockets at the addresses of
//! the network over the stack, in the threads of the program.
//!
//! A call passes one check, whether its descriptor is in the [table](descriptors). All other descriptors belong to the
//! kernel. The network starts with the first `bind` or `connect` that can concern it.
//!
//! Threads that wait, in `epoll_wait`, `poll` or a blocking call, run the turns of the worker. A descriptor of the
//! stack is also a socket of the kernel, which stays unused: its number, flags and options are real.
#![cfg(feature = "dpdk")]
#![allow(unsafe_code, reason = "the interface of libc")]

mod config;
mod descriptors;
mod explain;
mod helper;
mod hooks;
mod real;
mod runtime;
mod signals;
mod sockaddr;
mod start;
mod turns;
mod waiting;
