//! Programs at their limits, and those that treat descriptors and processes in unusual ways.

use super::programs::{Case, assert_succeeds, serves, shell};
use super::{CLIENT, SERVER, compile, started};
use crate::common::linerate;
use crate::common::wire::linerate_in;
use crate::interfaces::shared::connect_kernels;
use crate::links::{Link, activity, assert_nothing_left};
use linerate_harness::process::Ended;
use linerate_harness::program::{Program, run};
use linerate_harness::rerun::{in_namespaces, is_installed};
use linerate_harness::{tests, wait_for};
use rustix::process::Signal;
use std::process::Command;
use std::time::Duration;

const PYTHON: &[(&str, &str)] = &[("/usr/bin/python3", "python3")];

/// The server accepts until it has no descriptor left, then closes its connections, and serves again.
const DESCRIPTORS: Case = Case {
    needs: PYTHON,
    files: &[
        (
            "server.py",
            "
import errno, resource, socket
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
listener, held, error = socket.create_server(('10.9.0.2', 7000), backlog=400), [], 0
while not error:
    try: held.append(listener.accept()[0])
    except OSError as failed: error = failed.errno
assert error == errno.EMFILE and len(held) > 100, (error, len(held))
for one in held: one.close()
while True:
    with listener.accept()[0] as one:
        # Connections that waited may have been reset.
        try: one.sendall(one.recv(100))
        except OSError: pass
",
        ),
        (
            "client.py",
            "
import socket
connect = lambda: socket.create_connection(('10.9.0.2', 7000), 10)
held = [connect() for _ in range(300)]
for one in held: one.close()
for _ in range(100):
    with connect() as one:
        one.sendall(b'after')
        assert one.recv(100) == b'after'
",
        ),
    ],
    prepare: "",
    server: "exec /usr/bin/python3 server.py",
    port: 7000,
    clients: "$RUN /usr/bin/python3 client.py",
};

/// Two threads start programs, by vfork(2) and by fork(2), while another one serves.
const CHILDREN: Case = Case {
    needs: PYTHON,
    files: &[
        (
            "server.py",
            "
import os, socket, subprocess, threading, time
ended = []
def start(options):
    while not os.path.exists('stop'):
        assert subprocess.run(['true'], **options).returncode == 0
        ended.append(1)
for options in {}, {'preexec_fn': lambda: None}: threading.Thread(target=start, args=[options]).start()
one = socket.create_server(('10.9.0.2', 7000)).accept()[0]
while data := one.recv(1 << 20): one.sendall(data)
one.close()
assert len(ended) > 10, len(ended)
open('served', 'w')
",
        ),
        (
            "client.py",
            "
import os, socket, time
one, end = socket.create_connection(('10.9.0.2', 7000), 20), time.time() + 2
while time.time() < end:
    data, got = os.urandom(10000), b''
    one.sendall(data)
    while len(got) < len(data): got += one.recv(1 << 20)
    assert got == data
one.shutdown(socket.SHUT_WR)
assert one.recv(1) == b''
",
        ),
    ],
    prepare: "",
    server: "exec /usr/bin/python3 server.py",
    port: 7000,
    clients: "trap 'touch stop' EXIT
              $RUN /usr/bin/python3 client.py
              sleep 0.5
              test -e served",
};

