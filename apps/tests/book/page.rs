//! A page as scripts: what its `console` blocks say, see the README.

/// A line of a script.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// A command, and the lines that it is shown to print.
    Run { command: String, shown: Vec<String> },
    /// Ends the server that was started last, which is shown to print these lines.
    Interrupt { shown: Vec<String> },
}

/// A block that is run.
#[derive(Debug, PartialEq, Eq)]
pub struct Block {
    /// The line of the page on which it begins, counted from 1.
    pub line: usize,
    pub steps: Vec<Step>,
}

/// What a page has.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// Blocks that are run one after the other on one host.
    pub hosts: Vec<Vec<Block>>,
    /// Blocks that are not run: their lines, and why.
    pub not_run: Vec<(usize, String)>,
}

/// What comments above a block say.
#[derive(Debug, Default)]
struct Notes {
    anew: bool,
    not_run: Option<String>,
}

impl Page {
    /// What `text` has, or what is wrong with it and in which line.
    pub fn of(text: &str) -> Result<Page, (usize, String)> {
        let mut page = Page::default();
        let mut notes = Notes::default();
        let mut lines = text.lines().enumerate().map(|(n, line)| (n + 1, line));
        while let Some((line, indented)) = lines.next() {
            // In lists, blocks are indented.
            let text = indented.trim_start();
            let indent = indented.len() - text.len();
            if let Some(comment) = text.strip_prefix("<!--") {
                notes.take(comment.trim_end_matches("-->").trim()).map_err(|why| (line, why))?;
                continue;
            }
            if let Some(language) = text.strip_prefix("```") {
                let body = lines.by_ref().map(|(_, text)| text).take_while(|text| text.trim() != "```");
                let body: Vec<&str> = body.map(|text| text.get(indent..).unwrap_or_default()).collect();
                if language == "console" {
                    page.add(line, &body, std::mem::take(&mut notes)).map_err(|why| (line, why))?;
                }
            }
            if notes.anew || notes.not_run.is_some() {
                return Err((line, "a comment for a block is right above it".to_owned()));
            }
        }
        Ok(page)
    }

    fn add(&mut self, line: usize, body: &[&str], notes: Notes) -> Result<(), String> {
        let steps = steps(body)?;
        if notes.anew || self.hosts.is_empty() {
            self.hosts.push(Vec::new());
        }
        match notes.not_run {
            Some(why) => self.not_run.push((line, why)),
            None => self.hosts.last_mut().expect("there is one").push(Block { line, steps }),
        }
        Ok(())
    }
}

impl Notes {
    /// What a comment says, if it is for a block.
    fn take(&mut self, comment: &str) -> Result<(), String> {
        if comment == "anew" {
            self.anew = true;
        } else if let Some(why) = comment.strip_prefix("not run:") {
            if why.trim().is_empty() {
                return Err("not run: say why".to_owned());
            }
            self.not_run = Some(why.trim().to_owned());
        } else if comment.starts_with("not run") || comment.starts_with("anew") {
            return Err(format!("<!-- {comment} --> is neither <!-- not run: WHY --> nor <!-- anew -->"));
        }
        Ok(())
    }
}

fn steps(body: &[&str]) -> Result<Vec<Step>, String> {
    let mut steps: Vec<Step> = Vec::new();
    let mut lines = body.iter();
    while let Some(line) = lines.next() {
        if let Some(command) = line.strip_prefix("$ ").or(line.strip_prefix("# ")) {
            let mut command = command.to_owned();
            while command.ends_with('\\') {
                let next = lines.next().ok_or("a command ends with \\")?;
                command = format!("{command}\n{next}");
            }
            if command.contains("<<'END'") {
                loop {
                    let next = lines.next().ok_or("<<'END' has no END")?;
                    command = format!("{command}\n{next}");
                    if *next == "END" {
                        break;
                    }
                }
            }
            steps.push(Step::Run { command, shown: Vec::new() });
        } else if *line == "^C" {
            steps.push(Step::Interrupt { shown: Vec::new() });
        } else if let Some(Step::Run { shown, .. } | Step::Interrupt { shown }) = steps.last_mut() {
            shown.extend((!line.trim().is_empty()).then(|| (*line).to_owned()));
        } else {
            return Err(format!("'{line}' is printed by no command"));
        }
    }
    if steps.is_empty() { Err("there is no command in it".to_owned()) } else { Ok(steps) }
}

