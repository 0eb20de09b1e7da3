//! The command line, by running the program: what is refused and how, what servers and loads say, how they end.

mod common;
#[path = "common/free_address.rs"]
mod free_address;

use common::{PATIENCE, Program, Server, linerate, run, text};
use free_address::free_address;
use rustix::process::Signal;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Once;
use std::thread;
use std::time::{Duration, Instant};

/// A server over kernel sockets, on a free port of the loopback interface.
fn serve(service: &str, more: &str) -> Server {
    Server::start(service, &format!("--via kernel --listen 127.0.0.1:0 {more}"))
}

/// The addresses that a server says it serves on.
fn addresses(server: &Server) -> Vec<SocketAddr> {
    let (what, rest) = server.ready.split_once(" on ").unwrap();
    assert!(what.starts_with("ready ") && rest.contains(" via kernel, "), "{}", server.ready);
    rest.split_once(" via ").unwrap().0.split(", ").map(|address| address.parse().unwrap()).collect()
}

fn address(server: &Server) -> SocketAddr {
    addresses(server)[0]
}

/// A client of the kernel's, patient but not for ever.
fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(address(server)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// One line on standard error that begins with the program's name and has `part` in it, nothing on standard output.
#[track_caller]
fn assert_refused(args: &str, status: i32, part: &str) {
    let output = run(args);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{args}: {stderr}");
    assert_eq!(stderr.lines().count(), 1, "{args}: {stderr}");
    assert!(stderr.starts_with("linerate: ") && stderr.contains(part), "{args}: {stderr}");
    assert_eq!(text(&output.stdout), "", "{args}");
}

#[test]
fn wrong_usage_is_one_line_and_status_2() {
    let not_with_rdma =
        if cfg!(feature = "rdma") { "--ip has no effect with --via rdma" } else { "rdma:rxe0: not in this build" };
    for (args, part) in [
        ("", "subcommand"),
        ("ecko", "ecko"),
        ("echo serve", "--via"),
        ("echo serve --via kernel", "--listen"),
        ("echo serve --via ethernet:eth0 --listen 127.0.0.1:7", "unknown network 'ethernet:eth0'"),
        ("echo serve --via af_xdp --listen 127.0.0.1:7", "af_xdp:eth0"),
        ("echo serve --via kernel --listen 127.0.0.1", "--listen"),
        ("echo serve --via kernel --listen 127.0.0.1:0 --workers 0", "--workers"),
        ("echo serve --via kernel --listen 127.0.0.1:0 --cores 3-1", "--cores"),
        ("echo serve --via kernel --listen 127.0.0.1:0 --workers 1 --cores 0", "--cores"),
        ("echo serve --via kernel --listen 127.0.0.1:0 --ip 10.0.0.2/24", "--ip"),
        ("echo serve --via kernel --listen 127.0.0.1:0 --linger 2s", "--linger"),
        ("echo serve --via tap:lr0 --ip 10.0.0.2/24 --listen 10.0.0.2:7 --linger 2", "--linger"),
        ("echo serve --via tap:lr0 --listen 10.0.0.2:7", "--ip ADDRESS/PREFIX"),
        ("echo serve --via tap:lr0 --ip 10.0.0.2 --listen 10.0.0.2:7", "prefix"),
        ("echo serve --via tap:lr0 --ip 10.0.0.2/24 --listen 10.0.0.3:7", "10.0.0.3:7: not an address of ours"),
        ("echo serve --via rdma:rxe0 --ip 10.0.0.2/24 --listen 10.0.0.2:7", not_with_rdma),
        ("echo load --via kernel --connect 127.0.0.1:7 --srq 64", "--srq has an effect only with --via rdma:DEVICE"),
        ("echo load --via kernel --connect 127.0.0.1:7 --rdma-buffers 2", "--rdma-buffers"),
        ("echo serve --via kernel --listen 127.0.0.1:0 --service-time 20", "--service-time"),
        ("echo load --udp --via kernel --connect 127.0.0.1:7 --size 27", "--udp --size 27"),
        ("echo load --udp --via kernel --connect 127.0.0.1:7 --connections 257", "257"),
        ("echo load --udp --via tap:lr0 --dhcp --connect 10.0.0.2:7", "--ip"),
        ("echo load --udp --via rdma:rxe0 --connect 10.0.0.2:7", "--udp"),
        ("raw reflect --via kernel", "--via kernel: no frames"),
        ("raw load --via rdma:rxe0", "--via rdma:rxe0: no frames"),
        ("raw load --via tap:lr0 --ip 10.0.0.2/24", "--ip"),
        ("raw load --via tap:lr0 --size 45", "--size"),
        ("raw load --via tap:lr0 --depth 4097", "--depth"),
        ("raw reflect --via tap:lr0 --warm-up 1s", "--warm-up"),
        ("echo load --via kernel", "--connect"),
        ("echo load --via kernel --connect 127.0.0.1:0", "port"),
        ("echo load --via kernel --connect 127.0.0.1:7 --duration 5", "--duration"),
        ("echo load --via kernel --connect 127.0.0.1:7 --warm-up 5", "--warm-up"),
        ("echo load --via kernel --connect 127.0.0.1:7 --histogram", "--histogram"),
        ("echo load --via kernel --connect 127.0.0.1:7 --rate 0", "--rate"),
        ("echo load --via kernel --connect 127.0.0.1:7 --arrivals even", "--rate"),
        ("echo load --via kernel --connect 127.0.0.1:7 --reconnect --depth 2", "--depth"),
        ("echo load --via kernel --connect 127.0.0.1:7 --reconnect --rate 2", "--rate"),
        ("echo load --via kernel --connect 127.0.0.1:7 --rate 5 --arrivals never", "--arrivals"),
        ("echo load --via kernel --connect 127.0.0.1:7 --size 0", "--size"),
        ("echo load --via kernel --connect 127.0.0.1:7 --depth 0", "--depth"),
        ("echo load --via kernel --connect 127.0.0.1:7 --connections 0", "--connections"),
    ] {
        assert_refused(args, 2, part);
    }
}

#[test]
fn what_the_machine_has_not_is_one_line_and_status_1() {
    assert_refused("echo serve --via kernel --listen 127.0.0.1:0 --workers 1000", 1, "cores can be used");
    assert_refused("echo serve --via kernel --listen 127.0.0.1:0 --cores 1000", 1, "core 1000");
    assert_refused("echo serve --via kernel --listen 192.0.2.1:7", 1, "192.0.2.1:7");
}

#[test]
fn a_taken_port_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().map(|address| address.to_string());
    let taken = (TcpListener::bind(taken.as_ref().unwrap()).unwrap(), taken.unwrap());
    assert_refused(&format!("echo serve --via kernel --listen {}", taken.1), 1, &taken.1);
    assert_refused(&format!("echo serve --via kernel --workers 2 --listen {}", taken.1), 1, &taken.1);
}

