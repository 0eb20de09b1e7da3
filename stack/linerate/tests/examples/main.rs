//! Examples of services: each runs in a simulation, and some run over kernel sockets.

#![allow(dead_code, reason = "the main functions of the examples are not called")]

mod http;
mod kernel;
mod simulated;

#[path = "../../examples/background.rs"]
mod background;
#[path = "../../examples/echo.rs"]
mod echo;
#[path = "../../examples/https.rs"]
mod https;
#[path = "../../examples/lines.rs"]
mod lines;
#[path = "../../examples/pool.rs"]
mod pool;
#[path = "../../examples/proxy.rs"]
mod proxy;
#[path = "../../examples/udp.rs"]
mod udp;
