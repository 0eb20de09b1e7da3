//! Requirements on measured figures: limits, ratios, and accepted instruction counts.

pub mod baseline;
pub mod instructions;
pub mod limit;
pub mod ratios;
