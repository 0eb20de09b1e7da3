//! Loads that end early: by a signal, or because the server refuses their keys. Progress of loads on a terminal.

use crate::common::{linerate, run, serve, start};
use linerate_harness::address::unused_address;
use linerate_harness::process::Ended;
use linerate_harness::program::Program;
use linerate_harness::terminal::Terminal;
use linerate_harness::wait_for;
use rustix::process::Signal;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Starts a server of one connection at a time that counts the received bytes, and sends them back if `echoes`.
fn counting(echoes: bool) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, received) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let count = received.clone();
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut bytes = [0; 4096];
            while let Ok(n @ 1..) = stream.read(&mut bytes) {
                count.fetch_add(n, Ordering::Relaxed);
                let _ = stream.write_all(&bytes[..if echoes { n } else { 0 }]);
            }
        }
    });
    (address, received)
}

/// Sends SIGINT to `load` once `received` exceeds `bytes`, and returns its end.
fn interrupt(load: Program, received: &AtomicUsize, bytes: usize) -> Ended {
    wait_for("requests", || received.load(Ordering::Relaxed) > bytes);
    load.signal(Signal::INT);
    let output = load.wait();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    output
}

#[test]
fn interrupted_load_marks_its_measurements_and_fails() {
    for more in ["--json", "", "--reconnect --json"] {
        let (address, received) = counting(true);
        let load = start(&format!("echo load --via kernel --connect {address} --duration 10m {more}"));
        let output = interrupt(load, &received, 100 * 64);
        assert!(output.stderr.starts_with("linerate: interrupted: the figures cover "), "{output:?}");
        if more.contains("--json") {
            let report = output.json();
            assert_eq!((&report["interrupted"], &report["errors"]), (&true.into(), &0.into()), "{report}");
            assert!(report["seconds"].as_f64().unwrap() < 60.0, "{report}");
        } else {
            assert!(output.stdout.contains("requests/s") && output.stdout.contains("\ninterrupted"), "{output:?}");
        }
    }
}

#[test]
fn interrupted_udp_load_marks_its_measurements_and_fails() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (address, received) = (socket.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let count = received.clone();
    thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok((n, peer)) = socket.recv_from(&mut bytes) {
            count.fetch_add(n, Ordering::Relaxed);
            let _ = socket.send_to(&bytes[..n], peer);
        }
    });
    let load = start(&format!("echo load --udp --via kernel --connect {address} --duration 10m --json"));
    let output = interrupt(load, &received, 100 * 64);
    assert_eq!(output.json()["interrupted"], true, "{output:?}");
}

#[test]
fn load_interrupted_before_its_measurement_has_no_report() {
    let (address, received) = counting(false);
    let load = start(&format!("kv load --via kernel --connect {address} --json"));
    let output = interrupt(load, &received, 0);
    assert_eq!((&*output.stdout, &*output.stderr), ("", "linerate: interrupted before the measurement\n"));
}

#[test]
fn load_stops_filling_a_server_that_refuses_keys() {
    let password = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&password, "secret\n").unwrap();
    let with_password = format!("--password-file {}", password.path().display());
    let (tcp, memcached) = ("--listen 127.0.0.1:0", format!("--udp --memcached {}", unused_address()));
    let small = "--memory 8m --evict none";
    for (serving, loading, reply) in [
        ([tcp, &with_password], "", "NOAUTH Authentication required."),
        ([tcp, small], "--connections 8", "OOM command not allowed when used memory > 'maxmemory'."),
        ([&memcached, small], "--udp --protocol memcached", "SERVER_ERROR out of memory storing object"),
    ] {
        let server = serve("kv", &format!("--via kernel {}", serving.join(" ")));
        let output = run(&format!("kv load --via kernel --connect {} --keys 1000000 {loading}", server.address()));
        assert_eq!((output.status.code(), &*output.stdout), (Some(1), ""), "{output:?}");
        let line = output.stderr.strip_prefix(&format!("linerate: {} refused ", server.address())).unwrap();
        let (refused, line) = line.split_once(" SETs while keys were loaded; the first: SET key:").unwrap();
        // Outstanding SETs may also be refused.
        assert!((1000..10_000).contains(&refused.parse::<u32>().unwrap()), "{output:?}");
        assert!(line.contains(&format!("the reply is \"{reply}\": ")) && line.ends_with("add --no-fill\n"), "{line}");
    }
}

#[test]
fn load_on_a_terminal_shows_its_progress() {
    let terminal = Terminal::new(100, 24);
    let (address, received) = counting(false);
    let mut command = linerate(&format!("kv load --via kernel --connect {address} --keys 5000"));
    let load = terminal.start(&mut command, true);
    wait_for("the keys", || terminal.written().contains("loading keys: 0 of 5000"));
    interrupt(load, &received, 0);
    let (address, received) = counting(true);
    let mut command = linerate(&format!("echo load --via kernel --connect {address} --duration 10m"));
    let load = terminal.start(&mut command, true);
    wait_for("the measurement", || terminal.written().contains(" of 600.0 s, "));
    interrupt(load, &received, 0);
    // The line is removed before the report.
    wait_for("the report", || terminal.written().contains("requests/s"));
}
