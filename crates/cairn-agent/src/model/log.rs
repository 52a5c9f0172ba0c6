//! The agent's log: what it did and what went wrong, as lines of JSON in the store's directory.
//!
//! ```text
//! {"time":"2026-11-22T14:53:06.123456789Z","level":"warn","agent":4711,"message":"cannot drain: ..."}
//! ```
//! Must stay true: the files of a log stay below `FILES * FILE_BYTES_MAX` together, however long an
//! agent lives. A log that cannot be written delays nothing. Messages name files, checkpoints and
//! reasons, never the content of a file, a command line or the environment. What the C library
//! prints when a process aborts appears between the lines, unformatted. A process that is not an
//! agent, such as a command that uses the same code, has no log and writes nothing.

use cairn_platform::sys::now;
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::model::clock::utc_time;
use crate::model::job::AGENT_LOG;

/// A file that would become longer is renamed with a number, and a new one begins.
pub const FILE_BYTES_MAX: u64 = 256 << 10;
/// Number of files: the current one and older ones.
const FILES: usize = 4;
/// Longer messages are cut off here.
const MESSAGE_BYTES_MAX: usize = 4 << 10;

static LOG: Mutex<Option<Log>> = Mutex::new(None);
static LEVEL: AtomicU8 = AtomicU8::new(Level::Info as u8);

/// Importance of a line, most important first.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Data are lost or damaged, or the agent cannot work.
    Error,
    /// Something failed for now.
    Warn,
    /// Progress of checkpoints; start and end of agents.
    #[default]
    Info,
    /// Each request and each pass of the drain.
    Debug,
}

impl Level {
    /// Whether this is the level of a job that specifies none.
    pub fn is_default(&self) -> bool {
        *self == Level::default()
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Level::Error => "error",
            Level::Warn => "warn",
            Level::Info => "info",
            Level::Debug => "debug",
        })
    }
}

/// A line of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// Time, in UTC.
    pub time: String,
    /// Importance.
    pub level: Level,
    /// Process id of the agent.
    pub agent: u32,
    /// Text.
    pub message: String,
}

/// An open log.
pub struct Log {
    path: PathBuf,
    file: File,
    /// Whether the last line may have been cut off.
    is_torn: bool,
}

/// Returns the possible paths of the log files of the store in `directory`, oldest first.
pub fn files(directory: &Path) -> impl Iterator<Item = PathBuf> {
    let path = directory.join(AGENT_LOG);
    (0..FILES).rev().map(move |age| aged(&path, age))
}

fn aged(path: &Path, age: usize) -> PathBuf {
    match age {
        0 => path.to_path_buf(),
        age => path.with_extension(format!("log.{age}")),
    }
}

/// Makes `log` the log of this process.
pub fn begin(log: Log) {
    *LOG.lock().unwrap_or_else(PoisonError::into_inner) = Some(log);
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or_default();
        say(Level::Error, format_args!("the agent's thread {name} {panic}"));
    }));
}

/// Drops lines that are less important than `level` from now on.
pub fn set_level(level: Level) {
    LEVEL.store(level as u8, Ordering::Relaxed);
}

/// Adds a line to the log of this process.
pub fn say(level: Level, message: impl fmt::Display) {
    if level as u8 > LEVEL.load(Ordering::Relaxed) {
        return;
    }
    if let Some(log) = &mut *LOG.lock().unwrap_or_else(PoisonError::into_inner) {
        let is_another = log.append(level, message.to_string());
        if is_another {
            // If this fails, what this process prints goes on to the older file.
            let _ = print_to(&log.file);
        }
    }
}

impl Log {
    /// Opens the log at `path`. Errors: it cannot be written, or is not a regular file.
    pub fn open(path: &Path) -> io::Result<Log> {
        Ok(Log { path: path.to_path_buf(), file: open(path)?, is_torn: false })
    }

    /// Returns the current file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Appends a line, or loses it. Returns whether a new file was begun.
    fn append(&mut self, level: Level, mut message: String) -> bool {
        let fits = |end: &usize| message.is_char_boundary(*end);
        let end = (0..=MESSAGE_BYTES_MAX.min(message.len())).rev().find(fits);
        message.truncate(end.unwrap_or(0));
        let line = Line { time: utc_time(now()), level, agent: std::process::id(), message };
        let text = serde_json::to_string(&line).expect("text and numbers can be said in JSON");
        let is_full = |file: &File| {
            file.metadata().is_ok_and(|found| found.len() + text.len() as u64 >= FILE_BYTES_MAX)
        };
        let is_another = is_full(&self.file) && self.rotate().is_ok();
        if is_full(&self.file) {
            // The file is full and could not be renamed.
            let _ = self.file.set_len(0);
        }
        let begin = if self.is_torn { "\n" } else { "" };
        self.is_torn = self.file.write_all(format!("{begin}{text}\n").as_bytes()).is_err();
        is_another
    }

