//! `linerate`.
fn main() {}
