//! Servers over kernel sockets, and their termination.

use crate::{assert_refused, common, connect, serve};
use linerate_harness::program::Program;
use linerate_harness::{TIMEOUT, wait_for};
use rustix::process::Signal;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream, UdpSocket};
use std::thread;

/// Echoes 100 MB written and read concurrently, including the end of the stream.
#[test]
fn echo_returns_100_mb_exactly_and_answers_a_half_closed_connection() {
    const SIZE: usize = 100_000_000;
    let server = serve("echo", "");
    let bytes = common::client::random(SIZE);
    let mut stream = connect(&server);
    let mut sender = stream.try_clone().unwrap();
    let mut back = vec![0; SIZE];
    thread::scope(|scope| {
        scope.spawn(|| {
            sender.write_all(&bytes).unwrap();
            sender.shutdown(Shutdown::Write).unwrap();
        });
        stream.read_exact(&mut back).unwrap();
    });
    assert!(back == bytes);
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
}

#[test]
fn echo_serves_64_connections_on_2_workers_at_once() {
    let cores = thread::available_parallelism().unwrap().get();
    let server = serve("echo", &format!("--workers {}", cores.min(2)));
    let mut streams: Vec<TcpStream> = (0..64).map(|_| connect(&server)).collect();
    for round in 0..10u8 {
        for (i, stream) in streams.iter_mut().enumerate() {
            stream.write_all(&[i as u8 ^ round; 1000]).unwrap();
        }
        for (i, stream) in streams.iter_mut().enumerate() {
            let mut back = [0; 1000];
            stream.read_exact(&mut back).unwrap();
            assert_eq!(back, [i as u8 ^ round; 1000]);
        }
    }
}

#[test]
fn echo_serves_every_address_it_was_given_over_ipv4_and_ipv6() {
    let server = serve("echo", "--listen [::1]:0");
    let addresses = server.addresses();
    assert!(addresses[0].is_ipv4() && addresses[1].is_ipv6());
    for address in addresses {
        let mut stream = common::client::connect(address);
        stream.write_all(b"hello").unwrap();
        let mut back = [0; 5];
        stream.read_exact(&mut back).unwrap();
        assert_eq!(&back, b"hello");
    }
}

#[test]
fn echo_answers_datagrams() {
    let server = serve("echo", "");
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    socket.connect(server.address()).unwrap();
    for len in [0, 1, 64, 1472, 8000] {
        let sent = vec![len as u8; len];
        socket.send(&sent).unwrap();
        let mut back = [0; 10_000];
        let n = socket.recv(&mut back).unwrap();
        assert!(back[..n] == sent, "{len} bytes became {n}");
    }
}

/// Fetches the metrics page named in the ready line of a server.
fn metrics(server: &Program) -> String {
    let (_, at) = server.ready.split_once(", metrics at http://").unwrap();
    let mut stream = TcpStream::connect(at.strip_suffix("/metrics").unwrap()).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, page) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    page.to_owned()
}

/// Returns the sum of metric `name` over all workers.
#[track_caller]
fn value(page: &str, name: &str) -> u64 {
    let lines = page.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix("{worker=\""));
    let values: Vec<u64> = lines.map(|line| line.split_once("\"} ").unwrap().1.parse().unwrap()).collect();
    assert!(!values.is_empty(), "{name}: {page}");
    values.iter().sum()
}

#[test]
fn metrics_are_served_while_the_server_runs() {
    for threading in ["inline", "split"] {
        let server = serve("echo", &format!("--threading {threading} --workers 2 --metrics 127.0.0.1:0"));
        let page = metrics(&server);
        assert_eq!(value(&page, "linerate_worker_up"), 2, "{page}");
        for name in ["linerate_rx_bytes_total", "linerate_connections", "linerate_connections_accepted_total"] {
            assert_eq!(value(&page, name), 0, "{page}");
        }
        let mut streams: Vec<_> = (0..5).map(|_| connect(&server)).collect();
        for stream in &mut streams {
            stream.write_all(&[7; 1000]).unwrap();
            stream.read_exact(&mut [0; 1000]).unwrap();
        }
        let page = metrics(&server);
        assert_eq!((value(&page, "linerate_rx_bytes_total"), value(&page, "linerate_tx_bytes_total")), (5000, 5000));
        assert_eq!((value(&page, "linerate_connections"), value(&page, "linerate_connections_accepted_total")), (5, 5));
        drop(streams);
        wait_for("the end of the connections", || value(&metrics(&server), "linerate_connections") == 0);
        assert_eq!(value(&metrics(&server), "linerate_connections_finished_total"), 5);
        assert!(server.stop().status.success());
    }
}

#[test]
fn unavailable_metrics_address_ends_the_server() {
    assert_refused("echo serve --via kernel --listen 127.0.0.1:0 --metrics 192.0.2.1:1", 1, "--metrics 192.0.2.1:1");
    assert_refused("echo serve --via kernel --listen 127.0.0.1:0 --metrics 9107", 2, "--metrics");
}

#[test]
fn discard_consumes_everything_and_returns_nothing() {
    let server = serve("discard", "");
    let mut stream = connect(&server);
    stream.write_all(&vec![7; 10_000_000]).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
}

#[test]
fn chargen_sends_until_the_peer_closes() {
    let server = serve("chargen", "");
    let mut stream = connect(&server);
    let mut lines = vec![0; 74 * 100_000];
    stream.read_exact(&mut lines).unwrap();
    assert!(lines.starts_with(b" !\"#"));
    assert!(lines.chunks(74).all(|line| line.ends_with(b"\r\n")));
    stream.shutdown(Shutdown::Write).unwrap();
    stream.read_to_end(&mut lines).unwrap();
}

#[test]
fn sigint_and_sigterm_end_a_server_with_a_summary() {
    for signal in [Signal::INT, Signal::TERM] {
        let server = serve("echo", "");
        let mut stream = connect(&server);
        stream.write_all(b"hello").unwrap();
        stream.read_exact(&mut [0; 5]).unwrap();
        server.signal(signal);
        let output = server.wait();
        assert!(output.status.success(), "{output:?}");
        let stderr = &output.stderr;
        for part in ["received", "sent", "1 accepted", "drops", "copied"] {
            assert!(stderr.contains(part), "{stderr}");
        }
        assert_eq!(output.stdout, "", "one line only");
    }
}

#[test]
fn json_summary_is_one_object_on_standard_output() {
    let server = serve("discard", "--json");
    connect(&server).write_all(b"hello").unwrap();
    let mut stream = connect(&server);
    stream.shutdown(Shutdown::Write).unwrap();
    stream.read_to_end(&mut Vec::new()).unwrap();
    let output = server.stop();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let summary = output.json();
    assert_eq!(summary["accepted"], 2, "{summary}");
    let [turns, busy, bursts] = ["turns", "busy_turns", "bursts"].map(|name| summary[name].as_u64().unwrap());
    assert!(
        bursts >= 1 && bursts <= busy && busy <= turns && bursts <= summary["rx_frames"].as_u64().unwrap(),
        "{summary}"
    );
    assert!(summary["drops"].is_object() && summary["copied_bytes"].is_u64(), "{summary}");
}
