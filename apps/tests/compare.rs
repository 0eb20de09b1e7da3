//! `linerate compare`, shortened, over kernel sockets: what it writes, and what is left when it is interrupted.

use linerate_apps::compare::results::{App, Design, LinkKind, Outcome, Results, Row, Swept};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How long the shortened comparison may take on a busy machine.
const LONG: Duration = Duration::from_secs(60);

fn linerate(args: &str) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_linerate"));
    command.args(args.split_whitespace()).env_remove("RUST_LOG").stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits for it to end, and stops it if it does not.
fn wait(mut child: Child) -> Output {
    let until = Instant::now() + LONG;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > until {
            // It ends its children.
            kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
            panic!("it did not end: {:?}", child.wait_with_output());
        }
        thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().unwrap()
}

fn run(args: &str) -> Output {
    wait(linerate(args))
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn results(dir: &Path) -> Results {
    serde_json::from_slice(&fs::read(dir.join("results.json")).unwrap()).unwrap()
}

fn compare(dir: &Path, more: &str) -> Child {
    linerate(&format!("compare --apps echo --quick --out {} {more}", dir.display()))
}

fn row<'a>(results: &'a Results, id: &str) -> &'a Row {
    results.rows.iter().find(|row| row.id == id).unwrap_or_else(|| panic!("{id}"))
}

#[test]
fn kernel_sockets_are_compared_and_reports_are_written() {
    let dir = tempfile::tempdir().unwrap();
    let output = wait(compare(dir.path(), "--via kernel --rounds 1 --round-time 50ms"));
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("2 of 2 rows can be measured here, 1 rounds of 50 ms"));
    let results = results(dir.path());
    assert!(results.finished && results.seconds > 0.1);
    assert_eq!((results.settings.rounds, results.settings.points.len()), (1, 3));
    assert!(!results.settings.kernel_tuning.is_empty());
    assert_eq!(results.rows.len(), 2);
    for (id, design) in
        [("echo/kernel/sleeping", Design::KernelSleeping), ("echo/kernel/spinning", Design::KernelSpinning)]
    {
        let row = row(&results, id);
        assert_eq!((row.app, &row.design, row.link.kind), (App::Echo, &design, LinkKind::Loopback));
        let Outcome::Ran(measured) = &row.outcome else { panic!("{:?}", row.outcome) };
        assert!(measured.server.contains(&"serve".to_owned()) && measured.load.contains(&"load".to_owned()));
        assert_eq!(measured.fixed.len(), 3);
        for fixed in &measured.fixed {
            let [round] = &fixed.rounds[..] else { panic!("{:?}", fixed.rounds) };
            assert!(round.requests > 0 && round.errors == 0 && round.rtt_us.p50 > 0.0, "{round:?}");
            assert_eq!(round.histogram.iter().map(|(_, count)| count).sum::<u64>(), round.requests);
            assert!(round.server.requests >= round.requests && round.server.cpu_seconds > 0.0, "{round:?}");
        }
        let offered = measured.sweeps.iter().find(|sweep| sweep.of == Swept::OfferedRate).unwrap();
        assert!(offered.points.iter().all(|point| point.x > 0.0 && point.rate > 0.0), "{offered:?}");
    }
    for report in ["report.html", "report.md"] {
        assert!(dir.path().join(report).exists(), "{report}");
    }
    // What was found can be rendered elsewhere, and held against itself.
    let (json, other) = (dir.path().join("results.json"), dir.path().join("other"));
    assert!(run(&format!("compare render {} --out {}", json.display(), other.display())).status.success());
    assert_eq!(self::results(&other), results);
    assert!(run(&format!("compare diff {0} {0}", json.display())).status.success());
}

#[test]
fn what_is_interrupted_leaves_its_report_and_no_child() {
    let dir = tempfile::tempdir().unwrap();
    let mut program = compare(dir.path(), "--via kernel --rounds 100 --round-time 50ms --no-kernel-tuning");
    let process = program.id();
    let said = BufReader::new(program.stderr.take().unwrap());
    let mut lines = said.lines().map_while(Result::ok);
    assert!(lines.any(|line| line.starts_with("round 2")), "it never came to its second round");
    kill_process(Pid::from_child(&program), Signal::INT).unwrap();
    let output = wait(program);
    assert_eq!(output.status.code(), Some(1));
    assert!(lines.any(|line| line.contains("interrupted: what was found until then is in")));
    assert_eq!(children(process), [] as [u32; 0]);
    let results = results(dir.path());
    assert!(!results.finished);
    let Outcome::Ran(measured) = &row(&results, "echo/kernel/sleeping").outcome else { panic!("{results:?}") };
    assert!(!measured.fixed[0].rounds.is_empty());
}

#[test]
fn rows_that_cannot_be_measured_say_why() {
    let dir = tempfile::tempdir().unwrap();
    let output = wait(compare(dir.path(), "--via rdma:none0 --rounds 1 --round-time 50ms"));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let results = results(dir.path());
    assert_eq!(
        results.rows.iter().map(|row| &*row.id).collect::<Vec<_>>(),
        ["echo/rdma:none0/send", "echo/rdma:none0/write", "echo/rdma:none0/ud",]
    );
    for row in &results.rows {
        let Outcome::NotRun { why, remedy } = &row.outcome else { panic!("{row:?}") };
        assert!(!why.is_empty() && !remedy.is_empty(), "{row:?}");
    }
}

#[test]
fn what_cannot_be_compared_is_refused() {
    for (args, part) in [
        ("compare --apps ecko", "write echo, kv"),
        ("compare --via ethernet", "rdma:DEVICE"),
        ("compare --server-cores 1023", "core 1023 may not be used"),
        ("compare --quick render x.json", "cannot be used with"),
        ("compare render /nowhere/x.json", "/nowhere/x.json"),
    ] {
        let output = run(args);
        assert!(!output.status.success(), "{args}");
        assert!(text(&output.stderr).contains(part), "{args}: {}", text(&output.stderr));
    }
}

/// Processes whose parent was `process`, or that run for it: none is left to be adopted.
fn children(process: u32) -> Vec<u32> {
    let until = Instant::now() + Duration::from_secs(5);
    loop {
        let of = |entry: fs::DirEntry| {
            let number = entry.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            let parent: u32 = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
            (parent == process).then_some(number)
        };
        let found: Vec<u32> = fs::read_dir("/proc").unwrap().flatten().filter_map(of).collect();
        if found.is_empty() || Instant::now() > until {
            return found;
        }
        thread::sleep(Duration::from_millis(10));
    }
}
