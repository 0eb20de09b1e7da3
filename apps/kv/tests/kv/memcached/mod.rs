//! memcached protocol on shards, alone and compared with a real memcached.

mod behaviour;
mod client;
mod differential;
mod real;
mod steps;