#[cfg(not(feature = "dpdk"))]
#[test]
fn without_dpdk_other_networks_are_refused() {
    assert_refused("echo serve --via tap:lr0 --ip 10.0.0.2/24 --listen 10.0.0.2:7", 2, "feature dpdk");
}

#[cfg(feature = "dpdk")]
#[test]
fn an_unknown_interface_is_named() {
    let args = "echo serve --via af_xdp:no-such-if --ip 10.0.0.2/24 --listen 10.0.0.2:7";
    assert_refused(args, 1, "no-such-if");
}

#[test]
fn help_and_version_go_to_standard_output() {
    for (args, part) in [("--help", "echo"), ("echo load --help", "--connections"), ("--version", "linerate 0.")] {
        let output = run(args);
        assert!(output.status.success() && text(&output.stdout).contains(part), "{output:?}");
    }
}

/// A hundred megabytes there and back, written and read at once, with the end of the stream passed on.
#[test]
fn echo_returns_100_mb_exactly_and_answers_a_half_closed_connection() {
    const SIZE: usize = 100_000_000;
    let server = serve("echo", "");
    let mut seed = 1u32;
    let bytes: Vec<u8> = std::iter::repeat_with(|| {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 24) as u8
    })
    .take(SIZE)
    .collect();
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
    let addresses = addresses(&server);
    assert!(addresses[0].is_ipv4() && addresses[1].is_ipv6());
    for address in addresses {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
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
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.connect(address(&server)).unwrap();
    for len in [0, 1, 64, 1472, 8000] {
        let sent = vec![len as u8; len];
        socket.send(&sent).unwrap();
        let mut back = [0; 10_000];
        let n = socket.recv(&mut back).unwrap();
        assert!(back[..n] == sent, "{len} bytes became {n}");
    }
}

