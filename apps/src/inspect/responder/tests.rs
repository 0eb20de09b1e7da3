use super::super::server::{self, ClientServer, Endpoint, Listener, MAX_CLIENTS, REQUEST_TIMEOUT};
use super::*;
use linerate_load::services::Echo;
use linerate_service::inspect::{ConnInfo, ConnState, Inspect, ServiceMetrics, Snapshot, TcpInfo};
use linerate_service::mailbox::mailbox;
use linerate_service::{AppMsg, AppSender, ConnId, WorkerCtx};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Time limit of every test, longer than the timeouts of the server.
const DEADLINE: Duration = Duration::from_secs(20);
/// Idle timeout of clients.
const IDLE_TIMEOUT: Duration = Duration::from_secs(4);

/// Worker with this number of connections, of which every tenth is closing.
struct FakeWorker(usize);

impl Inspect for FakeWorker {
    fn snapshot(&mut self) -> Snapshot {
        Snapshot { service: ServiceMetrics { requests: Some(3), ..ServiceMetrics::default() }, ..Snapshot::default() }
    }

    fn slots(&self) -> usize {
        self.0
    }

    fn connection(&self, slot: usize) -> Option<ConnInfo> {
        let state = if slot.is_multiple_of(10) { ConnState::LastAck } else { ConnState::Established };
        let remote = ([10, 0, (slot >> 8) as u8, slot as u8], 1000).into();
        let tcp = TcpInfo { rtt: Some(Duration::from_nanos(12_500)), ..TcpInfo::default() };
        Some(ConnInfo {
            conn: ConnId::new(0, slot, 2),
            local: None,
            remote,
            state,
            unread: 1,
            unsent: 2,
            tcp,
            verbs: None,
            tls: None,
        })
    }
}

/// Process with one worker thread that answers queries.
struct FakeProcess {
    path: PathBuf,
    _directory: tempfile::TempDir,
    _server: ClientServer,
    stop: Arc<AtomicBool>,
    /// Number of queries that reached the worker.
    queries: Arc<AtomicUsize>,
    worker: Option<JoinHandle<()>>,
}

impl FakeProcess {
    fn new(connections: usize) -> FakeProcess {
        let (sender, mut mail) = mailbox(64);
        let stats = StatsClient::default();
        let make = stats.connect_with(Arc::new(|_: WorkerCtx<_>| Echo));
        make(WorkerCtx { worker: 0, workers: 1, app_sender: AppSender::new(vec![sender]) });
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let about = About { pid: 7, program: "0".to_owned(), command: "echo serve".to_owned(), workers: 1 };
        let responder = Responder::new(about, stats);
        let react = move |received: &mut Vec<u8>| responder.react(received);
        let endpoint = Endpoint::new(Listener::Unix(UnixListener::bind(&path).unwrap()), IDLE_TIMEOUT, react).unwrap();
        let server = server::spawn(vec![endpoint]).unwrap();
        let (stop, queries) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (stopped, counter) = (stop.clone(), queries.clone());
        let run = move || {
            while !stopped.load(Ordering::Relaxed) {
                match mail.receive() {
                    Some(AppMsg::Query(query)) => {
                        counter.fetch_add(1, Ordering::Relaxed);
                        query.answer(&mut FakeWorker(connections));
                    }
                    _ => thread::sleep(Duration::from_micros(50)),
                }
            }
        };
        let worker = Some(thread::spawn(run));
        FakeProcess { path, _directory: directory, _server: server, stop, queries, worker }
    }

    fn client(&self) -> Client {
        let stream = UnixStream::connect(&self.path).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        Client(BufReader::new(stream))
    }
}

impl Drop for FakeProcess {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.worker.take().unwrap().join().unwrap();
    }
}

struct Client(BufReader<UnixStream>);

impl Client {
    fn send(&mut self, bytes: &[u8]) {
        // The server may have closed the connection.
        let _ = self.0.get_mut().write_all(bytes);
    }

