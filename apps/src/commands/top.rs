//! `linerate top`.

use crate::error::Error;
use crate::inspect::{self, About, Process, QueryError, TargetArgs};
use crate::top::{self, KeyAction, Sample, Sampler, SamplerEvent, ScreenState};
use linerate::units::parse_duration;
use linerate_process::output::{eprint_line, print_line};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::{self, IsTerminal};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Interval of checking signals and samples while no key is pressed.
const TICK: Duration = Duration::from_millis(50);
/// Permitted sampling intervals. The process disconnects clients that are idle for a minute.
const INTERVALS: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(30);

/// Show the workers and connections of a running process
#[derive(Debug, clap::Args)]
pub struct TopArgs {
    #[command(flatten)]
    target: TargetArgs,

    /// Sampling interval, 10ms to 30s
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_interval)]
    interval: Duration,

    /// Print one table of the workers over one interval and exit, as if standard output were not a terminal
    #[arg(long)]
    once: bool,
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    parse_duration(text).and_then(|interval| match INTERVALS.contains(&interval) {
        true => Ok(interval),
        false => Err("must be between 10ms and 30s".to_owned()),
    })
}

/// Runs `linerate top`.
pub fn run(args: &TopArgs) -> Result<(), Error> {
    let process = match inspect::find(&args.target) {
        Err(QueryError::Several(processes)) if io::stdin().is_terminal() && io::stdout().is_terminal() => {
            inspect::with_pid(choose(processes)?)?
        }
        found => found?,
    };
    if args.once || !io::stdout().is_terminal() {
        return once(process, args.interval);
    }
    process.wait_without_limit()?;
    let pid = process.about().pid;
    let state = ScreenState::new(process.about().clone(), args.interval);
    let sampler = Sampler::start(process, args.interval).map_err(Error::Terminal)?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, stop.clone()).map_err(Error::Signals)?;
    }
    let ended = {
        let mut screen = Screen::open().map_err(Error::Terminal)?;
        show(&mut screen.0, state, &sampler, &stop).map_err(Error::Terminal)?
    };
    match ended {
        None => Ok(()),
        Some(QueryError::Ended) => {
            eprint_line(format_args!("linerate top: process {pid} has ended"));
            Ok(())
        }
        Some(error) => Err(error.into()),
    }
}

/// Lets the user choose one of several processes, and returns its id.
fn choose(processes: Vec<About>) -> Result<u32, Error> {
    print_line("Several processes:").map_err(Error::Output)?;
    for (number, About { pid, command, .. }) in (1..).zip(&processes) {
        print_line(format_args!("  {number}  {pid}  {command}")).map_err(Error::Output)?;
    }
    loop {
        print_line(format_args!("Number of the process to show, 1 to {}:", processes.len())).map_err(Error::Output)?;
        let mut answer = String::new();
        if io::stdin().read_line(&mut answer).map_err(Error::Terminal)? == 0 {
            return Err(QueryError::Several(processes).into());
        }
        let chosen = answer.trim().parse::<usize>().ok().and_then(|number| processes.get(number.checked_sub(1)?));
        if let Some(chosen) = chosen {
            return Ok(chosen.pid);
        }
    }
}

fn once(mut process: Process, interval: Duration) -> Result<(), Error> {
    let before = Sample::take(&mut process)?;
    thread::sleep(interval);
    let after = Sample::take(&mut process)?;
    print_line(top::plain(&after, Some(&before))).map_err(Error::Output)
}

/// Terminal in raw mode, restored on drop and on panic.
struct Screen(DefaultTerminal);

impl Screen {
    fn open() -> io::Result<Screen> {
        // Undo a partial initialization.
        ratatui::try_init().map(Screen).inspect_err(|_| ratatui::restore())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Restoring fails if the terminal is gone.
        let _ = self.0.show_cursor();
        let _ = ratatui::try_restore();
    }
}

/// Shows samples until a key or a signal ends the display. Returns an error if sampling failed.
fn show(
    terminal: &mut DefaultTerminal,
    mut state: ScreenState,
    sampler: &Sampler,
    stop: &AtomicBool,
) -> io::Result<Option<QueryError>> {
    let (mut is_stale, mut drawn) = (true, None);
    while !stop.load(Ordering::Relaxed) {
        for event in sampler.events.try_iter() {
            match event {
                SamplerEvent::Sample(sample) => state.update(*sample),
                SamplerEvent::Failed(error) => return Ok(Some(error)),
            }
            is_stale = true;
        }
        let silence = state.stale_for(Instant::now());
        if std::mem::take(&mut is_stale) || silence != drawn {
            drawn = silence;
            state.is_wide = terminal.size()?.width >= top::WIDE;
            terminal.draw(|frame| top::draw(frame, &state))?;
        }
        if !event::poll(TICK)? {
            continue;
        }
        match event::read()? {
            Event::Key(key) => match state.handle_key(key) {
                KeyAction::Quit => return Ok(None),
                KeyAction::Interval(interval) => sampler.set_interval(interval),
                KeyAction::None => {}
            },
            Event::Resize(..) => {}
            _ => continue,
        }
        is_stale = true;
    }
    Ok(None)
}
