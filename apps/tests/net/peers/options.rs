//! Kernel TCP options on and off: a connection uses the options common to both sides, and every byte arrives.

use super::engine::{is_native, needs_native, on_engine};
use crate::common::client::{connect, random};
use crate::common::summary;
use crate::common::wire::{Wire, servers};
use linerate_harness::rerun::in_namespaces;
use linerate_harness::{TIMEOUT, tests};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::mpsc::{self, Receiver};

/// Bytes exchanged on each connection in each direction.
const MEGABYTE: usize = 1 << 20;

/// Optional TCP features.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Options {
    /// RFC 7323, section 3.
    timestamps: bool,
    /// RFC 2018.
    sack: bool,
    /// RFC 7323, section 2.
    window_scaling: bool,
    /// RFC 3168: requested by the client, granted on request.
    ecn: bool,
}

impl Options {
    const ALL: Options = Options { timestamps: true, sack: true, window_scaling: true, ecn: true };
    const NONE: Options = Options { timestamps: false, sack: false, window_scaling: false, ecn: false };

    /// Returns every combination.
    fn combinations() -> impl Iterator<Item = Options> {
        let on = |bits: u32, bit: u32| bits >> bit & 1 == 1;
        (0..16).map(move |bits| Options {
            timestamps: on(bits, 0),
            sack: on(bits, 1),
            window_scaling: on(bits, 2),
            ecn: on(bits, 3),
        })
    }

    /// Returns all, none, and all but each.
    fn extremes() -> [Options; 6] {
        let all = Options::ALL;
        [
            all,
            Options::NONE,
            Options { timestamps: false, ..all },
            Options { sack: false, ..all },
            Options { window_scaling: false, ..all },
            Options { ecn: false, ..all },
        ]
    }

    /// Sets the options of future connections in this namespace.
    fn set(self) {
        for (name, on) in [
            ("tcp_timestamps", self.timestamps),
            ("tcp_sack", self.sack),
            ("tcp_window_scaling", self.window_scaling),
            ("tcp_ecn", self.ecn),
        ] {
            std::fs::write(format!("/proc/sys/net/ipv4/{name}"), if on { "1" } else { "0" }).unwrap();
        }
    }

    /// Returns the options common with `linerate`: with the native engine all, ECN only if requested; smoltcp supports
    /// neither timestamps nor ECN.
    fn agreed(self, ecn: bool) -> Options {
        if is_native() {
            Options { ecn: self.ecn && ecn, ..self }
        } else {
            Options { timestamps: false, ecn: false, ..self }
        }
    }

    /// Reads the options of a kernel connection from `ss`.
    fn read(stream: &TcpStream) -> Options {
        let [source, destination] = [stream.local_addr(), stream.peer_addr()].map(|address| address.unwrap().port());
        let filter = format!("sport = :{source} and dport = :{destination}");
        let output = Command::new("ss").arg("-tinoH").args(filter.split(' ')).output().unwrap();
        let output_text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && output_text.contains("cwnd:"), "ss {filter}: {output:?}");
        let has = |name: &str| output_text.split_whitespace().any(|word| word.split(':').next() == Some(name));
        Options { timestamps: has("ts"), sack: has("sack"), window_scaling: has("wscale"), ecn: has("ecn") }
    }
}

#[test]
fn kernels_use_the_common_options() {
    in_namespaces(|_| {
        for options in Options::combinations() {
            options.set();
            let listener = TcpListener::bind("[::1]:7").unwrap();
            let client = connect(listener.local_addr().unwrap());
            let (server, _) = listener.accept().unwrap();
            assert_eq!((Options::read(&client), Options::read(&server)), (options, options));
        }
    });
}

/// Sends `bytes` while receiving their echo, and closes.
fn exchange(mut stream: TcpStream, bytes: &[u8]) {
    let mut to = stream.try_clone().unwrap();
    let mut back = Vec::with_capacity(bytes.len());
    std::thread::scope(|scope| {
        scope.spawn(move || {
            to.write_all(bytes).unwrap();
            to.shutdown(Shutdown::Write).unwrap();
        });
        stream.read_to_end(&mut back).unwrap();
    });
    assert!(back == bytes, "{} bytes came back for {}", back.len(), bytes.len());
}

