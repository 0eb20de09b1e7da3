//! `--config`: a TOML file whose keys are long options, inserted before the options of the command line.

#[cfg(test)]
mod tests;

use crate::usage::closest;
use clap::{Arg, ArgAction, Command};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Options that are not allowed in a file.
const COMMAND_LINE_ONLY: [&str; 3] = ["config", "help", "version"];

/// Error in a configuration file.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("--config {}: {source}: name a file that can be read", file.display())]
    Unreadable { file: PathBuf, source: io::Error },
    /// The file is not TOML, or a value does not fit its option.
    #[error("{}:{line}: {message}", file.display())]
    Invalid { file: PathBuf, line: usize, message: String },
}

/// Command line with the options of the file inserted.
#[derive(Debug)]
pub struct MergedArgs {
    /// Program name and arguments.
    pub args: Vec<OsString>,
    /// Origin of each option that is not on the command line, by option name without dashes: `file:line`, or the name
    /// of an environment variable.
    origins: Vec<(String, String)>,
}

impl MergedArgs {
    /// Returns the origin of the first option in `message` that is not on the command line.
    pub fn origin_in(&self, message: &str) -> Option<&str> {
        let words = message.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
        let mut options = words.filter_map(|word| word.strip_prefix("--"));
        options.find_map(|name| self.origins.iter().find(|(key, _)| key == name)).map(|(_, origin)| origin.as_str())
    }
}

/// Option of the file that applies to the selected command.
struct Setting<'a> {
    option: &'a Arg,
    args: Vec<String>,
    line: usize,
}

/// Configuration file during parsing.
struct Source<'a> {
    file: &'a Path,
    text: &'a str,
}

/// Merges the command line `given`, which begins with the program name, with the file that its `--config` names.
/// `program` must be built.
pub fn merge(program: &Command, given: Vec<OsString>) -> Result<MergedArgs, ConfigError> {
    let (commands, at) = selected_commands(program, &given);
    let command = commands.last().copied().unwrap_or(program);
    let Some(file) = config_file(&given) else {
        let origins = from_environment(command, &given);
        return Ok(MergedArgs { args: given, origins });
    };
    let text = fs::read_to_string(&file).map_err(|source| ConfigError::Unreadable { file: file.clone(), source })?;
    let source = Source { file: &file, text: &text };
    let table = DeTable::parse(&text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        let mut message = error.message().lines().collect::<Vec<_>>().join(", ");
        if message.starts_with("invalid float") {
            // An address without quotation marks.
            message += ": text needs quotation marks, as in listen = '10.0.0.2:7'";
        }
        source.invalid(at, message)
    })?;
    let mut settings = Vec::new();
    source.read(table.get_ref(), program, &commands, &mut settings)?;
    let (mut args, mut origins) = (given[..at].to_vec(), Vec::new());
    for Setting { option, args: from_file, line } in settings {
        let name = option.get_long().unwrap_or_default();
        let is_accepted = command.get_arguments().any(|arg| arg.get_long() == Some(name));
        if is_accepted && !is_given(option, &given) {
            args.extend(from_file.into_iter().map(OsString::from));
            origins.push((name.to_owned(), format!("{}:{line}", file.display())));
        }
    }
    args.extend_from_slice(&given[at..]);
    // The file takes precedence over the environment.
    origins.extend(from_environment(command, &given));
    Ok(MergedArgs { args, origins })
}

/// Returns the options of `command` that environment variables set, with the names of the variables.
fn from_environment(command: &Command, given: &[OsString]) -> Vec<(String, String)> {
    let variable = |option: &Arg| {
        let name = option.get_env().filter(|name| std::env::var_os(name).is_some() && !is_given(option, given))?;
        Some((option.get_long()?.to_owned(), name.to_string_lossy().into_owned()))
    };
    command.get_arguments().filter_map(variable).collect()
}

