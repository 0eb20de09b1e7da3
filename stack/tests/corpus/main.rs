//! Short pass of every fuzz target: its corpus and seeded mutations of it.

#[path = "../../fuzz/src/lib.rs"]
#[allow(dead_code, reason = "only the fuzzer uses the rest")]
mod fuzz;
mod regressions;

use fuzz::Target;

/// Runs the input in `FUZZ_INPUT`, of the form `target:hexadecimal`. `FUZZ_TRACE` traces it.
#[test]
fn input_from_environment() {
    Target::run_from_environment(&TARGETS);
}

macro_rules! short_passes {
    ($($name:ident: $mutations:literal,)*) => {
        const TARGETS: [Target; 5] = [$(Target { name: stringify!($name), run: fuzz::$name }),*];

        $(
            #[test]
            fn $name() {
                let target = Target { name: stringify!($name), run: fuzz::$name };
                target.short_pass(include_str!(concat!("../../fuzz/corpus/", stringify!($name))), $mutations);
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