/// Returns `--ecn` if `ecn` is set.
fn ecn_option(ecn: bool) -> &'static str {
    if ecn { "--ecn" } else { "" }
}

fn clients(wire: Wire, ecn: bool) {
    if ecn && !needs_native() {
        return;
    }
    in_namespaces(|namespace| {
        wire.connect(namespace);
        let program = wire.serve(&on_engine(&format!("echo {}", ecn_option(ecn))), namespace);
        let bytes = random(MEGABYTE);
        for options in Options::combinations() {
            options.set();
            for server in servers() {
                let stream = connect(server);
                assert_eq!(Options::read(&stream), options.agreed(ecn), "{server}");
                exchange(stream, &bytes);
            }
        }
        let ended = program.stop();
        let summary = ended.json();
        assert!(summary["accepted"] == 32 && summary["finished"] == 32, "{ended:?}");
    });
}

tests! {
    linux_client_exchanges_1_mb_over_af_xdp_with_any_options => clients(Wire::AfXdp, false);
    linux_client_exchanges_1_mb_over_af_xdp_with_any_options_with_ecn => clients(Wire::AfXdp, true);
    linux_client_exchanges_1_mb_over_tap_with_any_options => clients(Wire::Tap, false);
    #[ignore = "AF_XDP covers most of it: ./run test --all"]
    linux_client_exchanges_1_mb_over_tap_with_any_options_with_ecn => clients(Wire::Tap, true);
}

/// Result of a connection at the kernel's echo server.
struct Served {
    options: Options,
    bytes: u64,
}

/// Serves echo on kernel sockets in this namespace until the process ends, and reports each closed connection.
fn serve_echo(at: SocketAddr) -> Receiver<Served> {
    let listener = TcpListener::bind(at).unwrap();
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, sender) = (stream.unwrap(), sender.clone());
            std::thread::spawn(move || {
                let options = Options::read(&stream);
                let mut back = stream.try_clone().unwrap();
                // A load that ends may close during a reply.
                let bytes = std::io::copy(&mut stream, &mut back).unwrap_or_default();
                drop((stream, back));
                let _ = sender.send(Served { options, bytes });
            });
        }
    });
    receiver
}

fn server(wire: Wire, ecn: bool) {
    if ecn && !needs_native() {
        return;
    }
    in_namespaces(|namespace| {
        wire.connect(namespace);
        let [v4, v6]: [SocketAddr; 2] = ["10.9.0.1:7", "[fd09::1]:7"].map(|address| address.parse().unwrap());
        // Over TAP the kernel has its addresses only while a load runs.
        let served = serve_echo("[::]:7".parse().unwrap());
        // The addresses alternate, because the start of a load takes most of the time.
        for (options, server) in Options::extremes().into_iter().zip([v4, v6].into_iter().cycle()) {
            options.set();
            let load = format!("echo --connect {server} --size {MEGABYTE} --duration 300ms {}", ecn_option(ecn));
            let report = summary(&wire.load(&on_engine(&load), namespace).wait());
            let bytes = report["bytes"].as_u64().unwrap();
            assert!(bytes > 0 && bytes == report["requests"].as_u64().unwrap() * MEGABYTE as u64, "{report}");
            assert_eq!(report["errors"], 0, "{report}");
            let served = served.recv_timeout(TIMEOUT).unwrap();
            assert!(served.bytes >= bytes, "{} of {bytes} bytes were served", served.bytes);
            assert_eq!(served.options, options.agreed(ecn), "{server}");
        }
    });
}

tests! {
    #[ignore = "with ECN by default: ./run test --all"]
    linux_server_exchanges_1_mb_over_af_xdp_with_any_options => server(Wire::AfXdp, false);
    linux_server_exchanges_1_mb_over_af_xdp_with_any_options_with_ecn => server(Wire::AfXdp, true);
    #[ignore = "AF_XDP covers most of it: ./run test --all"]
    linux_server_exchanges_1_mb_over_tap_with_any_options => server(Wire::Tap, false);
    #[ignore = "AF_XDP covers most of it: ./run test --all"]
    linux_server_exchanges_1_mb_over_tap_with_any_options_with_ecn => server(Wire::Tap, true);
}
