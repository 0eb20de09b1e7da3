//! Data transfer: acknowledgements, flow control, and TCP options.

mod ack_generation;
mod dsack;
mod timestamps;
mod transfer;
mod window;