/// Returns the subcommands in `given`, outermost first, and the number of words up to the innermost one.
pub fn selected_commands<'a>(program: &'a Command, given: &[OsString]) -> (Vec<&'a Command>, usize) {
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

/// Returns the file of the last `--config` in `given`.
fn config_file(given: &[OsString]) -> Option<PathBuf> {
    let mut file = None;
    let mut words = given.iter().skip(1).take_while(|word| *word != "--");
    while let Some(word) = words.next() {
        if word == "--config" {
            file = words.next().map(PathBuf::from);
        } else if let Some(path) = word.to_str().and_then(|word| word.strip_prefix("--config=")) {
            file = Some(path.into());
        }
    }
    file
}

/// Returns whether `option` occurs on the command line.
fn is_given(option: &Arg, given: &[OsString]) -> bool {
    let matches = |word: &OsStr| {
        let Some(word) = word.to_str() else { return false };
        match word.strip_prefix("--") {
            Some(long) => long.split('=').next().is_some_and(|name| has_name(option, name)),
            None => word
                .strip_prefix('-')
                .zip(option.get_short())
                .is_some_and(|(letters, short)| letters.starts_with(short)),
        }
    };
    given.iter().skip(1).take_while(|word| *word != "--").any(|word| matches(word))
}

/// Returns whether `name` is the long name of `option` or one of its aliases.
fn has_name(option: &Arg, name: &str) -> bool {
    option.get_long() == Some(name) || option.get_all_aliases().is_some_and(|aliases| aliases.contains(&name))
}

impl Source<'_> {
    /// Reads `table`, which belongs to `command`. Collects the options for the innermost command of `selected` in
    /// `settings`; an inner table overrides an outer one.
    fn read<'a>(
        &self,
        table: &DeTable,
        command: &'a Command,
        selected: &[&'a Command],
        settings: &mut Vec<Setting<'a>>,
    ) -> Result<(), ConfigError> {
        let (tables, options): (Vec<_>, Vec<_>) = table.iter().partition(|(_, value)| value.get_ref().is_table());
        for (key, value) in options {
            let (name, at) = (key.get_ref().as_ref(), key.span().start);
            // The same name may differ between commands: the selected command takes precedence.
            let option =
                selected.last().and_then(|command| own_option(command, name)).or_else(|| option_of(command, name));
            let Some(option) = option.filter(|_| !COMMAND_LINE_ONLY.contains(&name)) else {
                let closest = closest(selected.last().unwrap_or(&command), &format!("--{name}"));
                let advice = closest.map(|closest| format!(": use {}", closest.trim_start_matches('-')));
                let message = format!("{name}: {} has no such option{}", name_of(command), advice.unwrap_or_default());
                return Err(self.invalid(at, message));
            };
            let args = args_for(option, name, value).map_err(|error| self.invalid(at, format!("{name}: {error}")))?;
            settings.retain(|setting| setting.option.get_long() != option.get_long());
            settings.push(Setting { option, args, line: self.line(at) });
        }
        for (key, value) in tables {
            let (name, at) = (key.get_ref().as_ref(), key.span().start);
            let Some(inner) = command.find_subcommand(name).filter(|_| name != "help") else {
                let advice = closest(command, name).map(|closest| format!(": use {closest}")).unwrap_or_default();
                return Err(self.invalid(at, format!("{name}: {} has no such command{advice}", name_of(command))));
            };
            let DeValue::Table(table) = value.get_ref() else { continue };
            let (is_selected, rest) = match selected.split_first() {
                Some((first, rest)) if first.get_name() == inner.get_name() => (true, rest),
                _ => (false, selected),
            };
            if is_selected {
                self.read(table, inner, rest, settings)?;
            } else {
                // Table of another command: only validated.
                self.read(table, inner, &[], &mut Vec::new())?;
            }
        }
        Ok(())
    }

    fn invalid(&self, at: usize, message: String) -> ConfigError {
        ConfigError::Invalid { file: self.file.to_owned(), line: self.line(at), message }
    }

    fn line(&self, at: usize) -> usize {
        1 + self.text.bytes().take(at).filter(|byte| *byte == b'\n').count()
    }
}

/// Returns the full name of a command.
pub fn name_of(command: &Command) -> &str {
    command.get_bin_name().unwrap_or(command.get_name())
}

/// Returns the option of `command` with this name or alias.
fn own_option<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    command.get_arguments().find(|option| has_name(option, name))
}

/// Returns the option with this name of `command` or of one of its subcommands.
fn option_of<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    own_option(command, name).or_else(|| command.get_subcommands().find_map(|inner| option_of(inner, name)))
}

/// Converts a value to arguments of `option`, or returns the reason it does not fit.
fn args_for(option: &Arg, name: &str, value: &Spanned<DeValue>) -> Result<Vec<String>, String> {
    let not = |wanted: &str| Err(format!("expected {wanted}, found {}", value.get_ref().type_str()));
    match (option.get_action(), value.get_ref()) {
        (ArgAction::SetTrue, DeValue::Boolean(is_set)) => Ok(is_set.then(|| format!("--{name}")).into_iter().collect()),
        (ArgAction::SetTrue, _) => not("true or false"),
        (ArgAction::Count, DeValue::Integer(times)) if times.radix() == 10 => match times.as_str().parse::<u8>() {
            Ok(times) => Ok(vec![format!("--{name}"); times.into()]),
            Err(_) => Err("expected a number from 0 to 255".to_owned()),
        },
        (ArgAction::Count, _) => not("a number"),
        (ArgAction::Append, DeValue::Array(values)) => values
            .iter()
            .map(|value| scalar(value.get_ref()).map(|value| format!("--{name}={value}")))
            .collect::<Option<_>>()
            .ok_or_else(|| "expected strings or numbers".to_owned()),
        (action, value) if action.takes_values() => match scalar(value) {
            Some(value) => Ok(vec![format!("--{name}={value}")]),
            None if matches!(action, ArgAction::Append) => not("a string, a number, or an array of them"),
            None => not("a string or a number"),
        },
        _ => Err("allowed on the command line only".to_owned()),
    }
}

/// Formats a value as a command-line argument.
fn scalar(value: &DeValue) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => Some(number.as_str().to_owned()),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix()).ok().map(|n| n.to_string()),
        DeValue::Float(number) => Some(number.as_str().to_owned()),
        _ => None,
    }
}
