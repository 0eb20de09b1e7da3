//! Shortened runs of `linerate compare` over kernel sockets: reports, and cleanup after an interruption. Runs on one
//! machine and between two, for which network namespaces stand in.

use crate::common::{linerate, start};
use linerate_compare::results::{App, Design, LinkKind, Outcome, Part, Results, Row, Swept};
use linerate_harness::child::words;
use linerate_harness::namespace::Host;
use linerate_harness::process::Ended;
use linerate_harness::program::Program;
use linerate_harness::rerun::is_root;
use linerate_harness::wait_for;
use rustix::process::Signal;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Time limit of a shortened comparison, which takes a few seconds on an idle machine.
const TIME_LIMIT: Duration = Duration::from_secs(300);

fn run(args: &str) -> Ended {
    start(args).wait_within(TIME_LIMIT)
}

fn results(dir: &Path) -> Results {
    serde_json::from_slice(&fs::read(dir.join("results.json")).unwrap()).unwrap()
}

fn compare(dir: &Path, more: &str) -> Program {
    start(&format!("compare --apps echo --quick --out {} {more}", dir.display()))
}

fn row<'a>(results: &'a Results, id: &str) -> &'a Row {
    results.rows.iter().find(|row| row.id == id).unwrap_or_else(|| panic!("{id}"))
}

#[test]
fn kernel_sockets_are_compared_and_reports_are_written() {
    let dir = tempfile::tempdir().unwrap();
    let output = compare(dir.path(), "--via kernel --rounds 1 --round-time 50ms").wait_within(TIME_LIMIT);
    assert!(output.status.success(), "{}", output.stderr);
    assert!(output.stderr.contains("2 of 2 rows can be measured here, 1 rounds of 50 ms"));
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
        assert_eq!(measured.fixed.len(), 3, "{}", output.stderr);
        for fixed in &measured.fixed {
            let [round] = &fixed.rounds[..] else { panic!("{:?}", fixed.rounds) };
            assert!(round.requests > 0 && round.errors == 0 && round.rtt_us.max > 0.0, "{round:?}");
            // Outstanding requests at the end count if they waited longer than the others.
            let outstanding = u64::from(fixed.point.connections * fixed.point.depth);
            let times = round.histogram.iter().map(|(_, count)| count).sum::<u64>();
            assert!((round.requests..=round.requests + outstanding).contains(&times), "{round:?}");
            assert_eq!(round.rtt_us.samples, times);
            assert!(round.others.is_some_and(|part| (0.0..=1.0).contains(&part)), "{round:?}");
            assert!(round.server.requests >= round.requests && round.server.cpu_seconds.unwrap() > 0.0, "{round:?}");
        }
        let offered = measured.sweeps.iter().find(|sweep| sweep.of == Swept::OfferedRate).unwrap();
        assert!(offered.points.iter().all(|point| point.x > 0.0 && point.rate > 0.0), "{offered:?}");
    }
    for report in ["report.html", "report.md", "headline.svg"] {
        assert!(dir.path().join(report).exists(), "{report}");
    }
    let (_, verdict) = output.stdout.trim_end().rsplit_once("\n\n").unwrap();
    assert!(verdict.starts_with("Verdict\n") && verdict.lines().count() <= 15, "{verdict}");
    assert!(verdict.contains("No transport that bypasses the kernel ran"), "{verdict}");
    // The results can be rendered elsewhere, and compared with themselves.
    let (json, other) = (dir.path().join("results.json"), dir.path().join("other"));
    assert!(run(&format!("compare render {} --out {}", json.display(), other.display())).status.success());
    assert_eq!(self::results(&other), results);
    assert!(run(&format!("compare diff {0} {0}", json.display())).status.success());
}

#[test]
fn echo_and_kv_are_compared_with_and_without_tls() {
    let dir = tempfile::tempdir().unwrap();
    let more = "--via kernel --points 64x1 --rounds 1 --round-time 50ms --no-sweeps --keys 1000";
    let output = run(&format!("compare --quick --apps echo,echo-tls,kv,kv-tls --out {} {more}", dir.path().display()));
    assert!(output.status.success(), "{}", output.stderr);
    let results = results(dir.path());
    assert_eq!(results.rows.len(), 8);
    for row in &results.rows {
        let Outcome::Ran(measured) = &row.outcome else { panic!("{row:?}") };
        let has = |line: &[String], option: &str| line.iter().any(|word| word == option);
        let ends = [has(&measured.server, "--tls-cert"), has(&measured.load, "--tls")];
        assert_eq!(ends, [row.app.has_tls(); 2], "{measured:?}");
        let round = &measured.fixed[0].rounds[0];
        assert!(round.requests > 0 && round.errors == 0, "{}: {round:?}", row.id);
    }
    assert!(output.stdout.contains("to those without TLS: on 64 connections"), "{}", output.stdout);
}

