//! Programs at their limits, and those that treat descriptors and processes in unusual ways.

use super::programs::{Case, assert_succeeds, serves, shell};
use crate::common::wire::linerate_in;
use crate::interfaces::shared::connect_kernels;
use linerate_harness::program::Program;
use linerate_harness::rerun::in_namespaces;
use linerate_harness::tests;

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
        let mut server = linerate_in(namespace, "run --via af_xdp:lr1,share --idle backoff -- /usr/bin/python3 -c");
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
