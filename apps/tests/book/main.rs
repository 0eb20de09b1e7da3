//! Every command of the book and of the README is run, as the README beside this file says.

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
/// The test that is a host, in a process of its own.
const NAME: &str = "every_command_of_the_book_runs";
/// Tells that process which: the number of the host in its page, and the page's path.
const HOST: &str = "LINERATE_BOOK_HOST";
/// What it says at its end.
const DONE: &str = "the host did all";
/// What is installed in other packages than Linerate's own.
const PROGRAMS: [&str; 11] = [
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

/// The pages and their paths, by their names.
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
    assert!(!pages.is_empty(), "there is no such page: {only:?}");
    pages
}

fn page(path: &Path) -> Page {
    let page = Page::of(&fs::read_to_string(path).unwrap());
    page.unwrap_or_else(|(line, why)| panic!("{}:{line}: {why}", path.display()))
}

/// Says a line that is seen of tests that pass, too.
fn say(line: &str) {
    // Who runs tests may have gone away; that is no fault of the book's.
    let _ = writeln!(io::stderr(), "{line}");
}

/// What the blocks use that is not installed.
fn lacks(blocks: &[Block]) -> Option<&'static str> {
    let commands = blocks.iter().flat_map(|block| &block.steps).filter_map(|step| match step {
        Step::Run { command, .. } => Some(command.as_str()),
        Step::Interrupt { .. } => None,
    });
    let is_apart = |c: char| !(c.is_ascii_alphanumeric() || c == '-');
    let words: Vec<&str> = commands.flat_map(|command| command.split(is_apart)).collect();
    let is_there =
        |program: &str| ["/usr/sbin", "/usr/bin"].iter().any(|place| Path::new(place).join(program).exists());
    PROGRAMS.into_iter().find(|program| words.contains(program) && !is_there(program))
}

/// What is wrong with the commands for a host of a page.
fn faults(path: &Path, number: usize) -> Option<String> {
    let mut host = host::command(std::env::current_exe().unwrap().to_str().unwrap());
    host.args(["--exact", NAME, "--nocapture", "--test-threads=1"]).env(HOST, format!("{number} {}", path.display()));
    let output = host.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    (!output.status.success() || !said.contains(DONE)).then(|| said.into_owned())
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
            Err(why) => panic!("{why}"),
        }
        return;
    }
    let pages = pages();
    for (name, (_, page)) in &pages {
        page.not_run.iter().for_each(|(line, why)| say(&format!("not run: {name}:{line}: {why}")));
    }
    if !is_root() {
        say("skipped: the commands of the book need root, for namespaces");
        return;
    }
    let mut failed = Vec::new();
    for (name, (path, page)) in &pages {
        for (number, blocks) in page.hosts.iter().enumerate().filter(|(_, blocks)| !blocks.is_empty()) {
            let place = format!("{name}:{}", blocks[0].line);
            if let Some(program) = lacks(blocks) {
                say(&format!("skipped: {place}: {program} is not installed"));
                continue;
            }
            let began = Instant::now();
            failed.extend(faults(path, number).map(|said| format!("{place}: {said}")));
            say(&format!("{place}: {:.1} s", began.elapsed().as_secs_f64()));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
}

#[test]
fn what_does_not_do_as_its_page_says_is_told() {
    if !is_root() {
        say("skipped: hosts for scripts need root, for namespaces");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("page.md");
    let serve = "$ linerate echo serve --via kernel --listen 127.0.0.1:0\n";
    for (script, told) in [
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
        let faults = faults(&file, 0);
        match (told, &faults) {
            (None, None) => {}
            (Some(told), Some(said)) if said.contains(told) && said.contains("line 1: ") => {}
            _ => panic!("{script}: {faults:?}"),
        }
    }
}
