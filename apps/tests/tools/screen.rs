//! `linerate top` on a terminal.

use crate::inspect::RuntimeDir;
use linerate_harness::program::Program;
use linerate_harness::terminal;
use linerate_harness::wait_for;
use rustix::process::Signal;
use rustix::termios::{Termios, tcgetattr};
use std::io::Write;

const ENTERED: &str = "\u{1b}[?1049h";
const LEFT: &str = "\u{1b}[?1049l";
const CURSOR: &str = "\u{1b}[?25h";

/// Terminal with its modes before any program used it.
struct Terminal {
    inner: terminal::Terminal,
    before: Termios,
}

impl Terminal {
    fn new(columns: u16, rows: u16) -> Terminal {
        let inner = terminal::Terminal::new(columns, rows);
        let before = tcgetattr(&inner.screen).unwrap();
        Terminal { inner, before }
    }

    /// Starts `linerate top` on the terminal and waits until it draws.
    fn top(&self, dir: &RuntimeDir) -> Program {
        let top = self.start(dir);
        // Output is incremental: unchanged cells are not redrawn.
        wait_for("the terminal", || self.inner.written().contains(ENTERED) && self.inner.written().contains("top:"));
        assert_ne!(modes(&tcgetattr(&self.inner.screen).unwrap()), modes(&self.before));
        top
    }

    fn start(&self, dir: &RuntimeDir) -> Program {
        self.inner.start(&mut dir.command("top --interval 100ms"), false)
    }

    #[track_caller]
    fn assert_restored(&self) {
        wait_for("the terminal", || self.inner.written().contains(LEFT));
        let written = self.inner.written();
        assert!(written.rfind(ENTERED) < written.rfind(LEFT) && written.contains(CURSOR), "{written:?}");
        assert_eq!(modes(&tcgetattr(&self.inner.screen).unwrap()), modes(&self.before));
    }
}

fn modes(termios: &Termios) -> String {
    format!("{:?}", (termios.input_modes, termios.output_modes, termios.control_modes, termios.local_modes))
}

#[test]
fn top_restores_the_terminal_however_it_ends() {
    let dir = RuntimeDir::new();
    let (server, _) = dir.serve("echo", "");
    for keys in [&b"q"[..], b"\x1b", b"\x03", b"sr+-wq"] {
        let mut terminal = Terminal::new(80, 24);
        let top = terminal.top(&dir);
        terminal.inner.keyboard.write_all(keys).unwrap();
        let output = top.wait();
        assert!(output.status.success() && output.stderr.is_empty(), "{keys:?}: {output:?}");
        terminal.assert_restored();
    }
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let terminal = Terminal::new(80, 24);
        let top = terminal.top(&dir);
        top.signal(signal);
        let output = top.wait();
        assert!(output.status.success(), "{signal:?}: {output:?}");
        terminal.assert_restored();
    }
    server.stop();
}

#[test]
fn top_ends_with_the_inspected_process() {
    let dir = RuntimeDir::new();
    let (server, _) = dir.serve("echo", "");
    let terminal = Terminal::new(80, 24);
    let (top, pid) = (terminal.top(&dir), server.pid());
    server.stop();
    let output = top.wait();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(output.stderr, format!("linerate top: process {pid} has ended\n"));
    terminal.assert_restored();
}

#[test]
fn top_handles_small_windows_and_resizing() {
    let dir = RuntimeDir::new();
    let (server, _) = dir.serve("echo", "");
    let mut terminal = Terminal::new(30, 5);
    let mut top = terminal.top(&dir);
    for (columns, rows) in [(1, 1), (200, 60), (10, 2), (80, 24)] {
        terminal.inner.resize(columns, rows);
        // Without a controlling terminal, SIGWINCH must be sent explicitly.
        top.signal(Signal::WINCH);
        let had = terminal.inner.written().len();
        wait_for("the terminal", || terminal.inner.written().len() > had);
    }
    wait_for("the terminal", || terminal.inner.written().contains("quit"));
    // crossterm reads a key that arrives together with a signal only when the next key arrives.
    wait_for("the end", || {
        terminal.inner.keyboard.write_all(b"q").unwrap();
        !top.is_running()
    });
    let output = top.wait();
    assert!(output.status.success(), "{output:?}");
    terminal.assert_restored();
    server.stop();
}

#[test]
fn top_shows_that_a_process_is_stopped_and_continues_with_it() {
    let dir = RuntimeDir::new();
    let (server, _) = dir.serve("echo", "");
    let mut terminal = Terminal::new(120, 24);
    let top = terminal.top(&dir);
    // Over the heading of the first sample, the note is drawn as a whole. Blanks over blanks are not drawn.
    wait_for("a sample", || terminal.inner.written().contains("drops:"));
    server.signal(Signal::STOP);
    wait_for("the note", || terminal.inner.written().contains("stale: no reply for"));
    server.signal(Signal::CONT);
    // The heading is redrawn without the note, so that the command after the note is visible again.
    let had = terminal.inner.written().len();
    wait_for("the terminal", || terminal.inner.written()[had..].contains("--via"));
    terminal.inner.keyboard.write_all(b"q").unwrap();
    assert!(top.wait().status.success());
    server.stop();
}

#[test]
fn top_offers_a_choice_of_several_processes() {
    let dir = RuntimeDir::new();
    let (first, _) = dir.serve("echo", "");
    let (second, _) = dir.serve("discard", "");
    let mut terminal = Terminal::new(80, 24);
    let top = terminal.start(&dir);
    wait_for("the question", || terminal.inner.written().contains("Number of the process"));
    let written = terminal.inner.written();
    let line = written.lines().find(|line| line.contains(&second.pid().to_string())).unwrap();
    assert!(line.contains("discard serve") && written.contains(&first.pid().to_string()), "{written}");
    let number = line.split_whitespace().next().unwrap();
    // An invalid number repeats the question.
    terminal.inner.keyboard.write_all(format!("9\n{number}\n").as_bytes()).unwrap();
    wait_for("the screen", || terminal.inner.written().contains(&format!("top: pid {}", second.pid())));
    terminal.inner.keyboard.write_all(b"q").unwrap();
    assert!(top.wait().status.success());
    assert_eq!(terminal.inner.written().matches("Number of the process").count(), 2);
    first.stop();
    second.stop();
}