/// Whether a command is a load, of `linerate`.
fn is_load(command: &str) -> bool {
    command.contains("linerate ") && command.contains(" load ")
}

/// Whether what a command printed at its end is that it lost datagrams, as a load does on a machine that is busy, and no worse.
pub fn only_lost(command: &str, printed: &str) -> bool {
    let last = printed.lines().last().unwrap_or_default();
    let is_lossy = is_load(command) && (command.contains(" raw ") || command.split(' ').any(|word| word == "--udp"));
    let rest = last.split_once(" requests were lost, 0 ").map_or("", |(_, rest)| rest);
    is_lossy
        && ["came back", "were answered"].iter().any(|how| {
            rest.strip_prefix(how)
                .and_then(|rest| rest.strip_prefix(" with wrong bytes"))
                .is_some_and(|rest| rest.starts_with([':', ';']))
        })
}

/// The command, with loads that measure for less time.
pub fn shortened(command: &str) -> String {
    if command.starts_with("redis-benchmark ") {
        return command.replace(" -n 100000 ", " -n 10000 ");
    }
    if !is_load(command) {
        return command.to_owned();
    }
    let mut command = command.to_owned();
    for (option, time) in [("--duration", "300ms"), ("--warm-up", "100ms")] {
        if let Some((before, rest)) = command.clone().split_once(&format!(" {option} ")) {
            let after = rest.find(char::is_whitespace).map_or("", |at| &rest[at..]);
            command = format!("{before} {option} {time}{after}");
        } else if option == "--duration" {
            command = command.replacen(" load ", " load --duration 300ms ", 1);
        }
    }
    command
}

/// A line with its numbers wild: what is compared of it.
fn shape(line: &str) -> String {
    let mut shape = String::new();
    for word in line.split_whitespace() {
        if !shape.is_empty() {
            shape.push(' ');
        }
        let mut rest = word;
        while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
            shape.push_str(&rest[..at]);
            shape.push('0');
            let number = &rest[at..];
            // Points that end a sentence are not the number's.
            let end = number.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(number.len());
            rest = &number[number[..end].trim_end_matches('.').len()..];
        }
        shape.push_str(rest);
    }
    shape
}

/// Whether a printed line is what a page shows.
fn fits(shown: &str, printed: &str) -> bool {
    let (shown, printed) = (shape(shown), shape(printed));
    let mut parts = shown.split('…').map(str::trim);
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = printed.strip_prefix(first) else { return false };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        let at = if parts.peek().is_none() && !part.is_empty() {
            rest.strip_suffix(part).map(str::len)
        } else {
            rest.find(part)
        };
        let Some(at) = at else { return false };
        rest = &rest[at + part.len()..];
    }
    true
}

/// The first line that is shown and not printed, in that order.
pub fn missing<'a>(shown: &'a [String], printed: &str) -> Option<&'a str> {
    let mut lines = printed.lines();
    shown.iter().find(|shown| !lines.any(|line| fits(shown, line))).map(String::as_str)
}

