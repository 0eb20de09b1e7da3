//! `linerate compare`: one application over every transport of the host, side by side.

mod machines;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use linerate::units::parse_duration;
use linerate::{CoreList, TcpEngine};
use linerate_compare::batch;
use linerate_compare::priority::raise_priority;
use linerate_compare::profile::{ProfileError, Profiler};
use linerate_compare::report::{self, ReportError};
use linerate_compare::results::{App, Objective, Point, Results, Swept, Threading};
use linerate_compare::run::link_spec::LinkSpec;
use linerate_compare::run::plan::{Extent, Selection, rows};
use linerate_compare::run::schedule::{Schedule, ScheduleRequest, Task};
use linerate_compare::run::{Comparison, ComparisonConfig, Status};
use linerate_compare::utc::Utc;
use linerate_load::services::ServiceTime;
use linerate_process::interrupt;
use linerate_process::output::{eprint_line, print_line};
use linerate_process::remover::Remover;
use machines::MachinesArgs;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Number of keys of a full comparison and of a quick one.
const KEYS: [u64; 2] = [100_000, 1_000_000];
/// Default number of rounds.
const ROUNDS: u32 = 5;

/// Compare one application over kernel sockets, the TCP stack, raw frames and RDMA. Without options: over everything
/// that this host supports. Can run between two machines
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
    /// Write the reports of an earlier comparison again
    Render {
        /// File results.json of the comparison
        results: PathBuf,

        /// Directory for the reports [default: the directory of the results]
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
    },
    /// Run the program of --batch
    #[command(hide = true)]
    Batch {
        /// Core to run on
        #[arg(long, value_name = "N")]
        core: usize,

        /// Time to run for
        #[arg(long, value_name = "TIME", value_parser = parse_duration)]
        time: Duration,
    },
    /// Show two comparisons side by side
    Diff {
        /// Baseline results
        a: PathBuf,

        /// New results
        b: PathBuf,

        /// Print Markdown
        #[arg(long)]
        markdown: bool,
    },
}

/// Engines to compare: all in this build.
const DEFAULT_ENGINES: &str = if cfg!(feature = "smoltcp-engine") { "native,smoltcp" } else { "native" };

/// Arguments of a comparison.
#[derive(Debug, clap::Args)]
struct RunArgs {
    /// Applications: echo, kv, http, redis (redis-server on kernel sockets and under linerate run), echo-tls and kv-tls
    /// (echo and kv with TLS)
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "echo,kv", value_parser = parse_app)]
    apps: Vec<App>,

    /// Links between server and load generator: kernel (loopback), veth (kernel sockets over an interface pair),
    /// virtio-user, memif, roce (RoCEv2 in software over virtio-user), af_xdp, af_xdp-shared, rdma:DEVICE. Between two
    /// machines: kernel, rdma:DEVICE, pci:ADDRESS, af_xdp:INTERFACE, written as rdma:SERVER/LOAD if the names differ
    /// between the ends [default: virtio-user (one machine), kernel, and existing RDMA devices, or roce]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    via: Vec<LinkSpec>,

    /// TCP engines
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',', default_value = DEFAULT_ENGINES)]
    engines: Vec<TcpEngine>,

    /// Threading of the service: inline on the thread of the worker, or split on its own thread [default: inline; with
    /// the native engine also split]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_threading)]
    threading: Option<Vec<Threading>>,

    /// Directory for the reports [default: linerate-compare-TIME]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// Finish within two minutes: short measurements, fewer keys, few or no sweeps, and fewer values of further
    /// measurements where several are requested
    #[arg(long)]
    quick: bool,

    /// Do not tune kernel settings. By default they are tuned in a temporary network namespace
    #[arg(long)]
    no_kernel_tuning: bool,

    /// Cores of the server: one, and a second one for split services [default: chosen]
    #[arg(long, value_name = "LIST")]
    server_cores: Option<CoreList>,

    /// Core of the load generator [default: chosen]
    #[arg(long, value_name = "LIST")]
    load_cores: Option<CoreList>,

    /// Measurements per fixed setting [default: 5; with --quick, fewer if further measurements are requested]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: Option<u32>,

    /// Duration of a measurement, such as 500ms [default: derived from the time limit]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    round_time: Option<Duration>,

    /// Fixed settings: connections x requests in flight per connection. With --quick, 64x1 may be left out for further
    /// measurements
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "1x1,64x1,64x16",
        value_parser = parse_point,
    )]
    points: Vec<Point>,

    /// Simulated work of the servers whenever a connection has data to read: 20us, exp:MEAN,
    /// bimodal:SHORT,LONG,SHARE-OF-LONG, lognormal:MEDIAN,SIGMA
    #[arg(long, value_name = "TIME", default_value = "0")]
    service_time: ServiceTime,

    /// Find the highest offered load at which a percentile of the round trips (p50, p90, p99, p99.9, p99.99) stays
    /// within a time: p99=50us
    #[arg(long, value_name = "PERCENTILE=TIME")]
    slo: Option<Objective>,

    /// Measure the time until the last answer to one request on each of 10, 100 and 1000 connections at once (echo)
    #[arg(long)]
    incast: bool,

    /// Measure the work of a batch program on the core of the server at 10, 50 and 90 % of the highest offered load
    /// (echo)
    #[arg(long)]
    batch: bool,

    /// Divide the processor time of a request among driver, stack, service and kernel, by samples of the server at the
    /// last fixed setting
    #[arg(long, conflicts_with = "server_on")]
    profile: bool,

    /// Measure only the fixed settings, and what further options request
    #[arg(long)]
    no_sweeps: bool,

    /// Time limit of the comparison, such as 10m [default: 2m with --quick, else 30m]
    #[arg(long, alias = "within", value_name = "TIME", value_parser = parse_duration)]
    time_limit: Option<Duration>,

    /// Number of keys of the key-value service [default: 100000 with --quick, else 1000000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    keys: Option<u64>,

    #[command(flatten)]
    machines: MachinesArgs,
}

