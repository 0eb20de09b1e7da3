//! Short run of every fuzz target: its corpus, and seeded mutations of it.

#[path = "../../fuzz/src/targets/mod.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod fuzz;

use fuzz::Target;

/// Runs the single input `target:hexadecimal` in the environment variable `FUZZ_INPUT`.
#[test]
#[ignore = "replays an input"]
fn input_in_environment_variable_does_not_panic() {
    Target::run_from_environment(&TARGETS);
}

macro_rules! short_passes {
    ($($name:ident: $mutations:literal,)*) => {
        const TARGETS: [Target; 4] = [$(Target { name: stringify!($name), run: fuzz::$name }),*];

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
    resp: 20_000,
    memcached: 20_000,
    sessions: 3000,
    datagrams: 3000,
}
