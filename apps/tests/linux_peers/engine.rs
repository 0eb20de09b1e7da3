//! Which TCP engine is tested.

/// Names the engine to test: `native` or `smoltcp`. Unset, the program is left to its default.
const VARIABLE: &str = "LINERATE_TEST_ENGINE";
/// The engine that the program takes when it is not told.
const DEFAULT: &str = "native";

fn named() -> Option<String> {
    std::env::var(VARIABLE).ok().filter(|engine| !engine.is_empty())
}

/// A service and arguments, with the engine to test behind them.
pub fn on_engine(service: &str) -> String {
    match named() {
        Some(engine) => format!("{service} --engine {engine}"),
        None => service.to_owned(),
    }
}

/// Whether the native engine is tested.
pub fn is_native() -> bool {
    named().as_deref().unwrap_or(DEFAULT) == "native"
}

/// Whether the native engine is tested, without which `test` cannot pass; says so if it is not.
pub fn is_native_for(test: &str) -> bool {
    if !is_native() {
        eprintln!("skipped: {test} needs the native engine ({VARIABLE}=native)");
    }
    is_native()
}
