//! Generator and test of docs/src/options.md, which lists every option of every command.

use clap::{Arg, Args, Command, Id};
use linerate::NetConfig;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Marker in the documentation. The generated part follows it.
const MARK: &str =
    "<!-- Written by a test of linerate-packaging from the programs' definitions; see the message of that test. -->\n";

/// Groups of options shared by many commands and listed once: the help headings of [`NetConfig`], with the ids below
/// each.
fn shared() -> Vec<(String, Vec<Id>)> {
    let command = NetConfig::augment_args(Command::new("network"));
    let mut groups: Vec<(String, Vec<Id>)> = Vec::new();
    for arg in command.get_arguments() {
        let Some(heading) = arg.get_help_heading() else { continue };
        match groups.iter_mut().find(|(title, _)| title == heading) {
            Some((_, ids)) => ids.push(arg.get_id().clone()),
            None => groups.push((heading.to_owned(), vec![arg.get_id().clone()])),
        }
    }
    groups
}

/// Returns whether an option is listed for each command.
fn is_listed(arg: &Arg) -> bool {
    !arg.is_global_set() && !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str())
}

/// Formats text for a table cell: options become code, and no character is interpreted as markup.
fn cell(text: &str) -> String {
    let word = |word: &str| {
        if let Some(at) =
            word.find("--").filter(|at| word[..*at].chars().all(|c| "([".contains(c)) && word.len() > at + 2)
        {
            let ends = |c: char| !(c.is_ascii_alphanumeric() || c == '-');
            let (before, rest) = word.split_at(at);
            let (option, after) = rest.split_at(rest.find(ends).unwrap_or(rest.len()));
            format!("{before}`{option}`{after}")
        } else if word.contains(['*', '_', '<']) {
            let code = word.trim_matches(['(', '[', ']', ')', ',', ';', '.', ':']);
            word.replacen(code, &format!("`{code}`"), 1)
        } else {
            word.to_owned()
        }
    };
    text.split_whitespace().map(word).collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

/// Formats the syntax of an option: `-v`, `--json`, `--ip CIDR`, or `FILE` for a positional argument.
fn syntax(arg: &Arg) -> String {
    let names: Vec<&str> = arg.get_value_names().unwrap_or_default().iter().map(|name| name.as_str()).collect();
    let takes = arg.get_action().takes_values();
    let value = if takes { names.join(" ") } else { String::new() };
    if arg.is_last_set() {
        return format!("`-- {value}`");
    }
    let short = arg.get_short().map(|short| format!("-{short}"));
    let long = arg.get_long().map(|long| format!("--{long}"));
    let option = [short, long].into_iter().flatten().collect::<Vec<_>>().join("`, `");
    let all = [option, value].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ");
    format!("`{}`", all.replace('|', "\\|"))
}

/// Formats the description of an option with its values, default and environment variable.
fn description(arg: &Arg) -> String {
    let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let mut text = cell(&help);
    if !text.ends_with('.') {
        text.push('.');
    }
    let takes = arg.get_action().takes_values();
    let values = arg.get_possible_values();
    if takes && !values.is_empty() && !arg.is_hide_possible_values_set() {
        let values: Vec<String> = values.iter().map(|value| format!("`{}`", value.get_name())).collect();
        let _ = write!(text, " One of {}.", values.join(", "));
    }
    let defaults: Vec<String> =
        arg.get_default_values().iter().map(|value| format!("`{}`", value.to_string_lossy())).collect();
    if takes && !defaults.is_empty() && !arg.is_hide_default_value_set() {
        let _ = write!(text, " Default: {}.", defaults.join(", "));
    }
    if let Some(variable) = arg.get_env() {
        let _ = write!(text, " Environment variable: `{}`.", variable.to_string_lossy());
    }
    if arg.is_required_set() {
        text.push_str(" **Required.**");
    }
    text
}

fn table<'a>(args: impl Iterator<Item = &'a Arg>) -> String {
    let rows: String = args.map(|arg| format!("| {} | {} |\n", syntax(arg), description(arg))).collect();
    if rows.is_empty() { rows } else { format!("| option | description |\n|---|---|\n{rows}\n") }
}

/// Writes the section of each command below `command`, and collects the tables of the shared groups by title.
fn sections(command: &Command, name: &str, page: &mut String, groups: &mut BTreeMap<String, String>) {
    for command in command.get_subcommands().filter(|command| command.get_name() != "help" && !command.is_hide_set()) {
        let name = format!("{name} {}", command.get_name());
        // Commands that only contain others have no section.
        if !command.is_subcommand_required_set() {
            section(command, &name, page, groups);
        }
        sections(command, &name, page, groups);
    }
}

fn section(command: &Command, name: &str, page: &mut String, groups: &mut BTreeMap<String, String>) {
    let about = command.get_long_about().or(command.get_about()).map(ToString::to_string).unwrap_or_default();
    let about = cell(&about.replace("\n\n", ". "));
    let _ = write!(page, "## {name}\n\n{about}{}\n\n", if about.ends_with('.') { "" } else { "." });
    let (mut links, mut elsewhere) = (Vec::new(), Vec::new());
    for (title, ids) in shared() {
        let has = |id: &Id| command.get_arguments().any(|arg| arg.get_id() == id);
        if !ids.iter().all(has) {
            continue;
        }
        let table = table(command.get_arguments().filter(|arg| ids.contains(arg.get_id())));
        assert_eq!(groups.entry(title.clone()).or_insert_with(|| table.clone()), &table, "{name} differs in {title}");
        links.push(format!("[{title}](#{})", title.to_lowercase().replace(' ', "-")));
        elsewhere.extend(ids);
    }
    let own = table(command.get_arguments().filter(|arg| is_listed(arg) && !elsewhere.contains(arg.get_id())));
    page.push_str(&own);
    if !links.is_empty() {
        let begin = if own.is_empty() { "The options of" } else { "Also the options of" };
        let _ = write!(page, "{begin} {}.\n\n", links.join(", "));
    }
}

fn reference() -> String {
    let mut program = linerate_apps::cli::definition();
    program.build();
    let (mut commands, mut groups) = (String::new(), BTreeMap::new());
    sections(&program, "linerate", &mut commands, &mut groups);
    let all = table(program.get_arguments().filter(|arg| arg.is_global_set()));
    let mut page = format!("\n## Every command\n\n{all}");
    for (title, _) in shared() {
        let _ = write!(page, "## {title}\n\n{}", groups[&title]);
    }
    (page + commands.trim_end()) + "\n"
}

#[test]
fn options_page_matches_definition() {
    // The page includes the RDMA commands, so it is compared only if linerate was built with them.
    if linerate_apps::cli::definition().find_subcommand("rdma").is_none() {
        return;
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/options.md");
    let page = std::fs::read_to_string(path).unwrap();
    let (prose, generated) = page.split_once(MARK).expect("marker in options.md");
    let expected = reference();
    if std::env::var_os("LINERATE_WRITE_DOCS").is_some() {
        std::fs::write(path, format!("{prose}{MARK}{expected}")).unwrap();
        return;
    }
    assert!(generated == expected, "docs/src/options.md is out of date: run this test with LINERATE_WRITE_DOCS=1");
}

#[test]
fn cell_escapes_markup_and_marks_options_as_code() {
    assert_eq!(cell("of --rate\n  REQUESTS (--json, a|b)"), "of `--rate` REQUESTS (`--json`, a\\|b)");
    assert_eq!(cell("as --config=FILE or -- says"), "as `--config`=FILE or -- says");
    assert_eq!(cell("to 1_000, <b> [a_b]"), "to `1_000`, `<b>` [`a_b`]");
}
