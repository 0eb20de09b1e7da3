//! Extraction of scripts from the `console` blocks of a page; see README.md.

/// Step of a script.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// Runs a command and compares its output.
    Run { command: String, shown: Vec<String> },
    /// Stops the server started last and compares its output.
    Interrupt { shown: Vec<String> },
}

/// Block that is run.
#[derive(Debug, PartialEq, Eq)]
pub struct Block {
    /// Line number of the block in the page, from 1.
    pub line: usize,
    pub steps: Vec<Step>,
}

/// Blocks of a page.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// Blocks per host, run in sequence.
    pub hosts: Vec<Vec<Block>>,
    /// Blocks that are not run: line number and reason.
    pub not_run: Vec<(usize, String)>,
}

/// Comments above a block.
#[derive(Debug, Default)]
struct Notes {
    anew: bool,
    not_run: Option<String>,
}

impl Page {
    /// Parses a page, or returns an error with its line number.
    pub fn parse(text: &str) -> Result<Page, (usize, String)> {
        let mut page = Page::default();
        let mut notes = Notes::default();
        let mut lines = text.lines().enumerate().map(|(n, line)| (n + 1, line));
        while let Some((line, indented)) = lines.next() {
            // Blocks in lists are indented.
            let text = indented.trim_start();
            let indent = indented.len() - text.len();
            if let Some(comment) = text.strip_prefix("<!--") {
                notes.take(comment.trim_end_matches("-->").trim()).map_err(|error| (line, error))?;
                continue;
            }
            if let Some(language) = text.strip_prefix("```") {
                let body = lines.by_ref().map(|(_, text)| text).take_while(|text| text.trim() != "```");
                let body: Vec<&str> = body.map(|text| text.get(indent..).unwrap_or_default()).collect();
                if language == "console" {
                    page.add(line, &body, std::mem::take(&mut notes)).map_err(|error| (line, error))?;
                }
            }
            if notes.anew || notes.not_run.is_some() {
                return Err((line, "a comment for a block must be directly above it".to_owned()));
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
            Some(reason) => self.not_run.push((line, reason)),
            None => self.hosts.last_mut().expect("pushed above").push(Block { line, steps }),
        }
        Ok(())
    }
}

impl Notes {
    /// Parses a comment, and ignores comments that do not concern blocks.
    fn take(&mut self, comment: &str) -> Result<(), String> {
        if comment == "anew" {
            self.anew = true;
        } else if let Some(reason) = comment.strip_prefix("not run:") {
            if reason.trim().is_empty() {
                return Err("not run: reason missing".to_owned());
            }
            self.not_run = Some(reason.trim().to_owned());
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
            return Err(format!("'{line}' does not follow a command"));
        }
    }
    if steps.is_empty() { Err("no command in the block".to_owned()) } else { Ok(steps) }
}

/// Returns whether a command runs a load of `linerate`.
fn is_load(command: &str) -> bool {
    command.contains("linerate ") && command.contains(" load ")
}

/// Returns whether the only error of a command is loss of datagrams, which is expected on a busy machine.
pub fn only_lost(command: &str, printed: &str) -> bool {
    let last = printed.lines().last().unwrap_or_default();
    let is_lossy = is_load(command) && (command.contains(" raw ") || command.split(' ').any(|word| word == "--udp"));
    let rest = last.split_once(" requests were lost, 0 ").map_or("", |(_, rest)| rest);
    is_lossy && rest.strip_prefix("replies were corrupt").is_some_and(|rest| rest.starts_with([':', ';']))
}

/// Shortens the measurement of a load.
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

/// Normalizes a line for comparison: numbers become 0 and spaces are folded.
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
            // A trailing point ends the sentence, not the number.
            let end = number.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(number.len());
            rest = &number[number[..end].trim_end_matches('.').len()..];
        }
        shape.push_str(rest);
    }
    shape
}

/// Returns whether a printed line matches a line of the page.
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

/// Returns the first line of `shown` that is not printed in this order.
pub fn missing<'a>(shown: &'a [String], printed: &str) -> Option<&'a str> {
    let mut lines = printed.lines();
    shown.iter().find(|shown| !lines.any(|line| fits(shown, line))).map(String::as_str)
}

#[test]
fn page_is_parsed_into_scripts() {
    let text = "# Title\n```console\n$ one \\\n    two\nshown\n# cat <<'END'\na\nEND\n^C\nended\n```\n\n\
                <!-- other -->\n```rust\n$ no\n```\n\
                <!-- not run: no NIC -->\n```console\n$ three\n```\n- a list\n\n\
               \x20 <!-- anew -->\n  ```console\n  $ four\n  ```\n";
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
    assert_eq!(Page::parse(text), Ok(Page { hosts, not_run: vec![(18, "no NIC".to_owned())] }));
}

#[test]
fn invalid_page_is_an_error_with_its_line() {
    for (text, line) in [
        ("```console\nprinted\n```\n", 1),
        ("\n```console\n```\n", 2),
        ("<!-- not run -->\n```console\n$ a\n```\n", 1),
        ("<!-- not run: -->\n```console\n$ a\n```\n", 1),
        ("<!-- anew -->\ntext\n```console\n$ a\n```\n", 2),
    ] {
        assert_eq!(Page::parse(text).unwrap_err().0, line, "{text}");
    }
}

#[test]
fn only_numbers_match_any_number() {
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
fn load_commands_are_shortened() {
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
fn only_lost_datagrams_are_accepted() {
    let lost = "errors 3\nlinerate: 3 requests were lost, 0 replies were corrupt: check the path\n";
    let wrong = "linerate: 3 requests were lost, 1 replies were corrupt: check the path\n";
    assert!(only_lost("linerate echo load --udp --connect 127.0.0.1:7", lost));
    assert!(only_lost("linerate raw load    --via memif:/tmp/a", lost));
    assert!(!only_lost("linerate echo load --udp --connect 127.0.0.1:7", wrong));
    assert!(only_lost("linerate kv load --udp", "linerate: 1 requests were lost, 0 replies were corrupt: check\n"));
    assert!(!only_lost(
        "linerate kv load --udp",
        "linerate: 1 requests were lost, 0 replies were corrupt, 2 error replies: check\n"
    ));
    assert!(!only_lost("linerate echo load --connect 127.0.0.1:7", lost));
    assert!(!only_lost("linerate echo load --udp --connect 127.0.0.1:7", "linerate: host unreachable\n"));
}
