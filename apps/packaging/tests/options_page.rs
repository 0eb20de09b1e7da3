//! docs/src/options.md: every option of every command, from the command-line definitions.

use clap::{Arg, Args, Command, Id};
use linerate_net::{NetArgs, RdmaArgs};
use std::collections::BTreeMap;
use std::fmt::Write;

/// What the documentation has of it: all behind this line.
const MARK: &str =
    "<!-- Written by a test of linerate-packaging from the programs' definitions; see the message of that test. -->\n";

/// Options that many commands have, which are told once: their title, and their names here.
fn shared() -> [(&'static str, Vec<Id>); 2] {
    let ids = |command: Command| command.get_arguments().map(|arg| arg.get_id().clone()).collect::<Vec<Id>>();
    let rdma = ids(RdmaArgs::augment_args(Command::new("rdma")));
    let mut network = ids(NetArgs::augment_args(Command::new("network")));
    network.retain(|id| !rdma.contains(id));
    [("The network", network), ("RDMA", rdma)]
}

/// An option that is told for each command.
fn is_own(arg: &Arg) -> bool {
    !arg.is_global_set() && !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str())
}

/// As text of a table's cell: words that are options are code, and nothing is markup by chance.
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

/// How it is written: `-v`, `--json`, `--ip CIDR`, or `FILE` for one without a name.
fn written(arg: &Arg) -> String {
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

/// What it is, what it may be, and what it is if it is not given.
fn told(arg: &Arg) -> String {
    let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let mut told = cell(&help);
    if !told.ends_with('.') {
        told.push('.');
    }
    let takes = arg.get_action().takes_values();
    let values = arg.get_possible_values();
    if takes && !values.is_empty() && !arg.is_hide_possible_values_set() {
        let values: Vec<String> = values.iter().map(|value| format!("`{}`", value.get_name())).collect();
        let _ = write!(told, " One of {}.", values.join(", "));
    }
    let defaults: Vec<String> =
        arg.get_default_values().iter().map(|value| format!("`{}`", value.to_string_lossy())).collect();
    if takes && !defaults.is_empty() && !arg.is_hide_default_value_set() {
        let _ = write!(told, " Without it: {}.", defaults.join(", "));
    }
    if let Some(variable) = arg.get_env() {
        let _ = write!(told, " The environment variable `{}` sets it, too.", variable.to_string_lossy());
    }
    if arg.is_required_set() {
        told.push_str(" **Required.**");
    }
    told
}

fn table<'a>(args: impl Iterator<Item = &'a Arg>) -> String {
    let rows: String = args.map(|arg| format!("| {} | {} |\n", written(arg), told(arg))).collect();
    if rows.is_empty() { rows } else { format!("| option | what it is |\n|---|---|\n{rows}\n") }
}

/// The section of each command below `command`, and the tables of what they share, by their titles.
fn sections(command: &Command, name: &str, page: &mut String, told: &mut BTreeMap<&'static str, String>) {
    for command in command.get_subcommands().filter(|command| command.get_name() != "help" && !command.is_hide_set()) {
        let name = format!("{name} {}", command.get_name());
        // Those that have commands below them, and do nothing by themselves, have no section.
        if !command.is_subcommand_required_set() {
            section(command, &name, page, told);
        }
        sections(command, &name, page, told);
    }
}

fn section(command: &Command, name: &str, page: &mut String, told: &mut BTreeMap<&'static str, String>) {
    let about = command.get_long_about().or(command.get_about()).map(ToString::to_string).unwrap_or_default();
    let about = cell(&about);
    let _ = write!(page, "## {name}\n\n{about}{}\n\n", if about.ends_with('.') { "" } else { "." });
    let (mut links, mut elsewhere) = (Vec::new(), Vec::new());
    for (title, ids) in shared() {
        let has = |id: &Id| command.get_arguments().any(|arg| arg.get_id() == id);
        if !ids.iter().all(has) {
            continue;
        }
        let table = table(command.get_arguments().filter(|arg| ids.contains(arg.get_id())));
        assert_eq!(told.entry(title).or_insert_with(|| table.clone()), &table, "{name} has others of {title}");
        links.push(format!("[{title}](#{})", title.to_lowercase().replace(' ', "-")));
        elsewhere.extend(ids);
    }
    let own = table(command.get_arguments().filter(|arg| is_own(arg) && !elsewhere.contains(arg.get_id())));
    page.push_str(&own);
    if !links.is_empty() {
        let begin = if own.is_empty() { "It has" } else { "And" };
        let _ = write!(page, "{begin} the options of {}.\n\n", links.join(" and "));
    }
}

fn reference() -> String {
    let mut program = linerate_apps::cli::definition();
    program.build();
    let (mut commands, mut told) = (String::new(), BTreeMap::new());
    sections(&program, "linerate", &mut commands, &mut told);
    let mut perf = linerate_rdma_perf::definition();
    perf.build();
    section(&perf, "linerate-rdma-perf", &mut commands, &mut told);
    let all = table(program.get_arguments().filter(|arg| arg.is_global_set()));
    let mut page = format!("\n## Every command\n\n{all}");
    for (title, _) in shared() {
        let _ = write!(page, "## {title}\n\n{}", told[title]);
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
    let (prose, generated) = page.split_once(MARK).expect("the mark in options.md");
    let expected = reference();
    if std::env::var_os("LINERATE_WRITE_DOCS").is_some() {
        std::fs::write(path, format!("{prose}{MARK}{expected}")).unwrap();
        return;
    }
    assert!(
        generated == expected,
        "docs/src/options.md differs from the definition: run this test with LINERATE_WRITE_DOCS=1"
    );
}

#[test]
fn options_are_formatted_as_code() {
    assert_eq!(cell("of --rate\n  REQUESTS (--json, a|b)"), "of `--rate` REQUESTS (`--json`, a\\|b)");
    assert_eq!(cell("as --config=FILE or -- says"), "as `--config`=FILE or -- says");
    assert_eq!(cell("to 1_000, <b> [a_b]"), "to `1_000`, `<b>` [`a_b`]");
}
