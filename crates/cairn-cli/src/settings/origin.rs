//! Finds where a bad value came from: the command line, an environment variable, or a line of
//! `cairn.toml`.
//!
//! Must stay true: the origin is looked up only for an error message. If it cannot be found, the
//! message omits it.

use crate::error::Error;
use crate::settings::{FILE_NAME, keys_of};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};
use std::path::{Path, PathBuf};
use std::{fmt, fs};
use toml::de::DeTable;

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A command-line option.
    Option(String),
    /// An environment variable.
    Variable(String),
    /// A key of the settings file.
    Key {
        /// Path of the file.
        path: PathBuf,
        /// Line number, from 1.
        line: usize,
        /// The key with its section.
        key: String,
    },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Option(name) | Origin::Variable(name) => f.write_str(name),
            Origin::Key { path, line, key } => {
                write!(f, "{}: line {line}: {key}", path.display())
            }
        }
    }
}

/// Returns the message of an error, with the origin of the value if the error is about one.
pub fn told(error: &Error, command: &Command, given: &ArgMatches) -> String {
    let text = error.to_string();
    match error.option().and_then(|setting| of(setting, command, given)) {
        Some(Origin::Option(name)) if text.contains(&name) => text,
        Some(origin) => format!("{origin}: {text}"),
        None => text,
    }
}

/// Returns where the value of `setting` came from. `setting` is an option, or a key of the settings
/// file that has no option.
fn of(setting: &str, command: &Command, given: &ArgMatches) -> Option<Origin> {
    let Some(long) = setting.strip_prefix("--") else {
        return in_file(&[setting.to_string()], given);
    };
    let (name, given) = given.subcommand()?;
    let argument = option(command, name, long)?;
    match given.value_source(argument.get_id().as_str()) {
        Some(ValueSource::CommandLine) => Some(Origin::Option(setting.to_string())),
        Some(ValueSource::EnvVariable) => Some(Origin::Variable(variable(argument)?)),
        _ => in_file(&keys_of(&variable(argument)?), given),
    }
}

/// Returns the environment variable that gave an option a value that could not be parsed; None if
/// the option is among `words`, the words of the command line. `shown` is the option as messages
/// show it, possibly with its value.
pub fn of_unread(
    shown: &str,
    command: &Command,
    subcommand: &str,
    words: impl Iterator<Item = String>,
) -> Option<Origin> {
    let long = shown.strip_prefix("--")?.split([' ', '=', '[']).next()?;
    let has_option = |word: String| {
        let said = word.strip_prefix("--").and_then(|word| word.split('=').next());
        said == Some(long)
    };
    if words.take_while(|word| word != "--").any(has_option) {
        return None;
    }
    let variable = variable(option(command, subcommand, long)?)?;
    std::env::var_os(&variable).is_some().then_some(Origin::Variable(variable))
}

/// Finds the option `--long` of a subcommand or of all commands.
fn option<'a>(command: &'a Command, subcommand: &str, long: &str) -> Option<&'a Arg> {
    let own = command.find_subcommand(subcommand)?.get_arguments();
    own.chain(command.get_arguments()).find(|argument| argument.get_long() == Some(long))
}

fn variable(argument: &Arg) -> Option<String> {
    Some(argument.get_env()?.to_str()?.to_string())
}

/// Returns the first of `keys` that the settings file has, which `--settings` may name.
fn in_file(keys: &[String], given: &ArgMatches) -> Option<Origin> {
    let named = given.try_get_one::<PathBuf>("settings").ok().flatten();
    let path = named.cloned().unwrap_or_else(|| Path::new(".").join(FILE_NAME));
    let text = fs::read_to_string(&path).ok()?;
    keys.iter().find_map(|key| {
        let line = line_of(key, &text)?;
        Some(Origin::Key { path: path.clone(), line, key: key.clone() })
    })
}

/// Returns the line of `text` that holds the value of `key`, from 1.
fn line_of(key: &str, text: &str) -> Option<usize> {
    let whole = DeTable::parse(text).ok()?;
    let (mut table, mut start) = (Some(whole.get_ref()), None);
    for name in key.split('.') {
        let value = table?.get(name)?;
        start = Some(value.span().start);
        table = value.get_ref().as_table();
    }
    Some(text[..start?].matches('\n').count() + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_is_that_of_the_value() {
        let text = "[run]\njob = \"x\"\n\n[checkpoint]\nlevels = { node = 1,\n  pfs = 2 }\n[space.retain]\nage = \"1h\"\n";
        assert_eq!(line_of("run.job", text), Some(2));
        assert_eq!(line_of("checkpoint.levels.pfs", text), Some(6));
        assert_eq!(line_of("space.retain.age", text), Some(8));
        assert_eq!(line_of("run.mount", text), None);
        assert_eq!(line_of("run.job.name", text), None);
        assert_eq!(line_of("run.job", "[run"), None);
    }
}
