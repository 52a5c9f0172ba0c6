//! `cairn log`: what the agent of a job says of its work, as it goes on if that is wanted.
//!
//! Must stay true: what stands in the store's directory is never waited for, and shown as text that
//! no terminal obeys; a line that the agent gave another file while this looked is shown once.

use crate::Context;
use crate::error::Result;
use crate::output::{self, escaped};
use crate::store::job_name::JobName;
use cairn_agent::model::log::{FILE_BYTES_MAX, Level, Line, files};
use clap::{Args, ValueEnum};
use rustix::fs::{Mode, OFlags};
use serde_json::json;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// How often it is looked for more.
const LOOK_EVERY: Duration = Duration::from_millis(100);

const EXAMPLES: &str = "\
Examples:
  cairn log                        of the job this runs in, or the only one
  cairn log melt --level warn      only what went wrong
  cairn log melt --follow          goes on until the store is removed
  cairn log melt --json | jq -r 'select(.level == \"error\") | .message'

With --json the lines are as they stand in the store, a JSON document each: time, level, agent (its
process number), message. The log has four files of 256 KiB at most; it goes with the store. How
much is said decides cairn run --log-level.";

/// Show what the agent of a job says of its work.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    #[command(flatten)]
    job: JobName,
    /// Go on with what is added, until the store is removed
    #[arg(short, long)]
    follow: bool,
    /// Only what matters at least so much
    #[arg(long, value_name = "LEVEL", default_value = "debug", hide_default_value = true)]
    level: LevelArgument,
    /// Only the last so many of them, and what is added
    #[arg(short = 'n', long, value_name = "N")]
    lines: Option<usize>,
}

/// How much a line of a log matters, as an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LevelArgument {
    /// Something is lost or damaged, or the agent cannot work
    Error,
    /// Something could not be done for now
    Warn,
    /// What became of checkpoints, and when agents began and ended
    Info,
    /// Each request and each look at the files
    Debug,
}

impl From<LevelArgument> for Level {
    fn from(argument: LevelArgument) -> Level {
        match argument {
            LevelArgument::Error => Level::Error,
            LevelArgument::Warn => Level::Warn,
            LevelArgument::Info => Level::Info,
            LevelArgument::Debug => Level::Debug,
        }
    }
}

/// Carries out the command.
pub fn run(context: &Context, arguments: &Arguments) -> Result<()> {
    let store = context.roots.choose(arguments.job.as_deref())?;
    let form = Form { json: context.json, level: arguments.level.into() };
    let mut tail = Tail::default();
    let paths: Vec<PathBuf> = files(store.directory()).collect();
    // The newest first: one that becomes an older one meanwhile is met again, and known.
    paths.iter().rev().for_each(|path| tail.take(path));
    tail.files.reverse();
    let mut found = VecDeque::new();
    tail.read(|line| {
        found.extend(form.shown(line));
        if arguments.lines.is_some_and(|most| found.len() > most) {
            found.pop_front();
        }
    });
    found.iter().for_each(|line| output::line(line));
    let mut is_over = !arguments.follow;
    while !is_over {
        thread::sleep(LOOK_EVERY);
        // Looked at first: what is said until then is shown.
        is_over = !store.directory().exists();
        paths.last().iter().for_each(|path| tail.take(path));
        tail.read(|line| form.shown(line).iter().for_each(|line| output::line(line)));
    }
    Ok(())
}

/// Files of a log, oldest first, each with the beginning of a line that has no end yet.
#[derive(Default)]
struct Tail {
    files: Vec<(File, Vec<u8>)>,
}

impl Tail {
    /// Adds the file at `path` behind the others, if there is one and it is not among them. Of one
    /// that is too large to be a log only the end is taken.
    fn take(&mut self, path: &Path) {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let Ok(opened) = rustix::fs::open(path, flags, Mode::empty()) else { return };
        let mut file = File::from(opened);
        let identity = |file: &File| file.metadata().map(|found| (found.dev(), found.ino())).ok();
        let is_known = self.files.iter().any(|(known, _)| identity(known) == identity(&file));
        let Some(found) = file.metadata().ok().filter(|found| found.is_file() && !is_known) else {
            return;
        };
        let from = found.len().saturating_sub(2 * FILE_BYTES_MAX);
        if file.seek(SeekFrom::Start(from)).is_ok() {
            self.files.push((file, Vec::new()));
        }
    }

    /// Gives the lines that were added since the last time; nothing more is written to any file but
    /// the last.
    fn read(&mut self, mut show: impl FnMut(&[u8])) {
        let last = self.files.len().saturating_sub(1);
        for (number, (file, rest)) in self.files.iter_mut().enumerate() {
            // What cannot be read is not there.
            let _ = file.read_to_end(rest);
            let whole = match number < last {
                true => rest.len(),
                false => rest.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1),
            };
            rest.drain(..whole)
                .collect::<Vec<u8>>()
                .split(|&byte| byte == b'\n')
                .for_each(&mut show);
        }
        self.files.drain(..last);
    }
}

/// How lines are shown.
struct Form {
    json: bool,
    level: Level,
}

impl Form {
    /// A line as it is printed; None if it does not matter enough. What is no line of the agent's
    /// was printed by its process as it failed.
    fn shown(&self, text: &[u8]) -> Option<String> {
        let line = serde_json::from_slice::<Line>(text).ok();
        let level = line.as_ref().map_or(Level::Error, |line| line.level);
        if level > self.level || text.is_empty() {
            return None;
        }
        Some(match (line, self.json) {
            (Some(_), true) => String::from_utf8_lossy(text).into_owned(),
            (None, true) => json!({ "level": level, "message": escaped(text) }).to_string(),
            (None, false) => escaped(text),
            (Some(Line { time, message, .. }), false) => {
                // Without the fraction of the second.
                let time = time.split('.').next().unwrap_or_default().replace('T', " ");
                let (time, message) = (escaped(time.as_bytes()), escaped(message.as_bytes()));
                format!("{time}Z {level:5} {message}")
            }
        })
    }
}
