//! TCP options of the kernel on and off: a connection comes about with what both sides have, and every byte arrives.

use super::client::{connect, random};
use super::engine::{is_native, is_native_for, on_engine};
use super::namespace::in_namespaces;
use super::program::{PATIENCE, wait_for};
use super::wire::{Wire, servers};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::mpsc::{self, Receiver};

/// What is exchanged on each connection, either way.
const MEGABYTE: usize = 1 << 20;

/// What a kernel does on a connection beyond the least.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Options {
    /// RFC 7323, section 3.
    timestamps: bool,
    /// RFC 2018.
    sack: bool,
    /// RFC 7323, section 2.
    window_scaling: bool,
    /// RFC 3168: asked for by who connects, granted to who asks.
    ecn: bool,
}

impl Options {
    const ALL: Options = Options { timestamps: true, sack: true, window_scaling: true, ecn: true };
    const NONE: Options = Options { timestamps: false, sack: false, window_scaling: false, ecn: false };

    /// Every combination.
    fn combinations() -> impl Iterator<Item = Options> {
        let on = |bits: u32, bit: u32| bits >> bit & 1 == 1;
        (0..16).map(move |bits| Options {
            timestamps: on(bits, 0),
            sack: on(bits, 1),
            window_scaling: on(bits, 2),
            ecn: on(bits, 3),
        })
    }

    /// All, none, and all but each.
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

    /// Makes them those of all connections that are opened or accepted in this namespace from now on.
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

    /// Those of them that `linerate` has too: with the native engine all, ECN if it was asked for; smoltcp's has neither
    /// timestamps nor ECN.
    fn agreed(self, ecn: bool) -> Options {
        if is_native() {
            Options { ecn: self.ecn && ecn, ..self }
        } else {
            Options { timestamps: false, ecn: false, ..self }
        }
    }

    /// What the kernel says of a connection of its own.
    fn of(stream: &TcpStream) -> Options {
        let [ours, theirs] = [stream.local_addr(), stream.peer_addr()].map(|address| address.unwrap().port());
        let filter = format!("sport = :{ours} and dport = :{theirs}");
        let output = Command::new("ss").arg("-tinoH").args(filter.split(' ')).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && said.contains("cwnd:"), "ss {filter}: {output:?}");
        let has = |what: &str| said.split_whitespace().any(|word| word.split(':').next() == Some(what));
        Options { timestamps: has("ts"), sack: has("sack"), window_scaling: has("wscale"), ecn: has("ecn") }
    }
}

#[test]
fn two_kernels_agree_on_the_options_that_both_have() {
    in_namespaces("options::two_kernels_agree_on_the_options_that_both_have", |_| {
        for options in Options::combinations() {
            options.set();
            let listener = TcpListener::bind("[::1]:7").unwrap();
            let client = connect(listener.local_addr().unwrap());
            let (server, _) = listener.accept().unwrap();
            assert_eq!((Options::of(&client), Options::of(&server)), (options, options));
        }
    });
}

/// Sends `bytes` while they come back, and ends the stream.
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
    assert!(back == bytes, "{} of {} bytes came back as they were", back.len(), bytes.len());
}

/// `--ecn` if `ecn` says so.
fn asking(ecn: bool) -> &'static str {
    if ecn { "--ecn" } else { "" }
}

fn clients(name: &str, wire: Wire, ecn: bool) {
    if ecn && !is_native_for(name) {
        return;
    }
    in_namespaces(name, |namespace| {
        wire.connect(namespace);
        let program = wire.serve(&on_engine(&format!("echo {}", asking(ecn))), namespace);
        let bytes = random(MEGABYTE);
        for options in Options::combinations() {
            options.set();
            for server in servers() {
                let stream = connect(server);
                assert_eq!(Options::of(&stream), options.agreed(ecn), "{server}");
                exchange(stream, &bytes);
            }
        }
        let ended = program.stop();
        let summary = ended.json();
        assert!(summary["accepted"] == 32 && summary["finished"] == 32, "{ended:?}");
    });
}

