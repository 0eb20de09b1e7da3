//! Ends of connections.

mod failing;
mod leaving;
mod lingering;
