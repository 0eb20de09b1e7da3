//! The short pass of every fuzz target: its corpus, and seeded mutations of what is in it.

#[path = "../fuzz/src/lib.rs"]
#[allow(dead_code, reason = "the fuzzer uses the rest")]
mod fuzz;
#[path = "corpus/regressions.rs"]
mod regressions;

use fuzz::Target;

/// Runs the one input that the environment's `FUZZ_INPUT` has as `target:hexadecimal`; `FUZZ_TRACE` shows what it does.
#[test]
fn the_input_in_the_environment() {
    Target::run_from_environment(&TARGETS);
}

macro_rules! short_passes {
    ($($name:ident: $mutations:literal,)*) => {
        const TARGETS: [Target; 5] = [$(Target { name: stringify!($name), run: fuzz::$name }),*];

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
    listening: 3000,
    connected: 3000,
    closing: 3000,
    sequences: 3000,
    options: 200_000,
}