/// The page that a server's ready line points to.
fn metrics(server: &Server) -> String {
    let (_, at) = server.ready.trim_end().split_once(", metrics at http://").unwrap();
    let mut stream = TcpStream::connect(at.strip_suffix("/metrics").unwrap()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, page) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    page.to_owned()
}

/// What `page` says of the metric `name` of all workers together.
#[track_caller]
fn value(page: &str, name: &str) -> u64 {
    let lines = page.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix("{worker=\""));
    let values: Vec<u64> = lines.map(|line| line.split_once("\"} ").unwrap().1.parse().unwrap()).collect();
    assert!(!values.is_empty(), "{name}: {page}");
    values.iter().sum()
}

#[test]
fn counters_can_be_read_while_a_server_runs() {
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
        let deadline = Instant::now() + PATIENCE;
        while value(&metrics(&server), "linerate_connections") > 0 {
            assert!(Instant::now() < deadline, "{}", metrics(&server));
        }
        assert_eq!(value(&metrics(&server), "linerate_connections_finished_total"), 5);
        assert!(server.stop().status.success());
    }
}

#[test]
fn metrics_at_an_address_that_cannot_be_had_end_the_server_at_once() {
    assert_refused("echo serve --via kernel --listen 127.0.0.1:0 --metrics 192.0.2.1:1", 1, "--metrics 192.0.2.1:1");
    assert_refused("echo serve --via kernel --listen 127.0.0.1:0 --metrics 9107", 2, "--metrics");
}

#[test]
fn discard_takes_everything_and_returns_nothing() {
    let server = serve("discard", "");
    let mut stream = connect(&server);
    stream.write_all(&vec![7; 10_000_000]).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
}

