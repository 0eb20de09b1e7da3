//! Runs every command of the book and of the README, as described in README.md.

mod host;
mod page;

use page::{Block, Page, Step};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
/// Name of the test that acts as a host in a separate process.
const NAME: &str = "every_command_of_the_book_runs";
/// Environment variable with the number of the host in its page, and the path of the page.
const HOST: &str = "LINERATE_BOOK_HOST";
/// Output of a host that has run all blocks.
const DONE: &str = "all blocks passed";
/// Programs that are not part of Linerate.
const PROGRAMS: [&str; 12] = [
    "openssl",
    "redis-cli",
    "redis-benchmark",
    "curl",
    "haproxy",
    "nutcracker",
    "tcpdump",
    "ethtool",
    "ping",
    "pgrep",
    "jq",
    "socat",
];

/// Examples, which only a test of the whole package builds.
const EXAMPLES: [&str; 2] = ["count", "ask"];

/// Returns the pages with their paths, by name.
fn pages() -> BTreeMap<String, (PathBuf, Page)> {
    let files = fs::read_dir(format!("{ROOT}/docs/src")).unwrap().map(|entry| entry.unwrap().path());
    let files = files.filter(|path| path.extension().is_some_and(|it| it == "md"));
    let only = std::env::var("LINERATE_BOOK_PAGE").ok();
    let mut pages = BTreeMap::new();
    for path in files.chain([Path::new(ROOT).join("README.md")]) {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if only.as_ref().is_none_or(|only| *only == name) {
            let page = page(&path);
            pages.insert(name, (path, page));
        }
    }
    assert!(!pages.is_empty(), "no such page: {only:?}");
    pages
}

fn page(path: &Path) -> Page {
    let page = Page::parse(&fs::read_to_string(path).unwrap());
    page.unwrap_or_else(|(line, error)| panic!("{}:{line}: {error}", path.display()))
}

/// Prints a line that is visible even if the test passes.
fn print_notice(line: &str) {
    // Standard error may be closed.
    let _ = writeln!(io::stderr(), "{line}");
}

/// Returns a program that the blocks use and that is not installed.
fn missing_program(blocks: &[Block]) -> Option<&'static str> {
    let commands = blocks.iter().flat_map(|block| &block.steps).filter_map(|step| match step {
        Step::Run { command, .. } => Some(command.as_str()),
        Step::Interrupt { .. } => None,
    });
    let programs: Vec<&str> = commands.clone().filter_map(|command| command.split(' ').next()).collect();
    let is_built = |example: &&str| host::examples().join(example).exists();
    if let Some(example) = EXAMPLES.into_iter().find(|example| programs.contains(example) && !is_built(example)) {
        return Some(example);
    }
    let is_separator = |c: char| !(c.is_ascii_alphanumeric() || c == '-');
    let words: Vec<&str> = commands.flat_map(|command| command.split(is_separator)).collect();
    let is_installed =
        |program: &str| ["/usr/sbin", "/usr/bin"].iter().any(|directory| Path::new(directory).join(program).exists());
    PROGRAMS.into_iter().find(|program| words.contains(program) && !is_installed(program))
}

/// Runs the commands for a host of a page and returns the error output if they fail.
fn run_host(path: &Path, number: usize) -> Option<String> {
    let mut host = host::command(std::env::current_exe().unwrap().to_str().unwrap());
    host.args(["--exact", NAME, "--nocapture", "--test-threads=1"]).env(HOST, format!("{number} {}", path.display()));
    let output = host.stdin(Stdio::null()).output().unwrap();
    let output_text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    (!output.status.success() || !output_text.contains(DONE)).then(|| output_text.into_owned())
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn every_command_of_the_book_runs() {
    if let Ok(host) = std::env::var(HOST) {
        let (number, path) = host.split_once(' ').unwrap();
        match host::run(&page(Path::new(path)).hosts[number.parse::<usize>().unwrap()]) {
            Ok(()) => println!("{DONE}"),
            Err(error) => panic!("{error}"),
        }
        return;
    }
    let pages = pages();
    for (name, (_, page)) in &pages {
        page.not_run.iter().for_each(|(line, reason)| print_notice(&format!("not run: {name}:{line}: {reason}")));
    }
    if !is_root() {
        print_notice("skipped: the commands of the book need root, for namespaces");
        return;
    }
    let mut failed = Vec::new();
    for (name, (path, page)) in &pages {
        for (number, blocks) in page.hosts.iter().enumerate().filter(|(_, blocks)| !blocks.is_empty()) {
            let location = format!("{name}:{}", blocks[0].line);
            if let Some(program) = missing_program(blocks) {
                print_notice(&format!("skipped: {location}: {program} is not installed"));
                continue;
            }
            let started = Instant::now();
            failed.extend(run_host(path, number).map(|error| format!("{location}: {error}")));
            print_notice(&format!("{location}: {:.1} s", started.elapsed().as_secs_f64()));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
}

#[test]
fn deviation_from_the_page_is_reported() {
    if !is_root() {
        print_notice("skipped: hosts for scripts need root, for namespaces");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("page.md");
    let serve = "$ linerate echo serve --via kernel --listen 127.0.0.1:0\n";
    for (script, expected) in [
        ("$ echo a 1\na 7\n".to_owned(), None),
        ("$ echo a\nb\n".to_owned(), Some("did not print 'b'")),
        ("$ false\n".to_owned(), Some("ended with exit status: 1")),
        ("$ linerate echo\nlinerate: a subcommand is missing…\n".to_owned(), None),
        ("$ echo 'linerate: no'\nlinerate: no\n".to_owned(), Some("ended with exit status: 0")),
        ("^C\n".to_owned(), Some("^C: no server runs")),
        (format!("{serve}ready echo on 127.0.0.1:1 … 1 worker\n^C\n"), None),
        (format!("{serve}^C\nno such line\n"), Some("did not print 'no such line'")),
        ("$ touch /etc/linerate-was-here\n".to_owned(), Some("Read-only file system")),
    ] {
        fs::write(&file, format!("```console\n{script}```\n")).unwrap();
        let error = run_host(&file, 0);
        match (expected, &error) {
            (None, None) => {}
            (Some(expected), Some(error)) if error.contains(expected) && error.contains("line 1: ") => {}
            _ => panic!("{script}: {error:?}"),
        }
    }
}
