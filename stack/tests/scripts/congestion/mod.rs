//! Congestion control and loss recovery.

mod cwnd;
mod ecn;
mod loss_recovery;
mod pacing;
mod rto;
