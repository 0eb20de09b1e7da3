//! Connection lifecycle: establishment, close, timeouts, and segments that belong to no connection.

mod blind_attacks;
mod close;
mod half_open;
mod handshake;
mod idle_timeouts;
mod keepalive;
mod lingering_close;
mod no_connection;
mod syn_cookies;
mod time_wait;