    /// Renames each file to the next older name, and begins a new one.
    fn rotate(&mut self) -> io::Result<()> {
        for age in (1..FILES).rev() {
            // Go on if a file is missing or cannot be renamed.
            let _ = fs::rename(aged(&self.path, age - 1), aged(&self.path, age));
        }
        self.file = open(&self.path)?;
        Ok(())
    }
}

/// Opens the file without waiting for anything, whatever has its name.
fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::CLOEXEC;
    let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = File::from(rustix::fs::open(path, flags, Mode::from_raw_mode(0o600))?);
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is not a regular file")),
    }
}

/// Logs each kind of trouble once while it lasts, and its end.
#[derive(Default)]
pub struct Complaints {
    last: HashMap<&'static str, String>,
}

impl Complaints {
    /// Takes a result: logs an error, returns a value. `action` is a verb and its object.
    pub fn note<T>(&mut self, action: &'static str, result: crate::Result<T>) -> Option<T> {
        self.note_text(action, result.as_ref().err().map(ToString::to_string));
        result.ok()
    }

    /// Logs `trouble`, or its end if there is none.
    pub fn note_text(&mut self, action: &'static str, trouble: Option<String>) {
        match trouble {
            None if self.last.remove(action).is_some() => {
                say(Level::Info, format_args!("can {action} again"));
            }
            Some(text) if self.last.get(action) != Some(&text) => {
                say(Level::Warn, format_args!("cannot {action}: {text}"));
                self.last.insert(action, text);
            }
            _ => {}
        }
    }
}

/// Redirects what this process prints to `file`.
pub fn print_to(file: &File) -> rustix::io::Result<()> {
    rustix::stdio::dup2_stdout(file)?;
    rustix::stdio::dup2_stderr(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let directory =
            std::env::temp_dir().join(format!("cairn-log-{name}-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("a scratch directory");
        directory
    }

    fn lines(directory: &Path) -> Vec<Line> {
        let texts = files(directory).filter_map(|path| fs::read_to_string(path).ok());
        let text: String = texts.collect();
        text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
    }

    #[test]
    fn log_keeps_its_newest_lines_in_a_bounded_number_of_bytes() {
        let directory = scratch("bounded");
        let mut log = Log::open(&directory.join(AGENT_LOG)).expect("opens");
        let long = "ü".repeat(MESSAGE_BYTES_MAX);
        let written = 3 * FILES * FILE_BYTES_MAX as usize / MESSAGE_BYTES_MAX;
        let others =
            (0..written).filter(|number| log.append(Level::Info, format!("{number:08}{long}")));
        assert!(others.count() >= 2 * FILES);
        let kept = lines(&directory);
        let numbers: Vec<usize> =
            kept.iter().map(|line| line.message[..8].parse().expect("a number")).collect();
        assert!(numbers.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{numbers:?}");
        assert_eq!(numbers.last(), Some(&(written - 1)));
        let bytes: Vec<u64> =
            files(&directory).map(|path| path.metadata().expect("is there").len()).collect();
        assert_eq!(bytes.len(), FILES);
        assert!(bytes.iter().all(|bytes| *bytes < FILE_BYTES_MAX), "{bytes:?}");
        assert_eq!(fs::read_dir(&directory).expect("lists").count(), FILES);
        fs::remove_dir_all(directory).expect("removes");
    }

    #[test]
    fn log_that_cannot_be_renamed_or_is_huge_stays_bounded_and_is_written() {
        let directory = scratch("odd");
        let path = directory.join(AGENT_LOG);
        File::create(&path).and_then(|file| file.set_len(1 << 40)).expect("takes no room");
        // A directory that is not empty cannot be replaced by a rename.
        let mut taken = (1..FILES).map(|age| fs::create_dir_all(aged(&path, age).join("x")));
        assert!(taken.all(|made| made.is_ok()));
        let mut log = Log::open(&path).expect("opens");
        log.append(Level::Warn, "here".to_string());
        assert!(path.metadata().expect("is there").len() < 1000);
        assert!(fs::read_to_string(&path).expect("reads").contains("\"message\":\"here\""));
        assert!(Log::open(&aged(&path, 1)).is_err(), "a directory is no log");
        fs::remove_dir_all(directory).expect("removes");
    }

    #[test]
    fn levels_are_ordered_by_how_much_they_matter() {
        assert!(Level::Error < Level::Warn && Level::Info < Level::Debug);
        assert_eq!(serde_json::to_string(&Level::Warn).expect("is text"), "\"warn\"");
        assert_eq!(format!("{:5}|", Level::Warn), "warn |");
    }
}
