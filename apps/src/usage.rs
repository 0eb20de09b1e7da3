//! Messages for wrong command lines: one line with the problem, the closest valid spelling, an example, and the help
//! command.

use crate::config::name_of;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Error};
use std::error::Error as _;

/// Commands to begin with, printed by `linerate` without arguments.
pub const FIRST_STEPS: &str = "\
A service and a load generator over kernel sockets, a DPDK port or an RDMA device. Begin with:

  linerate doctor        check this host, and print a fix for each problem
  linerate echo serve    serve echo at 127.0.0.1:7007
  linerate echo load     measure the server at 127.0.0.1:7007
  linerate kv serve      serve Redis clients at 127.0.0.1:6379
  linerate compare       measure echo and kv over each transport, and write a report

All commands: linerate --help. Options of one: linerate echo serve --help. Networks: --via in linerate doctor.";

/// Example of each command without subcommands.
const EXAMPLES: [&str; 23] = [
    "linerate echo serve --listen 127.0.0.1:7007",
    "linerate echo load --connect 127.0.0.1:7007 --connections 64",
    "linerate discard serve --listen 127.0.0.1:7009",
    "linerate discard load --connect 127.0.0.1:7009",
    "linerate chargen serve --listen 127.0.0.1:7019",
    "linerate chargen load --connect 127.0.0.1:7019",
    "linerate http serve --listen 127.0.0.1:8080 --dir .",
    "linerate http load --connect 127.0.0.1:8080 --connections 64",
    "linerate kv serve --listen 127.0.0.1:6379 --memory 256m",
    "linerate kv load --connect 127.0.0.1:6379 --keys 10000",
    "linerate compare --quick",
    "linerate raw reflect --via vhost:/tmp/a.sock",
    "linerate raw load --via virtio-user:/tmp/a.sock",
    "linerate run --via af_xdp:eth0,share -- redis-server --port 6379",
    "linerate top --interval 500ms",
    "linerate conns --sort rtt",
    "linerate hugepages status",
    "linerate hugepages reserve --memory 512M",
    "linerate hugepages release --all",
    "linerate rdma info",
    "linerate rdma connect-bench rxe0",
    "linerate rdma connections-bench rxe0",
    "linerate doctor --json",
];

/// Returns the message for an error of parsing a command line. `selected` are the subcommands in it, outermost first.
pub fn message(program: &Command, selected: &[&Command], error: &Error) -> String {
    let command = selected.last().copied().unwrap_or(program);
    let name = name_of(command);
    let problem = problem(program, command, error);
    let example = match example_of(name) {
        Some(example) if lacks(example, error) => usage_of(error),
        example => example.map(str::to_owned),
    };
    let wants_example = matches!(
        error.kind(),
        ErrorKind::UnknownArgument | ErrorKind::MissingRequiredArgument | ErrorKind::ArgumentConflict
    );
    let example = example.filter(|_| wants_example).map(|example| format!(", as in {example}")).unwrap_or_default();
    format!("{problem}{example}: see {name} --help")
}

/// Returns whether options are missing that `example` does not contain.
fn lacks(example: &str, error: &Error) -> bool {
    // A positional argument has no name, and `<COUNT|--memory <MEMORY>>` are alternatives.
    let is_missing = |argument: &String| {
        let option = argument.split(['<', '|', ' ']).find(|word| word.starts_with("--"));
        option.is_some_and(|option| !example.split(' ').any(|word| word == option))
    };
    error.kind() == ErrorKind::MissingRequiredArgument && texts(error, ContextKind::InvalidArg).iter().any(is_missing)
}

/// Returns clap's synopsis of the given and the missing arguments of a command line: `linerate doctor --fix --yes`.
fn usage_of(error: &Error) -> Option<String> {
    let Some(ContextValue::StyledStr(usage)) = error.get(ContextKind::Usage) else { return None };
    let usage = usage.to_string();
    // Optional arguments follow.
    Some(usage.strip_prefix("Usage: ")?.split(" [-- ").next()?.to_owned())
}

/// Returns the example of the command `name`.
fn example_of(name: &str) -> Option<&'static str> {
    let is_of = |example: &str| example.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '));
    EXAMPLES.into_iter().find(|example| is_of(example))
}

