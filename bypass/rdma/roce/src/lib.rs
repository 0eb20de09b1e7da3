//! RoCEv2 in software (InfiniBand Architecture Specification, volume 1, release 1.4, with annexes A16 and A17).
//!
//! The engine is sans-IO: time and packets are arguments, packets are written into buffers of the caller, and
//! randomness is seeded. Equal input gives equal output.

#[cfg_attr(not(test), expect(dead_code, reason = "used by the provider"))]
mod cm;
mod table;
mod waker;