#[test]
fn further_measurements_are_made_on_request() {
    let dir = tempfile::tempdir().unwrap();
    let more = "--via kernel --points 64x16 --rounds 1 --round-time 100ms --no-sweeps --slo p90=100ms --incast --batch";
    let output = compare(dir.path(), &format!("{more} --service-time exp:5us")).wait_within(TIME_LIMIT);
    assert!(output.status.success(), "{}", output.stderr);
    let results = results(dir.path());
    assert_eq!(results.settings.service_time.as_deref(), Some("exp:5us"));
    for row in &results.rows {
        let Outcome::Ran(measured) = &row.outcome else { panic!("{row:?}") };
        assert!(measured.server.ends_with(&["--service-time".to_owned(), "exp:5us".to_owned()]), "{measured:?}");
        let sweep = |of: Swept| measured.sweeps.iter().find(|sweep| sweep.of == of).unwrap();
        let search = sweep(Swept::Objective);
        assert!(search.resolution.unwrap() > 0.0 && search.points[0].is_within_objective(), "{search:?}");
        let batch = sweep(Swept::Batch);
        assert_eq!(batch.points.iter().map(|point| point.x).collect::<Vec<_>>(), [10.0, 50.0, 90.0]);
        assert!(batch.points.iter().all(|point| point.batch.unwrap() > 0.0), "{batch:?}");
        let incast = sweep(Swept::Incast);
        assert_eq!(incast.points.iter().map(|point| point.x).collect::<Vec<_>>(), [10.0, 100.0, 1000.0]);
        assert!(incast.points.iter().all(|point| point.errors == 0 && point.rtt_us.unwrap().max > 0.0), "{incast:?}");
    }
    for table in ["highest load with a p90 of at most", "time until the last answer", "work of a batch program"] {
        assert!(output.stdout.contains(table), "{}", output.stdout);
    }
}

#[test]
fn processor_time_of_a_request_is_divided_if_the_build_has_line_tables() {
    let dir = tempfile::tempdir().unwrap();
    let more = "--via kernel --points 64x16 --rounds 1 --round-time 50ms --no-sweeps --keys 1000 --profile";
    let output = run(&format!("compare --apps kv --quick --out {} {more}", dir.path().display()));
    if !output.status.success() {
        let reasons = ["this build has no line tables", "sysctl -w kernel.perf_event_paranoid=1"];
        assert!(reasons.iter().any(|reason| output.stderr.contains(reason)), "{}", output.stderr);
        return;
    }
    for row in &results(dir.path()).rows {
        let Outcome::Ran(measured) = &row.outcome else { panic!("{row:?}") };
        let profile = measured.profile.as_ref().unwrap();
        let all = profile.samples.values().sum::<u64>();
        assert!(all > 100 && profile.requests > 0 && profile.cpu_seconds > 0.1, "{profile:?}");
        let parts = [Part::Kernel, Part::Stack, Part::Service];
        assert!(parts.iter().all(|part| profile.samples[part] > all / 50), "{profile:?}");
    }
    assert!(output.stdout.contains("processor time of a request"), "{}", output.stdout);
}

#[test]
fn interrupted_comparison_leaves_a_report_and_no_child() {
    let dir = tempfile::tempdir().unwrap();
    let mut program = compare(dir.path(), "--via kernel --rounds 100 --round-time 50ms --no-kernel-tuning");
    let process = program.pid();
    program.wait_for_log("round 2");
    let output = program.stop();
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stderr.contains("interrupted: partial results are in"));
    wait_for("the end of the children", || children(process).is_empty());
    let results = results(dir.path());
    assert!(!results.finished);
    let Outcome::Ran(measured) = &row(&results, "echo/kernel/sleeping").outcome else { panic!("{results:?}") };
    assert!(!measured.fixed[0].rounds.is_empty());
}

