//! Requirements on measurements: limits and accepted instruction counts.

pub mod baseline;
pub mod instructions;
pub mod limit;
