//! `linerate compare`, `linerate top` and `linerate conns`.

#[path = "../common/mod.rs"]
mod common;
mod compare;
mod inspect;
mod screen;