/// Creates two connected namespaces and the options that use them as machines. Returns `None` without root.
fn two_machines() -> Option<([Host; 2], Vec<String>)> {
    if !is_root() {
        return None;
    }
    let hosts = Host::pair_with_offloads().unwrap();
    hosts.iter().for_each(|host| host.address().unwrap());
    let [load, server] = &hosts;
    let on = |host: &Host| words(&host.command(Path::new("env"))).join(" ");
    let [server_ip, load_ip] = [server, load].map(|host| format!("{}/24", host.v4));
    let (server_on, load_on) = (on(server), on(load));
    let args = ["--server-on", &server_on, "--load-on", &load_on, "--server-ip", &server_ip, "--load-ip", &load_ip];
    let args = args.map(str::to_owned).to_vec();
    Some((hosts, args))
}

fn compare_between(dir: &Path, machines: &[String], more: &str) -> Program {
    let mut command = linerate("compare --quick --no-sweeps --round-time 50ms --out");
    command.arg(dir).args(machines).args(more.split_whitespace());
    Program::start(command)
}

#[test]
fn two_machines_are_compared_and_servers_report_processor_time() {
    let Some((_hosts, machines)) = two_machines() else { return };
    let dir = tempfile::tempdir().unwrap();
    let more = "--via kernel --rounds 1 --points 2x2 --keys 100";
    let output = compare_between(dir.path(), &machines, more).wait_within(TIME_LIMIT);
    assert!(output.status.success(), "{}", output.stderr);
    let results = results(dir.path());
    assert!(results.finished && results.load_machine.is_some());
    assert!(results.settings.kernel_tuning.iter().any(|line| line.contains("No sysctl was set")));
    let ids: Vec<&str> = results.rows.iter().map(|row| &*row.id).collect();
    assert_eq!(ids, ["echo/kernel/sleeping", "echo/kernel/spinning", "kv/kernel/sleeping", "kv/kernel/spinning"]);
    for row in &results.rows {
        assert_eq!(row.link.kind, LinkKind::Network);
        let Outcome::Ran(measured) = &row.outcome else { panic!("{:?}", row.outcome) };
        assert_eq!(measured.server[..3], machines[1].split(' ').take(3).collect::<Vec<_>>(), "{:?}", measured.server);
        let [fixed] = &measured.fixed[..] else { panic!("{:?}", measured.fixed) };
        assert_eq!((fixed.point.connections, fixed.point.depth, fixed.rounds.len()), (2, 2, 1));
        let round = &fixed.rounds[0];
        assert!(round.requests > 0 && round.errors == 0, "{round:?}");
        assert!(round.server.cpu_seconds.unwrap() > 0.0 && round.transfer_ns.is_none(), "{round:?}");
        assert!(round.server.copied.is_some(), "no summary: {round:?}");
    }
}

#[test]
fn interrupted_comparison_leaves_no_process_on_other_machines() {
    let Some((hosts, machines)) = two_machines() else { return };
    for signal in [Signal::INT, Signal::KILL] {
        let dir = tempfile::tempdir().unwrap();
        let mut program = compare_between(dir.path(), &machines, "--via kernel --rounds 100 --apps echo");
        program.wait_for_log("round 2");
        program.signal(signal);
        assert!(!program.wait().status.success());
        let running = |host: &Host| !host.namespace().processes().is_empty();
        wait_for("the end of the processes", || !hosts.iter().any(running));
    }
}

/// Returns whether no process, namespace or file remains of the comparison `process` with its temporary directory in
/// `scratch`.
fn is_gone(process: u32, scratch: &Path) -> bool {
    let names = |dir: &Path| fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let variable = format!("TMPDIR={}", scratch.display());
    // Programs inherit the environment. A zombie process has none.
    let started = |pid: &std::ffi::OsString| {
        let environ = fs::read(Path::new("/proc").join(pid).join("environ")).unwrap_or_default();
        environ.split(|byte| *byte == 0).any(|entry| entry == variable.as_bytes())
    };
    let own = format!("linerate-{process}-");
    !names(Path::new("/proc")).any(|pid| started(&pid))
        && !names(Path::new("/run/netns")).any(|name| name.to_string_lossy().starts_with(&own))
        && names(scratch).next().is_none()
}

