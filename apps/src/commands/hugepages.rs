//! `linerate hugepages`: status, reservation and release.
//!
//! With `--json`, each subcommand prints one object with the fields of [`Status`], [`Reserved`] or [`Released`].

use comfy_table::{Table, presets};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use linerate_hugepages::{
    Amount, Error, Host, InvalidSize, PageSize, Process, Released, Reservation, Reserved, Status, parse_bytes,
};
use serde::Serialize;
use std::io::{self, Write};
use std::path::PathBuf;

/// Reserve, release and inspect hugepages per NUMA node
#[derive(Debug, clap::Args)]
pub struct HugepagesArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Show reserved and free pages, mounts, and the processes that use pages
    Status(StatusArgs),
    /// Reserve pages and print how many the kernel provided
    ///
    /// Exit status 1 if the kernel provided fewer than requested; the provided pages stay reserved.
    Reserve(ReserveArgs),
    /// Release free pages
    ///
    /// Exit status 1 if fewer than COUNT pages were released.
    Release(ReleaseArgs),
}

#[derive(Debug, clap::Args)]
struct StatusArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("amount").required(true))]
struct ReserveArgs {
    /// Number of pages to reserve in addition to the pages already reserved
    #[arg(group = "amount", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Amount of memory instead of COUNT, such as 512M or 2G, rounded up to whole pages
    #[arg(long, group = "amount", value_parser = parse_amount)]
    memory: Option<u64>,
    /// Reserve only the pages that are missing until this amount is free
    #[arg(long)]
    top_up: bool,
    /// If the kernel provides too few pages, drop the page cache, compact memory and retry once
    #[arg(long)]
    compact: bool,
    #[command(flatten)]
    pool: PoolArgs,
}

#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("amount").required(true))]
struct ReleaseArgs {
    /// Number of pages to release
    #[arg(group = "amount", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Amount of memory instead of COUNT, such as 512M or 2G, rounded up to whole pages
    #[arg(long, group = "amount", value_parser = parse_amount)]
    memory: Option<u64>,
    /// Release the unused pages that this command has reserved since boot
    #[arg(long, group = "amount")]
    all: bool,
    #[command(flatten)]
    pool: PoolArgs,
}

#[derive(Debug, clap::Args)]
struct PoolArgs {
    /// Page size: 2M or 1G
    #[arg(long, default_value = "2M")]
    size: PageSize,
    /// NUMA node [default: spread over all nodes]
    #[arg(long)]
    node: Option<u32>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn parse_amount(text: &str) -> Result<u64, InvalidSize> {
    parse_bytes(text).and_then(|bytes| if bytes > 0 { Ok(bytes) } else { Err(InvalidSize::Amount(text.to_owned())) })
}

/// Error of `linerate hugepages`, always exit status 1.
#[derive(Debug, thiserror::Error)]
pub enum HugepagesError {
    /// The command needs root.
    #[error("{} is writable by root only: sudo {command}", path.display())]
    NotPermitted { path: PathBuf, command: String },
    /// Error of the hugepages library.
    #[error(transparent)]
    Hugepages(Error),
    /// More pages are to be released than are reserved.
    #[error(
        "release {requested} pages of {size}{}: {reserved} are reserved: give at most {reserved}, or --all",
        on(*.node)
    )]
    NotReserved { size: PageSize, node: Option<u32>, requested: u64, reserved: u64 },
    /// Fewer pages were released than requested.
    #[error("released {released} of {requested} pages of {size}: no more were free")]
    NotReleased { size: PageSize, requested: u64, released: u64 },
    /// Standard output could not be written.
    #[error("standard output: {0}")]
    Output(#[from] io::Error),
}

