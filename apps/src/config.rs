//! `--config`: a TOML file whose keys are long options, as words that are put before the command line's own.

#[cfg(test)]
mod tests;

use clap::{Arg, ArgAction, Command};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Options that are for the command line only.
const NOT_HERE: [&str; 3] = ["config", "help", "version"];

/// Why a file is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It cannot be read.
    #[error("--config {}: {source}", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is not TOML, or says what no option takes.
    #[error("{}:{line}: {said}", file.display())]
    Wrong {
        /// The file.
        file: PathBuf,
        /// Where, counted from 1.
        line: usize,
        /// What, with the key's name.
        said: String,
    },
}

/// A command line with what the file says, and where that was said.
#[derive(Debug)]
pub struct Words {
    /// The program's name and its arguments.
    pub words: Vec<OsString>,
    /// File and line of the options that are of the file, by their names without dashes.
    places: Vec<(String, String)>,
}

impl Words {
    /// Where the file has the option that `said` is about, as clap writes it: `--memory <BYTES>`.
    pub fn place_of(&self, said: &str) -> Option<&str> {
        let name = said.trim_start_matches("--").split([' ', '=']).next()?;
        self.places.iter().find(|(key, _)| key == name).map(|(_, place)| place.as_str())
    }
}

/// What of a file holds for the command that is run: an option, its words, and its line.
struct Setting<'a> {
    option: &'a Arg,
    words: Vec<String>,
    line: usize,
}

/// A file that is being read.
struct Source<'a> {
    file: &'a Path,
    text: &'a str,
}

/// The words of the command line `given`, which begins with the program's name, and of the file that it names by `--config`, if it
/// does. `program` is built.
pub fn words(program: &Command, given: Vec<OsString>) -> Result<Words, ConfigError> {
    let (commands, at) = command_of(program, &given);
    let Some(file) = file_of(&given) else { return Ok(Words { words: given, places: Vec::new() }) };
    let text = fs::read_to_string(&file).map_err(|source| ConfigError::Unreadable { file: file.clone(), source })?;
    let source = Source { file: &file, text: &text };
    let table = DeTable::parse(&text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        source.wrong(at, error.message().lines().collect::<Vec<_>>().join(", "))
    })?;
    let mut settings = Vec::new();
    source.read(table.get_ref(), program, &commands, &mut settings)?;
    let command = commands.last().copied().unwrap_or(program);
    let (mut words, mut places) = (given[..at].to_vec(), Vec::new());
    for Setting { option, words: own, line } in settings {
        let name = option.get_long().unwrap_or_default();
        let known = command.get_arguments().any(|it| it.get_long() == Some(name));
        if known && !is_given(option, &given) {
            words.extend(own.into_iter().map(OsString::from));
            places.push((name.to_owned(), format!("{}:{line}", file.display())));
        }
    }
    words.extend_from_slice(&given[at..]);
    Ok(Words { words, places })
}

/// The subcommands that `given` names, outermost first, and how many words they are and what comes before them.
fn command_of<'a>(program: &'a Command, given: &[OsString]) -> (Vec<&'a Command>, usize) {
    let (mut commands, mut end, mut at) = (Vec::new(), 1.min(given.len()), 1);
    while let Some(word) = given.get(at).and_then(|word| word.to_str()) {
        at += 1;
        if word == "--" {
            break;
        }
        let command = commands.last().copied().unwrap_or(program);
        if let Some(option) = word.strip_prefix("--") {
            let takes_next = |arg: &&Arg| arg.get_long() == Some(option) && arg.get_action().takes_values();
            at += usize::from(command.get_arguments().any(|arg| takes_next(&arg)));
        } else if !word.starts_with('-') {
            let Some(found) = command.find_subcommand(word) else { break };
            commands.push(found);
            end = at;
        }
    }
    (commands, end)
}

/// The file that `given` names; the last, if it names several.
fn file_of(given: &[OsString]) -> Option<PathBuf> {
    let mut file = None;
    let mut words = given.iter().skip(1).take_while(|word| *word != "--");
    while let Some(word) = words.next() {
        if word == "--config" {
            file = words.next().map(PathBuf::from);
        } else if let Some(named) = word.to_str().and_then(|word| word.strip_prefix("--config=")) {
            file = Some(named.into());
        }
    }
    file
}

/// Whether the command line has `option`.
fn is_given(option: &Arg, given: &[OsString]) -> bool {
    let is_it = |word: &OsStr| {
        let Some(word) = word.to_str() else { return false };
        match word.strip_prefix("--") {
            Some(long) => long.split('=').next() == option.get_long(),
            None => word.strip_prefix('-').zip(option.get_short()).is_some_and(|(short, own)| short.starts_with(own)),
        }
    };
    given.iter().skip(1).take_while(|word| *word != "--").any(|word| is_it(word))
}