#[test]
fn killed_or_repeatedly_interrupted_comparison_leaves_nothing() {
    if !is_root() {
        return;
    }
    for (signals, via) in [(&[Signal::KILL][..], "veth,kernel"), (&[Signal::TERM, Signal::TERM], "kernel")] {
        let (dir, scratch) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let args = format!("compare --apps echo --quick --via {via} --rounds 100 --round-time 50ms --out");
        let mut command = linerate(&args);
        command.arg(dir.path()).env("TMPDIR", scratch.path());
        let mut program = Program::start(command);
        let process = program.pid();
        program.wait_for_log("round 2");
        assert!(!is_gone(process, scratch.path()));
        signals.iter().for_each(|signal| program.signal(*signal));
        let output = program.wait_within(TIME_LIMIT);
        wait_for("the removal of everything", || is_gone(process, scratch.path()));
        if signals.len() > 1 {
            // A second signal within a second of the first is ignored, so the comparison still writes its report.
            assert_eq!(output.status.code(), Some(1), "{output:?}");
            assert!(!results(dir.path()).finished);
        }
    }
}

#[test]
fn unwritable_directory_is_reported_before_measuring() {
    let file = tempfile::NamedTempFile::new().unwrap();
    for out in [file.path(), &file.path().join("inner"), Path::new("/proc/linerate")] {
        let output = compare(out, "--via kernel").wait();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let line = format!("linerate: --out {}: ", out.display());
        assert!(output.stderr.starts_with(&line) && output.stderr.lines().count() == 1, "{output:?}");
    }
}

#[test]
fn results_are_printed_if_they_cannot_be_written() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("out");
    let mut program = compare(&dir, "--via kernel --rounds 3 --round-time 50ms --no-sweeps --no-kernel-tuning");
    program.wait_for_log("round 1");
    fs::remove_dir(&dir).unwrap();
    fs::write(&dir, "").unwrap();
    let output = program.wait_within(TIME_LIMIT);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stdout.contains("requests/s"), "{output:?}");
    assert!(output.stderr.contains(&format!("linerate: {}", dir.display())), "{output:?}");
}

#[test]
fn unmeasured_rows_state_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let output = compare(dir.path(), "--via rdma:none0 --rounds 1 --round-time 50ms").wait_within(TIME_LIMIT);
    assert!(output.status.success(), "{}", output.stderr);
    let results = results(dir.path());
    assert_eq!(
        results.rows.iter().map(|row| &*row.id).collect::<Vec<_>>(),
        ["echo/rdma:none0/send", "echo/rdma:none0/ud"]
    );
    for row in &results.rows {
        let Outcome::NotRun { reason, remedy } = &row.outcome else { panic!("{row:?}") };
        assert!(!reason.is_empty() && !remedy.is_empty(), "{row:?}");
    }
}

#[test]
fn invalid_comparisons_are_refused() {
    for (args, part) in [
        ("compare --apps ecko", "give echo, kv"),
        ("compare --via ethernet", "rdma:DEVICE"),
        ("compare --server-cores 1023", "core 1023 cannot be used"),
        ("compare --quick render x.json", "render cannot be combined with --quick"),
        ("compare --points 64", "64x16"),
        ("compare --service-time exp:10", "write a number"),
        ("compare --slo p98=50us", "p99=50us"),
        ("compare --service-time exp:10us --apps http", "select other --apps"),
        ("compare --server-ip 10.0.0.1/24", "--server-ip has an effect only with --server-on"),
        ("compare --via pci:0000:03:00.0", "name them with --server-on"),
        ("compare --server-on false --via kernel", "false"),
        ("compare --server-on env --via veth", "joins processes of one machine"),
        ("compare --server-on env --via kernel", "--server-ip"),
        ("compare --server-on env --profile", "cannot be combined with"),
        ("compare render /nowhere/x.json", "/nowhere/x.json"),
    ] {
        let output = run(args);
        assert!(!output.status.success(), "{args}");
        assert!(output.stderr.contains(part), "{args}: {}", output.stderr);
    }
}

/// Returns the processes whose parent is `process`.
fn children(process: u32) -> Vec<u32> {
    let child = |entry: fs::DirEntry| {
        let number = entry.file_name().to_str()?.parse().ok()?;
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        let parent: u32 = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
        (parent == process).then_some(number)
    };
    fs::read_dir("/proc").unwrap().flatten().filter_map(child).collect()
}
