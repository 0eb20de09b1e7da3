//! Lines on standard output and standard error, which may be pipes without a reader.

use std::fmt::Display;
use std::io::{self, ErrorKind, IsTerminal, Write};

/// Writes one line to standard output and flushes it. A pipe without a reader is no error.
pub fn print_line(line: impl Display) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    match writeln!(stdout, "{line}").and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// Writes one line to standard error, and ignores errors: there is no other place to report them.
pub fn eprint_line(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Returns whether `stream` may be coloured: it is a terminal, and `NO_COLOR` is unset or empty (no-color.org).
pub fn is_coloured(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}