fn problem(program: &Command, command: &Command, error: &Error) -> String {
    let name = name_of(command);
    let subcommands = || command.get_subcommands().map(Command::get_name).filter(|name| *name != "help");
    let arguments = texts(error, ContextKind::InvalidArg);
    // clap adds the name of the value: `--listen <ADDR:PORT>`.
    let option = arguments.first().map(|text| text.split(' ').next().unwrap_or(text)).unwrap_or_default();
    let value = texts(error, ContextKind::InvalidValue).concat();
    match error.kind() {
        ErrorKind::UnknownArgument => {
            let unknown = if option.starts_with('-') { "unknown option" } else { "unexpected argument" };
            match (command_with(program, option), texts(error, ContextKind::SuggestedArg).first()) {
                (Some(other), _) if other != name => format!("{option}: an option of {other}, not of {name}"),
                (_, Some(similar)) => format!("{option}: {unknown}: use {}", syntax(command, similar)),
                _ => format!("{option}: {unknown}: leave it out"),
            }
        }
        ErrorKind::InvalidSubcommand => {
            let unknown = texts(error, ContextKind::InvalidSubcommand).concat();
            let similar = texts(error, ContextKind::SuggestedSubcommand);
            let valid = if similar.is_empty() { alternatives(subcommands()) } else { similar.join(" or ") };
            format!("{unknown}: {name} has no such command: use {valid}")
        }
        ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            format!("a subcommand is missing: add {}", alternatives(subcommands()))
        }
        ErrorKind::MissingRequiredArgument => format!("{}: missing: add it", arguments.join(", ")),
        ErrorKind::ArgumentConflict => match texts(error, ContextKind::PriorArg).as_slice() {
            [prior] if arguments.contains(prior) => format!("{option}: given twice: give it once"),
            prior => {
                let given =
                    if option.is_empty() { &*texts(error, ContextKind::InvalidSubcommand).concat() } else { option };
                format!("{given} cannot be combined with {}: give one of them", prior.join(", "))
            }
        },
        ErrorKind::InvalidValue if value.is_empty() => {
            format!("{option}: the value is missing: write {}", arguments.concat())
        }
        ErrorKind::InvalidValue => {
            let valid = texts(error, ContextKind::ValidValue);
            format!("{option} {value}: invalid value: use {}", alternatives(valid.iter().map(String::as_str)))
        }
        ErrorKind::ValueValidation => {
            let reason = error.source().map(ToString::to_string).unwrap_or_default();
            format!("{option} {value}: {reason}")
        }
        _ => first_paragraph(&error.to_string()),
    }
}

/// Returns a message of the library with options in place of the settings that it names in backticks.
pub fn with_options(message: &str) -> String {
    let is_setting = |text: &str| text.chars().all(|c| c.is_ascii_lowercase() || c == '_' || c == '.');
    let parts = message.split('`').enumerate().map(|(at, text)| match text {
        _ if at % 2 == 0 => text.to_owned(),
        _ if !is_setting(text) => format!("`{text}`"),
        "single_segment" => "--no-multi-segment".to_owned(),
        "skip_dad" => "--no-dad".to_owned(),
        "rdma.srq" => "--srq".to_owned(),
        "eal" => "EAL's arguments".to_owned(),
        "listen.by_worker" => "a port for each worker".to_owned(),
        _ => {
            let option = text.trim_start_matches("native.").replacen("capture", "pcap", 1);
            format!("--{}", option.replace(['_', '.'], "-"))
        }
    });
    parts.collect()
}

fn texts(error: &Error, kind: ContextKind) -> Vec<String> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => vec![text.clone()],
        Some(ContextValue::Strings(texts)) => texts.clone(),
        _ => Vec::new(),
    }
}

/// Returns the option or subcommand of `command` that is spelt most like the unknown `word`.
pub fn closest(command: &Command, word: &str) -> Option<String> {
    let error = command.clone().try_get_matches_from([name_of(command), word]).err()?;
    let kind = if word.starts_with('-') { ContextKind::SuggestedArg } else { ContextKind::SuggestedSubcommand };
    texts(&error, kind).into_iter().next()
}

/// Formats a list of alternatives: `a, b or c`.
fn alternatives<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    match names.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} or {last}", others.join(", ")),
        _ => names.concat(),
    }
}

/// Returns an option of `command` with the name of its value: `--listen ADDR:PORT`.
fn syntax(command: &Command, option: &str) -> String {
    let arg = command.get_arguments().find(|arg| arg.get_long() == option.strip_prefix("--"));
    let value = arg.filter(|arg| arg.get_action().takes_values()).and_then(|arg| arg.get_value_names()?.first());
    value.map_or_else(|| option.to_owned(), |value| format!("{option} {value}"))
}

/// Returns the full name of the first command with the option `option`.
fn command_with<'a>(program: &'a Command, option: &str) -> Option<&'a str> {
    let long = option.strip_prefix("--")?;
    let mut below = program.get_subcommands().filter(|command| !command.is_hide_set());
    below.find_map(|command| {
        let has_it = command.get_arguments().any(|arg| arg.get_long() == Some(long));
        if has_it { Some(name_of(command)) } else { command_with(command, option) }
    })
}