#[test]
fn chargen_sends_until_the_peer_has_finished() {
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
fn echo_load_reports_what_it_measured_as_one_json_object() {
    let server = serve("echo", "");
    for (more, size, connections) in [
        ("--connections 64", 64, 64),
        ("--connections 3 --size 1000 --depth 16", 1000, 3),
        ("--connections 2 --size 3m --depth 2", 3 << 20, 2),
    ] {
        let args = format!("echo load --via kernel --connect {} --duration 500ms --json {more}", address(&server));
        let output = run(&args);
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        let stdout = text(&output.stdout);
        assert_eq!(stdout.lines().count(), 1, "{stdout}");
        let report: serde_json::Value = serde_json::from_str(stdout).unwrap();
        let number = |name: &str| report[name].as_f64().unwrap();
        assert_eq!(number("errors"), 0.0);
        assert!(number("requests") >= f64::from(connections), "{report}");
        assert_eq!(number("bytes"), number("requests") * f64::from(size));
        assert!((0.5..1.0).contains(&number("seconds")), "{report}");
        assert!((number("rate") - number("requests") / number("seconds")).abs() < 1.0);
        let rtt = &report["rtt_us"];
        let rtt = ["p50", "p90", "p99", "p999", "max"].map(|name| rtt[name].as_f64().unwrap());
        assert!(rtt[0] > 0.0 && rtt.is_sorted(), "{report}");
        let more = report.as_object().unwrap().keys().filter(|name| *name != "threading").count();
        assert_eq!(more, 6, "{report}");
    }
}

#[test]
fn a_load_prints_the_histogram_of_all_its_requests() {
    let server = serve("echo", "");
    let args = format!("echo load --via kernel --connect {} --duration 200ms --json --histogram", address(&server));
    let report: serde_json::Value = serde_json::from_slice(&run(&args).stdout).unwrap();
    let buckets = report["histogram"].as_array().unwrap().iter();
    let buckets: Vec<_> = buckets.map(|bucket| (bucket[0].as_f64().unwrap(), bucket[1].as_u64().unwrap())).collect();
    assert_eq!(buckets.iter().map(|(_, count)| count).sum::<u64>(), report["requests"], "{report}");
    let half = report["requests"].as_u64().unwrap().div_ceil(2);
    let mut below = 0;
    let median = buckets.iter().find(|(_, count)| {
        below += count;
        below >= half
    });
    assert_eq!(report["rtt_us"]["p50"].as_f64(), median.map(|(upper, _)| *upper), "{report}");
}

#[test]
fn a_server_that_is_given_work_answers_that_much_later() {
    for (service, load) in [("echo", ""), ("kv", "--keys 100")] {
        let shortest = |more: &str| {
            let server = serve(service, more);
            let args = format!("{service} load --via kernel --connect {} --duration 200ms {load}", address(&server));
            let output = run(&format!("{args} --json --histogram"));
            assert!(output.status.success(), "{output:?}");
            let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            report["histogram"][0][0].as_f64().unwrap()
        };
        assert!(shortest("--service-time 2ms") >= 2000.0, "{service}");
        assert!(shortest("") < 2000.0, "{service}");
    }
}

#[test]
fn echo_load_makes_a_connection_for_each_request_if_asked_to() {
    for (more, workers) in [("--connections 1", ""), ("--connections 16 --size 3000 --warm-up 100ms", "--workers 2")] {
        let server = serve("echo", &format!("--json {workers}"));
        let args = format!("echo load --via kernel --connect {} --reconnect --duration 300ms --json", address(&server));
        let output = run(&format!("{args} {more}"));
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let number = |name: &str| report[name].as_f64().unwrap();
        assert!(number("requests") > 1.0 && number("connections") == number("rate"), "{report}");
        assert!((0.3..0.6).contains(&number("seconds")) && report["rtt_us"]["p50"].as_f64().unwrap() > 0.0, "{report}");
        let summary: serde_json::Value = serde_json::from_slice(&server.stop().stdout).unwrap();
        // Each was opened for one request, and all but the last were closed in order.
        assert!(summary["accepted"].as_f64().unwrap() >= number("requests"), "{summary} {report}");
        assert!(summary["finished"].as_f64().unwrap() >= number("requests"), "{summary} {report}");
    }
    let server = serve("echo", "");
    let output = run(&format!("echo load --via kernel --connect {} --reconnect --duration 100ms", address(&server)));
    assert!(output.status.success() && text(&output.stdout).starts_with("connections/s"), "{output:?}");
}

/// A server that stalls once, for a tenth of a second.
fn stalling() -> SocketAddr {
    peer(1, |mut stream| {
        let mut bytes = [0; 64];
        let mut requests = 0;
        while stream.read_exact(&mut bytes).is_ok() {
            requests += 1;
            if requests == 200 {
                thread::sleep(Duration::from_millis(100));
            }
            let _ = stream.write_all(&bytes);
        }
    })
}

#[test]
fn a_stall_of_the_server_shows_in_an_open_loop_and_not_in_a_closed_one() {
    let p999 = |more: &str| {
        let args = format!("echo load --via kernel --connect {} --duration 1s --json {more}", stalling());
        let output = run(&args);
        assert!(output.status.success(), "{output:?}");
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(report["requests"].as_u64().unwrap() > 500, "{report}");
        assert!(report["rtt_us"]["max"].as_f64().unwrap() > 99_000.0, "{report}");
        report["rtt_us"]["p999"].as_f64().unwrap()
    };
    let (closed, open) = (p999(""), p999("--rate 1000"));
    // One request of thousands waited in the closed loop, and of the open one's what was due meanwhile, a tenth of all.
    assert!(open > 90_000.0 && closed < 50_000.0, "open {open}, closed {closed}");
}

#[test]
fn an_open_loop_reports_how_its_pace_was_kept() {
    let server = serve("echo", "");
    for (more, arrivals) in [("", "poisson"), ("--arrivals even --connections 3 --warm-up 100ms", "even")] {
        let args = format!("echo load --via kernel --connect {} --duration 500ms --rate 2000 {more}", address(&server));
        let output = run(&format!("{args} --json"));
        assert!(output.status.success(), "{output:?}");
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let open = &report["open"];
        assert_eq!((&open["rate"], &open["arrivals"]), (&2000.0.into(), &arrivals.into()), "{report}");
        let [due, unanswered] = ["due", "unanswered"].map(|name| open[name].as_u64().unwrap());
        // Poisson's thousand is within five standard deviations.
        assert!((840..=1160).contains(&due), "{report}");
        assert_eq!(report["requests"].as_u64().unwrap() + unanswered, due, "{report}");
        assert!(unanswered < due / 2 && open["late_us"]["p50"].as_f64().is_some(), "{report}");
    }
    let output = run(&format!("echo load --via kernel --connect {} --duration 100ms --rate 100", address(&server)));
    for part in ["asked for/s         100", "were due", "RTT in µs", "sent late"] {
        assert!(text(&output.stdout).contains(part), "{part}: {output:?}");
    }
}

/// The server is slow once, at first.
#[test]
fn what_happens_while_a_load_warms_up_does_not_count() {
    let address = peer(1, |mut stream| {
        let mut bytes = [0; 64];
        while stream.read_exact(&mut bytes).is_ok() {
            static FIRST: Once = Once::new();
            FIRST.call_once(|| thread::sleep(Duration::from_millis(300)));
            let _ = stream.write_all(&bytes);
        }
    });
    let args = format!("echo load --via kernel --connect {address} --warm-up 600ms --duration 300ms --json");
    let output = run(&args);
    assert!(output.status.success(), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["rtt_us"]["max"].as_f64().unwrap() < 300_000.0, "{report}");
    assert!((0.3..0.6).contains(&report["seconds"].as_f64().unwrap()), "{report}");
}

#[test]
fn echo_load_reports_for_people_too() {
    let server = serve("echo", "");
    let output = run(&format!("echo load --via kernel --connect {} --duration 200ms", address(&server)));
    assert!(output.status.success(), "{output:?}");
    for part in ["requests/s", "errors                0", "RTT in µs", "p99.9", "max"] {
        assert!(text(&output.stdout).contains(part), "{part}: {output:?}");
    }
}

#[test]
fn bulk_loads_report_gigabits_each_way() {
    for (service, busy, idle) in [("discard", "up", "down"), ("chargen", "down", "up")] {
        let server = serve(service, "");
        let connect = format!("--connect {} --connections 2 --duration 500ms", address(&server));
        let output = run(&format!("{service} load --via kernel --json {connect}"));
        assert!(output.status.success(), "{output:?}");
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(report[format!("gbit_per_s_{busy}")].as_f64().unwrap() > 0.1, "{report}");
        assert_eq!(report[format!("bytes_{idle}")], 0);
        assert_eq!(report["errors"], 0);
        let output = run(&format!("{service} load --via kernel {connect}"));
        assert!(text(&output.stdout).contains(&format!("Gbit/s {busy}")), "{output:?}");
    }
}

#[test]
fn a_load_without_a_server_says_so() {
    let free = free_address();
    let args = format!("echo load --via kernel --connect {free} --duration 1s --json");
    assert_refused(&args, 1, &format!("{free}: connection refused: start a server there"));
}

/// Serves `connections` connections with `answer`, each on a thread.
fn peer(connections: usize, answer: fn(TcpStream)) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().take(connections) {
            thread::spawn(move || answer(stream.unwrap()));
        }
    });
    address
}

