use super::super::answering::{self, CONNECTIONS, Listener, PATIENCE, Post, Server};
use super::*;
use linerate_bypass::inspect::{ConnInfo, ConnState, Inspect, Snapshot, TcpInfo};
use linerate_bypass::mailbox::mailbox;
use linerate_bypass::{AppMsg, AppSender, ConnId, WorkerCtx};
use linerate_load::services::Echo;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// How long anything in a test may take: longer than clients are waited for.
const DEADLINE: Duration = Duration::from_secs(20);
/// How long who looks in may be silent here.
const IDLE: Duration = Duration::from_secs(4);

/// A worker with so many connections, each 10th of which is closing.
struct Full(usize);

impl Inspect for Full {
    fn snapshot(&mut self) -> Snapshot {
        Snapshot { requests: Some(3), ..Snapshot::default() }
    }

    fn slots(&self) -> usize {
        self.0
    }

    fn connection(&self, slot: usize) -> Option<ConnInfo> {
        let state = if slot.is_multiple_of(10) { ConnState::LastAck } else { ConnState::Established };
        let remote = ([10, 0, (slot >> 8) as u8, slot as u8], 1000).into();
        let tcp = TcpInfo { rtt: Some(Duration::from_nanos(12_500)), ..TcpInfo::default() };
        Some(ConnInfo { conn: ConnId::new(0, slot, 2), local: None, remote, state, unread: 1, unsent: 2, tcp })
    }
}

/// A process with one worker that answers, on a thread of its own, or does not.
struct World {
    path: PathBuf,
    _directory: tempfile::TempDir,
    _server: Server,
    over: Arc<AtomicBool>,
    /// Letters that the worker has had.
    letters: Arc<AtomicUsize>,
    worker: Option<JoinHandle<()>>,
}

impl World {
    fn new(connections: usize) -> World {
        let (sender, mut mail) = mailbox(64);
        let way = Way::default();
        let make = way.told_by(Arc::new(|_: WorkerCtx<_>| Echo));
        make(WorkerCtx { worker: 0, workers: 1, app_sender: AppSender::new(vec![sender]) });
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let about = About { pid: 7, program: "0".to_owned(), command: "echo serve".to_owned(), workers: 1 };
        let told = Told::new(about, way);
        let react = move |heard: &mut Vec<u8>| told.react(heard);
        let post = Post::new(Listener::Unix(UnixListener::bind(&path).unwrap()), IDLE, react).unwrap();
        let server = answering::answer(vec![post]).unwrap();
        let (over, letters) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (ended, had) = (over.clone(), letters.clone());
        let run = move || {
            while !ended.load(Ordering::Relaxed) {
                match mail.receive() {
                    Some(AppMsg::Query(look)) => {
                        had.fetch_add(1, Ordering::Relaxed);
                        look.answer(&mut Full(connections));
                    }
                    _ => thread::sleep(Duration::from_micros(50)),
                }
            }
        };
        let worker = Some(thread::spawn(run));
        World { path, _directory: directory, _server: server, over, letters, worker }
    }

    fn client(&self) -> Client {
        let stream = UnixStream::connect(&self.path).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        Client(BufReader::new(stream))
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        self.worker.take().unwrap().join().unwrap();
    }
}

struct Client(BufReader<UnixStream>);

impl Client {
    fn say(&mut self, bytes: &[u8]) {
        // The other end may have closed already.
        let _ = self.0.get_mut().write_all(bytes);
    }

