//! Options of `linerate run`, and calls that few programs use.

use super::{CLIENT, SERVER, compile, started};
use crate::links::Link;
use linerate_harness::program::{Program, run};
use linerate_harness::rerun::alone_in_a_namespace;
use std::process::Command;

#[test]
fn io_uring_is_as_in_a_kernel_without_it() {
    let link = Link::vhost();
    let program = compile("calls.c", link.directory());
    let result = |command: Command| run(command).stdout;
    assert!(result(Command::new(&program)).starts_with("io_uring_setup -1 E"));
    let on_stack = result(started(&link.serve, SERVER, &format!("{} io_uring", program.display())));
    assert_eq!(on_stack, "io_uring_setup -1 ENOSYS\n");
    // The filter holds for the programs that a program starts, too.
    let mut child = started(&link.serve, SERVER, "sh -c");
    child.arg(format!("{}; true", program.display()));
    assert_eq!(result(child), "io_uring_setup -1 ENOSYS\n");
}

/// Prints the error of each bind(2) and connect(2), in a namespace without routes.
const SOCKETS: &str = "
import errno, socket, sys
def call(name, address, port):
    with socket.socket() as one:
        one.setblocking(False)
        try: getattr(one, name)((address, port)); print(0)
        except OSError as error: print(errno.errorcode[error.errno])
for port in 6999, 7000, 7001, 7002: call('bind', sys.argv[1], port)
for port in 80, 81: call('connect', sys.argv[2], port)
";

#[test]
fn ports_select_sockets_of_the_stack() {
    alone_in_a_namespace(|| {
        let link = Link::vhost();
        let results = |options: &str| {
            let mut program = started(&format!("{} {options}", link.serve), SERVER, "/usr/bin/python3 -c");
            program.args([SOCKETS, SERVER, "10.9.0.3"]);
            run(program).stdout.lines().map(|line| line.split(' ').next_back().unwrap().to_owned()).collect::<Vec<_>>()
        };
        // The kernel has neither the address nor a route. A connection of the stack begins, and waits for a peer.
        let (absent, begun, unreachable) = ("EADDRNOTAVAIL", "EINPROGRESS", "ENETUNREACH");
        assert_eq!(results(""), ["0", "0", "0", "0", begun, begun]);
        assert_eq!(results("--listen-ports 7000-7001"), [absent, "0", "0", absent, begun, begun]);
        assert_eq!(results("--connect-ports 81-90,7"), ["0", "0", "0", "0", unreachable, begun]);
        let neither = [absent, absent, absent, absent, unreachable, unreachable];
        assert_eq!(results("--listen-ports none --connect-ports none"), neither);
    });
}

#[test]
fn explain_names_calls_errors_and_sockets_of_the_kernel() {
    let link = Link::vhost();
    let program = compile("calls.c", link.directory());
    let words = format!("{} serve {SERVER} 7000", program.display());
    let options = format!("{} --explain", link.serve);
    let mut server = started(&options, SERVER, &words);
    server.env("RUST_LOG", "info");
    let mut server = Program::start(server);
    server.wait_for_log("listens on 10.9.0.2:7000");
    let client = "
import socket
with socket.create_connection(('10.9.0.2', 7000)) as one:
    one.sendall(b'line\\n')
    print(one.recv(100))
    one.sendall(b'rest')
    print(one.recv(100)[:4])
try: socket.create_connection(('127.0.0.1', 1))
except OSError as error: print(error)
";
    let options = format!("{} --explain", link.load);
    let mut command = started(&options, CLIENT, "/usr/bin/python3 -c");
    command.arg(client);
    let client = run(command);
    assert_eq!(client.stdout, "b'answer to line\\n'\nb'rest'\n[Errno 111] Connection refused\n", "{client:?}");
    let server = server.wait();
    let expected = [
        "fprintf 15 ",
        "fflush 0 ",
        "preadv2 at 1 -1 ESPIPE",
        "preadv2 4 ",
        "rest",
        "pwritev2 63 ",
        "aio_read -1 ENOSYS",
        "aio_read -1 ENOSYS",
        "fclose 0 ",
        "fclose 0 ",
        "close -1 EBADF",
    ];
    assert_eq!(server.stdout.lines().collect::<Vec<_>>(), expected, "{server:?}");
    assert_eq!(server.stderr.matches("aio_read does not work on sockets of the stack").count(), 1, "{server:?}");
    let has = |text: &str, words: &[&str]| {
        let found = text.lines().any(|line| line.split_whitespace().collect::<Vec<_>>() == words);
        assert!(found, "{words:?} in {text}");
    };
    has(&server.stderr, &["accept", "1"]);
    has(&server.stderr, &["fdopen", "2"]);
    has(&server.stderr, &["aio_read", "2", "ENOSYS", "2"]);
    has(&client.stderr, &["connect", "1", "127.0.0.1:1", "(loopback)"]);
    assert!(client.stderr.contains("calls on sockets of the stack"), "{client:?}");
}
