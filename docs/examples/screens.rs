//! Draws the screen of `linerate top` for a key-value server under load, for `./run pictures`:
//! `docs/src/pictures/top.svg`. The argument is the path of `linerate`. Two processes run on a virtio-user link, which
//! needs hugepages or DPDK's memory without them.

use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const COLUMNS: u16 = 110;
const ROWS: u16 = 24;
/// Running time of the load when the picture is taken: a few display intervals.
const UNDER_LOAD: Duration = Duration::from_secs(6);
/// Size of a character and margin of the picture, in user units.
const WIDTH: f32 = 8.43;
const HEIGHT: f32 = 18.0;
const MARGIN: f32 = 8.0;

/// Running program, killed on drop.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // The program may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn main() -> io::Result<()> {
    let program = std::env::args().nth(1).ok_or_else(|| io::Error::other("usage: screens target/release/linerate"))?;
    let program = fs::canonicalize(program)?;
    // A separate runtime directory, so that `top` finds no other process.
    let directory = tempfile::tempdir()?;
    let linerate = |arguments: &str| {
        let mut command = Command::new(&program);
        command.args(arguments.split(' ')).env("RUNTIME_DIRECTORY", directory.path()).current_dir(directory.path());
        command
    };
    let server = "kv serve --via vhost:link --ip 10.77.1.2/24 --listen 10.77.1.2:6379 --cores 0";
    let load = "kv load --via virtio-user:link --ip 10.77.1.1/24 --connect 10.77.1.2:6379 --cores 1 --connections 64 --depth 4 \
                --keys 10000 --duration 60s";
    let mut server = Running(linerate(server).stdout(Stdio::piped()).spawn()?);
    let mut ready = String::new();
    BufReader::new(server.0.stdout.take().expect("it is a pipe")).read_line(&mut ready)?;
    let mut load = Running(linerate(load).stdout(Stdio::null()).spawn()?);
    let mut top = linerate(&format!("top --pid {}", server.0.id()));
    let screen = shown(top.env("TERM", "xterm-256color"))?;
    if load.0.try_wait()?.is_some() {
        return Err(io::Error::other("the load has ended before the picture was taken"));
    }
    fs::write(format!("{}/src/pictures/top.svg", env!("CARGO_MANIFEST_DIR")), drawn(screen.screen()))?;
    println!("docs/src/pictures/top.svg");
    Ok(())
}

/// Returns the screen of a terminal on which `command` has run for [`UNDER_LOAD`].
fn shown(command: &Command) -> io::Result<vt100::Parser> {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&master)?;
    unlockpt(&master)?;
    let name = ptsname(&master, Vec::new())?;
    let terminal = File::from(open(name.as_c_str(), OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?);
    tcsetwinsize(&terminal, Winsize { ws_row: ROWS, ws_col: COLUMNS, ws_xpixel: 0, ws_ypixel: 0 })?;
    let mut keyboard = File::from(master);
    // In a new session, this terminal becomes the controlling one.
    let mut session = Command::new("setsid");
    session.arg(command.get_program()).args(command.get_args());
    session.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let _top = Running(session.stdin(terminal.try_clone()?).stdout(terminal.try_clone()?).stderr(terminal).spawn()?);
    let mut parser = vt100::Parser::new(ROWS, COLUMNS, 0);
    let (begin, mut bytes) = (Instant::now(), [0; 4096]);
    // `top` draws every second.
    while begin.elapsed() < UNDER_LOAD {
        let n = keyboard.read(&mut bytes)?;
        parser.process(&bytes[..n]);
    }
    keyboard.write_all(b"q")?;
    Ok(parser)
}

/// Draws `screen` as SVG.
fn drawn(screen: &vt100::Screen) -> String {
    let (width, height) = (f32::from(COLUMNS) * WIDTH + 2.0 * MARGIN, f32::from(ROWS) * HEIGHT + 2.0 * MARGIN);
    let mut svg = format!(
        "<!-- Made by ./run pictures; do not edit. -->\n\
         <svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"monospace\" font-size=\"14\">\n\
         <title>linerate top</title>\n\
         <rect width=\"{width}\" height=\"{height}\" rx=\"6\" fill=\"white\" stroke=\"#888888\"/>\n"
    );
    for row in 0..ROWS {
        let look = |column| screen.cell(row, column).map(|cell| (cell.bold(), cell.inverse())).unwrap_or_default();
        let mut column = 0;
        while column < COLUMNS {
            let (begin, (bold, inverse)) = (column, look(column));
            let mut text = String::new();
            while column < COLUMNS && look(column) == (bold, inverse) {
                let contents = screen.cell(row, column).map_or("", |cell| cell.contents());
                text.push_str(if contents.is_empty() { " " } else { contents });
                column += 1;
            }
            draw(&mut svg, row, begin, &text, bold, inverse);
        }
    }
    svg + "</svg>\n"
}

/// Draws `text` in one style.
fn draw(svg: &mut String, row: u16, column: u16, text: &str, bold: bool, inverse: bool) {
    let (x, y) = (MARGIN + f32::from(column) * WIDTH, MARGIN + f32::from(row) * HEIGHT);
    let length = text.chars().count() as f32 * WIDTH;
    if inverse {
        let _ = writeln!(
            svg,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{length:.1}\" height=\"{HEIGHT}\" fill=\"#222222\"/>"
        );
    }
    if text.trim().is_empty() {
        return;
    }
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    let fill = if inverse { "white" } else { "black" };
    let weight = if bold { " font-weight=\"bold\"" } else { "" };
    // Baseline.
    let y = y + HEIGHT * 0.75;
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" fill=\"{fill}\"{weight} xml:space=\"preserve\" textLength=\"{length:.1}\">{text}</text>"
    );
}
