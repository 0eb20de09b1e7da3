//! Pseudo-terminal for tests.

use crate::child::wrapped;
use crate::program::Program;
use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::fs::File;
use std::io::Read;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// Pseudo-terminal that records its output.
#[derive(Debug)]
pub struct Terminal {
    /// End of the user.
    pub keyboard: File,
    /// End of programs.
    pub screen: File,
    /// Path of the screen.
    name: String,
    written: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    /// Creates a terminal.
    ///
    /// # Panics
    /// If the system refuses it, as all functions do.
    pub fn new(columns: u16, rows: u16) -> Terminal {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a terminal");
        grantpt(&master).and_then(|()| unlockpt(&master)).expect("a terminal");
        let name = ptsname(&master, Vec::new()).expect("a name");
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let screen = File::from(open(name.as_c_str(), flags, Mode::empty()).expect("a screen"));
        let (keyboard, name) = (File::from(master), name.into_string().expect("a path"));
        let written = Arc::new(Mutex::new(Vec::new()));
        let (mut from, to) = (keyboard.try_clone().expect("a terminal"), written.clone());
        // The thread ends with the process: this end of the terminal stays open.
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(n @ 1..) = from.read(&mut bytes) {
                to.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&bytes[..n]);
            }
        });
        let terminal = Terminal { keyboard, screen, name, written };
        terminal.resize(columns, rows);
        terminal
    }

    /// Changes the size. A program without a controlling terminal receives no signal.
    pub fn resize(&self, columns: u16, rows: u16) {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.screen, size).expect("a size");
    }

    /// Returns everything that programs have written.
    pub fn written(&self) -> String {
        String::from_utf8_lossy(&self.written.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }

    /// Starts a program on the terminal. Its standard error is the terminal if `with_errors`.
    pub fn start(&self, command: &mut Command, with_errors: bool) -> Program {
        command.env("TERM", "xterm");
        // Without a new session, the program would query the controlling terminal of the test run for its size.
        let errors = if with_errors { " 2>$terminal" } else { "" };
        let script = format!("terminal=$0; exec setsid \"$@\" <$terminal >$terminal{errors}");
        Program::start(wrapped("sh", &["-c", &script, &self.name], command))
    }
}
