//! `linerate top`.

use crate::error::Error;
use crate::inspect::{self, AskError, Process, WatchArgs};
use crate::top::{self, News, Outcome, Sample, State, Watcher};
use linerate_net::process::output::{print_line, tell};
use linerate_net::units::parse_duration;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::{self, IsTerminal};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// How often signals, and what the process says, are looked for while no key is pressed.
const TICK: Duration = Duration::from_millis(50);
/// How long may lie between two questions: the process drops who is silent for a minute.
const INTERVALS: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(30);

/// `linerate top`.
#[derive(Debug, clap::Args)]
pub struct TopArgs {
    #[command(flatten)]
    watch: WatchArgs,

    /// How often the process is asked: 500ms, 1s
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_interval)]
    interval: Duration,

    /// Print one table of the workers over one interval, and end; so it is too where standard output is no terminal
    #[arg(long)]
    once: bool,
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    parse_duration(text).and_then(|interval| match INTERVALS.contains(&interval) {
        true => Ok(interval),
        false => Err("it is 10ms at least and 30s at most".to_owned()),
    })
}

/// Runs the command.
pub fn run(args: &TopArgs) -> Result<(), Error> {
    let process = inspect::find(&args.watch)?;
    if args.once || !io::stdout().is_terminal() {
        return once(process, args.interval);
    }
    let pid = process.about().pid;
    let state = State::new(process.about().clone(), args.interval);
    let watcher = Watcher::start(process, args.interval).map_err(Error::Terminal)?;
    let over = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, over.clone()).map_err(Error::Signals)?;
    }
    let ended = {
        let mut screen = Screen::open().map_err(Error::Terminal)?;
        watch(&mut screen.0, state, &watcher, &over).map_err(Error::Terminal)?
    };
    match ended {
        None => Ok(()),
        Some(AskError::Ended) => {
            tell(format_args!("linerate top: the process {pid} has ended"));
            Ok(())
        }
        Some(error) => Err(error.into()),
    }
}

fn once(mut process: Process, interval: Duration) -> Result<(), Error> {
    let before = Sample::take(&mut process)?;
    thread::sleep(interval);
    let after = Sample::take(&mut process)?;
    print_line(top::plain(&after, Some(&before))).map_err(Error::Output)
}

/// The terminal, which is as it was when this is dropped, and after a panic.
struct Screen(DefaultTerminal);

impl Screen {
    fn open() -> io::Result<Screen> {
        // What was done until something failed is undone.
        ratatui::try_init().map(Screen).inspect_err(|_| ratatui::restore())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // The terminal may be gone.
        let _ = self.0.show_cursor();
        let _ = ratatui::try_restore();
    }
}

/// Shows what the process says until a key or a signal ends it, or the process does: then it says why.
fn watch(
    terminal: &mut DefaultTerminal,
    mut state: State,
    watcher: &Watcher,
    over: &AtomicBool,
) -> io::Result<Option<AskError>> {
    let mut is_stale = true;
    while !over.load(Ordering::Relaxed) {
        for news in watcher.news.try_iter() {
            match news {
                News::Sample(sample) => state.take(*sample),
                News::Over(error) => return Ok(Some(error)),
            }
            is_stale = true;
        }
        if std::mem::take(&mut is_stale) {
            terminal.draw(|frame| top::draw(frame, &state))?;
        }
        if !event::poll(TICK)? {
            continue;
        }
        match event::read()? {
            Event::Key(key) => match state.key(key) {
                Outcome::Quit => return Ok(None),
                Outcome::Interval(interval) => watcher.set_interval(interval),
                Outcome::Stay => {}
            },
            Event::Resize(..) => {}
            _ => continue,
        }
        is_stale = true;
    }
    Ok(None)
}
