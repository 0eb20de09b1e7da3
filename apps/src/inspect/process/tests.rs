use super::*;
use std::fs;
use std::os::unix::net::UnixListener;
use std::thread::{self, JoinHandle};

/// A process that answers one client, line by line, as it is told to.
fn process(directory: &Path, pid: u32, answers: &[&str]) -> JoinHandle<()> {
    let listener = UnixListener::bind(directory.join(format!("{pid}.sock"))).unwrap();
    let about = format!(
        "{{\"version\":1,\"about\":{{\"pid\":{pid},\"program\":\"0\",\"command\":\"echo serve\\u001b[2J\",\"workers\":1}}}}\n"
    );
    let answers: Vec<String> =
        std::iter::once(about).chain(answers.iter().map(|answer| (*answer).to_owned())).collect();
    thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut asked = BufReader::new(&stream);
        for answer in answers {
            if asked.read_line(&mut String::new()).unwrap() == 0 {
                return;
            }
            (&stream).write_all(answer.as_bytes()).unwrap();
        }
    })
}

fn directory() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn find(directory: &tempfile::TempDir, pid: Option<u32>) -> Asked<Process> {
    find_in(&[directory.path().to_owned(), directory.path().join("none")], pid)
}

#[test]
fn the_only_process_is_found_and_several_are_listed() {
    let directory = directory();
    assert!(matches!(find(&directory, None), Err(AskError::None(_))));
    let one = process(directory.path(), 11, &[]);
    // Nobody is behind this one, and this is not one.
    drop(UnixListener::bind(directory.path().join("12.sock")).unwrap());
    fs::write(directory.path().join("13.sock"), "").unwrap();
    let found = find(&directory, None).unwrap();
    assert_eq!((found.about().pid, found.about().command.as_str()), (11, "echo serve?[2J"));
    drop(found);
    one.join().unwrap();
    fs::remove_file(directory.path().join("11.sock")).unwrap();

    let threads = [process(directory.path(), 14, &[]), process(directory.path(), 15, &[])];
    let Err(error) = find(&directory, None) else { panic!("one of two") };
    let said = error.to_string();
    assert!(said.ends_with("--pid: 14 (echo serve?[2J), 15 (echo serve?[2J)"), "{said}");
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn a_process_is_found_by_its_number_among_others() {
    let directory = directory();
    // Nobody asks the first one, which waits on.
    let (_, thread) = (process(directory.path(), 14, &[]), process(directory.path(), 15, &[]));
    assert_eq!(find(&directory, Some(15)).unwrap().about().pid, 15);
    thread.join().unwrap();
    for pid in [14, 15] {
        fs::remove_file(directory.path().join(format!("{pid}.sock"))).unwrap();
    }
    let thread = process(directory.path(), 16, &[]);
    let said = find(&directory, Some(15)).unwrap_err().to_string();
    assert!(said.starts_with("--pid 15: ") && said.ends_with("there are 16 (echo serve?[2J)"), "{said}");
    thread.join().unwrap();
}

#[test]
fn whatever_a_process_answers_is_an_outcome() {
    let page =
        |next: &str| format!("{{\"version\":1,\"connections\":{{\"up\":true,\"connections\":[],\"next\":{next}}}}}\n");
    for (answer, part) in [
        ("", "has ended"),
        ("{\"version\":1,\"conn", "has ended"),
        ("\n", "does not understand"),
        ("{\"version\":2,\"connections\":{\"up\":true,\"connections\":[],\"next\":null}}\n", "version 2"),
        ("{\"version\":1,\"error\":\"no\\u001b[0m\"}\n", "the process answers: no?[0m"),
        ("{\"version\":1,\"counters\":{\"at_us\":1,\"workers\":[]}}\n", "counters, which was not asked for"),
        (&page("5"), "pages that go back"),
        (&page("6"), ""),
        (&page("null"), ""),
    ] {
        let directory = directory();
        let thread = process(directory.path(), 11, &[answer]);
        let outcome = find(&directory, None).unwrap().connections(0, 5);
        match (outcome, part) {
            (Ok(page), "") => assert!(page.up),
            (Err(error), part) if !part.is_empty() => {
                let said = error.to_string();
                assert!(said.contains(part) && !said.contains('\u{1b}'), "{answer}: {said}");
            }
            (outcome, _) => panic!("{answer}: {outcome:?}"),
        }
        thread.join().unwrap();
    }
}

#[test]
fn an_answer_without_end_is_not_read_to_its_end() {
    let directory = directory();
    let listener = UnixListener::bind(directory.path().join("11.sock")).unwrap();
    let talks = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut sent = 0_u64;
        while let Ok(n) = stream.write(&[b'['; 65_536]) {
            sent += n as u64;
        }
        sent
    });
    assert!(matches!(find(&directory, Some(11)), Err(AskError::Strange(_))));
    assert!(talks.join().unwrap() < 2 * LONGEST);
}

#[test]
fn the_causes_of_drops_are_shown_without_orders_to_the_terminal() {
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
