//! Where the value of a setting came from that turned out to be wrong: the command line, a
//! variable, or a line of `cairn.toml`.
//!
//! Must stay true: looked up only for a message; whatever cannot be found out is left unsaid.

use crate::error::Error;
use crate::settings::{FILE_NAME, keys_of};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use toml::de::DeTable;

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// An option of the command line.
    Option(String),
    /// A variable of the environment.
    Variable(String),
    /// The configuration file.
    Key {
        /// The file.
        path: PathBuf,
        /// Where in it, from 1.
        line: usize,
        /// The key, with its section.
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

/// What is said of an error: also where the value came from that it is about, if it is about one.
pub fn told(error: &Error, command: &Command, given: &ArgMatches) -> String {
    let text = error.to_string();
    match error.setting().and_then(|setting| of(setting, command, given)) {
        Some(Origin::Option(name)) if text.contains(&name) => text,
        Some(origin) => format!("{origin}: {text}"),
        None => text,
    }
}

/// Where the value of a setting came from: an option, or a key of the file that has none.
fn of(setting: &str, command: &Command, given: &ArgMatches) -> Option<Origin> {
    let Some(long) = setting.strip_prefix("--") else { return in_file(&[setting.to_string()]) };
    let (name, given) = given.subcommand()?;
    let argument = option(command, name, long)?;
    match given.value_source(argument.get_id().as_str()) {
        Some(ValueSource::CommandLine) => Some(Origin::Option(setting.to_string())),
        Some(ValueSource::EnvVariable) => Some(Origin::Variable(variable(argument)?)),
        _ => in_file(&keys_of(&variable(argument)?)),
    }
}

/// The variable that an option had its value from which could not be read, if it is not among
/// `words`, those of the command line. `shown`: the option as it is in messages, perhaps with what
/// it takes.
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

/// The option `--long` of a subcommand, or of all.
fn option<'a>(command: &'a Command, subcommand: &str, long: &str) -> Option<&'a Arg> {
    let own = command.find_subcommand(subcommand)?.get_arguments();
    own.chain(command.get_arguments()).find(|argument| argument.get_long() == Some(long))
}

fn variable(argument: &Arg) -> Option<String> {
    Some(argument.get_env()?.to_str()?.to_string())
}

/// The first of these keys that the configuration file has.
fn in_file(keys: &[String]) -> Option<Origin> {
    let path = Path::new(".").join(FILE_NAME);
    let text = fs::read_to_string(&path).ok()?;
    keys.iter().find_map(|key| {
        let line = line_of(key, &text)?;
        Some(Origin::Key { path: path.clone(), line, key: key.clone() })
    })
}

/// The line of `text` with the value of a key.
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