    fn hear(&mut self) -> Value {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    fn ask(&mut self, line: &str) -> Value {
        self.say(format!("{line}\n").as_bytes());
        self.hear()
    }

    fn has_ended(mut self) -> bool {
        let mut rest = Vec::new();
        self.0.read_to_end(&mut rest).is_ok_and(|_| rest.is_empty())
    }
}

const ABOUT: &str = r#"{"version":1,"ask":"about"}"#;

#[test]
fn questions_are_answered_one_after_the_other_on_one_connection() {
    let world = World::new(3);
    let mut client = world.client();
    let about = json!({"version": 1, "about": {"pid": 7, "program": "0", "command": "echo serve", "workers": 1}});
    assert_eq!(client.ask(ABOUT), about);
    let told = client.ask(r#"{"version":1,"ask":"counters"}"#);
    assert_eq!(told["counters"]["workers"][0]["linerate_requests_total"], 3, "{told}");
    let page = client.ask(r#"{"version":1,"ask":"connections","worker":0,"from":1}"#);
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
    // Something that nobody knows yet is ignored.
    assert_eq!(client.ask(r#"{"version":1,"ask":"about","and":["more"]}"#), about);
}

#[test]
fn what_is_asked_at_once_or_bit_by_bit_is_answered_in_its_order() {
    let world = World::new(3);
    let mut client = world.client();
    let both = format!("{ABOUT}\n{{\"version\":1,\"ask\":\"counters\"}}\n{ABOUT}\n");
    client.say(both.as_bytes());
    assert!(client.hear()["about"].is_object());
    assert!(client.hear()["counters"].is_object());
    assert!(client.hear()["about"].is_object());
    for byte in format!("{ABOUT}\n").bytes() {
        client.say(&[byte]);
    }
    assert!(client.hear()["about"].is_object());
}

#[test]
fn a_hundred_thousand_connections_come_by_pages() {
    let world = World::new(100_000);
    let mut client = world.client();
    let (mut from, mut seen, mut letters) = (0, 0, 0);
    loop {
        let page = client.ask(&format!(r#"{{"version":1,"ask":"connections","worker":0,"from":{from}}}"#));
        let page = &page["connections"];
        letters += 1;
        for connection in page["connections"].as_array().unwrap() {
            assert_eq!(connection["slot"], seen);
            seen += 1;
        }
        assert!(page["connections"].as_array().unwrap().len() <= linerate_bypass::inspect::SLOTS_PER_QUERY);
        match page["next"].as_u64() {
            Some(next) => from = next,
            None => break,
        }
    }
    assert_eq!((seen, world.letters.load(Ordering::Relaxed)), (100_000, letters));
}

#[test]
fn nonsense_is_refused_and_ends_the_connection() {
    let world = World::new(1);
    let long = format!("{{\"version\":1,\"ask\":\"{}\"}}", "x".repeat(2 * LONGEST));
    let deep = "[".repeat(LONGEST - 10);
    for (line, part) in [
        ("", "no line of JSON"),
        ("GET /metrics HTTP/1.1\r", "no line of JSON"),
        ("{}", "no line of JSON with a version"),
        ("[1,2,3]", "no line of JSON"),
        ("{\"version\":\"1\",\"ask\":\"about\"}", "no line of JSON with a version"),
        ("{\"version\":2,\"ask\":\"about\"}", "version 1 is spoken here"),
        ("{\"version\":1}", "no question"),
        ("{\"version\":1,\"ask\":\"stop\"}", "no question"),
        ("{\"version\":1,\"ask\":\"connections\"}", "no question"),
        ("{\"version\":1,\"ask\":\"connections\",\"worker\":-1,\"from\":0}", "no question"),
        (&deep, "no line of JSON"),
        (&long, "1024 bytes at most"),
    ] {
        let mut client = world.client();
        let answer = client.ask(line);
        assert!(answer["error"].as_str().unwrap().contains(part), "{line:.60}: {answer}");
        client.0.get_ref().shutdown(std::net::Shutdown::Write).unwrap();
        assert!(client.has_ended(), "{line:.60}");
    }
    let mut client = world.client();
    client.say(b"\xff\xfe\x00\n");
    assert!(client.hear()["error"].is_string());
    // It asked the worker nothing.
    assert_eq!(world.letters.load(Ordering::Relaxed), 0);
}

#[test]
fn a_worker_or_a_slot_that_there_is_not_is_no_nonsense() {
    let world = World::new(5);
    let mut client = world.client();
    let answer = client.ask(r#"{"version":1,"ask":"connections","worker":1,"from":0}"#);
    assert!(answer["error"].as_str().unwrap().contains("no worker 1"), "{answer}");
    let answer = client.ask(&format!(r#"{{"version":1,"ask":"connections","worker":0,"from":{}}}"#, usize::MAX));
    assert_eq!(answer["connections"]["connections"], json!([]));
}

#[test]
fn half_a_line_is_waited_for_no_longer_than_others_can_bear() {
    let world = World::new(1);
    let mut client = world.client();
    let began = Instant::now();
    client.say(&ABOUT.as_bytes()[..10]);
    assert!(client.has_ended());
    assert!(began.elapsed() >= PATIENCE && began.elapsed() < DEADLINE);
}

#[test]
fn clients_beyond_the_limit_replace_silent_ones_and_not_those_that_asked() {
    let world = World::new(1);
    let mut asking = world.client();
    assert!(asking.ask(ABOUT)["about"].is_object());
    let silent: Vec<_> = (0..CONNECTIONS).map(|_| world.client()).collect();
    assert!(world.client().ask(ABOUT)["about"].is_object());
    assert!(asking.ask(ABOUT)["about"].is_object());
    assert!(silent.into_iter().all(Client::has_ended));
}

#[test]
fn who_does_not_read_is_dropped_and_holds_nobody_up() {
    let world = World::new(100_000);
    let mut deaf = world.client();
    // As long as it takes what it says: answers fill the socket, and then nothing more is read.
    deaf.0.get_ref().set_write_timeout(Some(Duration::from_millis(200))).unwrap();
    let line = b"{\"version\":1,\"ask\":\"connections\",\"worker\":0,\"from\":0}\n";
    let began = Instant::now();
    while deaf.0.get_mut().write_all(line).is_ok() {
        assert!(began.elapsed() < DEADLINE);
    }
    let asked = Instant::now();
    assert!(world.client().ask(ABOUT)["about"].is_object());
    assert!(asked.elapsed() < PATIENCE);
    // The server closes the connection after `PATIENCE`, within a line that the client has not read.
    let stream = deaf.0.get_ref();
    let mut hang_up = [PollFd::new(stream, PollFlags::empty())];
    let deadline = Timespec { tv_sec: DEADLINE.as_secs() as i64, tv_nsec: 0 };
    assert_eq!(poll(&mut hang_up, Some(&deadline)), Ok(1), "the server did not close the connection");
    assert!(hang_up[0].revents().contains(PollFlags::HUP));
    let mut rest = Vec::new();
    let _ = deaf.0.read_to_end(&mut rest);
    assert_ne!(rest.last(), Some(&b'\n'));
}
