//! `linerate top` at a terminal.

use super::{Place, pid, until};
use crate::common::Program;
use rustix::fs::{Mode, OFlags, open};
use rustix::process::Signal;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};
use std::fs::File;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

const ENTERED: &str = "\u{1b}[?1049h";
const LEFT: &str = "\u{1b}[?1049l";
const CURSOR: &str = "\u{1b}[?25h";

/// A terminal, and what was written on it.
struct Terminal {
    keyboard: File,
    screen: File,
    written: Arc<Mutex<Vec<u8>>>,
    before: Termios,
}

impl Terminal {
    fn new(columns: u16, rows: u16) -> Terminal {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let screen = open(name.as_c_str(), OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        tcsetwinsize(&screen, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        let (before, keyboard) = (tcgetattr(&screen).unwrap(), File::from(master));
        let written = Arc::new(Mutex::new(Vec::new()));
        let (mut from, to) = (keyboard.try_clone().unwrap(), written.clone());
        // It ends with the test's process: this end of the terminal stays open.
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(n @ 1..) = from.read(&mut bytes) {
                to.lock().unwrap().extend_from_slice(&bytes[..n]);
            }
        });
        Terminal { keyboard, screen: File::from(screen), written, before }
    }

    fn written(&self) -> String {
        String::from_utf8_lossy(&self.written.lock().unwrap()).into_owned()
    }

    /// `linerate top` at it, once it shows something.
    fn top(&self, place: &Place) -> Program {
        let top = place.command("top --interval 100ms");
        // In a session of its own it has no terminal but this one: it would ask the one that tests are run at for its size.
        let mut command = Command::new("setsid");
        command.arg(top.get_program()).args(top.get_args());
        for (name, value) in top.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.stdin(self.screen.try_clone().unwrap()).stdout(self.screen.try_clone().unwrap()).stderr(Stdio::piped());
        let top = Program::of(command.env("TERM", "xterm").spawn().unwrap());
        // What is drawn comes in pieces, as what is there already is left out.
        until(|| self.written().contains(ENTERED) && self.written().contains("top:"));
        assert_ne!(modes(&tcgetattr(&self.screen).unwrap()), modes(&self.before));
        top
    }

    #[track_caller]
    fn is_as_it_was(&self) {
        until(|| self.written().contains(LEFT));
        let written = self.written();
        assert!(written.rfind(ENTERED) < written.rfind(LEFT) && written.contains(CURSOR), "{written:?}");
        assert_eq!(modes(&tcgetattr(&self.screen).unwrap()), modes(&self.before));
    }
}

fn modes(termios: &Termios) -> String {
    format!("{:?}", (termios.input_modes, termios.output_modes, termios.control_modes, termios.local_modes))
}

#[test]
fn each_way_to_end_it_leaves_the_terminal_as_it_was() {
    let place = Place::new();
    let (server, _) = place.serve("echo", "");
    for keys in [&b"q"[..], b"\x1b", b"\x03", b"sr+-wq"] {
        let mut terminal = Terminal::new(80, 24);
        let top = terminal.top(&place);
        terminal.keyboard.write_all(keys).unwrap();
        let output = top.wait();
        assert!(output.status.success() && output.stderr.is_empty(), "{keys:?}: {output:?}");
        terminal.is_as_it_was();
    }
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let terminal = Terminal::new(80, 24);
        let top = terminal.top(&place);
        top.signal(signal);
        let output = top.wait();
        assert!(output.status.success(), "{signal:?}: {output:?}");
        terminal.is_as_it_was();
    }
    server.stop();
}

#[test]
fn it_ends_with_the_process_and_says_so() {
    let place = Place::new();
    let (mut server, _) = place.serve("echo", "");
    let terminal = Terminal::new(80, 24);
    let (top, pid) = (terminal.top(&place), pid(&mut server));
    server.stop();
    let output = top.wait();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(crate::text(&output.stderr), format!("linerate top: the process {pid} has ended\n"));
    terminal.is_as_it_was();
}

#[test]
fn windows_may_be_small_and_change_their_size() {
    let place = Place::new();
    let (server, _) = place.serve("echo", "");
    let mut terminal = Terminal::new(30, 5);
    let top = terminal.top(&place);
    for (columns, rows) in [(1, 1), (200, 60), (10, 2), (80, 24)] {
        tcsetwinsize(&terminal.screen, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        // It has no controlling terminal that would tell it.
        top.signal(Signal::WINCH);
        let had = terminal.written().len();
        until(|| terminal.written().len() > had);
    }
    until(|| terminal.written().contains("quit"));
    terminal.keyboard.write_all(b"q").unwrap();
    let output = top.wait();
    assert!(output.status.success(), "{output:?}");
    terminal.is_as_it_was();
    server.stop();
}
