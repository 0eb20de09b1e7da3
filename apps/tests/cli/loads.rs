//! Reports, errors and termination of load generators.

use crate::common::{run, summary};
use crate::{assert_refused, serve};
use linerate_harness::address::unused_address;
use rustix::process::Signal;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Once;
use std::thread;
use std::time::Duration;

#[test]
fn echo_load_report_is_one_json_object() {
    let server = serve("echo", "");
    for (more, size) in [
        ("--connections 64", 64),
        ("--connections 3 --size 1000 --depth 16", 1000),
        ("--connections 2 --size 3m --depth 2", 3 << 20),
    ] {
        let args = format!("echo load --via kernel --connect {} --duration 500ms --json {more}", server.address());
        let output = run(&args);
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        let stdout = &output.stdout;
        assert_eq!(stdout.lines().count(), 1, "{stdout}");
        let report = output.json();
        let number = |name: &str| report[name].as_f64().unwrap();
        assert_eq!(number("errors"), 0.0);
        assert!(number("requests") > 0.0, "{report}");
        assert_eq!(number("bytes"), number("requests") * f64::from(size));
        assert!(number("seconds") >= 0.5, "{report}");
        assert!((number("rate") - number("requests") / number("seconds")).abs() < 1.0);
        let rtt = &report["rtt_us"];
        let samples = rtt["samples"].as_u64().unwrap();
        let percentiles = [("p50", 20), ("p90", 100), ("p99", 1000), ("p999", 10_000), ("p9999", 100_000), ("max", 1)];
        let shown = percentiles.into_iter().filter(|(_, least)| samples >= *least);
        let rtt: Vec<f64> = shown.map(|(name, _)| rtt[name].as_f64().unwrap()).collect();
        assert!(samples >= report["requests"].as_u64().unwrap() && rtt[0] > 0.0 && rtt.is_sorted(), "{report}");
        assert_eq!(report["rtt_us"].as_object().unwrap().len(), rtt.len() + 1, "{report}");
        let more = report.as_object().unwrap().keys().filter(|name| *name != "threading").count();
        assert_eq!(more, 6, "{report}");
    }
}

#[test]
fn histogram_covers_all_requests() {
    let server = serve("echo", "");
    let args = format!("echo load --via kernel --connect {} --duration 200ms --json --histogram", server.address());
    let report = run(&args).json();
    let buckets = report["histogram"].as_array().unwrap().iter();
    let buckets: Vec<_> = buckets.map(|bucket| (bucket[0].as_f64().unwrap(), bucket[1].as_u64().unwrap())).collect();
    // The request that is outstanding at the end counts if it has waited longer than the others.
    let all = buckets.iter().map(|(_, count)| count).sum::<u64>();
    assert!(report["requests"].as_u64().is_some_and(|requests| all - requests <= 1), "{report}");
    let half = all.div_ceil(2);
    let mut below = 0;
    let median = buckets.iter().find(|(_, count)| {
        below += count;
        below >= half
    });
    assert_eq!(report["rtt_us"]["samples"], all);
    assert_eq!(report["rtt_us"]["p50"].as_f64(), median.map(|(upper, _)| *upper), "{report}");
}

#[test]
fn service_time_delays_replies() {
    for (service, load) in [("echo", ""), ("kv", "--keys 10")] {
        let shortest = |more: &str| {
            let server = serve(service, more);
            let args = format!("{service} load --via kernel --connect {} --duration 200ms {load}", server.address());
            let report = summary(&run(&format!("{args} --json --histogram")));
            report["histogram"][0][0].as_f64().unwrap()
        };
        // A busy machine may delay each reply by milliseconds.
        for time in ["20ms", "bimodal:20ms,30ms,0.5"] {
            assert!(shortest(&format!("--service-time {time}")) >= 20_000.0, "{service} {time}");
        }
        assert!(shortest("") < 20_000.0, "{service}");
    }
}

