//! The native engine: TCP for packets that stay where the port put them.

mod cookies;
mod flow_table;
mod isn;
mod options;
mod recovery;
mod seq;
mod time_wait;
