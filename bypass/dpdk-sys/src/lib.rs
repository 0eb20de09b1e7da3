//! Bindings of the installed DPDK, generated when this crate is built.
//!
//! DPDK's structures change between releases, and much of its interface is inline functions. The bindings therefore
//! cover `shim/shim.h`, and of DPDK only functions with simple arguments. Inline functions are called through the shim,
//! which is compiled with DPDK's flags. Fields of an mbuf, which must be fast, are accessed at the offsets
//! (`LR_MBUF_…`) in the installed headers. Structures that Rust reads or writes are the shim's own. Names that start
//! with `rte_` are DPDK's; names that start with `lr_` and `LR_` are described in the header.

// Generated from C, so names follow C, and DPDK's items are documented by DPDK.
#![allow(non_camel_case_types, non_upper_case_globals, missing_docs, clippy::all)]

include!(concat!(env!("OUT_DIR"), "/bindings.rs"));

/// Invalid device address: DPDK's `RTE_BAD_IOVA`, as the shim verifies.
pub const LR_BAD_IOVA: u64 = u64::MAX;
