use super::*;
use std::fs;
use std::os::unix::net::UnixListener;
use std::thread::{self, JoinHandle};

/// Process that accepts one client and sends it these replies, one per line received.
fn process(directory: &Path, pid: u32, replies: &[&str]) -> JoinHandle<()> {
    let listener = UnixListener::bind(directory.join(format!("{pid}.sock"))).unwrap();
    let about = format!(
        "{{\"version\":1,\"about\":{{\"pid\":{pid},\"program\":\"0\",\"command\":\"echo serve\\u001b[2J\",\
         \"workers\":1}}}}\n"
    );
    let replies: Vec<String> =
        std::iter::once(about).chain(replies.iter().map(|answer| (*answer).to_owned())).collect();
    thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut queries = BufReader::new(&stream);
        for answer in replies {
            if queries.read_line(&mut String::new()).unwrap() == 0 {
                return;
            }
            (&stream).write_all(answer.as_bytes()).unwrap();
        }
    })
}

fn directory() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn find(directory: &tempfile::TempDir, pid: Option<u32>) -> QueryResult<Process> {
    find_in(&[directory.path().to_owned(), directory.path().join("none")], pid)
}

#[test]
fn only_process_is_found_and_several_are_listed() {
    let directory = directory();
    assert!(matches!(find(&directory, None), Err(QueryError::None(_))));
    assert!(
        find_in(&[], None).unwrap_err().to_string().ends_with("; XDG_RUNTIME_DIR is not set, and only root uses /run")
    );
    let one = process(directory.path(), 11, &[]);
    // A stale socket, and a file that is not a socket.
    drop(UnixListener::bind(directory.path().join("12.sock")).unwrap());
    fs::write(directory.path().join("13.sock"), "").unwrap();
    let found = find(&directory, None).unwrap();
    assert_eq!((found.about().pid, found.about().command.as_str()), (11, "echo serve?[2J"));
    drop(found);
    one.join().unwrap();
    fs::remove_file(directory.path().join("11.sock")).unwrap();

    let threads = [process(directory.path(), 14, &[]), process(directory.path(), 15, &[])];
    let Err(error) = find(&directory, None) else { panic!("one of two") };
    let message = error.to_string();
    assert!(message.ends_with("--pid: 14 (echo serve?[2J), 15 (echo serve?[2J)"), "{message}");
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn process_is_found_by_id_among_others() {
    let directory = directory();
    // The first process is not queried and keeps waiting.
    let (_, thread) = (process(directory.path(), 14, &[]), process(directory.path(), 15, &[]));
    assert_eq!(find(&directory, Some(15)).unwrap().about().pid, 15);
    thread.join().unwrap();
    for pid in [14, 15] {
        fs::remove_file(directory.path().join(format!("{pid}.sock"))).unwrap();
    }
    let thread = process(directory.path(), 16, &[]);
    let message = find(&directory, Some(15)).unwrap_err().to_string();
    assert!(message.starts_with("--pid 15: ") && message.ends_with("found 16 (echo serve?[2J)"), "{message}");
    thread.join().unwrap();
}

#[test]
fn any_reply_has_a_defined_outcome() {
    let page =
        |next: &str| format!("{{\"version\":1,\"connections\":{{\"up\":true,\"connections\":[],\"next\":{next}}}}}\n");
    for (answer, part) in [
        ("", "has ended"),
        ("{\"version\":1,\"conn", "has ended"),
        ("\n", "invalid reply"),
        ("{\"version\":2,\"connections\":{\"up\":true,\"connections\":[],\"next\":null}}\n", "version 2"),
        ("{\"version\":1,\"error\":\"no\\u001b[0m\"}\n", "the process replies: no?[0m"),
        ("{\"version\":1,\"counters\":{\"at_us\":1,\"workers\":[]}}\n", "unrequested counters"),
        (&page("5"), "pages that do not advance"),
        (&page("6"), ""),
        (&page("null"), ""),
    ] {
        let directory = directory();
        let thread = process(directory.path(), 11, &[answer]);
        let outcome = find(&directory, None).unwrap().connections(0, 5);
        match (outcome, part) {
            (Ok(page), "") => assert!(page.up),
            (Err(error), part) if !part.is_empty() => {
                let message = error.to_string();
                assert!(message.contains(part) && !message.contains('\u{1b}'), "{answer}: {message}");
            }
            (outcome, _) => panic!("{answer}: {outcome:?}"),
        }
        thread.join().unwrap();
    }
}

#[test]
fn endless_reply_is_not_read_to_its_end() {
    let directory = directory();
    let listener = UnixListener::bind(directory.path().join("11.sock")).unwrap();
    let writer = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut sent = 0_u64;
        while let Ok(n) = stream.write(&[b'['; 65_536]) {
            sent += n as u64;
        }
        sent
    });
    assert!(matches!(find(&directory, Some(11)), Err(QueryError::Invalid(_))));
    assert!(writer.join().unwrap() < 2 * MAX_REPLY);
}

#[test]
fn drop_causes_are_printable() {
    let directory = directory();
    let answer =
        "{\"version\":1,\"counters\":{\"at_us\":1,\"workers\":[{\"linerate_drops_total\":{\"a\\u001bb\":3}},null]}}\n";
    let thread = process(directory.path(), 11, &[answer]);
    let counters = find(&directory, None).unwrap().counters().unwrap();
    let drops = &counters.workers[0].as_ref().unwrap()["linerate_drops_total"];
    assert_eq!(*drops, Value::Each([("a?b".to_owned(), 3)].into()));
    assert_eq!(counters.workers[1], None);
    thread.join().unwrap();
}
