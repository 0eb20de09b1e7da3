//! Bindings of the DPDK that is installed, generated when this crate is built.
//!
//! DPDK's structures change between releases and much of its interface is inline functions. So the bindings are of
//! `shim/shim.h`: what is inline is called through the shim, compiled with DPDK's own flags; what must be fast, the
//! fields of an mbuf, is reached at the offsets (`LR_MBUF_…`) that the compiler found in the installed headers; and
//! the structures that Rust fills or reads are the shim's own. Names that begin with `rte_` are DPDK's and behave as
//! its documentation says; those that begin with `lr_` and `LR_` are described in the header.

// Generated: C's names, and DPDK's documentation is elsewhere.
#![allow(non_camel_case_types, non_upper_case_globals, missing_docs, clippy::all)]

include!(concat!(env!("OUT_DIR"), "/bindings.rs"));

/// The device address of what no device can reach: DPDK's `RTE_BAD_IOVA`, which the shim checks.
pub const LR_BAD_IOVA: u64 = u64::MAX;
