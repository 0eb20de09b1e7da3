//! `linerate compare`: the same application over every transport that the host has, side by side.

mod machines;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use linerate_compare::priority::come_first;
use linerate_compare::report::{self, ReportError};
use linerate_compare::results::{App, Point, Results, Threading};
use linerate_compare::run::plan::{Wanted, rows};
use linerate_compare::run::schedule::{Asked, Schedule, Task};
use linerate_compare::run::way::Way;
use linerate_compare::run::{Comparison, Of, Standing};
use linerate_compare::{process, utc::Utc};
use linerate_net::process::output::{print_line, tell};
use linerate_net::process::signals;
use linerate_net::units::parse_duration;
use linerate_net::{CoreList, EngineArg};
use machines::MachinesArgs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Keys of the short comparison and of the other.
const KEYS: [u64; 2] = [100_000, 1_000_000];

/// Compare the same application over kernel sockets, the TCP stack, plain frames and RDMA: with no arguments over all that this host
/// has, or between two machines.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct CompareArgs {
    #[command(subcommand)]
    command: Option<Command>,

    #[command(flatten)]
    run: RunArgs,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Make the reports again from what a comparison found
    Render {
        /// Its results.json
        results: PathBuf,

        /// Where the reports go [default: where the results are]
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
    },
    /// Show what two comparisons found, side by side
    Diff {
        /// The one
        a: PathBuf,

        /// The other
        b: PathBuf,

        /// Print Markdown
        #[arg(long)]
        markdown: bool,
    },
}

/// What is compared.
#[derive(Debug, clap::Args)]
struct RunArgs {
    /// What is served: echo, kv
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "echo,kv", value_parser = parse_app)]
    apps: Vec<App>,

    /// What joins the two processes: kernel (loopback), veth (kernel sockets over a pair of interfaces), virtio-user, memif, af_xdp,
    /// rdma:DEVICE; between two machines kernel, rdma:DEVICE, pci:ADDRESS, af_xdp:INTERFACE, with a name for each end where they differ:
    /// rdma:SERVER/LOAD [default: virtio-user (on one machine), kernel, and the RDMA devices that there are]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    via: Vec<Way>,

    /// The TCP engines
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',', default_value = "native,smoltcp")]
    engines: Vec<EngineArg>,

    /// Where the service runs: inline on the worker's thread, or split on one of its own [default: inline, and split too with the
    /// native engine]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_threading)]
    threading: Option<Vec<Threading>>,

    /// Where the reports go [default: linerate-compare- and the time]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// Be done within two minutes: short measurements, fewer keys, few sweeps or none
    #[arg(long)]
    quick: bool,

    /// Leave the kernel's settings as they are; else they are set in a network namespace that goes afterwards
    #[arg(long)]
    no_kernel_tuning: bool,

    /// The core of the servers, and a second one for services with a thread of their own
    #[arg(long, value_name = "LIST")]
    server_cores: Option<CoreList>,

    /// The core of the loads
    #[arg(long, value_name = "LIST")]
    load_cores: Option<CoreList>,

    /// How often each fixed setting is measured
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,

    /// How long each measurement lasts, such as 500ms [default: as long as there is time for]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    round_time: Option<Duration>,

    /// The fixed settings: connections x requests on the way on each
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1x1,64x1,64x16", value_parser = parse_point)]
    points: Vec<Point>,

    /// Measure the fixed settings only
    #[arg(long)]
    no_sweeps: bool,

    /// Be done within so long, such as 10m [default: 2m with --quick, else 30m]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    within: Option<Duration>,

    /// How many keys the key-value service has [default: 100000 with --quick, else 1000000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    keys: Option<u64>,

    /// Where servers and loads run.
    #[command(flatten)]
    machines: MachinesArgs,
}

