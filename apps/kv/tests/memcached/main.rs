//! memcached's protocol over shards, alone and beside a real memcached.

mod behaviour;
mod client;
mod differential;
mod pieces;
mod real;
mod steps;
