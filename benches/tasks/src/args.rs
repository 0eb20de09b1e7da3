//! Command line, which `run` passes on. The usage is printed by `run`.

/// Command with its arguments.
#[derive(Debug, PartialEq, Eq)]
pub enum Args {
    /// Echo server, ordinary client, and comparison with kernel sockets.
    Demo,
    /// Checks and tests.
    Test {
        /// Adds the slow steps.
        all: bool,
        /// Names of steps; empty for all.
        steps: Vec<String>,
    },
    /// Measurement of published figures.
    Bench {
        /// Adds measurements with 8 GB of memory.
        all: bool,
        /// Names of figures; empty for all.
        parts: Vec<String>,
    },
    /// The book as pages for a browser.
    Book,
    /// Pictures of the book.
    Pictures,
    /// Suites in virtual machines.
    Lab {
        /// Arguments of the lab.
        suites: Vec<String>,
    },
    /// Debian package.
    Package,
}

impl Args {
    /// Parses the arguments after the program's name. Returns the first unknown one on error.
    pub fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Args, String> {
        let mut arguments = arguments.into_iter().peekable();
        let command = arguments.next().unwrap_or_default();
        let all = matches!(command.as_str(), "test" | "bench") && arguments.next_if_eq("--all").is_some();
        let mut rest: Vec<String> = arguments.collect();
        let args = match command.as_str() {
            "demo" => Args::Demo,
            "test" => Args::Test { all, steps: std::mem::take(&mut rest) },
            "bench" => Args::Bench { all, parts: std::mem::take(&mut rest) },
            "book" => Args::Book,
            "pictures" => Args::Pictures,
            "lab" => Args::Lab { suites: std::mem::take(&mut rest) },
            "package" => Args::Package,
            _ => return Err(command),
        };
        match rest.into_iter().next() {
            Some(unknown) => Err(unknown),
            None => Ok(args),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Args, String> {
        Args::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn commands_take_their_arguments() {
        assert_eq!(parse("demo"), Ok(Args::Demo));
        assert_eq!(parse("test"), Ok(Args::Test { all: false, steps: vec![] }));
        assert_eq!(parse("test --all"), Ok(Args::Test { all: true, steps: vec![] }));
        assert_eq!(parse("test --all Miri"), Ok(Args::Test { all: true, steps: vec!["Miri".into()] }));
        assert_eq!(parse("bench"), Ok(Args::Bench { all: false, parts: vec![] }));
        assert_eq!(parse("bench --all limits"), Ok(Args::Bench { all: true, parts: vec!["limits".into()] }));
        assert_eq!(
            parse("lab rxe --out pages"),
            Ok(Args::Lab { suites: ["rxe", "--out", "pages"].map(String::from).into() })
        );
        assert_eq!(parse("book"), Ok(Args::Book));
        assert_eq!(parse("pictures"), Ok(Args::Pictures));
        assert_eq!(parse("package"), Ok(Args::Package));
    }

    #[test]
    fn unknown_arguments_are_rejected() {
        assert_eq!(parse(""), Err(String::new()));
        assert_eq!(parse("tests"), Err("tests".into()));
        assert_eq!(parse("demo --all"), Err("--all".into()));
        assert_eq!(parse("book --all"), Err("--all".into()));
    }
}
