//! Selection of the TCP engine under test.

use linerate_harness::rerun::skip;

/// Environment variable with the engine to test, `native` or `smoltcp`. If unset, the program uses its default.
const VARIABLE: &str = "LINERATE_TEST_ENGINE";
/// Default engine of the program.
const DEFAULT: &str = "native";

fn named() -> Option<String> {
    std::env::var(VARIABLE).ok().filter(|engine| !engine.is_empty())
}

/// Appends the option for the engine under test to a service and its arguments.
pub fn on_engine(service: &str) -> String {
    match named() {
        Some(engine) => format!("{service} --engine {engine}"),
        None => service.to_owned(),
    }
}

/// Returns whether the native engine is under test.
pub fn is_native() -> bool {
    named().as_deref().unwrap_or(DEFAULT) == "native"
}

/// Returns whether the native engine is under test. Prints a message if not.
pub fn needs_native() -> bool {
    if !is_native() {
        skip(&format!("needs the native engine ({VARIABLE}=native)"));
    }
    is_native()
}