    fn receive(&mut self) -> Value {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    fn call(&mut self, line: &str) -> Value {
        self.send(format!("{line}\n").as_bytes());
        self.receive()
    }

    fn has_ended(mut self) -> bool {
        let mut rest = Vec::new();
        self.0.read_to_end(&mut rest).is_ok_and(|_| rest.is_empty())
    }
}

const ABOUT: &str = r#"{"version":1,"ask":"about"}"#;

#[test]
fn queries_are_answered_in_sequence_on_one_connection() {
    let process = FakeProcess::new(3);
    let mut client = process.client();
    let about = json!({"version": 1, "about": {"pid": 7, "program": "0", "command": "echo serve", "workers": 1}});
    assert_eq!(client.call(ABOUT), about);
    let reply = client.call(r#"{"version":1,"ask":"counters"}"#);
    assert_eq!(reply["counters"]["workers"][0]["linerate_requests_total"], 3, "{reply}");
    let page = client.call(r#"{"version":1,"ask":"connections","worker":0,"from":1}"#);
    let page = &page["connections"];
    assert_eq!((&page["up"], &page["next"]), (&json!(true), &Value::Null));
    assert_eq!(page["connections"].as_array().unwrap().len(), 2);
    let first = &page["connections"][0];
    assert_eq!((&first["slot"], &first["generation"], &first["state"]), (&json!(1), &json!(2), &json!("established")));
    assert_eq!(
        (&first["rtt_us"], &first["mss_bytes"], &first["unsent_bytes"]),
        (&json!(12.5), &Value::Null, &json!(2))
    );
    assert_eq!((&first["remote"], &first["local"]), (&json!("10.0.0.1:1000"), &Value::Null));
    // Unknown fields are ignored.
    assert_eq!(client.call(r#"{"version":1,"ask":"about","and":["more"]}"#), about);
}

#[test]
fn pipelined_and_fragmented_queries_are_answered_in_order() {
    let process = FakeProcess::new(3);
    let mut client = process.client();
    let both = format!("{ABOUT}\n{{\"version\":1,\"ask\":\"counters\"}}\n{ABOUT}\n");
    client.send(both.as_bytes());
    assert!(client.receive()["about"].is_object());
    assert!(client.receive()["counters"].is_object());
    assert!(client.receive()["about"].is_object());
    for byte in format!("{ABOUT}\n").bytes() {
        client.send(&[byte]);
    }
    assert!(client.receive()["about"].is_object());
}

#[test]
fn connections_are_paged() {
    let process = FakeProcess::new(100_000);
    let mut client = process.client();
    let (mut from, mut seen, mut queries) = (0, 0, 0);
    loop {
        let page = client.call(&format!(r#"{{"version":1,"ask":"connections","worker":0,"from":{from}}}"#));
        let page = &page["connections"];
        queries += 1;
        for connection in page["connections"].as_array().unwrap() {
            assert_eq!(connection["slot"], seen);
            seen += 1;
        }
        assert!(page["connections"].as_array().unwrap().len() <= linerate_service::inspect::SLOTS_PER_QUERY);
        match page["next"].as_u64() {
            Some(next) => from = next,
            None => break,
        }
    }
    assert_eq!((seen, process.queries.load(Ordering::Relaxed)), (100_000, queries));
}

#[test]
fn invalid_query_is_refused_and_ends_the_connection() {
    let process = FakeProcess::new(1);
    let long = format!("{{\"version\":1,\"ask\":\"{}\"}}", "x".repeat(2 * MAX_LINE));
    let deep = "[".repeat(MAX_LINE - 10);
    for (line, part) in [
        ("", "not a line of JSON"),
        ("GET /metrics HTTP/1.1\r", "not a line of JSON"),
        ("{}", "not a line of JSON with a version"),
        ("[1,2,3]", "not a line of JSON"),
        ("{\"version\":\"1\",\"ask\":\"about\"}", "not a line of JSON with a version"),
        ("{\"version\":2,\"ask\":\"about\"}", "this process uses version 1"),
        ("{\"version\":1}", "not a query"),
        ("{\"version\":1,\"ask\":\"stop\"}", "not a query"),
        ("{\"version\":1,\"ask\":\"connections\"}", "not a query"),
        ("{\"version\":1,\"ask\":\"connections\",\"worker\":-1,\"from\":0}", "not a query"),
        (&deep, "not a line of JSON"),
        (&long, "limited to 1024 bytes"),
    ] {
        let mut client = process.client();
        let answer = client.call(line);
        assert!(answer["error"].as_str().unwrap().contains(part), "{line:.60}: {answer}");
        client.0.get_ref().shutdown(std::net::Shutdown::Write).unwrap();
        assert!(client.has_ended(), "{line:.60}");
    }
    let mut client = process.client();
    client.send(b"\xff\xfe\x00\n");
    assert!(client.receive()["error"].is_string());
    // No query reached the worker.
    assert_eq!(process.queries.load(Ordering::Relaxed), 0);
}

#[test]
fn unknown_worker_is_an_error_and_unknown_slot_is_an_empty_page() {
    let process = FakeProcess::new(5);
    let mut client = process.client();
    let answer = client.call(r#"{"version":1,"ask":"connections","worker":1,"from":0}"#);
    assert!(answer["error"].as_str().unwrap().contains("no worker 1"), "{answer}");
    let answer = client.call(&format!(r#"{{"version":1,"ask":"connections","worker":0,"from":{}}}"#, usize::MAX));
    assert_eq!(answer["connections"]["connections"], json!([]));
}

#[test]
fn incomplete_line_times_out() {
    let process = FakeProcess::new(1);
    let mut client = process.client();
    let began = Instant::now();
    client.send(&ABOUT.as_bytes()[..10]);
    assert!(client.has_ended());
    assert!(began.elapsed() >= REQUEST_TIMEOUT && began.elapsed() < DEADLINE);
}

#[test]
fn excess_clients_evict_silent_clients_only() {
    let process = FakeProcess::new(1);
    let mut asking = process.client();
    assert!(asking.call(ABOUT)["about"].is_object());
    let silent: Vec<_> = (0..MAX_CLIENTS).map(|_| process.client()).collect();
    assert!(process.client().call(ABOUT)["about"].is_object());
    assert!(asking.call(ABOUT)["about"].is_object());
    assert!(silent.into_iter().all(Client::has_ended));
}

#[test]
fn client_that_does_not_read_is_dropped_without_delaying_others() {
    let process = FakeProcess::new(100_000);
    let mut blocked = process.client();
    // Send queries until replies fill the socket and the server stops reading.
    blocked.0.get_ref().set_write_timeout(Some(Duration::from_millis(200))).unwrap();
    let line = b"{\"version\":1,\"ask\":\"connections\",\"worker\":0,\"from\":0}\n";
    let began = Instant::now();
    while blocked.0.get_mut().write_all(line).is_ok() {
        assert!(began.elapsed() < DEADLINE);
    }
    let started = Instant::now();
    assert!(process.client().call(ABOUT)["about"].is_object());
    assert!(started.elapsed() < REQUEST_TIMEOUT);
    // The server closes the connection after `REQUEST_TIMEOUT`, within a line that the client has not read.
    let stream = blocked.0.get_ref();
    let mut hang_up = [PollFd::new(stream, PollFlags::empty())];
    let deadline = Timespec { tv_sec: DEADLINE.as_secs() as i64, tv_nsec: 0 };
    assert_eq!(poll(&mut hang_up, Some(&deadline)), Ok(1), "the server did not close the connection");
    assert!(hang_up[0].revents().contains(PollFlags::HUP));
    let mut rest = Vec::new();
    let _ = blocked.0.read_to_end(&mut rest);
    assert_ne!(rest.last(), Some(&b'\n'));
}