/// Reduces an error message of clap to one line, without its usage section.
fn first_paragraph(error: &str) -> String {
    let message = error.split("\n\n").next().unwrap_or(error);
    message.trim_start_matches("error: ").split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{cli, config};

    fn message_for(line: &str) -> String {
        let mut program = cli::definition();
        program.build();
        let words: Vec<_> = line.split(' ').map(Into::into).collect();
        let (selected, _) = config::selected_commands(&program, &words);
        let error = program.clone().try_get_matches_from(&words).expect_err(line);
        message(&program, &selected, &error)
    }

    #[test]
    fn wrong_option_names_the_closest_one_and_an_example() {
        for (line, expected) in [
            (
                "linerate echo serve --lisen 127.0.0.1:7",
                "--lisen: unknown option: use --listen ADDR:PORT, as in linerate echo serve --listen 127.0.0.1:7007: \
                 see linerate echo serve --help",
            ),
            (
                "linerate echo serve --connect 127.0.0.1:7",
                "--connect: an option of linerate echo load, not of linerate echo serve, as in linerate echo serve \
                 --listen 127.0.0.1:7007: see linerate echo serve --help",
            ),
            (
                "linerate kv serve --qqq",
                "--qqq: unknown option: leave it out, as in linerate kv serve --listen 127.0.0.1:6379 --memory 256m: \
                 see linerate kv serve --help",
            ),
            (
                "linerate doctor now",
                "now: unexpected argument: leave it out, as in linerate doctor --json: see linerate doctor --help",
            ),
            ("linerate ecko", "ecko: linerate has no such command: use echo: see linerate --help"),
            ("linerate kv", "a subcommand is missing: add serve or load: see linerate kv --help"),
            (
                "linerate raw load",
                "--via <NET>: missing: add it, as in linerate raw load --via virtio-user:/tmp/a.sock: see linerate raw \
                 load --help",
            ),
            (
                "linerate kv serve --udp",
                "--memcached <ADDR[:PORT]>: missing: add it, as in linerate kv serve --memcached <ADDR[:PORT]> --udp: \
                 see linerate kv serve --help",
            ),
            (
                "linerate echo serve --pcap-filter syn",
                "--pcap <FILE>: missing: add it, as in linerate echo serve --pcap <FILE> --pcap-filter <FILTER>: see \
                 linerate echo serve --help",
            ),
            (
                "linerate hugepages reserve --node 0",
                "<COUNT|--memory <MEMORY>>: missing: add it, as in linerate hugepages reserve --memory 512M: see \
                 linerate hugepages reserve --help",
            ),
            (
                "linerate doctor --yes",
                "--fix: missing: add it, as in linerate doctor --fix --yes: see linerate doctor --help",
            ),
            (
                "linerate echo serve --workers 1 --cores 0",
                "--workers cannot be combined with --cores <LIST>: give one of them, as in linerate echo serve \
                 --listen 127.0.0.1:7007: see linerate echo serve --help",
            ),
            (
                "linerate hugepages status --qqq",
                "--qqq: unknown option: leave it out, as in linerate hugepages status: see linerate hugepages status \
                 --help",
            ),
            (
                "linerate top --pid 1 --pid 2",
                "--pid: given twice: give it once, as in linerate top --interval 500ms: see linerate top --help",
            ),
            (
                "linerate echo load --connect",
                "--connect: the value is missing: write --connect <ADDR:PORT>: see linerate echo load --help",
            ),
            (
                "linerate echo serve --engine nativ",
                "--engine nativ: invalid value: use native or smoltcp: see linerate echo serve --help",
            ),
            (
                "linerate echo serve --via af_xdp",
                "--via af_xdp: 'af_xdp' needs a network interface: write af_xdp:eth0: see linerate echo serve --help",
            ),
        ] {
            assert_eq!(message_for(line), expected, "{line}");
        }
    }

    #[test]
    fn every_command_has_a_valid_example() {
        fn check(command: &Command) {
            let mut below =
                command.get_subcommands().filter(|below| !below.is_hide_set() && below.get_name() != "help");
            if command.is_subcommand_required_set() {
                return below.for_each(check);
            }
            let name = name_of(command);
            let example = example_of(name).expect(name);
            assert!(below.next().is_none() || name == "linerate compare", "{name}");
            let parsed = cli::definition().try_get_matches_from(example.split(' '));
            assert!(parsed.is_ok(), "{example}: {}", parsed.unwrap_err());
        }
        let mut program = cli::definition();
        program.build();
        check(&program);
    }

    #[test]
    fn first_steps_exist() {
        for line in FIRST_STEPS.lines().filter_map(|line| line.strip_prefix("  ")) {
            let command = line.split("  ").next().unwrap();
            assert!(cli::definition().try_get_matches_from(command.split(' ')).is_ok(), "{command}");
        }
    }
}
