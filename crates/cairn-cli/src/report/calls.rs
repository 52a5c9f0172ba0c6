//! `cairn calls`: shows which file functions the programs of a job called, how often, and with
//! which outcome. Also creates and reads the file in the store in which they are counted.
//!
//! Must stay true: the content of that file comes from programs, so it is checked when it is read,
//! and its text cannot control a terminal. A call is *refused* if it failed in a way that
//! `cairn_posix::process::decisions` lists. An errno that the call would have on any file system,
//! such as ENOENT, is an ordinary failure.

use cairn_agent::model::store_file;
use cairn_posix::kernel::calls::{self, Outcome, Row};
use cairn_posix::process::decisions;
use clap::Args;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use crate::Context;
use crate::error::{Error, ReportError, Result};
use crate::output::{self, count, escaped};
use crate::store::OpenStore;
use crate::store::job_name::JobName;

/// Maximum number of lines about calls at the end of a run.
const LINES_MAX: usize = 12;

const EXAMPLES: &str = "\
Examples:
  cairn run --job melt --report-calls -- ./simulate
  cairn calls melt            while the job runs or later, as long as the store is kept
  cairn calls melt --json | jq '.calls[] | select(.outcome == \"refused\")'

Outcomes:
  served    on a file of the store
  failed    on a file of the store, as it would on any file system
  passed    to the C library, for another file
  refused   not possible on a file of the store
  missed    on a file of the store, but not made through the C library, and not served

For a C stream on a file of the store, the reads and writes that it makes are counted. For other
streams, only the opening is counted.";

/// Show which functions the programs of a job called, how often, and what was refused.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    #[command(flatten)]
    job: JobName,
}

/// Outcome of calls, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Ended {
    /// Done on a file of the store past the C library, and not served.
    Missed,
    /// Not possible on files of the store.
    Refused,
    /// Failed as on any file system.
    Failed,
    /// Succeeded.
    Served,
    /// Not about a file of the store.
    Passed,
}

/// Calls of one function by one program with the same outcome.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Calls {
    /// Their outcome.
    pub outcome: Ended,
    /// Function of the C library, or system call that was made past it.
    pub function: String,
    /// Name of the errno.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub errno: Option<String>,
    /// Number of calls.
    pub calls: u64,
    /// Name of the calling program, as the kernel shows it.
    pub program: String,
    /// File of the calling program.
    pub file: String,
    /// Path argument of one of the calls, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Condition under which such a call is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub case: Option<String>,
    /// What the user can do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<&'static str>,
}

/// Counted calls of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CallReport {
    /// Calls on files of the store, whether they succeeded or failed, without refusals.
    pub served: u64,
    /// Calls that were passed to the C library.
    pub passed: u64,
    /// Calls that were refused or missed.
    pub not_served: u64,
    /// Calls from instructions outside the C library that were caught. Those that were served count
    /// in `served`, too.
    pub caught: u64,
    /// Calls for which there was no space in the table of functions.
    pub uncounted: u64,
    /// Calls by function, outcome and program.
    pub calls: Vec<Calls>,
}

/// Creates the file of call counts if the store has none. If several processes do so at once, the
/// first file stays, because programs may already count in it.
pub fn prepare(store: &OpenStore) -> Result<()> {
    let path = file_of(store);
    if path.exists() {
        return Ok(());
    }
    let unfinished = path.with_extension(std::process::id().to_string());
    let write = || -> io::Result<()> {
        // Written completely: a program that touches a page without memory behind it would be
        // killed.
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(0o600).open(&unfinished)?;
        file.write_all(&calls::new_file())?;
        fs::hard_link(&unfinished, &path)
    };
    let written = write();
    let _ = fs::remove_file(&unfinished);
    match written {
        Err(_) if path.exists() => Ok(()),
        written => written.map_err(Error::file("make", &path)),
    }
}

/// Returns the calls that were counted in a store so far; None if they are not counted.
pub fn load(store: &OpenStore) -> Result<Option<CallReport>> {
    let path = file_of(store);
    let bytes = match store_file::read(&path, calls::BYTES) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        read => read.map_err(Error::file("read", &path))?,
    };
    match calls::read(&bytes) {
        Some(report) => Ok(Some(CallReport::of(report))),
        None => Err(Error::file("read", &path)(io::Error::from_raw_os_error(libc::EINVAL))),
    }
}

fn file_of(store: &OpenStore) -> PathBuf {
    store.directory().join(calls::FILE_NAME)
}

/// Runs the command.
pub fn run(context: &Context, arguments: Arguments) -> Result<()> {
    let store = context.roots.choose(arguments.job.as_deref())?;
    let Some(report) = load(&store)? else {
        return Err(Error::Report(ReportError::NotCounted { job: store.job.job }));
    };
    if context.json {
        return output::json(&report);
    }
    output::line(&report.summary());
    let lines = [table(&report.calls), advice_lines(&report.calls)].concat();
    lines.iter().for_each(|line| output::line(line));
    Ok(())
}

