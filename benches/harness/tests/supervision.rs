//! Supervised programs, and what remains of them. The tests run themselves in other processes, as `rerun` permits.
#![forbid(unsafe_code)]

use linerate_harness::interrupt::{is_interrupted, on_signals};
use linerate_harness::namespace::{Host, Namespace};
use linerate_harness::process::{Process, TIMEOUT};
use linerate_harness::program::Program;
use linerate_harness::remover::Remover;
use linerate_harness::{Error, interrupt, rerun, until, wait_for};
use rustix::process::Signal;
use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

/// Time limit of waits that fail.
const TICK: Duration = Duration::from_millis(10);

fn shell(script: &str) -> Process {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    Process::start(command).unwrap()
}

#[test]
fn output_is_returned() {
    assert_eq!(shell("echo one; echo two").output(TIMEOUT).unwrap(), "one\ntwo\n");
}

#[test]
fn paused_program_resumes_and_stops() {
    let mut process = shell("trap 'exit 0' TERM; echo ready; while :; do sleep 0.01; done");
    process.wait_for_line("ready").unwrap();
    let stat = format!("/proc/{}/stat", process.id());
    let await_stopped = |is_stopped| {
        wait_for("the state", || fs::read_to_string(&stat).unwrap().contains(") T ") == is_stopped);
    };
    process.pause();
    await_stopped(true);
    process.resume();
    await_stopped(false);
    process.pause();
    await_stopped(true);
    process.stop().unwrap();
}

#[test]
fn failure_includes_standard_error() {
    let error = shell("echo reason >&2; exit 3").output(TIMEOUT).unwrap_err();
    assert!(error.to_string().contains("reason"), "{error}");
}

#[test]
fn failed_program_returns_its_output() {
    let ended = shell("echo some; echo reason >&2; exit 3").end(TIMEOUT).unwrap();
    assert_eq!((ended.status.code(), &*ended.stdout, &*ended.stderr), (Some(3), "some\n", "reason\n"));
}

#[test]
fn standard_error_is_read_while_running() {
    let mut program = shell("echo first >&2; echo measuring >&2; exec sleep 1000");
    assert_eq!(program.wait_for_stderr(&["warming", "measuring"], TIMEOUT).unwrap().as_deref(), Some("measuring"));
    drop(program);
    assert_eq!(shell("echo other >&2").wait_for_stderr(&["measuring"], TIMEOUT).unwrap(), None);
    let error = shell("exec sleep 1000").wait_for_stderr(&["measuring"], TICK).unwrap_err();
    assert!(error.to_string().contains("did not begin"), "{error}");
}

#[test]
fn output_is_awaited_on_either_stream() {
    let script = "trap 'echo three >&2; exit 3' TERM; echo one; echo two; while :; do sleep 0.01; done";
    let mut program = shell(script);
    assert_eq!(program.wait_for_output("tw").unwrap(), "two");
    program.signal(Signal::TERM);
    assert_eq!(program.wait_for_output("three").unwrap(), "three");
    assert!(program.wait_for_output("two").unwrap_err().to_string().contains("did not print 'two'"));
    assert!(!program.is_running());
}

#[test]
fn server_is_awaited_and_stopped() {
    let mut server = shell("echo ready on 7; exec sleep 1000");
    assert_eq!(server.wait_for_line("ready").unwrap(), "ready on 7");
    let pid = server.id();
    drop(server);
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
}

#[test]
fn output_after_a_stop_request_is_returned() {
    let mut server = shell("trap 'echo one; echo two; exit 0' TERM; echo ready; while :; do sleep 0.01; done");
    server.wait_for_line("ready").unwrap();
    assert_eq!(server.stop().unwrap(), "one\ntwo\n");
}

#[test]
fn supervised_program_answers_and_ends_with_its_input() {
    let mut command = Command::new("sh");
    command.args(["-c", "echo ready; while read line; do echo replied; done; echo over"]);
    let mut server = Process::supervised(command, TIMEOUT).unwrap();
    server.wait_for_line("ready").unwrap();
    assert_eq!(server.query().unwrap(), "replied");
    assert_eq!(server.stop().unwrap(), "over\n");
    assert!(shell("exec sleep 1000").query().is_err());
}

#[test]
fn supervised_program_that_ignores_its_input_gets_a_signal() {
    let mut command = Command::new("sleep");
    command.arg("1000");
    let server = Process::supervised(command, TICK).unwrap();
    let pid = server.id();
    drop(server);
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
}

#[test]
fn server_that_ends_before_ready_is_an_error() {
    let error = shell("echo no memory >&2").wait_for_line("ready").unwrap_err();
    assert!(error.to_string().contains("no memory"), "{error}");
}

#[test]
fn lines_are_read_until_done() {
    let mut program = shell("echo banner; echo ready now; echo 1; echo 2; exec sleep 1000");
    program.read_until(TIMEOUT, |line| line.contains("ready")).unwrap();
    let mut lines = Vec::new();
    let all = |line: &str| {
        lines.push(line.to_owned());
        lines.len() == 2
    };
    program.read_until(TIMEOUT, all).unwrap();
    assert_eq!(lines, ["1", "2"]);
    let error = program.read_until(TICK, |_| true).unwrap_err();
    assert!(error.to_string().contains("did not print"), "{error}");
}

