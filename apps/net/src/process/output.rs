//! Standard output and standard error, which may be pipes that nobody reads any more.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};

/// Writes one line to standard output and flushes it. A reader that has gone is no error: it has seen enough.
pub fn print_line(line: impl Display) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    match writeln!(stdout, "{line}").and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// Writes one line to standard error. Where even that cannot be written, there is nobody to tell.
pub fn tell(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}