/// Daemons close all descriptors, and serve in a grandchild.
const DAEMON: Case = Case {
    needs: PYTHON,
    files: &[(
        "server.py",
        "
import os, socket
os.closerange(3, 10000)
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
open('pid', 'w').write(str(os.getpid()))
listener = socket.create_server(('10.9.0.2', 7000))
while True:
    one = listener.accept()[0]
    one.sendall(one.recv(100))
    one.close()
",
    )],
    prepare: "",
    // The server of the test is the shell.
    server: "/usr/bin/python3 server.py; exec sleep 60",
    port: 7000,
    clients: "trap 'kill $(cat pid)' EXIT
              $RUN /usr/bin/python3 -c '
import socket
one = socket.create_connection((\"10.9.0.2\", 7000), 10)
one.sendall(b\"daemon\")
assert one.recv(100) == b\"daemon\"'",
};

const REDIS_DAEMON: Case = Case {
    needs: &[("redis-server", "redis-server"), ("redis-cli", "redis-tools")],
    files: &[],
    prepare: "",
    server: "redis-server --port 6379 --bind 10.9.0.2 --protected-mode no --save '' --daemonize yes \
             --pidfile $PWD/pid --dir $PWD; exec sleep 60",
    port: 0,
    clients: "trap 'kill $(cat pid)' EXIT
              until $RUN redis-cli -h 10.9.0.2 ping; do sleep 0.2; done
              $RUN redis-cli -h 10.9.0.2 set key value
              test \"$($RUN redis-cli -h 10.9.0.2 get key)\" = value
              # A child writes the file of the database.
              $RUN redis-cli -h 10.9.0.2 bgsave
              test \"$($RUN redis-cli -h 10.9.0.2 get key)\" = value",
};

tests! {
    server_without_descriptors_recovers => serves(DESCRIPTORS);
    server_starts_programs_while_it_serves => serves(CHILDREN);
    daemon_closes_all_descriptors_and_serves => serves(DAEMON);
    redis_serves_as_a_daemon => serves(REDIS_DAEMON);
}

/// Server of `calls.c` that echoes, at one end of a link, and loads at the other one.
struct Echo {
    link: Link,
    server: Program,
}

impl Echo {
    /// Starts the server, with the last argument `how`.
    fn start(how: &str) -> Echo {
        let link = Link::vhost();
        let program = compile("calls.c", link.directory());
        let mut server = started(&link.serve, SERVER, &format!("{} echo {SERVER} 7000 {how}", program.display()));
        let mut server = Program::start(server.env("RUST_LOG", "info"));
        server.wait_for_log("listens on 10.9.0.2:7000");
        Echo { link, server }
    }

    /// Returns the command of a load.
    fn load(&self, options: &str) -> Command {
        let to = format!("--connect {SERVER}:7000 --json {options}");
        linerate(&format!("echo load --via {} --ip {CLIENT}/24 --idle wait {to}", self.link.load))
    }

    /// Returns the resident memory of the server in KB.
    fn memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.server.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }
}

/// Asserts that a load succeeded. Returns the number of its requests.
#[track_caller]
fn requests(load: &Ended) -> u64 {
    assert!(load.status.success() && load.json()["errors"] == 0, "{load:?}");
    load.json()["requests"].as_u64().unwrap()
}

#[test]
fn server_has_ten_thousand_connections() {
    let echo = Echo::start("");
    assert!(requests(&run(echo.load("--connections 10000 --duration 5s"))) > 1000);
    let pid = echo.server.pid();
    echo.server.kill();
    assert_nothing_left(pid);
}

/// Opens and closes at least `connections` connections, in loads of `seconds`, after one that warms up.
fn memory_is_flat(connections: u64, seconds: u64) {
    let echo = Echo::start("");
    let load = format!("--connections 64 --reconnect --duration {seconds}s");
    let opened = || requests(&Program::start(echo.load(&load)).wait_within(Duration::from_secs(60 + 2 * seconds)));
    opened();
    let (before, mut all) = (echo.memory(), 0);
    while all < connections {
        all += opened();
    }
    let after = echo.memory();
    println!("{all} connections: {before} KB before, {after} KB after");
    assert!(after < before + 1024, "{all} connections: {before} KB before, {after} KB after");
}

#[test]
fn memory_is_flat_over_connections() {
    memory_is_flat(20_000, 3);
}

#[test]
#[ignore = "minutes: ./run test --all"]
fn memory_is_flat_over_ten_million_connections() {
    memory_is_flat(10_000_000, 60);
}

#[test]
fn stopped_server_continues() {
    let echo = Echo::start("");
    let load = Program::start(echo.load("--connections 8 --duration 2s"));
    for _ in 0..4 {
        echo.server.signal(Signal::STOP);
        std::thread::sleep(Duration::from_millis(300));
        echo.server.signal(Signal::CONT);
        std::thread::sleep(Duration::from_millis(300));
    }
    assert!(requests(&load.wait()) > 100);
}

#[test]
fn thread_that_never_returns_does_not_stop_the_others() {
    let echo = Echo::start("spin");
    assert!(requests(&run(echo.load("--connections 8 --duration 1s"))) > 100);
}

#[test]
fn program_cannot_close_descriptors_of_the_network() {
    in_namespaces(|namespace| {
        connect_kernels(namespace, 1);
        let directory = tempfile::tempdir().unwrap();
        let program = compile("calls.c", directory.path());
        let options = "--via af_xdp:lr1,share --idle wait";
        let words = format!("run {options} -- {} echo 10.9.0.4 7000 close", program.display());
        let mut server = linerate_in(namespace, &words);
        let mut server = Program::start(server.env("RUST_LOG", "info"));
        server.wait_for_log("listens on 10.9.0.4:7000");
        let load = "echo load --via kernel --connect 10.9.0.4:7000 --connections 8 --duration 1s --json";
        assert!(requests(&run(linerate(load))) > 100);
        let ended = server.stop();
        assert_eq!(ended.stdout, "", "{ended:?}");
    });
}

/// Returns the activity of the threads of `pid` in a second.
fn activity_of_a_second(pid: u32) -> (Duration, u64) {
    let before = activity(pid);
    std::thread::sleep(Duration::from_secs(1));
    let after = activity(pid);
    (after.0 - before.0, after.1 - before.1)
}

/// Asserts that a server sleeps without requests, and that whatever makes it answer wakes it: its sleeps last for up to
/// a second. Other programs may keep both ends from the processors meanwhile, but not each time.
#[track_caller]
fn assert_sleeps(server: u32, load: impl Fn() -> Command) {
    let measure = || {
        let mut load = load();
        load.args(["--connections", "1", "--rate", "100", "--duration", "2s"]);
        let ended = run(load);
        assert!(requests(&ended) > 50, "{ended:?}");
        (ended.json()["rtt_us"]["p50"].as_f64().unwrap(), activity_of_a_second(server))
    };
    let is_good = (0..5).any(|_| {
        let (round_trip, (time, slices)) = measure();
        println!("median round trip {round_trip} µs; in a second without requests {time:?} in {slices} time slices");
        round_trip < 6000.0 && time < Duration::from_millis(20) && slices < 300
    });
    assert!(is_good);
}

#[test]
fn waiting_server_is_woken_by_packets_threads_and_descriptors() {
    for how in ["", "thread", "pipe"] {
        let echo = Echo::start(how);
        assert_sleeps(echo.server.pid(), || echo.load(""));
    }
}

/// Frames to the other end cannot be sent any more.
#[test]
fn waiting_server_sleeps_after_the_end_of_its_peer() {
    let echo = Echo::start("");
    let load = Program::start(echo.load("--connections 64 --duration 60s"));
    wait_for("requests", || activity_of_a_second(echo.server.pid()).0 > Duration::from_millis(100));
    load.kill();
    wait_for("sleeps", || activity_of_a_second(echo.server.pid()).1 < 300);
}

#[test]
fn waiting_server_is_woken_on_a_shared_interface() {
    in_namespaces(|namespace| {
        connect_kernels(namespace, 1);
        let directory = tempfile::tempdir().unwrap();
        let program = compile("calls.c", directory.path());
        let words = format!("run --via af_xdp:lr1,share --idle wait -- {} echo 10.9.0.4 7000", program.display());
        let mut server = linerate_in(namespace, &words);
        let mut server = Program::start(server.env("RUST_LOG", "info"));
        server.wait_for_log("listens on 10.9.0.4:7000");
        assert_sleeps(server.pid(), || linerate("echo load --via kernel --connect 10.9.0.4:7000 --json"));
        server.stop();
    });
}

/// A helper thread wakes each millisecond. The calls of the thread that serves are those between loads.
#[test]
#[ignore = "strace slows the server down: ./run test --all"]
fn server_makes_no_system_call_for_a_request() {
    if !is_installed("strace", &["-V"], "strace") {
        return;
    }
    let echo = Echo::start("");
    let file = echo.link.directory().join("counts");
    let mut strace = Command::new("strace");
    strace.args(["-f", "-c", "-o"]).arg(&file).args(["-p", &echo.server.pid().to_string()]);
    let mut strace = Program::start(strace);
    strace.wait_for_log("attached");
    let requests = requests(&run(echo.load("--connections 16 --depth 16 --duration 3s")));
    strace.stop();
    let counts = std::fs::read_to_string(file).unwrap();
    let calls: u64 = counts
        .lines()
        .find(|line| line.ends_with("total"))
        .map_or(0, |line| line.split_whitespace().filter_map(|word| word.parse().ok()).nth(1).unwrap());
    assert!(calls * 5 < requests, "{requests} requests:\n{counts}");
}

/// Answers, and closes the connection before it has read all bytes.
const ANSWERS: &str = "
import socket
listener = socket.create_server(('0.0.0.0', 7000))
while True:
    one = listener.accept()[0]
    one.recv(1)
    one.sendall(b'answer')
    one.close()
";

#[test]
fn answer_precedes_the_reset_of_a_connection_with_unread_bytes() {
    in_namespaces(|namespace| {
        connect_kernels(namespace, 1);
        let mut server = linerate_in(namespace, "run --via af_xdp:lr1,share --idle wait -- /usr/bin/python3 -c");
        server.arg(ANSWERS).env("RUST_LOG", "info");
        let mut server = Program::start(server);
        server.wait_for_log("listens on 0.0.0.0:7000");
        let client = "
exec /usr/bin/python3 -c \"
import socket, time
for _ in range(20):
    one = socket.create_connection(('10.9.0.4', 7000), 10)
    one.sendall(bytes(1000))
    time.sleep(0.05)
    assert one.recv(100) == b'answer'
\"";
        assert_succeeds(shell(client, std::path::Path::new(".")));
        server.stop();
    });
}
