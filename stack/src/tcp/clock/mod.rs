//! Timing wheel, times in its ticks, and clocks derived from the time of the worker.

pub(crate) mod challenge_ack;
pub(crate) mod tick;
pub(crate) mod timestamps;
pub(crate) mod wheel;
