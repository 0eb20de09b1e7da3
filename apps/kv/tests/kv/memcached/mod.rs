//! memcached protocol on shards, alone and compared with a real memcached.

mod behaviour;
mod client;
mod cuts;
mod differential;
mod real;
mod steps;