/// Why there is no comparison, or not all of one.
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    /// What the arguments say cannot be done.
    #[error("{0}")]
    Usage(String),
    /// Reports could not be read or written.
    #[error(transparent)]
    Report(#[from] ReportError),
    /// It could not be begun.
    #[error("{what}: {error}")]
    Begin {
        /// What it failed at.
        what: &'static str,
        /// Why.
        error: io::Error,
    },
    /// A link could not be set up, or a signal came before there was anything to be told.
    #[error(transparent)]
    Process(#[from] process::Error),
    /// A signal came.
    #[error("interrupted: what was found until then is in {}", .0.display())]
    Interrupted(PathBuf),
}

/// Runs the command.
///
/// # Errors
/// [`CompareError`].
pub fn run(args: CompareArgs) -> Result<(), CompareError> {
    match args.command {
        None => compare(&args.run),
        Some(Command::Render { results, out }) => {
            let found = report::read(&results)?;
            let beside = results.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
            let paths = report::write(&found, out.as_deref().unwrap_or(beside))?;
            print(&said(&paths))
        }
        Some(Command::Diff { a, b, markdown }) => {
            let (a, b) = (report::read(&a)?, report::read(&b)?);
            print(&if markdown { report::diff_markdown(&a, &b) } else { report::diff(&a, &b) })
        }
    }
}

fn compare(args: &RunArgs) -> Result<(), CompareError> {
    let begin = |what| move |error| CompareError::Begin { what, error };
    let interrupted = signals::stop_flag().map_err(begin("signals"))?;
    let linerate = std::env::current_exe().map_err(begin("the program itself"))?;
    let machines = args.machines.look(&linerate, &interrupted)?;
    let ways = if args.via.is_empty() { machines.ways() } else { args.via.clone() };
    machines.check(&ways).map_err(CompareError::Usage)?;
    let cores = |list: &Option<CoreList>| list.as_ref().map(|list| list.cores().to_vec());
    let (servers, loads) = (cores(&args.server_cores), cores(&args.load_cores));
    let cores = machines.cores(servers.as_deref(), loads.as_deref()).map_err(CompareError::Usage)?;
    let wanted = Wanted {
        apps: args.apps.clone(),
        engines: args.engines.clone(),
        threading: args.threading.clone(),
        quick: args.quick,
        ways,
    };
    let rows = rows(&wanted, &cores, &machines.obstacles(&wanted.ways));
    let keys = args.keys.unwrap_or(KEYS[usize::from(!args.quick)]);
    let asked = Asked {
        quick: args.quick,
        rounds: args.rounds,
        round: args.round_time,
        keys,
        points: &args.points,
        sweeps: !args.no_sweeps,
        within: args.within,
        slower: machines.slower(),
    };
    let schedule = Schedule::plan(&rows, asked);

    let out = args.out.clone().unwrap_or_else(|| format!("linerate-compare-{}", Utc::now().compact()).into());
    let measured = rows.iter().filter(|row| row.obstacle.is_none()).count();
    tell(format_args!(
        "{measured} of {} rows can be measured here, {} rounds of {} ms each; about {}",
        rows.len(),
        schedule.times.rounds,
        schedule.times.round.as_millis(),
        time(schedule.takes())
    ));
    let scratch = tempfile::tempdir().map_err(begin("a directory for sockets"))?;
    let (quick, kernel_tuning) = (args.quick, !args.no_kernel_tuning);
    let first = come_first();
    let (machine, other) = machines.apart();
    let of = Of { linerate, rows, cores, schedule, quick, keys, kernel_tuning, machine, other };
    let mut results = {
        let comparison = Comparison::new(of, scratch.path(), interrupted)?;
        let mut progress = Progress::new();
        let results = comparison.run(|standing| progress.show(standing));
        progress.bar.finish_and_clear();
        results
    };
    drop(first);
    results.notes.extend(notes(&results));
    let paths = report::write(&results, &out)?;
    print(report::terminal(&results).trim_end())?;
    tell(said(&paths));
    if results.finished { Ok(()) } else { Err(CompareError::Interrupted(out)) }
}

/// What has to be known of the figures.
fn notes(results: &Results) -> Vec<String> {
    let mut notes = Vec::new();
    let machines = || std::iter::once(&results.machine).chain(&results.load_machine);
    if machines().any(|machine| machine.emulated) {
        notes.push("The processor is emulated in software: no time here says anything of hardware.".to_owned());
    }
    if results.load_machine.is_some() {
        notes.push(
            "Servers and loads ran on a machine each. Processor time is what each server said of itself when it was asked, over the way              that leads to its machine; it is asked later than it would be here by as long as that takes."
                .to_owned(),
        );
    }
    if machines().any(|machine| machine.hugepages == 0) {
        notes.push("No hugepage was free: ports used small pages, which is slower (linerate doctor).".to_owned());
    }
    if results.rows.iter().any(|row| row.co_scheduled) {
        notes.push(
            "Threads of a server that poll shared a core in some rows: with more cores they would not.".to_owned(),
        );
    }
    notes.push(
        "What a client reaches by itself was measured against the least server that speaks its protocol over the link: \
         that of the native engine, and spinning kernel sockets. For these two themselves there is no lesser one, so that they may be \
         limited by their loads, which do as much for a request as they do."
            .to_owned(),
    );
    notes
}

/// What is shown while it runs: on a terminal a line that changes, else one for each part.
struct Progress {
    bar: ProgressBar,
    /// The part that was said last.
    said: Option<String>,
}

impl Progress {
    fn new() -> Progress {
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{bar:30} {pos} of {len}, {prefix} left  {wide_msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Progress { bar, said: None }
    }

    fn show(&mut self, standing: &Standing<'_>) {
        let (done, of) = standing.steps;
        if self.bar.is_hidden() {
            let part = match standing.task {
                Task::Round { round, .. } => format!("round {}", round + 1),
                other => other.name(0),
            };
            if self.said.as_ref() != Some(&part) {
                tell(format_args!("{part}: {done} of {of} done, about {} left", time(standing.left)));
                self.said = Some(part);
            }
            return;
        }
        self.bar.set_length(of as u64);
        self.bar.set_position(done as u64);
        self.bar.set_prefix(time(standing.left));
        self.bar.set_message(standing.now.clone());
        self.bar.tick();
    }
}

fn time(time: Duration) -> String {
    let seconds = time.as_secs_f64().ceil() as u64;
    if seconds < 120 { format!("{seconds} s") } else { format!("{} min {} s", seconds / 60, seconds % 60) }
}

fn said(paths: &[PathBuf]) -> String {
    let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    names.join("\n")
}

fn print(text: &str) -> Result<(), CompareError> {
    print_line(text).map_err(|error| CompareError::Begin { what: "standard output", error })
}

fn parse_app(text: &str) -> Result<App, String> {
    match text {
        "echo" => Ok(App::Echo),
        "kv" => Ok(App::Kv),
        _ => Err("write echo, kv or both with a comma".to_owned()),
    }
}

fn parse_threading(text: &str) -> Result<Threading, String> {
    match text {
        "inline" => Ok(Threading::Inline),
        "split" => Ok(Threading::Split),
        _ => Err("write inline, split or both with a comma".to_owned()),
    }
}

fn parse_point(text: &str) -> Result<Point, String> {
    let number = |text: &str| text.parse().ok().filter(|number| (1..=100_000).contains(number));
    let point = text
        .split_once('x')
        .and_then(|(connections, depth)| Some(Point { connections: number(connections)?, depth: number(depth)? }));
    point.ok_or_else(|| "write connections and requests on the way on each, such as 64x16".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_compare::run::schedule::POINTS;

    #[test]
    fn settings_are_connections_and_requests_on_each() {
        assert_eq!(parse_point("64x16"), Ok(Point { connections: 64, depth: 16 }));
        for text in ["", "64", "x16", "0x1", "1x0", "100001x1", "1x1x1"] {
            assert!(parse_point(text).unwrap_err().contains("64x16"), "{text}");
        }
    }

    #[test]
    fn what_is_measured_by_default_is_what_schedules_say() {
        let told: Vec<Point> = "1x1,64x1,64x16".split(',').map(|text| parse_point(text).unwrap()).collect();
        assert_eq!(told, POINTS);
    }
}
