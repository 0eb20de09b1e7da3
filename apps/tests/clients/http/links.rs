//! Clients over AF_XDP and TAP in namespaces, and the load over a link between two processes.

use super::clients::{self, fill, has};
use super::fetch;
use crate::common::wire::{Wire, servers};
use crate::common::{linerate, stop};
use hyper::StatusCode;
use hyper::body::Bytes;
use linerate::{Idle, Network};
use linerate_harness::program::{Program, turn};
use linerate_harness::rerun::{MAIN, command, finish, in_namespaces, parts};
use linerate_harness::tests;

/// Tests curl and h2load, over IPv4 and IPv6.
fn serves(wire: Wire) {
    in_namespaces(|namespace| {
        let directory = tempfile::tempdir().unwrap();
        fill(directory.path());
        wire.connect(namespace);
        let program = wire.serve(&format!("http --dir {}", directory.path().display()), namespace);
        for server in servers() {
            clients::curl_gets_files(server);
            // h2load omits the brackets of IPv6 addresses in `:authority`, which is malformed.
            if server.is_ipv4() && has("h2load", "nghttp2-client") {
                clients::h2load_gets_everything(server);
            }
        }
        stop(program);
    });
}

tests! {
    clients_work_over_af_xdp => serves(Wire::AfXdp);
    clients_work_over_tap => serves(Wire::Tap);
}

/// Tests the load and the server at the two ends of a link.
fn loads(server: &str, load: &str) {
    let _turn = turn();
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("link.sock").display().to_string();
    let [server, load] = [server, load].map(|via| via.replace("SOCKET", &socket));
    let args = "--ip 10.9.0.2/24 --listen 10.9.0.2:80 --idle wait --json";
    let program = Program::serve(linerate(&format!("http serve --via {server} {args}")));
    let args = "--ip 10.9.0.1/24 --connect 10.9.0.2:80 --idle wait --json --duration 300ms";
    let ended = Program::start(linerate(&format!("http load --via {load} {args} --connections 64"))).wait();
    let report = ended.json();
    assert!(ended.status.success() && report["errors"] == 0, "{ended:?}");
    assert!(report["requests"].as_u64() > Some(100), "{report}");
    let summary = program.stop().json();
    assert_eq!(summary["accepted"], 64, "{summary}");
}

tests! {
    load_works_over_virtio_user => loads("vhost:SOCKET", "virtio-user:SOCKET");
    load_works_over_memif => loads("memif:SOCKET,server", "memif:SOCKET");
}

/// Environment variable with the path of the link's socket.
const SOCKET: &str = "LINERATE_TEST_SOCKET";

#[test]
fn client_of_hyper_gets_files_over_virtio_user() {
    let _turn = turn();
    parts(|role| match role {
        MAIN => {
            let directory = tempfile::tempdir().unwrap();
            fill(directory.path());
            let site = directory.path().display();
            let args = format!("--ip 10.9.0.2/24 --listen 10.9.0.2:80 --idle wait --dir {site} --json");
            let server = Program::serve(linerate(&format!("http serve --via vhost:{site}/link.sock {args}")));
            finish(Program::start(command("client").env(SOCKET, directory.path().join("link.sock"))));
            let summary = server.stop().json();
            assert_eq!(summary["accepted"], 1, "{summary}");
        }
        "client" => {
            let via = format!("virtio-user:{}", std::env::var(SOCKET).unwrap());
            let network = Network::builder().via(via.parse().unwrap()).ip("10.9.0.1/24".parse().unwrap());
            let server = "10.9.0.2:80".parse().unwrap();
            let paths = ["/", "/missing"].map(str::to_owned).to_vec();
            let replies = fetch::run(network.idle(Idle::Wait), server, paths).unwrap();
            assert_eq!(replies[0], (StatusCode::OK, Bytes::from("<p>home")));
            assert_eq!(replies[1].0, StatusCode::NOT_FOUND);
        }
        role => panic!("the test has no role '{role}'"),
    });
}