impl Source<'_> {
    /// Reads `table`, which is for `command` and those below it. What holds for the innermost of `ours` goes to `settings`, where what
    /// a table within says replaces what was said around it.
    fn read<'a>(
        &self,
        table: &DeTable,
        command: &'a Command,
        ours: &[&'a Command],
        settings: &mut Vec<Setting<'a>>,
    ) -> Result<(), ConfigError> {
        let (tables, options): (Vec<_>, Vec<_>) = table.iter().partition(|(_, value)| value.get_ref().is_table());
        for (key, value) in options {
            let (name, at) = (key.get_ref().as_ref(), key.span().start);
            // Commands may mean different things by a name: the one that is run comes first.
            let option = ours.last().and_then(|ours| own_option(ours, name)).or_else(|| option_of(command, name));
            let Some(option) = option.filter(|_| !NOT_HERE.contains(&name)) else {
                return Err(self.wrong(at, format!("{name}: {} has no such option", said(command))));
            };
            let words = words_of(option, name, value).map_err(|why| self.wrong(at, format!("{name}: {why}")))?;
            settings.retain(|setting| setting.option.get_long() != Some(name));
            settings.push(Setting { option, words, line: self.line(at) });
        }
        for (key, value) in tables {
            let (name, at) = (key.get_ref().as_ref(), key.span().start);
            let Some(inner) = command.find_subcommand(name).filter(|_| name != "help") else {
                return Err(self.wrong(at, format!("{name}: {} has no such command", said(command))));
            };
            let DeValue::Table(table) = value.get_ref() else { continue };
            let (is_ours, within) = match ours.split_first() {
                Some((first, within)) if first.get_name() == inner.get_name() => (true, within),
                _ => (false, ours),
            };
            if is_ours {
                self.read(table, inner, within, settings)?;
            } else {
                // Another command's: only whether it is right.
                self.read(table, inner, &[], &mut Vec::new())?;
            }
        }
        Ok(())
    }

    fn wrong(&self, at: usize, said: String) -> ConfigError {
        ConfigError::Wrong { file: self.file.to_owned(), line: self.line(at), said }
    }

    fn line(&self, at: usize) -> usize {
        1 + self.text.bytes().take(at).filter(|byte| *byte == b'\n').count()
    }
}

/// How a command is called.
fn said(command: &Command) -> &str {
    command.get_bin_name().unwrap_or(command.get_name())
}

/// The option of `command` that is called `name`.
fn own_option<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    command.get_arguments().find(|option| option.get_long() == Some(name))
}

/// The option of `command`, or of one of those below it, that is called `name`.
fn option_of<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    own_option(command, name).or_else(|| command.get_subcommands().find_map(|inner| option_of(inner, name)))
}

/// The words of `option` with `value`, or why it takes no such.
fn words_of(option: &Arg, name: &str, value: &Spanned<DeValue>) -> Result<Vec<String>, String> {
    let not = |wanted: &str| Err(format!("it takes {wanted}, and this is of type {}", value.get_ref().type_str()));
    match (option.get_action(), value.get_ref()) {
        (ArgAction::SetTrue, DeValue::Boolean(is_set)) => Ok(is_set.then(|| format!("--{name}")).into_iter().collect()),
        (ArgAction::SetTrue, _) => not("true or false"),
        (ArgAction::Count, DeValue::Integer(times)) if times.radix() == 10 => match times.as_str().parse::<u8>() {
            Ok(times) => Ok(vec![format!("--{name}"); times.into()]),
            Err(_) => Err("it takes a number from 0 to 255".to_owned()),
        },
        (ArgAction::Count, _) => not("a number"),
        (ArgAction::Append, DeValue::Array(values)) => values
            .iter()
            .map(|value| scalar(value.get_ref()).map(|value| format!("--{name}={value}")))
            .collect::<Option<_>>()
            .ok_or_else(|| "it takes strings or numbers".to_owned()),
        (action, value) if action.takes_values() => match scalar(value) {
            Some(value) => Ok(vec![format!("--{name}={value}")]),
            None if matches!(action, ArgAction::Append) => not("a string, a number, or an array of them"),
            None => not("a string or a number"),
        },
        _ => Err("it is for the command line only".to_owned()),
    }
}

/// A value as one would write it on the command line.
fn scalar(value: &DeValue) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => Some(number.as_str().to_owned()),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix()).ok().map(|n| n.to_string()),
        DeValue::Float(number) => Some(number.as_str().to_owned()),
        _ => None,
    }
}
