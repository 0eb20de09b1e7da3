//! Corpora with one hexadecimal input per line, their mutations, and the short pass of ordinary tests.

/// Fuzz target.
#[derive(Clone, Copy)]
pub struct Target {
    /// Name of the fuzz target and of its corpus.
    pub name: &'static str,
    /// Function that runs an input.
    pub run: fn(&[u8]),
}

/// Prints how to repeat the current input, if it panics.
struct Running<'a>(&'a str, &'a [u8]);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Running(target, input) = self;
            eprintln!("to repeat, use this line in fuzz/corpus/{target}:\n{}", to_hex(input));
        }
    }
}

impl Target {
    fn run(&self, input: &[u8]) {
        let running = Running(self.name, input);
        (self.run)(input);
        drop(running);
    }

    /// Runs the corpus `text` and `mutations` mutations of it. The environment variables `FUZZ_SEED` and `FUZZ_CASES`
    /// set the random seed and the number of mutations.
    pub fn short_pass(&self, text: &str, mutations: u64) {
        let number = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().expect(name));
        let corpus = parse(text);
        corpus.iter().for_each(|input| self.run(input));
        let mut random = fastrand::Rng::with_seed(number("FUZZ_SEED").unwrap_or(1));
        for _ in 0..number("FUZZ_CASES").unwrap_or(mutations) {
            self.run(&mutated(&corpus, &mut random));
        }
    }

    /// Runs the input in the environment variable `FUZZ_INPUT`, of the form `target:hexadecimal`.
    pub fn run_from_environment(all: &[Target]) {
        let Ok(input) = std::env::var("FUZZ_INPUT") else { return };
        let (name, line) = input.split_once(':').expect("a target and an input");
        let target = all.iter().find(|target| target.name == name).expect("a target");
        parse(line).iter().for_each(|input| target.run(input));
    }
}

/// Parses one input per line of `text`. Empty lines and lines that begin with `#` are skipped.
///
/// # Panics
///
/// If another line is not hexadecimal.
pub fn parse(text: &str) -> Vec<Vec<u8>> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| from_hex(line).unwrap_or_else(|| panic!("not hexadecimal: {line}"))).collect()
}

fn from_hex(line: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = line.as_bytes().as_chunks::<2>();
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let byte = |[high, low]: &[u8; 2]| Some(digit(*high)? << 4 | digit(*low)?);
    if rest.is_empty() { pairs.iter().map(byte).collect() } else { None }
}

/// Returns an input as a line of a corpus.
pub fn to_hex(input: &[u8]) -> String {
    input.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns a mutation of one of `corpus`: bytes changed, inserted, removed or repeated, or the end replaced by another
/// input's.
pub fn mutated(corpus: &[Vec<u8>], random: &mut fastrand::Rng) -> Vec<u8> {
    const INTERESTING: [u8; 12] = [0, 1, 2, 4, 16, 17, 18, 32, 64, 127, 128, 255];
    let pick =
        |random: &mut fastrand::Rng| corpus.get(random.usize(..corpus.len().max(1))).cloned().unwrap_or_default();
    let mut input = pick(random);
    for _ in 0..1 << random.u8(..5) {
        let at = random.usize(..=input.len());
        let len = random.usize(..=(input.len() - at).min(32));
        match random.u8(..8) {
            0 | 1 => {
                if let Some(byte) = input.get_mut(at) {
                    *byte ^= 1 << random.u8(..8);
                }
            }
            2 => {
                if let Some(byte) = input.get_mut(at) {
                    *byte = random.u8(..);
                }
            }
            3 => {
                if let Some(byte) = input.get_mut(at) {
                    *byte = INTERESTING[random.usize(..INTERESTING.len())];
                }
            }
            4 => {
                input.drain(at..at + len);
            }
            5 => {
                let repeated = input[at..at + len].to_vec();
                input.splice(at..at, repeated);
            }
            6 => {
                let inserted: Vec<u8> = (0..random.usize(..8)).map(|_| random.u8(..)).collect();
                input.splice(at..at, inserted);
            }
            _ => {
                let other = pick(random);
                input.truncate(at);
                input.extend_from_slice(&other[random.usize(..=other.len())..]);
            }
        }
    }
    input.truncate(MOST);
    input
}

/// Maximum length of an input.
const MOST: usize = 4096;
