//! The short pass of every fuzz target: its corpus, and seeded mutations of what is in it.

#[path = "../fuzz/src/lib.rs"]
#[allow(dead_code, reason = "the fuzzer uses the rest")]
mod fuzz;
#[path = "corpus/regressions.rs"]
mod regressions;

use fuzz::Target;

/// Says how the input that is being run can be run again, if it panics.
struct Running<'a>(&'a str, &'a [u8]);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Running(target, input) = self;
            eprintln!("this line in stack/fuzz/corpus/{target} does it again:\n{}", fuzz::to_hex(input));
        }
    }
}

fn run(target: Target, input: &[u8]) {
    let running = Running(target.name, input);
    (target.run)(input);
    drop(running);
}

/// Runs the corpus `text` and `mutations` mutations of it. The environment's `FUZZ_SEED` and `FUZZ_CASES` say where the
/// randomness begins and how many there are, if not as ever.
fn short_pass(target: Target, text: &str, mutations: u64) {
    let number = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().expect(name));
    let corpus = fuzz::parse(text);
    corpus.iter().for_each(|input| run(target, input));
    let mut random = fastrand::Rng::with_seed(number("FUZZ_SEED").unwrap_or(1));
    for _ in 0..number("FUZZ_CASES").unwrap_or(mutations) {
        run(target, &fuzz::mutated(&corpus, &mut random));
    }
}

/// Runs the one input that the environment's `FUZZ_INPUT` has as `target:hexadecimal`; `FUZZ_TRACE` shows what it does.
#[test]
fn the_input_in_the_environment() {
    let Ok(asked) = std::env::var("FUZZ_INPUT") else { return };
    let (name, line) = asked.split_once(':').expect("a target and an input");
    let target = TARGETS.into_iter().find(|target| target.name == name).expect("a target");
    fuzz::parse(line).iter().for_each(|input| run(target, input));
}

macro_rules! short_passes {
    ($($name:ident: $mutations:literal,)*) => {
        const TARGETS: [Target; 5] = [$(Target { name: stringify!($name), run: fuzz::$name }),*];

        $(
            #[test]
            fn $name() {
                let target = Target { name: stringify!($name), run: fuzz::$name };
                short_pass(target, include_str!(concat!("../fuzz/corpus/", stringify!($name))), $mutations);
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