#[track_caller]
fn assert_errors(address: SocketAddr, part: &str) {
    let output = run(&format!("echo load --via kernel --connect {address} --duration 300ms --json"));
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["errors"].as_u64().unwrap() > 0, "{report}");
    assert!(text(&output.stderr).contains(part) && text(&output.stderr).lines().count() == 1, "{output:?}");
}

#[test]
fn a_server_that_changes_a_byte_is_found_out() {
    let address = peer(1, |mut stream| {
        let mut bytes = [0; 64];
        for round in 0.. {
            if stream.read_exact(&mut bytes).is_err() {
                return;
            }
            bytes[13] ^= u8::from(round == 20);
            let _ = stream.write_all(&bytes);
        }
    });
    assert_errors(address, "1 connections brought wrong bytes");
}

#[test]
fn a_server_that_goes_away_is_an_error() {
    let address = peer(1, |mut stream| {
        let mut bytes = [0; 64];
        stream.read_exact(&mut bytes).unwrap();
        stream.write_all(&bytes).unwrap();
    });
    assert_errors(address, "1 were lost");
}

#[test]
fn sigint_and_sigterm_end_a_server_with_its_summary() {
    for signal in [Signal::INT, Signal::TERM] {
        let server = serve("echo", "");
        let mut stream = connect(&server);
        stream.write_all(b"hello").unwrap();
        stream.read_exact(&mut [0; 5]).unwrap();
        server.program.signal(signal);
        let output = server.program.wait();
        assert!(output.status.success(), "{output:?}");
        let stderr = text(&output.stderr);
        for part in ["received", "sent", "1 accepted", "drops", "copied"] {
            assert!(stderr.contains(part), "{stderr}");
        }
        assert_eq!(text(&output.stdout), "", "one line only");
    }
}