impl CallReport {
    fn of(report: calls::Report) -> CallReport {
        let mut sums = CallReport { uncounted: report.uncounted, ..CallReport::default() };
        report.rows.iter().for_each(|row| sums.add(Calls::of(row)));
        sums.calls.sort();
        sums
    }

    /// Adds calls that were counted elsewhere.
    pub fn add(&mut self, calls: Calls) {
        let sum = match calls.outcome {
            _ if calls.function == calls::BY_INSTRUCTION => &mut self.caught,
            Ended::Served | Ended::Failed => &mut self.served,
            Ended::Passed => &mut self.passed,
            Ended::Refused | Ended::Missed => &mut self.not_served,
        };
        *sum = sum.saturating_add(calls.calls);
        self.calls.push(calls);
    }

    /// Returns the calls that were not served.
    pub fn not_served(&self) -> impl Iterator<Item = &Calls> {
        self.calls.iter().filter(|calls| matches!(calls.outcome, Ended::Missed | Ended::Refused))
    }

    /// Returns the totals in one line.
    pub fn summary(&self) -> String {
        let CallReport { served, passed, not_served, caught, uncounted, .. } = self;
        let served = count(*served, "call");
        let caught = match caught {
            0 => String::new(),
            _ => format!("; {caught} caught that were made past the C library"),
        };
        let lost = match uncounted {
            0 => String::new(),
            _ => format!("; {uncounted} more did not fit into the table"),
        };
        format!("{served} served, {not_served} not served, {passed} on other files{caught}{lost}")
    }

    /// Returns the lines for the end of a run: the totals, and the calls that were not served.
    pub fn lines(&self) -> Vec<String> {
        let not_served: Vec<Calls> = self.not_served().cloned().collect();
        let mut lines = vec![self.summary()];
        let shown = &not_served[..not_served.len().min(LINES_MAX)];
        lines.extend(table(shown).into_iter().map(|line| format!("  {line}")));
        if not_served.len() > LINES_MAX {
            lines.push(format!("  ... {} more: cairn calls", not_served.len() - LINES_MAX));
        }
        lines.extend(advice_lines(shown).into_iter().map(|line| format!("  {line}")));
        lines
    }
}

impl Calls {
    fn of(row: &Row) -> Calls {
        let number = match row.outcome {
            Outcome::Failed(number) => Some(number),
            _ => None,
        };
        let refusal = number.and_then(|number| refusal_of(&row.symbol, number));
        let outcome = match row.outcome {
            Outcome::Served => Ended::Served,
            Outcome::Passed => Ended::Passed,
            Outcome::Missed => Ended::Missed,
            Outcome::Failed(_) if refusal.is_some() => Ended::Refused,
            Outcome::Failed(_) => Ended::Failed,
        };
        let text = |text: &str| escaped(text.as_bytes());
        Calls {
            outcome,
            function: text(&row.symbol),
            errno: number.map(|number| match refusal {
                Some(refusal) => refusal.errno.to_owned(),
                None => errno_name(number),
            }),
            calls: row.count,
            program: text(&row.name),
            file: text(&row.file),
            path: Some(text(row.path.trim_end_matches('/'))).filter(|path| !path.is_empty()),
            case: refusal.map(|refusal| refusal.case.replace('`', "")),
            advice: refusal.map(|_| advice(&row.symbol)),
        }
    }
}

/// Returns the refusal behind the errno of a function; None if it is an ordinary failure.
fn refusal_of(symbol: &str, number: i32) -> Option<&'static decisions::Refusal> {
    decisions::refusals(symbol)
        .find(|refusal| !refusal.is_usual() && errno_number(refusal.errno) == Some(number))
}

/// Returns a line for each entry, in columns.
pub fn table(calls: &[Calls]) -> Vec<String> {
    let cells: Vec<[String; 5]> = calls.iter().map(cells).collect();
    let width = |column: usize| cells.iter().map(|row| row[column].chars().count()).max();
    let widths = [0, 1, 2, 3].map(|column| width(column).unwrap_or(0));
    let line = |[ended, function, number, program, rest]: &[String; 5]| {
        let [first, second, third, fourth] = widths;
        let line = format!(
            "{ended:<first$}  {function:<second$}  {number:>third$}  {program:<fourth$}  {rest}"
        );
        line.trim_end().to_owned()
    };
    cells.iter().map(line).collect()
}

fn cells(calls: &Calls) -> [String; 5] {
    let ended = match calls.outcome {
        Ended::Missed => "missed",
        Ended::Refused => "refused",
        Ended::Failed => "failed",
        Ended::Served => "served",
        Ended::Passed => "passed",
    };
    let ended = match &calls.errno {
        Some(errno) => format!("{ended} {errno}"),
        None => ended.to_owned(),
    };
    let example = calls.path.as_ref().map(|path| format!("for example {path}"));
    let number = calls.calls.to_string();
    [ended, calls.function.clone(), number, calls.program.clone(), example.unwrap_or_default()]
}