#[test]
fn a_linux_client_gets_1_mb_back_over_af_xdp_whatever_its_options() {
    clients("options::a_linux_client_gets_1_mb_back_over_af_xdp_whatever_its_options", Wire::AfXdp, false);
}

#[test]
fn a_linux_client_gets_1_mb_back_over_af_xdp_whatever_its_options_with_ecn() {
    clients("options::a_linux_client_gets_1_mb_back_over_af_xdp_whatever_its_options_with_ecn", Wire::AfXdp, true);
}

#[test]
fn a_linux_client_gets_1_mb_back_over_tap_whatever_its_options() {
    clients("options::a_linux_client_gets_1_mb_back_over_tap_whatever_its_options", Wire::Tap, false);
}

#[test]
fn a_linux_client_gets_1_mb_back_over_tap_whatever_its_options_with_ecn() {
    clients("options::a_linux_client_gets_1_mb_back_over_tap_whatever_its_options_with_ecn", Wire::Tap, true);
}

/// What an echo server of the kernel's says of a connection.
struct Served {
    options: Options,
    bytes: u64,
}

/// Serves echo on sockets of this namespace for as long as the process lives, and tells of each connection that ended.
fn serve_echo(at: SocketAddr) -> Receiver<Served> {
    let listener = TcpListener::bind(at).unwrap();
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, sender) = (stream.unwrap(), sender.clone());
            std::thread::spawn(move || {
                let options = Options::of(&stream);
                let mut back = stream.try_clone().unwrap();
                // A load that has measured enough may leave in the midst of an answer.
                let bytes = std::io::copy(&mut stream, &mut back).unwrap_or_default();
                drop((stream, back));
                let _ = sender.send(Served { options, bytes });
            });
        }
    });
    receiver
}

fn server(name: &str, wire: Wire, ecn: bool) {
    if ecn && !is_native_for(name) {
        return;
    }
    in_namespaces(name, |namespace| {
        wire.connect(namespace);
        let [v4, v6]: [SocketAddr; 2] = ["10.9.0.1:7", "[fd09::1]:7"].map(|address| address.parse().unwrap());
        // With TAP the kernel has its addresses only while a load runs.
        let served = serve_echo("[::]:7".parse().unwrap());
        for options in Options::extremes() {
            options.set();
            for server in [v4, v6] {
                let load = format!("echo --connect {server} --size {MEGABYTE} --duration 300ms {}", asking(ecn));
                let ended = wire.load(&on_engine(&load), namespace).wait();
                assert!(ended.status.success(), "{options:?}: {ended:?}");
                let report = ended.json();
                let bytes = report["bytes"].as_u64().unwrap();
                assert!(bytes > 0 && bytes == report["requests"].as_u64().unwrap() * MEGABYTE as u64, "{report}");
                assert_eq!(report["errors"], 0, "{report}");
                let served = served.recv_timeout(PATIENCE).unwrap();
                assert!(served.bytes >= bytes, "{} of {bytes} bytes were served", served.bytes);
                assert_eq!(served.options, options.agreed(ecn), "{server}");
            }
            wait_for("the interface to go", || {
                matches!(wire, Wire::AfXdp) || !std::path::Path::new("/sys/class/net/lr0").exists()
            });
        }
    });
}

#[test]
fn a_linux_server_sends_1_mb_back_over_af_xdp_whatever_its_options() {
    server("options::a_linux_server_sends_1_mb_back_over_af_xdp_whatever_its_options", Wire::AfXdp, false);
}

#[test]
fn a_linux_server_sends_1_mb_back_over_af_xdp_whatever_its_options_with_ecn() {
    server("options::a_linux_server_sends_1_mb_back_over_af_xdp_whatever_its_options_with_ecn", Wire::AfXdp, true);
}

#[test]
fn a_linux_server_sends_1_mb_back_over_tap_whatever_its_options() {
    server("options::a_linux_server_sends_1_mb_back_over_tap_whatever_its_options", Wire::Tap, false);
}

#[test]
fn a_linux_server_sends_1_mb_back_over_tap_whatever_its_options_with_ecn() {
    server("options::a_linux_server_sends_1_mb_back_over_tap_whatever_its_options_with_ecn", Wire::Tap, true);
}