#[test]
fn reconnect_opens_a_connection_per_request() {
    for (more, workers) in [("--connections 1", ""), ("--connections 16 --size 3000 --warm-up 100ms", "--workers 2")] {
        let server = serve("echo", &format!("--json {workers}"));
        let args = format!("echo load --via kernel --connect {} --reconnect --duration 300ms --json", server.address());
        let output = run(&format!("{args} {more}"));
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        let report = output.json();
        let number = |name: &str| report[name].as_f64().unwrap();
        assert!(number("requests") > 1.0 && number("connections") == number("rate"), "{report}");
        assert!(number("seconds") >= 0.3 && report["rtt_us"]["max"].as_f64().unwrap() > 0.0, "{report}");
        let summary = server.stop().json();
        // Each connection carries one request, and all but the last are closed in order.
        assert!(summary["accepted"].as_f64().unwrap() >= number("requests"), "{summary} {report}");
        assert!(summary["finished"].as_f64().unwrap() >= number("requests"), "{summary} {report}");
    }
    let server = serve("echo", "");
    let output = run(&format!("echo load --via kernel --connect {} --reconnect --duration 100ms", server.address()));
    assert!(output.status.success() && output.stdout.starts_with("connections/s"), "{output:?}");
}

#[test]
fn incast_measures_the_time_until_the_last_answer() {
    // A round takes at least the work of all its requests.
    let server = serve("echo", "--service-time 1ms");
    let args = format!("echo load --via kernel --connect {} --incast --connections 20 --json", server.address());
    let report = summary(&run(&format!("{args} --histogram --duration 500ms")));
    let number = |name: &str| report[name].as_f64().unwrap();
    let rounds = report["rtt_us"]["samples"].as_f64().unwrap();
    // The last round is incomplete, and counts if it took longer than the others.
    assert!(rounds >= 1.0 && (number("requests") - 20.0 * rounds).abs() <= 20.0, "{report}");
    assert!(number("errors") == 0.0 && report["histogram"][0][0].as_f64() >= Some(20_000.0), "{report}");
    let output = run(&format!("echo load --via kernel --connect {} --incast --duration 200ms", server.address()));
    assert!(output.status.success() && output.stdout.starts_with("rounds "), "{output:?}");
}

/// Starts a server that stalls once for 400 ms.
fn stalling() -> SocketAddr {
    peer(1, |mut stream| {
        let mut bytes = [0; 64];
        let mut requests = 0;
        while stream.read_exact(&mut bytes).is_ok() {
            requests += 1;
            if requests == 50 {
                thread::sleep(Duration::from_millis(400));
            }
            let _ = stream.write_all(&bytes);
        }
    })
}

#[test]
fn server_stall_is_visible_in_an_open_loop_only() {
    // Count requests of 100 ms or longer, more than the delay of many requests on a busy machine.
    let slow = |more: &str| {
        let args = format!("echo load --via kernel --connect {} --duration 1s --json --histogram {more}", stalling());
        let report = summary(&run(&args));
        assert!(report["rtt_us"]["max"].as_f64().unwrap() > 399_000.0, "{report}");
        let buckets = report["histogram"].as_array().unwrap().iter();
        let slow = buckets.filter(|bucket| bucket[0].as_f64().unwrap() >= 100_000.0);
        slow.map(|bucket| bucket[1].as_u64().unwrap()).sum::<u64>()
    };
    // The stall delays one request of the closed loop, but every request due in its first 300 ms in the open loop.
    let (closed, open) = (slow(""), slow("--rate 1000"));
    assert!((1..=5).contains(&closed) && open >= 200, "closed {closed}, open {open}");
}

