//! What must not compile: each file of `tests/misuse` is a mistake that the types forbid, and beside it is what the
//! compiler says. Where another release of it says the same in other words, `TRYBUILD=overwrite` writes them down.
#![cfg(feature = "dpdk")]

#[test]
fn misuse_of_packets_and_queue_pairs_does_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/misuse/*.rs");
}