#[test]
fn program_that_ends_while_being_read_is_an_error() {
    let error = shell("echo 1; echo broken >&2").read_until(TIMEOUT, |_| false);
    assert!(error.unwrap_err().to_string().contains("broken"));
}

#[test]
fn missing_program_is_an_error() {
    let error = Process::start(Command::new("/nonexistent/program")).unwrap_err();
    assert!(matches!(&error, Error::Start { program, .. } if program == "/nonexistent/program"), "{error}");
}

#[test]
fn interruption_ends_waits_but_not_stop() {
    rerun::alone(|| {
        let mut server = shell("echo ready; trap 'exit 0' TERM; while :; do sleep 0.01; done");
        server.wait_for_line("ready").unwrap();
        interrupt::interrupt();
        // The failure of a program follows from the interruption.
        assert!(matches!(shell("exit 3").output(TIMEOUT), Err(Error::Interrupted)));
        assert!(matches!(shell("exit 3").wait_for_line("ready"), Err(Error::Interrupted)));
        assert!(matches!(shell("exec sleep 1000").output(TIMEOUT), Err(Error::Interrupted)));
        assert!(matches!(until("never", TIMEOUT, || Ok(false)), Err(Error::Interrupted)));
        server.stop().unwrap();
    });
}

#[test]
fn second_signal_counts_only_after_a_second() {
    rerun::parts(|role| {
        if role != rerun::MAIN {
            on_signals().unwrap();
            println!("ready");
            wait_for("the first signal", is_interrupted);
            println!("interrupted");
            thread::sleep(Duration::MAX);
        }
        let mut program = Program::start(rerun::command("interrupted"));
        program.wait_for_line("ready");
        let began = Instant::now();
        program.signal(Signal::INT);
        program.signal(Signal::TERM);
        program.wait_for_line("interrupted");
        wait_for("the end", || {
            program.signal(Signal::INT);
            !program.is_running()
        });
        assert!(began.elapsed() >= Duration::from_secs(1));
        assert_eq!(program.wait().status.signal(), Some(Signal::INT.as_raw()));
    });
}

#[test]
fn killed_process_leaves_no_directory_and_no_namespace() {
    if !rerun::is_root() {
        return;
    }
    rerun::parts(|role| {
        let directory = std::env::temp_dir().join(format!("linerate-remover-{}", std::process::id()));
        if role != rerun::MAIN {
            fs::create_dir_all(directory.join("inner")).unwrap();
            let _remover = Remover::start(&directory).unwrap();
            let namespace = Namespace::new("killed").unwrap();
            let mut sleep = namespace.command("sleep").arg("1000").spawn().unwrap();
            println!("left {} {} {}", directory.display(), namespace.name(), sleep.id());
            // Does not end before this process is killed.
            sleep.wait().unwrap();
        }
        let mut program = Program::start(rerun::command("killed"));
        let line = program.wait_for_line("left ");
        let (_, left) = line.split_once("left ").unwrap();
        let [directory, namespace, sleep] = left.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let namespace = Path::new("/run/netns").join(namespace);
        assert!(Path::new(directory).exists() && namespace.exists());
        let command_line = || fs::read(format!("/proc/{sleep}/cmdline")).unwrap_or_default();
        // `ip netns exec` enters the namespace before it executes the program.
        wait_for("the start of the process", || command_line().starts_with(b"sleep"));
        program.signal(Signal::KILL);
        wait_for("the removal of the namespace", || !namespace.exists());
        wait_for("the removal of the directory", || !Path::new(directory).exists());
        // A process that has ended and was not waited for has no command line.
        wait_for("the end of the process", || command_line().is_empty());
        program.wait();
    });
}

#[test]
fn dropped_remover_removes_nothing() {
    let directory = std::env::temp_dir().join(format!("linerate-remover-{}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    drop(Remover::start(&directory).unwrap());
    fs::remove_dir(&directory).unwrap();
}

#[test]
fn connected_hosts_reach_each_other_and_are_removed_with_their_processes() {
    if !rerun::is_root() {
        return;
    }
    let hosts = Host::pair_with_offloads().unwrap();
    hosts.iter().for_each(|host| host.address().unwrap());
    let [near, far] = &hosts;
    let at = SocketAddr::new(far.ip(true), 7);
    let listener = far.within(|| TcpListener::bind(at)).unwrap();
    near.within(|| TcpStream::connect(at)).unwrap();
    drop(listener);
    let mut sleep = near.namespace().command("sleep");
    sleep.arg("1000");
    let mut sleep = Process::start(sleep).unwrap();
    let names = hosts.each_ref().map(|host| host.namespace().name().to_owned());
    wait_for("the process", || near.namespace().processes().len() == 1);
    drop(hosts);
    wait_for("the end of the process", || !sleep.is_running());
    assert!(names.iter().all(|name| !Path::new("/run/netns").join(name).exists()));
}