#[test]
fn with_json_a_servers_summary_is_one_object_on_standard_output() {
    let server = serve("discard", "--json");
    connect(&server).write_all(b"hello").unwrap();
    let mut stream = connect(&server);
    stream.shutdown(Shutdown::Write).unwrap();
    stream.read_to_end(&mut Vec::new()).unwrap();
    let output = server.stop();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(summary["accepted"], 2, "{summary}");
    let [turns, busy, bursts] = ["turns", "busy_turns", "bursts"].map(|name| summary[name].as_u64().unwrap());
    assert!(
        bursts >= 1 && bursts <= busy && busy <= turns && bursts <= summary["rx_frames"].as_u64().unwrap(),
        "{summary}"
    );
    assert!(summary["drops"].is_object() && summary["copied_bytes"].is_u64(), "{summary}");
}

#[test]
fn sigint_ends_a_load_early_with_what_it_measured() {
    let server = serve("echo", "");
    let load = Program::start(&format!("echo load --via kernel --connect {} --duration 10m --json", address(&server)));
    // Only once it is connected is it past its start, and the signal caught.
    let deadline = Instant::now() + PATIENCE;
    while !has_connection_to(address(&server)) {
        assert!(Instant::now() < deadline);
        thread::sleep(Duration::from_millis(5));
    }
    load.signal(Signal::INT);
    let output = load.wait();
    assert!(output.status.success(), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["seconds"].as_f64().unwrap() < 60.0 && report["errors"] == 0, "{report}");
}

/// Whether someone is connected to a port of the loopback interface, by the kernel's table.
fn has_connection_to(address: SocketAddr) -> bool {
    let established = format!(":{:04X} 01 ", address.port());
    std::fs::read_to_string("/proc/self/net/tcp").unwrap().contains(&established)
}

#[test]
fn pipes_that_nobody_reads_are_no_panic() {
    for (args, status) in [("--help", 0), ("no-such-command", 2), ("echo serve --via kernel --listen 192.0.2.1:7", 1)] {
        let mut child = linerate(args).spawn().unwrap();
        drop((child.stdout.take(), child.stderr.take()));
        let status_then = Program::of(child).wait().status;
        assert_eq!(status_then.code(), Some(status), "{args}");
    }
    let mut command = linerate("echo serve --via kernel --listen 127.0.0.1:0 --json");
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    let mut program = Program::of(child);
    await_catching(program.child().id());
    program.signal(Signal::INT);
    let output = program.wait();
    assert!(output.status.success() && !text(&output.stderr).contains("panicked"), "{output:?}");
}

/// Waits until process `id` catches SIGINT, by the kernel's word: one that came before would kill it.
fn await_catching(id: u32) {
    let catches = || {
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap().trim();
        u64::from_str_radix(caught, 16).unwrap() & 1 << (Signal::INT.as_raw() - 1) != 0
    };
    let deadline = Instant::now() + PATIENCE;
    while !catches() {
        assert!(Instant::now() < deadline);
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_load_over_udp_reports_what_came_back_and_fails_if_nothing_does() {
    let server = serve("echo", "--json");
    let load = format!(
        "echo load --udp --via kernel --connect {} --connections 3 --depth 2 --duration 300ms",
        address(&server)
    );
    let output = run(&format!("{load} --json"));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let number = |name: &str| report[name].as_f64().unwrap();
    assert!(
        number("requests") > 0.0 && number("errors") == 0.0 && number("bytes") == 64.0 * number("requests"),
        "{report}"
    );
    assert!(report["rtt_us"]["p50"].as_f64() > Some(0.0), "{report}");
    server.program.signal(Signal::INT);
    assert!(server.program.wait().status.success());
}