/// Returns the advice for these calls, one line per advice with the functions it is about.
pub fn advice_lines(calls: &[Calls]) -> Vec<String> {
    let mut about: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for calls in calls {
        if let Some(advice) = calls.advice {
            about.entry(advice).or_default().insert(&calls.function);
        }
    }
    let line = |(advice, functions): (&str, BTreeSet<&str>)| {
        let functions: Vec<&str> = functions.into_iter().collect();
        format!("{}: {advice}", functions.join(", "))
    };
    about.into_iter().map(line).collect()
}

/// Returns what a user can do about a function that was not served.
pub fn advice(function: &str) -> &'static str {
    let is_one_of = |names: &str| names.split_whitespace().any(|name| function.contains(name));
    if is_one_of("xattr") {
        "most programs run without labels and access control lists; otherwise keep such files elsewhere"
    } else if is_one_of("wc wprintf wscanf ws_ fgetws fputws wide") {
        "write narrow text (fprintf, fputs), or keep that file elsewhere"
    } else if is_one_of("io_uring") {
        "most programs fall back to ordinary calls; otherwise turn off io_uring in the program"
    } else if is_one_of("rename link") {
        "keep both names below the prefix, or copy"
    } else if is_one_of("mknod mkfifo") {
        "keep pipes, sockets and devices elsewhere"
    } else if is_one_of("inotify name_to_handle") {
        "most programs poll instead; otherwise keep such files elsewhere"
    } else if is_one_of("dlopen dlmopen") {
        "keep libraries that are loaded by name elsewhere"
    } else {
        "keep such files outside the prefix"
    }
}

macro_rules! errnos {
    ($($name:ident)*) => { &[$((libc::$name, stringify!($name))),*] };
}

/// Names of errnos. If two names share a number, the common one comes first.
const ERRNOS: &[(i32, &str)] = errnos![
    EPERM ENOENT EINTR EIO ENXIO E2BIG EBADF EAGAIN ENOMEM EACCES EFAULT EBUSY EEXIST EXDEV ENODEV ENOTDIR EISDIR EINVAL
    ENFILE EMFILE ENOTTY ETXTBSY EFBIG ENOSPC ESPIPE EROFS EMLINK EPIPE ERANGE EDEADLK ENAMETOOLONG ENOLCK ENOSYS ENOTEMPTY
    ELOOP ENODATA EOVERFLOW ENOTSOCK EOPNOTSUPP ENOTSUP ESTALE EDQUOT
];

fn errno_name(number: i32) -> String {
    let known = ERRNOS.iter().find(|(known, _)| *known == number);
    known.map_or_else(|| format!("errno {number}"), |(_, name)| (*name).to_owned())
}

fn errno_number(name: &str) -> Option<i32> {
    ERRNOS.iter().find(|(_, known)| *known == name).map(|(number, _)| *number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(symbol: &str, outcome: Outcome) -> Row {
        let [symbol, name, file, path] =
            [symbol, "sim\n", "/bin/sim", "/cairn/f"].map(str::to_owned);
        Row { symbol, outcome, name, file, path, count: 2 }
    }

    #[test]
    fn errnos_of_refusals_have_numbers() {
        for refusal in decisions::REFUSED {
            assert!(errno_number(refusal.errno).is_some(), "{}", refusal.errno);
        }
    }

    #[test]
    fn only_what_decisions_list_is_refused() {
        let ended = |symbol, outcome| Calls::of(&row(symbol, outcome)).outcome;
        assert_eq!(ended("getxattr", Outcome::Failed(libc::ENOTSUP)), Ended::Refused);
        assert_eq!(ended("getxattr", Outcome::Failed(libc::ENOENT)), Ended::Failed);
        assert_eq!(ended("tcgetattr", Outcome::Failed(libc::ENOTTY)), Ended::Failed);
        assert_eq!(ended("ioctl", Outcome::Failed(libc::ENOTTY)), Ended::Failed);
        assert_eq!(ended("ioctl", Outcome::Failed(libc::EOPNOTSUPP)), Ended::Failed);
        assert_eq!(ended("open", Outcome::Served), Ended::Served);
    }

    #[test]
    fn table_is_one_line_each_that_no_terminal_obeys() {
        let calls = [Calls::of(&row("rename", Outcome::Failed(libc::EXDEV)))];
        assert_eq!(table(&calls), ["refused EXDEV  rename  2  sim\\n  for example /cairn/f"]);
        assert_eq!(advice_lines(&calls), [format!("rename: {}", advice("rename"))]);
    }
}
