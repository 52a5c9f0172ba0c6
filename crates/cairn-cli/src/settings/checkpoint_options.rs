//! Settings of checkpoints and files for `cairn run`: options, environment, and the sections
//! `[checkpoint]` and `[files]`.
//!
//! Must stay true: an invalid pattern is refused here, before anything is created.

use cairn_job::checkpoint::policy::{CheckpointPolicy, Every, Purpose, Tag};
use cairn_job::checkpoint::sets::pattern::Pattern;
use clap::Args;
use serde::Deserialize;

use crate::error::{Error, Result, SettingError};
use crate::output::duration;
use crate::settings::one_or_more::OneOrMore;

/// Options of checkpoints and files.
#[derive(Args, Debug, Default)]
pub struct CheckpointArguments {
    /// Which files form one checkpoint: a path with {step} for the step number, {rank} for the
    /// number of a process, {any} for any text, and the wildcards *, ? and **. If {step} is in the
    /// name of a directory, all files in it belong to the checkpoint. May be repeated. Numbered
    /// files and the usual directories (checkpoint-100, global_step100, ...) are found without a
    /// pattern. A pattern is needed if each process writes its own files and neither MPI nor words
    /// in the name (rank3, part-00007) tell the process number from the step: 'state.{rank}'
    #[arg(long, value_name = "PATTERN", env = "CAIRN_CHECKPOINT_PATTERN")]
    pub checkpoint_pattern: Vec<String>,
    /// How often a checkpoint is drained to the persist directory: one out of COUNT (10), or one
    /// per TIME (15m). The newest one is always drained when the command ends [default: 1]
    #[arg(long, value_name = "COUNT|TIME", env = "CAIRN_CHECKPOINT_PFS_EVERY")]
    pub pfs_every: Option<String>,
    /// If nothing shows that a checkpoint is complete, it is said to be unknown once none of its
    /// files has changed for this long [default: 5s]
    #[arg(long, value_name = "TIME", env = "CAIRN_CHECKPOINT_SETTLE")]
    pub settle: Option<String>,
    /// Files that are always drained: shell wildcards, matched against the path below the prefix.
    /// May be repeated, or be a list with commas
    #[arg(long, value_name = "GLOB", env = "CAIRN_FILES_PERSISTENT", value_delimiter = ',')]
    pub persistent: Vec<String>,
    /// Files that stay in the store and are not drained, because they can be obtained again. Inputs
    /// among them that the job does not change stay on the node for other jobs. May be repeated, or
    /// be a list with commas
    #[arg(long, value_name = "GLOB", env = "CAIRN_FILES_REUSABLE", value_delimiter = ',')]
    pub reusable: Vec<String>,
    /// Files that are never drained. May be repeated, or be a list with commas
    #[arg(long, value_name = "GLOB", env = "CAIRN_FILES_TEMPORARY", value_delimiter = ',')]
    pub temporary: Vec<String>,
}

/// The section `[checkpoint]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CheckpointSettings {
    /// `--checkpoint-pattern`, one or a list.
    pub pattern: Option<OneOrMore>,
    /// How often a checkpoint goes to each level.
    pub levels: LevelSettings,
    /// `--settle`.
    pub settle: Option<String>,
}

/// The key `levels`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LevelSettings {
    /// Must be 1: every checkpoint is written to the node.
    pub node: Option<u64>,
    /// `--pfs-every`.
    pub pfs: Option<NumberOrText>,
    /// `--archive-every`.
    pub archive: Option<NumberOrText>,
}

/// A number, or a text such as `15m`.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum NumberOrText {
    /// A number.
    Number(u64),
    /// A text.
    Text(String),
}

impl NumberOrText {
    /// Returns the value as the text of an option.
    pub fn into_text(self) -> String {
        match self {
            NumberOrText::Number(count) => count.to_string(),
            NumberOrText::Text(text) => text,
        }
    }
}

/// The section `[files]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FileSettings {
    /// `--persistent`, one or a list.
    pub persistent: Option<OneOrMore>,
    /// `--reusable`, one or a list.
    pub reusable: Option<OneOrMore>,
    /// `--temporary`, one or a list.
    pub temporary: Option<OneOrMore>,
}