impl RunArgs {
    /// Returns the sweeps that options request.
    fn requested(&self) -> Vec<Swept> {
        let all = [(self.slo.is_some(), Swept::Objective), (self.incast, Swept::Incast), (self.batch, Swept::Batch)];
        all.into_iter().filter(|(is_requested, _)| *is_requested).map(|(_, of)| of).collect()
    }
}

/// Error of `linerate compare`.
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    /// The arguments are invalid.
    #[error("{0}")]
    Usage(String),
    /// A report could not be read or written.
    #[error(transparent)]
    Report(#[from] ReportError),
    /// The comparison could not be started.
    #[error("{step}: {error}")]
    Begin { step: &'static str, error: io::Error },
    /// The directory for the reports cannot be written.
    #[error("--out {}: {error}: name a directory that can be written", path.display())]
    Out { path: PathBuf, error: io::Error },
    /// Servers cannot be profiled.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// A link could not be set up, or a signal arrived before the first result.
    #[error(transparent)]
    Process(#[from] linerate_process::Error),
    /// A signal interrupted the comparison.
    #[error("interrupted: partial results are in {}", .0.display())]
    Interrupted(PathBuf),
}

/// Runs `linerate compare`.
///
/// # Errors
/// [`CompareError`].
pub fn run(args: CompareArgs) -> Result<(), CompareError> {
    match args.command {
        None => compare(&args.run),
        Some(Command::Render { results, out }) => {
            let found = report::read(&results)?;
            let directory = results.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
            let paths = report::write(&found, out.as_deref().unwrap_or(directory))?;
            print(&lines(&paths))
        }
        Some(Command::Batch { core, time }) => {
            let batch = batch::run(core, time).map_err(|error| CompareError::Begin { step: "--core", error })?;
            print(&serde_json::to_string(&batch).expect("two numbers serialize without error"))
        }
        Some(Command::Diff { a, b, markdown }) => {
            let (a, b) = (report::read(&a)?, report::read(&b)?);
            print(&if markdown { report::diff_markdown(&a, &b) } else { report::diff(&a, &b) })
        }
    }
}

fn compare(args: &RunArgs) -> Result<(), CompareError> {
    let begin = |step| move |error| CompareError::Begin { step, error };
    interrupt::on_signals().map_err(begin("signals"))?;
    if args.service_time != ServiceTime::NONE && args.apps.iter().any(|app| matches!(app, App::Http | App::Redis)) {
        let usage = "--service-time: http serve and redis-server have none: select other --apps";
        return Err(CompareError::Usage(usage.to_owned()));
    }
    let profiler = args.profile.then(Profiler::new).transpose()?;
    let linerate = std::env::current_exe().map_err(begin("the path of the program"))?;
    let machines = args.machines.examine(&linerate)?;
    let specs = if args.via.is_empty() { machines.specs() } else { args.via.clone() };
    machines.check(&specs).map_err(CompareError::Usage)?;
    let local = args.apps.iter().find(|app| app.has_tls() || **app == App::Redis).filter(|_| machines.are_two());
    if let Some(app) = local {
        return Err(CompareError::Usage(format!(
            "--apps {} compares processes of one machine: leave it out, or --server-on and --load-on",
            app.short()
        )));
    }
    let cores = |list: &Option<CoreList>| list.as_ref().map(|list| list.cores().to_vec());
    let (servers, loads) = (cores(&args.server_cores), cores(&args.load_cores));
    let cores = machines.cores(servers.as_deref(), loads.as_deref()).map_err(CompareError::Usage)?;
    let selection = Selection {
        apps: args.apps.clone(),
        engines: args.engines.clone(),
        threading: args.threading.clone(),
        quick: args.quick,
        specs,
    };
    let rows = rows(&selection, &cores, &machines.obstacles(&selection.specs));
    let keys = args.keys.unwrap_or(KEYS[usize::from(!args.quick)]);
    let requested = args.requested();
    let rounds = args.rounds.unwrap_or(ROUNDS);
    let may_be_fewer = args.quick && args.rounds.is_none() && (args.profile || !requested.is_empty());
    let request = ScheduleRequest {
        extent: if args.quick { Extent::Short } else { Extent::Full },
        rounds,
        min_rounds: if may_be_fewer { 1 } else { rounds },
        requested: &requested,
        profile: args.profile,
        round: args.round_time,
        keys,
        points: &args.points,
        sweeps: !args.no_sweeps,
        service_time: args.service_time != ServiceTime::NONE,
        within: args.time_limit,
        slower: machines.slower(),
    };
    let schedule = Schedule::plan(&rows, request);

    let out = OutDir::create(args.out.clone())?;
    let measured = rows.iter().filter(|row| row.obstacle.is_none()).count();
    let (takes, limit) = (schedule.takes(), schedule.limit);
    let skipped = match takes.checked_sub(limit) {
        Some(over) => format!(", of which the last {} are skipped to keep to the time limit", time(over)),
        None => String::new(),
    };
    eprint_line(format_args!(
        "{measured} of {} rows can be measured here, {} rounds of {} ms each; about {}{skipped}",
        rows.len(),
        schedule.times.rounds,
        schedule.times.round.as_millis(),
        time(takes)
    ));
    let scratch = tempfile::tempdir().map_err(begin("temporary directory"))?;
    // Removes the directory and the network namespaces if this process is killed.
    let _remover = Remover::start(scratch.path())?;
    let first = raise_priority();
    let (machine, other) = machines.apart();
    let of = ComparisonConfig {
        linerate,
        rows,
        cores,
        schedule,
        quick: args.quick,
        keys,
        service_time: args.service_time,
        objective: args.slo,
        profiler,
        kernel_tuning: !args.no_kernel_tuning,
        machine,
        other,
    };
    let mut results = {
        let comparison = Comparison::new(of, scratch.path())?;
        let mut progress = Progress::new();
        let results = comparison.run(|status| progress.show(status));
        progress.bar.finish_and_clear();
        results
    };
    drop(first);
    results.notes.extend(notes(&results));
    // Write and print before checking either result, so that neither a full disk nor a closed pipe loses the results.
    let written = report::write(&results, &out.path);
    let printed = print(report::terminal(&results).trim_end());
    eprint_line(lines(&written?));
    printed?;
    if results.finished { Ok(()) } else { Err(CompareError::Interrupted(out.path.clone())) }
}

/// Directory for the reports, removed again if nothing is written into it.
struct OutDir {
    path: PathBuf,
    created: bool,
}

impl OutDir {
    /// Creates the directory if necessary, and checks that files can be created in it: measurements take up to half an
    /// hour and would be lost.
    fn create(given: Option<PathBuf>) -> Result<OutDir, CompareError> {
        let path = given.unwrap_or_else(|| format!("linerate-compare-{}", Utc::now().compact()).into());
        let out = OutDir { created: !path.exists(), path };
        match fs::create_dir_all(&out.path).and_then(|()| tempfile::NamedTempFile::new_in(&out.path)) {
            Ok(_) => Ok(out),
            Err(error) => Err(CompareError::Out { path: out.path.clone(), error }),
        }
    }
}

impl Drop for OutDir {
    fn drop(&mut self) {
        if self.created {
            // Fails if the directory has reports.
            let _ = fs::remove_dir(&self.path);
        }
    }
}

/// Returns remarks that a reader of the results needs.
fn notes(results: &Results) -> Vec<String> {
    let mut notes = Vec::new();
    let machines = || std::iter::once(&results.machine).chain(&results.load_machine);
    if machines().any(|machine| machine.emulated) {
        notes.push("The processor is emulated in software: times do not apply to hardware.".to_owned());
    }
    if results.load_machine.is_some() {
        notes.push(
            "Servers and load generators ran on separate machines. Each server reported its own processor time on \
             request; the request arrives later than on one machine, by its transmission time."
                .to_owned(),
        );
    }
    if machines().any(|machine| machine.hugepages == 0) {
        notes.push("No hugepage was free: ports used small pages, which are slower (linerate doctor).".to_owned());
    }
    if results.rows.iter().any(|row| row.co_scheduled) {
        notes.push("In some rows, polling threads of a server shared a core for lack of cores.".to_owned());
    }
    notes.push(
        "The ceiling of a client was measured against a minimal server for its protocol over the link: the native \
         engine, or spinning kernel sockets. No smaller server exists for these two, so their rows may be limited by \
         the load generator, which does the same amount of work per request."
            .to_owned(),
    );
    notes
}

/// Progress display: a line that changes on a terminal, otherwise one line per part.
struct Progress {
    bar: ProgressBar,
    /// Part printed last.
    last_part: Option<String>,
}

impl Progress {
    fn new() -> Progress {
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{bar:30} {pos} of {len}, {prefix} left  {wide_msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Progress { bar, last_part: None }
    }

    fn show(&mut self, status: &Status<'_>) {
        let (done, of) = status.steps;
        if self.bar.is_hidden() {
            let part = match status.task {
                Task::Round { round, .. } => format!("round {}", round + 1),
                other => other.name(0),
            };
            if self.last_part.as_ref() != Some(&part) {
                eprint_line(format_args!("{part}: {done} of {of} done, about {} left", time(status.left)));
                self.last_part = Some(part);
            }
            return;
        }
        self.bar.set_length(of as u64);
        self.bar.set_position(done as u64);
        self.bar.set_prefix(time(status.left));
        self.bar.set_message(status.now.clone());
        self.bar.tick();
    }
}

fn time(time: Duration) -> String {
    let seconds = time.as_secs_f64().ceil() as u64;
    if seconds < 120 { format!("{seconds} s") } else { format!("{} min {} s", seconds / 60, seconds % 60) }
}

fn lines(paths: &[PathBuf]) -> String {
    let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    names.join("\n")
}

fn print(text: &str) -> Result<(), CompareError> {
    print_line(text).map_err(|error| CompareError::Begin { step: "standard output", error })
}

fn parse_app(text: &str) -> Result<App, String> {
    match text {
        "echo" => Ok(App::Echo),
        "kv" => Ok(App::Kv),
        "http" => Ok(App::Http),
        "redis" => Ok(App::Redis),
        "echo-tls" => Ok(App::EchoTls),
        "kv-tls" => Ok(App::KvTls),
        _ => Err("give echo, kv, http, redis, echo-tls, kv-tls, or several of them, separated by commas".to_owned()),
    }
}

fn parse_threading(text: &str) -> Result<Threading, String> {
    match text {
        "inline" => Ok(Threading::Inline),
        "split" => Ok(Threading::Split),
        _ => Err("give inline, split or inline,split".to_owned()),
    }
}

fn parse_point(text: &str) -> Result<Point, String> {
    let number = |text: &str| text.parse().ok().filter(|number| (1..=100_000).contains(number));
    let point = text
        .split_once('x')
        .and_then(|(connections, depth)| Some(Point { connections: number(connections)?, depth: number(depth)? }));
    point.ok_or_else(|| "give connections and requests per connection, such as 64x16".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_compare::run::schedule::POINTS;

    #[test]
    fn point_is_connections_and_depth() {
        assert_eq!(parse_point("64x16"), Ok(Point { connections: 64, depth: 16 }));
        for text in ["", "64", "x16", "0x1", "1x0", "100001x1", "1x1x1"] {
            assert!(parse_point(text).unwrap_err().contains("64x16"), "{text}");
        }
    }

    #[test]
    fn default_points_match_the_schedule() {
        let default: Vec<Point> = "1x1,64x1,64x16".split(',').map(|text| parse_point(text).unwrap()).collect();
        assert_eq!(default, POINTS);
    }
}