/// Runs `linerate hugepages`.
///
/// # Errors
/// [`HugepagesError`].
pub fn run(args: HugepagesArgs) -> Result<(), HugepagesError> {
    let typed: Vec<String> = std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect();
    match execute(args, &Host::default(), &mut io::stdout().lock()) {
        Err(HugepagesError::Hugepages(Error::NotPermitted(path))) => {
            Err(HugepagesError::NotPermitted { path, command: typed.join(" ") })
        }
        Err(HugepagesError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

impl From<Error> for HugepagesError {
    fn from(error: Error) -> Self {
        HugepagesError::Hugepages(error)
    }
}

fn execute(args: HugepagesArgs, host: &Host, out: &mut dyn Write) -> Result<(), HugepagesError> {
    match args.action {
        Action::Status(args) => {
            let status = host.status()?;
            if args.json {
                json(out, &status)?
            } else {
                write!(out, "{}", show_status(&status))?
            }
            Ok(())
        }
        Action::Reserve(args) => reserve(args, host, out),
        Action::Release(args) => release(args, host, out),
    }
}

fn reserve(args: ReserveArgs, host: &Host, out: &mut dyn Write) -> Result<(), HugepagesError> {
    let PoolArgs { size, node, json: as_json } = args.pool;
    let wanted = args.count.or(args.memory.map(|bytes| size.pages_for(bytes))).unwrap_or(0);
    let mut pages = wanted;
    if args.top_up {
        let pool = host.pool(size)?;
        let free = match node {
            None => pool.available(),
            Some(node) => pool.node(node)?.free.min(pool.available()),
        };
        pages = wanted.saturating_sub(free);
    }
    let reserved = if pages == 0 {
        let pool = host.pool(size)?;
        let reserved = node.map_or(Ok(pool.reserved), |node| pool.node(node).map(|node| node.reserved))?;
        Reserved { page_size: size, node, requested: 0, got: 0, reserved, compacted: false }
    } else {
        let bar = ProgressBar::with_draw_target(Some(pages), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{bar:30} {pos} of {len} pages");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.tick();
        let reservation = Reservation { size, pages, node, compact: args.compact };
        let reserved = host.reserve_with_progress(&reservation, &mut |got| bar.set_position(got));
        bar.finish_and_clear();
        reserved?
    };
    if as_json {
        json(out, &reserved)?;
    } else if pages == 0 {
        writeln!(out, "nothing to reserve: {wanted} pages of {size} are free{}", on(node))?;
    } else {
        let Reserved { got, requested, reserved, .. } = reserved;
        writeln!(out, "reserved {got} of {requested} pages of {size}{}: {reserved} now reserved", on(node))?;
    }
    reserved.complete().map(drop).map_err(HugepagesError::from)
}

fn release(args: ReleaseArgs, host: &Host, out: &mut dyn Write) -> Result<(), HugepagesError> {
    let PoolArgs { size, node, json: as_json } = args.pool;
    let requested = args.count.or(args.memory.map(|bytes| size.pages_for(bytes)));
    let pool = host.pool(size)?;
    let reserved = node.map_or(Ok(pool.reserved), |node| pool.node(node).map(|node| node.reserved))?;
    if let Some(requested) = requested.filter(|requested| *requested > reserved) {
        return Err(HugepagesError::NotReserved { size, node, requested, reserved });
    }
    let released = host.release(size, node, requested.map_or(Amount::All, Amount::Pages))?;
    if as_json {
        json(out, &released)?
    } else {
        write!(out, "{}", show_released(&released))?
    }
    match requested {
        Some(requested) if released.released < requested => {
            Err(HugepagesError::NotReleased { size, requested, released: released.released })
        }
        _ => Ok(()),
    }
}

fn json(out: &mut dyn Write, value: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, value)?;
    writeln!(out)
}

fn on(node: Option<u32>) -> String {
    node.map(|node| format!(" on node {node}")).unwrap_or_default()
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header);
    table
}

fn show_status(status: &Status) -> String {
    let mut pools = table(&["PAGES OF", "NODE", "RESERVED", "FREE", "IN USE", "SURPLUS"]);
    for pool in &status.pools {
        let size = pool.page_size.to_string();
        let numbers = [pool.reserved, pool.free, pool.in_use, pool.surplus].map(|number| number.to_string());
        pools.add_row([&[size.clone(), "all".to_owned()], &numbers[..]].concat());
        for node in &pool.nodes {
            let numbers = [node.reserved, node.free, node.reserved.saturating_sub(node.free), node.surplus];
            let numbers = numbers.map(|number| number.to_string());
            pools.add_row([&[size.clone(), node.node.to_string()], &numbers[..]].concat());
        }
    }
    let mut mounts = table(&["MOUNT", "PAGES OF", "UID", "GID", "PAGES HELD BY FILES"]);
    for mount in &status.mounts {
        let held: u64 = mount.files.iter().map(|file| file.pages).sum();
        let size = mount.page_size.map_or("?".to_owned(), |size| size.to_string());
        let path = mount.path.display().to_string();
        mounts.add_row([path, size, mount.uid.to_string(), mount.gid.to_string(), held.to_string()]);
    }
    let mut processes = table(&["PID", "COMMAND", "PAGES"]);
    for process in &status.processes {
        processes.add_row([process.pid.to_string(), process.command.clone(), show_pages(process)]);
    }
    let section = |table: &Table, rows: usize, none: &str| {
        if rows > 0 { format!("\n{}\n", table.trim_fmt()) } else { format!("\n{none}\n") }
    };
    let mounts = section(&mounts, status.mounts.len(), "No hugetlbfs is mounted (linerate needs none).");
    let processes = section(&processes, status.processes.len(), "No process has hugepages mapped.");
    format!("{}\n{mounts}{processes}", pools.trim_fmt())
}

/// Formats the pages of a process: `4 × 2 MB on node 0, 1 × 1 GB on node 1`.
fn show_pages(process: &Process) -> String {
    let Some(pages) = &process.pages else {
        return format!("{} MB in total; details are visible to root only", process.bytes >> 20);
    };
    let each = pages.iter().map(|mapped| format!("{} × {}{}", mapped.pages, mapped.page_size, on(mapped.node)));
    each.collect::<Vec<_>>().join(", ")
}

fn show_released(released: &Released) -> String {
    let Released { page_size, released: count, reserved, in_use, node, .. } = released;
    let on = on(*node);
    let mut text = format!("released {count} pages of {page_size}{on}: {reserved} now reserved\n");
    if *in_use > 0 {
        text += &format!("{in_use} pages of {page_size} on this host are in use or committed, and stay reserved:\n");
        for process in &released.processes {
            text += &format!("  process {} ({}): {}\n", process.pid, process.command, show_pages(process));
        }
        for file in &released.files {
            text += &format!("  file {}: {} pages, until it is removed\n", file.path.display(), file.pages);
        }
        if released.processes.is_empty() && released.files.is_empty() {
            text += "  no visible process maps them: a memfd or another mount namespace holds them\n";
        }
    }
    let others = reserved.saturating_sub(*in_use);
    if released.requested.is_none() && others > 0 {
        let node = node.map(|node| format!(" --node {node}")).unwrap_or_default();
        let size = page_size.short();
        text += &format!(
            "at most {others} free pages of {page_size}{on} were reserved otherwise, as at boot or by sysctl: release \
             them by 'linerate hugepages release {others} --size {size}{node}'\n"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser, error::ErrorKind};
    use linerate_hugepages::HeldFile;
    use std::fs;
    use tempfile::TempDir;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        hugepages: HugepagesArgs,
    }

    /// Creates a host with 10 pages of 2 MB on two nodes, of which process 7 uses 2 on node 1.
    fn fake() -> (TempDir, Host) {
        let tree = TempDir::new().unwrap();
        let write = |path: &str, content: &str| {
            let path = tree.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        };
        let pool = |parent: &str, [reserved, free, committed, surplus]: [u64; 4]| {
            let directory = format!("sys/{parent}/hugepages/hugepages-2048kB");
            write(&format!("{directory}/nr_hugepages"), &reserved.to_string());
            write(&format!("{directory}/free_hugepages"), &free.to_string());
            write(&format!("{directory}/resv_hugepages"), &committed.to_string());
            write(&format!("{directory}/surplus_hugepages"), &surplus.to_string());
        };
        pool("kernel/mm", [10, 8, 0, 0]);
        pool("devices/system/node/node0", [5, 5, 0, 0]);
        pool("devices/system/node/node1", [5, 3, 0, 0]);
        write("proc/mounts", "hugetlbfs /nonexistent/huge hugetlbfs rw,pagesize=2M 0 0\n");
        write("proc/7/status", "HugetlbPages:\t 4096 kB\n");
        write("proc/7/comm", "echo\n");
        write("proc/7/numa_maps", "7f00 default huge anon=2 N1=2 kernelpagesize_kB=2048\n");
        let host = Host::below(tree.path());
        (tree, host)
    }

    fn run_in(host: &Host, line: &str) -> (String, Result<(), HugepagesError>) {
        let cli = Cli::try_parse_from([&["hugepages"], &line.split(' ').collect::<Vec<_>>()[..]].concat()).unwrap();
        let mut out = Vec::new();
        let result = execute(cli.hugepages, host, &mut out);
        (String::from_utf8(out).unwrap(), result)
    }

    #[test]
    fn arguments_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn status_shows_pools_per_node_mounts_and_users() {
        let (_tree, host) = fake();
        let (text, result) = run_in(&host, "status");
        result.unwrap();
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert!(rows.contains(&vec!["2", "MB", "all", "10", "8", "2", "0"]), "{text}");
        assert!(rows.contains(&vec!["2", "MB", "1", "5", "3", "2", "0"]), "{text}");
        assert!(rows.contains(&vec!["/nonexistent/huge", "2", "MB", "0", "0", "0"]), "{text}");
        assert!(text.contains("2 × 2 MB on node 1"), "{text}");
    }

    #[test]
    fn status_as_json_has_the_documented_fields() {
        let (_tree, host) = fake();
        let (text, result) = run_in(&host, "status --json");
        result.unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            value,
            serde_json::json!({
                "pools": [{
                    "page_size": 2_097_152, "reserved": 10, "free": 8, "committed": 0, "surplus": 0, "in_use": 2,
                    "nodes": [
                        { "node": 0, "reserved": 5, "free": 5, "surplus": 0 },
                        { "node": 1, "reserved": 5, "free": 3, "surplus": 0 },
                    ],
                }],
                "mounts": [
                    { "path": "/nonexistent/huge", "page_size": 2_097_152, "uid": 0, "gid": 0, "files": [] },
                ],
                "processes": [{
                    "pid": 7, "command": "echo", "bytes": 4_194_304,
                    "pages": [{ "page_size": 2_097_152, "node": 1, "pages": 2 }],
                }],
            })
        );
    }

    #[test]
    fn reserve_accepts_pages_or_memory_and_prints_the_result() {
        let (_tree, host) = fake();
        let (text, result) = run_in(&host, "reserve 4");
        result.unwrap();
        assert_eq!(text, "reserved 4 of 4 pages of 2 MB: 14 now reserved\n");
        let (text, result) = run_in(&host, "reserve --memory 3M --json --node 1");
        result.unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        let expected = serde_json::json!({
            "page_size": 2_097_152, "node": 1, "requested": 2, "got": 2, "reserved": 7, "compacted": false,
        });
        assert_eq!(value, expected);
    }

    #[test]
    fn top_up_reserves_only_missing_pages() {
        let (_tree, host) = fake();
        let (text, result) = run_in(&host, "reserve --top-up 8");
        result.unwrap();
        assert_eq!(text, "nothing to reserve: 8 pages of 2 MB are free\n");
        assert_eq!(host.pool(PageSize::MB_2).unwrap().reserved, 10);
        let (text, result) = run_in(&host, "reserve --top-up 4 --node 1");
        result.unwrap();
        assert_eq!(text, "reserved 1 of 1 pages of 2 MB on node 1: 6 now reserved\n");
    }

    #[test]
    fn release_frees_unused_pages_and_names_the_holders_of_the_rest() {
        let (_tree, host) = fake();
        run_in(&host, "reserve 4").1.unwrap();
        let (text, result) = run_in(&host, "release --all");
        result.unwrap();
        assert!(text.starts_with("released 4 pages of 2 MB: 10 now reserved\n"), "{text}");
        assert_eq!(host.pool(PageSize::MB_2).unwrap().reserved, 10);
        let mut released = Released {
            page_size: PageSize::MB_2,
            node: None,
            requested: None,
            released: 8,
            reserved: 2,
            in_use: 2,
            processes: host.processes().unwrap(),
            files: vec![HeldFile { path: "/mnt/left".into(), pages: 1 }],
        };
        let text = show_released(&released);
        assert!(text.contains("2 pages of 2 MB on this host are in use"), "{text}");
        assert!(text.contains("process 7 (echo): 2 × 2 MB on node 1"), "{text}");
        assert!(text.contains("file /mnt/left: 1 pages"), "{text}");
        released.processes.clear();
        released.files.clear();
        assert!(show_released(&released).contains("no visible process"));
    }

    #[test]
    fn releasing_fewer_pages_than_requested_is_an_error() {
        let (_tree, host) = fake();
        let (_, result) = run_in(&host, "release 9");
        let error = result.unwrap_err().to_string();
        assert_eq!(error, "released 8 of 9 pages of 2 MB: no more were free");
    }

    #[test]
    fn releasing_more_pages_than_are_reserved_releases_none() {
        let (_tree, host) = fake();
        for (line, part) in [
            ("release 11", "release 11 pages of 2 MB: 10 are reserved: give at most 10, or --all"),
            ("release --memory 22M", "release 11 pages of 2 MB: 10 are reserved"),
            ("release 6 --node 1", "release 6 pages of 2 MB on node 1: 5 are reserved"),
        ] {
            let (text, result) = run_in(&host, line);
            let error = result.unwrap_err().to_string();
            assert!(text.is_empty() && error.contains(part), "{line}: {error}");
            assert_eq!(host.pool(PageSize::MB_2).unwrap().reserved, 10);
        }
    }

    #[test]
    fn unsupported_page_size_names_the_supported_ones() {
        let (_tree, host) = fake();
        let error = run_in(&host, "reserve 1 --size 1G").1.unwrap_err().to_string();
        assert_eq!(error, "this kernel has no pages of 1 GB: it has 2 MB");
    }

    #[test]
    fn invalid_arguments_are_usage_errors() {
        for line in [
            "",
            "reserve",
            "reserve 0",
            "reserve -1",
            "reserve many",
            "reserve 1 --memory 2M",
            "reserve --memory 0",
            "reserve --memory 2T",
            "reserve 1 --size 3M",
            "reserve 1 --node x",
            "release",
            "release 1 --all",
            "status 1",
        ] {
            let words: Vec<&str> = line.split_whitespace().collect();
            let error = Cli::try_parse_from([&["hugepages"], &words[..]].concat()).unwrap_err();
            // clap exits with 2 if `use_stderr`.
            assert!(error.use_stderr() && error.kind() != ErrorKind::DisplayHelp, "{line}");
        }
    }
}