/// Merges options and settings file into a policy. Errors: a bad pattern, frequency or time.
pub fn policy(
    arguments: CheckpointArguments,
    settings: CheckpointSettings,
    files: FileSettings,
) -> Result<CheckpointPolicy> {
    if settings.levels.node.is_some_and(|count| count != 1) {
        return Err(refused(
            "checkpoint.levels.node",
            "every checkpoint is written to the node, so it must be 1",
        ));
    }
    let patterns = either(arguments.checkpoint_pattern, settings.pattern);
    for pattern in &patterns {
        Pattern::parse(pattern).map_err(|problem| refused("--checkpoint-pattern", &problem))?;
    }
    let pfs = arguments.pfs_every.or(settings.levels.pfs.map(NumberOrText::into_text));
    let settle = arguments.settle.or(settings.settle);
    let settle_ms = settle.map(|text| match duration::argument(&text) {
        Ok(seconds) => Ok((seconds * 1000.0) as u64),
        Err(problem) => Err(refused("--settle", &problem)),
    });
    let tags = [
        ("--persistent", either(arguments.persistent, files.persistent), Purpose::Persistent),
        ("--reusable", either(arguments.reusable, files.reusable), Purpose::Reusable),
        ("--temporary", either(arguments.temporary, files.temporary), Purpose::Temporary),
    ];
    Ok(CheckpointPolicy {
        patterns,
        pfs: pfs.map(|text| every("--pfs-every", &text)).transpose()?.unwrap_or_default(),
        settle_ms: settle_ms.transpose()?,
        tags: tags.into_iter().map(tagged).collect::<Result<Vec<_>>>()?.concat(),
    })
}

/// Returns the values of the command line or environment, else those of the settings file.
fn either(arguments: Vec<String>, setting: Option<OneOrMore>) -> Vec<String> {
    match arguments.is_empty() {
        true => setting.map(OneOrMore::into_vec).unwrap_or_default(),
        false => arguments,
    }
}

/// Parses the frequency that `option` gives: a count or a time. Errors: 0, or neither of both.
pub fn every(option: &'static str, text: &str) -> Result<Every> {
    let refuse = |problem: &str| refused(option, problem);
    match text.trim().parse::<u64>() {
        Ok(0) => Err(refuse("0 would mean never: give a larger number")),
        Ok(count) => Ok(Every::Count(count)),
        Err(_) => match duration::argument(text) {
            Ok(seconds) => Ok(Every::Seconds(seconds.ceil() as u64)),
            Err(problem) => Err(refuse(&problem)),
        },
    }
}

fn tagged((option, globs, purpose): (&'static str, Vec<String>, Purpose)) -> Result<Vec<Tag>> {
    let tag = |files: String| match glob::Pattern::new(&files) {
        Ok(_) => Ok(Tag { files, purpose }),
        Err(error) => {
            let problem = error.msg.to_string();
            Err(Error::of(option)(Error::Setting(SettingError::Pattern {
                pattern: files,
                problem,
            })))
        }
    };
    globs.into_iter().map(tag).collect()
}

fn refused(option: &'static str, problem: &str) -> Error {
    Error::Setting(SettingError::Option { option, problem: problem.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_counts_or_times_and_nonsense_is_refused() {
        let with = |pfs: &str| {
            let arguments = CheckpointArguments {
                pfs_every: Some(pfs.into()),
                ..CheckpointArguments::default()
            };
            policy(arguments, CheckpointSettings::default(), FileSettings::default())
        };
        assert_eq!(with("10").expect("is taken").pfs, Every::Count(10));
        assert_eq!(with("15m").expect("is taken").pfs, Every::Seconds(900));
        for bad in ["0", "x", "-1"] {
            assert!(with(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn file_says_what_the_command_line_does_not() {
        let settings: CheckpointSettings =
            toml::from_str("pattern = \"a.{step}\"\nlevels = { node = 1, pfs = \"1h\" }\n")
                .expect("reads");
        let files: FileSettings =
            toml::from_str("temporary = [\"*.tmp\", \"x\"]\n").expect("reads");
        let given =
            CheckpointArguments { temporary: vec!["y".into()], ..CheckpointArguments::default() };
        let found = policy(given, settings.clone(), files).expect("is taken");
        assert_eq!(found.patterns, ["a.{step}"]);
        assert_eq!(found.pfs, Every::Seconds(3600));
        assert_eq!(found.tags, [Tag { files: "y".into(), purpose: Purpose::Temporary }]);
        let bad = CheckpointArguments {
            checkpoint_pattern: vec!["{stp}".into()],
            ..CheckpointArguments::default()
        };
        assert!(policy(bad, settings, FileSettings::default()).is_err());
    }
}
