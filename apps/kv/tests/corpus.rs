//! The short pass of every fuzz target: its corpus, and seeded mutations of what is in it.

#[path = "../fuzz/src/lib.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod fuzz;

use fuzz::Target;

/// Runs the one input that the environment's `FUZZ_INPUT` has as `target:hexadecimal`.
#[test]
fn the_input_in_the_environment() {
    Target::run_from_environment(&TARGETS);
}

macro_rules! short_passes {
    ($($name:ident: $mutations:literal,)*) => {
        const TARGETS: [Target; 4] = [$(Target { name: stringify!($name), run: fuzz::$name }),*];

        $(
            #[test]
            fn $name() {
                let target = Target { name: stringify!($name), run: fuzz::$name };
                target.short_pass(include_str!(concat!("../fuzz/corpus/", stringify!($name))), $mutations);
            }
        )*
    };
}

short_passes! {
    resp: 20_000,
    memcached: 20_000,
    sessions: 3000,
    datagrams: 3000,
}
