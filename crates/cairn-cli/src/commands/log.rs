//! `cairn log`: shows the log of a job's agent, and follows it on request.
//!
//! Must stay true: the command never waits for files in the store's directory, and shows their
//! content as text that cannot control a terminal. A line is shown once, even if the agent rotates
//! the log meanwhile.

use cairn_agent::model::log::{FILE_BYTES_MAX, Level, Line, files};
use clap::Args;
use rustix::fs::{Mode, OFlags};
use serde_json::json;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use crate::settings::log_level::LevelArgument;

use crate::Context;
use crate::error::Result;
use crate::output::{self, escaped};
use crate::store::job_name::JobName;

/// Interval between two looks for new lines.
const LOOK_EVERY: Duration = Duration::from_millis(100);

const EXAMPLES: &str = "\
Examples:
  cairn log                        the log of the job this runs in, or of the only one
  cairn log melt --level warn      only warnings and errors
  cairn log melt --follow          continue until the store is removed
  cairn log melt --json | jq -r 'select(.level == \"error\") | .message'

With --json, each line is a JSON document, as it is in the store: time, level, agent (its process
id), message. The log has at most four files of 256 KiB each, and is removed with the store.
cairn run --log-level sets how much the agent logs.";

/// Show the log of a job's agent.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    #[command(flatten)]
    job: JobName,
    /// Follow the log until the store is removed
    #[arg(short, long)]
    follow: bool,
    /// Show only lines of this level or a more important one
    #[arg(long, value_name = "LEVEL", default_value = "debug", hide_default_value = true)]
    level: LevelArgument,
    /// Show only the last N of these lines, and those that follow
    #[arg(short = 'n', long, value_name = "N")]
    lines: Option<usize>,
}

/// Runs the command.
pub fn run(context: &Context, arguments: &Arguments) -> Result<()> {
    let store = context.roots.choose(arguments.job.as_deref())?;
    let form = Form { json: context.json, level: arguments.level.into() };
    let mut tail = Tail::default();
    let paths: Vec<PathBuf> = files(store.directory()).collect();
    // The newest file is opened first: if it is rotated meanwhile, its new name is recognised.
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
        // Checked before the read, so that lines written up to this moment are shown.
        is_over = !store.directory().exists();
        paths.last().iter().for_each(|path| tail.take(path));
        tail.read(|line| form.shown(line).iter().for_each(|line| output::line(line)));
    }
    Ok(())
}

/// Files of a log, oldest first, each with the beginning of an unfinished line.
#[derive(Default)]
struct Tail {
    files: Vec<(File, Vec<u8>)>,
}

impl Tail {
    /// Adds the file at `path` after the others if it exists and is not among them. Of a file that
    /// is too large to be a log, only the end is read.
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

    /// Passes on the lines added since the last call. Only the last file can grow further, so the
    /// others are dropped.
    fn read(&mut self, mut show: impl FnMut(&[u8])) {
        let last = self.files.len().saturating_sub(1);
        for (number, (file, rest)) in self.files.iter_mut().enumerate() {
            // A file that cannot be read counts as empty.
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
    /// Returns a line as it is printed; None if its level is not important enough. A line that is
    /// not the agent's format was printed by its process when it failed, and counts as an error.
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
                // Without fractions of a second.
                let time = time.split('.').next().unwrap_or_default().replace('T', " ");
                let (time, message) = (escaped(time.as_bytes()), escaped(message.as_bytes()));
                format!("{time}Z {level:5} {message}")
            }
        })
    }
}