#[test]
fn a_page_is_scripts_for_hosts() {
    let text = "# Title\n```console\n$ one \\\n    two\nshown\n# cat <<'END'\na\nEND\n^C\nended\n```\n\n<!-- other -->\n```rust\n$ no\n```\n\
                <!-- not run: no NIC -->\n```console\n$ three\n```\n- a list\n\n  <!-- anew -->\n  ```console\n  $ four\n  ```\n";
    let run = |command: &str, shown: &[&str]| Step::Run {
        command: command.to_owned(),
        shown: shown.iter().map(|line| (*line).to_owned()).collect(),
    };
    let first = vec![
        run("one \\\n    two", &["shown"]),
        run("cat <<'END'\na\nEND", &[]),
        Step::Interrupt { shown: vec!["ended".to_owned()] },
    ];
    let hosts = vec![vec![Block { line: 2, steps: first }], vec![Block { line: 24, steps: vec![run("four", &[])] }]];
    assert_eq!(Page::of(text), Ok(Page { hosts, not_run: vec![(18, "no NIC".to_owned())] }));
}

#[test]
fn what_a_page_says_wrongly_is_told_with_its_line() {
    for (text, line) in [
        ("```console\nprinted\n```\n", 1),
        ("\n```console\n```\n", 2),
        ("<!-- not run -->\n```console\n$ a\n```\n", 1),
        ("<!-- not run: -->\n```console\n$ a\n```\n", 1),
        ("<!-- anew -->\ntext\n```console\n$ a\n```\n", 2),
    ] {
        assert_eq!(Page::of(text).unwrap_err().0, line, "{text}");
    }
}

#[test]
fn numbers_are_wild_and_all_else_is_not() {
    for (shown, printed) in [
        ("rate 12 p50 1.5 us", "rate   9999 p50 20.75 us"),
        ("ready echo on 127.0.0.1:7.", "ready echo on 10.0.0.2:12345."),
        ("… up", "the link is up"),
        ("a … c …", "a b c d"),
        ("a…c", "a b c"),
    ] {
        assert!(fits(shown, printed), "{shown}: {printed}");
    }
    for (shown, printed) in [("12 us", "12 ms"), ("a", "a b"), ("a … c", "a b c d"), ("… up", "up it is"), ("1 a", "a")]
    {
        assert!(!fits(shown, printed), "{shown}: {printed}");
    }
    let shown = ["b 1".to_owned(), "c".to_owned()];
    assert_eq!(missing(&shown, "a\nb 7\nx\nc\n"), None);
    assert_eq!(missing(&shown, "c\nb 7\n"), Some("c"));
}

#[test]
fn loads_measure_for_less_time() {
    let short = |command| shortened(command);
    assert_eq!(short("linerate echo load --duration 5s --json"), "linerate echo load --duration 300ms --json");
    assert_eq!(short("linerate kv load  --via kernel"), "linerate kv load --duration 300ms  --via kernel");
    assert_eq!(
        short("linerate echo load --warm-up 2s --duration 9s"),
        "linerate echo load --warm-up 100ms --duration 300ms"
    );
    assert_eq!(short("linerate echo serve --drain 5s"), "linerate echo serve --drain 5s");
    assert_eq!(short("redis-benchmark -n 100000 -q"), "redis-benchmark -n 10000 -q");
}

#[test]
fn datagrams_may_be_lost_and_nothing_else() {
    let lost = "errors 3\nlinerate: 3 requests were lost, 0 came back with wrong bytes: look at the way\n";
    let wrong = "linerate: 3 requests were lost, 1 came back with wrong bytes: look at the way\n";
    assert!(only_lost("linerate echo load --udp --connect 127.0.0.1:7", lost));
    assert!(only_lost("linerate raw load    --via memif:/tmp/a", lost));
    assert!(!only_lost("linerate echo load --udp --connect 127.0.0.1:7", wrong));
    assert!(only_lost(
        "linerate kv load --udp",
        "linerate: 1 requests were lost, 0 were answered with wrong bytes: look\n"
    ));
    assert!(!only_lost(
        "linerate kv load --udp",
        "linerate: 1 requests were lost, 0 were answered with wrong bytes, 2 with an error: look\n"
    ));
    assert!(!only_lost("linerate echo load --connect 127.0.0.1:7", lost));
    assert!(!only_lost("linerate echo load --udp --connect 127.0.0.1:7", "linerate: host unreachable\n"));
}
