//! Workers and their services on an in-memory link in virtual time, tested from outside. One test binary, so that the
//! engines are compiled once.

#[macro_use]
mod common;

mod host;
mod service;
mod tcp;