#[test]
fn requests_that_a_stalled_server_does_not_answer_are_errors() {
    for (load, stalled) in [("echo", 2), ("http", 2), ("kv --no-fill --depth 3", 6), ("echo --reconnect", 2)] {
        let (service, more) = load.split_once(' ').unwrap_or((load, ""));
        let address = peer(2, |stream| _ = std::io::copy(&mut &stream, &mut std::io::sink()));
        let args = format!("{service} load --via kernel --connect {address} --connections 2 --duration 800ms {more}");
        let output = run(&format!("{args} --json"));
        let report = output.json();
        assert_eq!((output.status.code(), &report["errors"]), (Some(1), &stalled.into()), "{load}: {output:?}");
        assert!(report["rtt_us"]["max"].as_f64() > Some(799_000.0), "{load}: {report}");
        let expected = format!("{stalled} requests still unanswered at the end");
        assert!(output.stderr.contains(&expected) && output.stderr.lines().count() == 1, "{load}: {output:?}");
    }
    // Requests that were due and not sent count too: in the first 300 ms of the load, 300 became due.
    let address = peer(1, |stream| _ = std::io::copy(&mut &stream, &mut std::io::sink()));
    let output = run(&format!("echo load --via kernel --connect {address} --duration 800ms --rate 1000 --json"));
    let report = output.json();
    assert!((200..=400).contains(&report["errors"].as_u64().unwrap()), "{report}");
    let max = |name: &serde_json::Value| name["max"].as_f64().unwrap();
    assert!(max(&report["rtt_us"]) > 700_000.0 && max(&report["open"]["late_us"]) > 600_000.0, "{report}");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

#[test]
fn open_loop_reports_its_pace() {
    let server = serve("echo", "");
    for (more, arrivals) in [("", "poisson"), ("--arrivals even --connections 3 --warm-up 100ms", "even")] {
        let args = format!("echo load --via kernel --connect {} --duration 500ms --rate 2000 {more}", server.address());
        let report = summary(&run(&format!("{args} --json")));
        let open = &report["open"];
        assert_eq!((&open["rate"], &open["arrivals"]), (&2000.0.into(), &arrivals.into()), "{report}");
        let [due, unanswered] = ["due", "unanswered"].map(|name| open[name].as_u64().unwrap());
        // The Poisson count of a thousand is within five standard deviations.
        assert!((840..=1160).contains(&due), "{report}");
        assert_eq!(report["requests"].as_u64().unwrap() + unanswered, due, "{report}");
        assert!(unanswered < due && open["late_us"]["max"].as_f64().is_some(), "{report}");
    }
    let output = run(&format!("echo load --via kernel --connect {} --duration 100ms --rate 100", server.address()));
    for part in ["offered/s           100", "were due", "RTT in µs", "sent late"] {
        assert!(output.stdout.contains(part), "{part}: {output:?}");
    }
}

/// Measures a server whose first reply is slow.
#[test]
fn warm_up_is_not_counted() {
    let address = peer(1, |mut stream| {
        let mut bytes = [0; 64];
        while stream.read_exact(&mut bytes).is_ok() {
            static FIRST: Once = Once::new();
            FIRST.call_once(|| thread::sleep(Duration::from_millis(500)));
            let _ = stream.write_all(&bytes);
        }
    });
    let args = format!("echo load --via kernel --connect {address} --warm-up 700ms --duration 300ms --json");
    let report = summary(&run(&args));
    assert!(report["rtt_us"]["max"].as_f64().unwrap() < 500_000.0, "{report}");
    assert!((0.3..1.0).contains(&report["seconds"].as_f64().unwrap()), "{report}");
}

#[test]
fn echo_load_prints_a_text_report() {
    let server = serve("echo", "");
    let output = run(&format!("echo load --via kernel --connect {} --duration 200ms", server.address()));
    assert!(output.status.success(), "{output:?}");
    for part in ["requests/s", "errors                0", "RTT in µs", "p99.99", "max", "samples"] {
        assert!(output.stdout.contains(part), "{part}: {output:?}");
    }
}

#[test]
fn bulk_loads_report_gigabits_per_direction() {
    for (service, busy, idle) in [("discard", "up", "down"), ("chargen", "down", "up")] {
        let server = serve(service, "");
        let connect = format!("--connect {} --connections 2 --duration 500ms", server.address());
        let report = summary(&run(&format!("{service} load --via kernel --json {connect}")));
        assert!(report[format!("gbit_per_s_{busy}")].as_f64().unwrap() > 0.1, "{report}");
        assert_eq!(report[format!("bytes_{idle}")], 0);
        assert_eq!(report["errors"], 0);
        let output = run(&format!("{service} load --via kernel {connect}"));
        assert!(output.stdout.contains(&format!("Gbit/s {busy}")), "{output:?}");
    }
}

#[test]
fn load_without_a_server_is_refused() {
    let free = unused_address();
    let args = format!("echo load --via kernel --connect {free} --duration 1s --json");
    assert_refused(&args, 1, &format!("{free}: connection refused: start a server there"));
}

#[test]
fn connections_beyond_the_local_ports_are_refused_with_the_remedies() {
    let args = "echo load --via kernel --connect 127.0.0.1:7 --connections 100000";
    assert_refused(args, 2, "--connections 100000: the source addresses have ");
    assert_refused(args, 2, "net.ipv4.ip_local_port_range");
    if cfg!(feature = "dpdk") {
        let args = "echo load --via virtio-user:/nonexistent.sock --ip 10.0.0.1/24 --connect 10.0.0.2:7";
        assert_refused(
            &format!("{args} --connections 64513"),
            2,
            "the source addresses have 64512 ports for the server's port: use up to 64512, let the server listen on \
             further ports and give their number by --ports, or give further source addresses by --ip and --from",
        );
        let narrow = format!("{args} --outgoing-ports 2000-2009 --connections 11");
        assert_refused(&narrow, 2, "have 10 ports for the server's port: use up to 10");
        assert_refused(&narrow, 2, "or widen --outgoing-ports");
        let shared = "echo load --via af_xdp:lr0,share --connect 10.0.0.2:7 --connections 4537";
        assert_refused(shared, 2, "have 4536 ports for the server's port: use up to 4536");
        assert_refused(shared, 2, "or widen --outgoing-ports");
        let two = format!("{args} --ip 10.0.0.3/24 --from 10.0.0.1 --from 10.0.0.3 --ports 2 --connections 300000");
        assert_refused(&two, 2, "the source addresses have 258048 ports for the server's 2 ports");
    }
}

/// Serves `connections` connections with `answer`, each on its own thread.
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
    let report = output.json();
    assert!(report["errors"].as_u64().unwrap() > 0, "{report}");
    assert!(output.stderr.contains(part) && output.stderr.lines().count() == 1, "{output:?}");
}

#[test]
fn corrupted_reply_is_an_error() {
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
    assert_errors(address, "1 connections with corrupt data");
}

#[test]
fn lost_connection_is_an_error() {
    let address = peer(1, |mut stream| {
        let mut bytes = [0; 64];
        stream.read_exact(&mut bytes).unwrap();
        stream.write_all(&bytes).unwrap();
    });
    assert_errors(address, "1 lost");
}

#[test]
fn udp_load_reports_replies() {
    let server = serve("echo", "--json");
    let load = format!(
        "echo load --udp --via kernel --connect {} --connections 3 --depth 2 --duration 300ms",
        server.address()
    );
    let report = summary(&run(&format!("{load} --json")));
    let number = |name: &str| report[name].as_f64().unwrap();
    assert!(
        number("requests") > 0.0 && number("errors") == 0.0 && number("bytes") == 64.0 * number("requests"),
        "{report}"
    );
    assert!(report["rtt_us"]["max"].as_f64() > Some(0.0), "{report}");
    server.signal(Signal::INT);
    assert!(server.wait().status.success());
}
