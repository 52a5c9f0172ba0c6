//! `cairn check`: tells whether a program's file calls would be served, before a job relies on it.
//!
//! It has two views. The static view reads the files: what the program is, which functions it
//! imports, which system calls its own code makes. If the user wants, a trial (`trial.rs`) runs the
//! program; then only what really happened counts.
//!
//! Must stay true: the exit code is 0 only if no unserved call was found. The report says what
//! cannot be known.

pub(crate) mod rights;
pub(crate) mod self_test;
pub(crate) mod trial;
pub(crate) mod watch;
use cairn_agent::model::error::why;
use cairn_posix::process::decisions::{self, PAST, WIDE};
use clap::Args;
use serde::Serialize;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::Context;
use crate::check::rights::rights_gained;
use crate::check::trial::Trial;
use crate::error::{EXIT_FAILURE, Error, Result};
use crate::output::{self, count, escaped};
use crate::program::confined::Failure;
use crate::program::elf::{Image, Library, RawCalls, Unreadable};
use crate::program::{self, IS_GO, IS_STATIC, find_program};
use crate::report::calls::{CallReport, advice};
use crate::run::launch;

/// Nothing of the program is served.
pub const EXIT_OUT_OF_REACH: i32 = 4;
/// Part of the program's calls is not served.
pub const EXIT_MISSED: i32 = 3;

/// Maximum number of interpreters that are scripts themselves, as in the kernel.
const SCRIPTS_MAX: usize = 4;
/// Functions that every program with the streams of C++ takes, for `std::wcin` and the like.
const CXX_STREAMS: [&str; 3] = ["getwc", "putwc", "ungetwc"];
/// Functions that the libraries of languages and of the system take, and hardly ever call on a
/// program's files.
const SELDOM_ON_FILES: [&str; 7] =
    ["getwc", "putwc", "ungetwc", "fgetwc", "fputwc", "fputws", "name_to_handle_at"];
/// Function of runtimes, as that of Node.js, which look at files from time to time without it.
const WATCHES: &str = "inotify_add_watch";
/// Number of bytes in which the kernel looks for the interpreter of a script.
const SCRIPT_LINE_BYTES: usize = 256;
/// Finding about programs that use another C library.
const OTHER_C_LIBRARY: &str =
    "does not use the GNU C library: Cairn's library cannot be loaded into it";
const OTHER_C_LIBRARY_ADVICE: &str = "build it with the GNU C library";
/// Name prefixes of the dynamic linkers of other C libraries.
const OTHER_LINKERS: [&str; 1] = ["ld-musl"];
/// Name prefixes of libraries that are not examined: the C library and Cairn. Their calls are
/// served, or are not about files of a program.
const NOT_JUDGED: [&str; 10] = [
    "libc.so",
    "ld-linux",
    "libpthread.so",
    "libm.so",
    "libdl.so",
    "librt.so",
    "libresolv.so",
    "libgcc_s.so",
    "libcairn.so",
    "libcairn_preload.so",
];

const EXAMPLES: &str = "\
Examples:
  cairn check ./simulate                      read its files, without running it
  cairn check --run ./simulate                run it without arguments, in a store of its own
  cairn check ./simulate input.dat            run it with arguments
  cairn check --json -- mpirun -np 2 ./simulate input.dat | jq .findings
  cairn check --mount-fuse ./static           judge it for cairn run --mount-fuse
  cairn check --self                          test whether Cairn itself works on this machine

Without a run, check reads the program, its interpreter and the libraries it needs. It reports
whether Cairn's library can be loaded, which imported functions are refused or bypass Cairn, and
which system calls on files the code contains. The program may import a function but never call it.
If a function bypasses Cairn only for a path below the prefix, check just notes it.

In a run, only the calls that really happen count. The store is in memory and nothing in it is
kept. Files outside the prefix are the real ones.

With --self, check starts a process of its own as cairn run starts those of a job. It reports which
C library the process has, where Cairn's library was loaded from, which of Cairn's functions are
not reached because another library comes first, which of them this C library lacks, and whether
the process can write and read a file.

A run does not show: calls that bypass the C library with a path relative to a directory of the
store; what an io_uring does after its set-up; what the program does with other arguments. It does
not show fwprintf and similar functions either: they count as missed if the program imports them.
The program gains no privileges from setuid in a run. Processes that it leaves behind have two
seconds to end. With --json, its standard output goes to standard error.

Exit codes: 0 nothing is missed; 3 some calls are refused or not served (they are named); 4 the
program is out of reach: none of its calls is served; 126 and 127 as for cairn run; 1 the program
could not be checked, or failed in the run; 2 the request was refused.";

/// Tell whether a program's file calls are served, from its files or by trying it out.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Try the program out even if there are no arguments
    #[arg(long)]
    run: bool,
    /// Check Cairn itself: whether its library is loaded here and comes before the C library
    #[arg(long = "self", conflicts_with_all = ["run", "command"])]
    of_itself: bool,
    /// Judge the program for cairn run --mount-fuse: what the library does not reach is served by
    /// the mount. Not for trials
    #[arg(long, conflicts_with_all = ["run", "of_itself"])]
    mount_fuse: bool,
    /// Prefix below which the program finds the store in a trial [default: /cairn]
    #[arg(long, value_name = "PREFIX")]
    mount: Option<String>,
    /// The program, and arguments with which to try it out
    #[arg(required_unless_present = "of_itself", trailing_var_arg = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Weight {
    /// Nothing of the program is served.
    OutOfReach,
    /// Some calls are not served.
    Missed,
    /// Some calls may not be served; a trial has shown which, or would.
    Note,
}

/// A problem: some calls are not served, or may not be.
#[derive(Debug, Serialize)]
struct Finding {
    weight: Weight,
    /// Description of the problem.
    what: String,
    /// The file it is about.
    file: String,
    /// What the user can do.
    advice: String,
    /// Whether a trial can confirm or refute it.
    #[serde(skip)]
    is_shown_by_run: bool,
    /// Whether a mount serves what the library does not reach.
    #[serde(skip)]
    comes_by_mount: bool,
}

/// Result of the check.
#[derive(Debug, Serialize)]
struct CheckReport {
    /// File of the program.
    program: PathBuf,
    /// `dynamic`, `static`, `static-pie`, `script` or `unknown`.
    kind: &'static str,
    /// Dynamic linker or interpreters that load it.
    interpreters: Vec<PathBuf>,
    /// Libraries it needs, directly or indirectly.
    libraries: Vec<PathBuf>,
    findings: Vec<Finding>,
    /// Result of the trial, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    run: Option<RunReport>,
    exit_code: i32,
}

/// What the program did in a trial.
#[derive(Debug, Serialize)]
struct RunReport {
    exit_code: i32,
    #[serde(flatten)]
    calls: CallReport,
    /// Why raw system calls were not observed.
    #[serde(skip_serializing_if = "Option::is_none")]
    blind: Option<String>,
}

/// Runs the command. Returns the exit code.
pub fn run(context: &Context, arguments: &Arguments) -> Result<i32> {
    if arguments.of_itself {
        return self_test::run(context, arguments.mount.clone());
    }
    let name = arguments.command.first().map(OsString::as_os_str).unwrap_or_default();
    let program = find_program(name)?;
    let mut report = CheckReport {
        program: program.clone(),
        kind: "unknown",
        interpreters: Vec::new(),
        libraries: Vec::new(),
        findings: Vec::new(),
        run: None,
        exit_code: 0,
    };
    report.look_at(&program, 0)?;
    if arguments.mount_fuse {
        report.mount();
    } else if arguments.run || arguments.command.len() > 1 {
        let trial = trial::run(context, arguments.mount.clone(), &arguments.command)?;
        report.learn(trial);
    }
    report.findings.sort_by_key(|finding| finding.weight);
    report.exit_code = match report.findings.first().map(|finding| finding.weight) {
        Some(Weight::OutOfReach) => EXIT_OUT_OF_REACH,
        Some(Weight::Missed) => EXIT_MISSED,
        // A program that stopped early has not called everything.
        Some(Weight::Note) | None if report.has_failed() => EXIT_FAILURE,
        Some(Weight::Note) | None => 0,
    };
    match context.json {
        true => output::json(&report)?,
        false => report.lines().iter().for_each(|line| output::line(line)),
    }
    Ok(report.exit_code)
}

impl CheckReport {
    fn find(&mut self, weight: Weight, file: &Path, what: impl Into<String>, advice: &str) {
        let file = escaped(file.as_os_str().as_bytes());
        let (what, advice) = (what.into(), advice.to_owned());
        let (is_shown_by_run, comes_by_mount) = (true, false);
        self.findings.push(Finding { weight, what, file, advice, is_shown_by_run, comes_by_mount });
    }

    /// Adds a finding about a program that the library cannot be loaded into, and that a mount
    /// serves.
    fn find_unreached(&mut self, file: &Path, what: impl Into<String>, advice: &str) {
        let advice = format!("run it with --mount-fuse, or {advice}");
        self.find(Weight::OutOfReach, file, what, &advice);
        if let Some(found) = self.findings.last_mut() {
            found.comes_by_mount = true;
        }
    }

    /// Judges the program for a run with a mount.
    fn mount(&mut self) {
        for found in self.findings.iter_mut().filter(|found| found.comes_by_mount) {
            found.weight = Weight::Note;
            found.what += "; it is served by the mount";
            found.advice =
                "let it use large calls: each goes through the mount's server".to_owned();
        }
    }

    /// Examines a program that is the interpreter of `depth` nested scripts.
    fn look_at(&mut self, path: &Path, depth: usize) -> Result<()> {
        let bytes = fs::read(path).map_err(Error::file("read", path))?;
        if let Some(interpreter) = interpreter_of(&bytes) {
            return self.look_at_script(path, interpreter, depth);
        }
        if let Some(rights) = rights_gained(path) {
            let what = format!("{rights}: the dynamic linker ignores LD_PRELOAD for it");
            self.find(Weight::OutOfReach, path, what, "run a copy without that");
        }
        match Image::read(&bytes) {
            Ok(image) => self.look_into(path, &image, depth),
            Err(Unreadable::NotElf) => {
                let what =
                    "is neither a program nor a script with #!; a shell takes it for a script";
                self.find(Weight::Note, path, what, "begin it with #! and the interpreter's path");
                if depth == 0 {
                    self.kind = "script";
                }
                Ok(())
            }
            Err(Unreadable::OtherMachine) => {
                let what = "is for another machine, or for 32 bits: Cairn's library cannot be loaded into it";
                self.find_unreached(path, what, "use a build for this machine");
                Ok(())
            }
            Err(Unreadable::Damaged(why)) => {
                let what = format!("cannot be read as a program: {}", escaped(why.as_bytes()));
                self.find(Weight::OutOfReach, path, what, "build it again");
                Ok(())
            }
        }
    }

    fn look_at_script(&mut self, path: &Path, interpreter: PathBuf, depth: usize) -> Result<()> {
        if depth == 0 {
            self.kind = "script";
            let what = "is a script: the programs it executes are not examined";
            self.find(Weight::Note, path, what, "try it with --run");
        }
        self.interpreters.push(interpreter.clone());
        if depth >= SCRIPTS_MAX {
            let what = "has too many interpreters that are scripts themselves";
            self.find(Weight::OutOfReach, path, what, "name a program as the interpreter");
            return Ok(());
        }
        match find_program(interpreter.as_os_str()) {
            Ok(interpreter) => self.look_at(&interpreter, depth + 1),
            Err(_) => {
                let name = escaped(interpreter.as_os_str().as_bytes());
                let what = format!("its interpreter {name} cannot be executed");
                self.find(Weight::OutOfReach, path, what, "correct its first line");
                Ok(())
            }
        }
    }

    fn look_into(&mut self, path: &Path, image: &Image, depth: usize) -> Result<()> {
        let kind = match (&image.interpreter, image.is_relocatable) {
            (Some(_), _) => "dynamic",
            (None, true) => "static-pie",
            (None, false) => "static",
        };
        if depth == 0 {
            self.kind = kind;
        }
        if image.is_go {
            self.find_unreached(path, IS_GO, "let it write elsewhere");
        }
        let Some(interpreter) = &image.interpreter else {
            if image.has_cairn {
                // The linked file does not show which functions it imported, and the C library's
                // instructions look like its own.
                let what = "is linked with libcairn.a: only a trial shows what is refused";
                self.find(Weight::Note, path, what, "try it with --run");
            } else {
                let advice = "link it dynamically, or with libcairn.a (cairn config --help)";
                self.find_unreached(path, IS_STATIC, advice);
            }
            return Ok(());
        };
        self.interpreters.push(interpreter.clone());
        // For the linker, `$ORIGIN` is the directory of the program. Given a symbolic link, the
        // linker would use the directory of the link, so the link is resolved first.
        let program = path.canonicalize().map_err(Error::file("look at", path))?;
        match program::elf::libraries(interpreter, &program) {
            Ok(libraries) => self.look_at_libraries(path, &libraries)?,
            Err(Failure::Failed(error)) => {
                let what = format!("cannot be loaded: {}", escaped(why(&error).as_bytes()));
                self.find(Weight::OutOfReach, path, what, "run ldd on it to see why");
            }
            Err(Failure::Unconfined(error)) => self.miss_libraries(path, interpreter, &error),
        }
        self.judge(path, image, false);
        Ok(())
    }

    /// Reports that the libraries were not examined: the dynamic linker can be anybody's file and
    /// runs only under a seccomp filter, which this system does not allow.
    fn miss_libraries(&mut self, program: &Path, interpreter: &Path, refusal: &io::Error) {
        let name = interpreter.file_name().unwrap_or_default().to_string_lossy();
        if OTHER_LINKERS.iter().any(|other| name.starts_with(other)) {
            self.find_unreached(program, OTHER_C_LIBRARY, OTHER_C_LIBRARY_ADVICE);
        }
        let what = format!(
            "the libraries it needs were not examined: listing them takes its dynamic linker under a seccomp filter, \
             which this system does not allow: {}",
            why(refusal)
        );
        self.find(Weight::Note, program, what, "allow seccomp to have them examined");
    }

    fn look_at_libraries(&mut self, program: &Path, libraries: &[Library]) -> Result<()> {
        if !libraries.iter().any(|library| library.name.starts_with("libc.so.6")) {
            self.find_unreached(program, OTHER_C_LIBRARY, OTHER_C_LIBRARY_ADVICE);
        }
        for Library { name, path } in libraries {
            self.libraries.push(path.clone());
            if NOT_JUDGED.iter().any(|known| name.starts_with(known)) {
                continue;
            }
            let bytes = fs::read(path).map_err(Error::file("read", path))?;
            if let Ok(image) = Image::read(&bytes) {
                self.judge(path, &image, true);
            }
        }
        Ok(())
    }

    /// Adds a finding for each reason why calls of a program or library may not be served.
    fn judge(&mut self, path: &Path, image: &Image, is_library: bool) {
        let mut by_reason: BTreeMap<(Reason, &str), Vec<&str>> = BTreeMap::new();
        let is_unused = |name: &str| match is_library {
            _ if name == WATCHES => true,
            true => SELDOM_ON_FILES.contains(&name),
            false => image.is_cxx() && CXX_STREAMS.contains(&name),
        };
        for name in &image.imports {
            if let Some(mut reason) = Reason::against(name) {
                if is_unused(name) {
                    reason.weight = Weight::Note;
                    reason.text += " if it is called on a file of the store";
                }
                by_reason.entry((reason, advice(name))).or_default().push(name);
            }
        }
        for ((reason, advice), names) in by_reason {
            let names = escaped(names.join(", ").as_bytes());
            let what = format!("takes {names}: {}", reason.text);
            self.find(reason.weight, path, what, advice);
            if let Some(found) = self.findings.last_mut() {
                found.is_shown_by_run = reason.is_shown_by_run;
            }
        }
        self.judge_raw_calls(path, &image.raw_calls);
    }

    fn judge_raw_calls(&mut self, path: &Path, calls: &RawCalls) {
        let catches = launch::catches_raw_calls();
        // io_uring is refused even if its set-up is caught.
        let is_caught =
            |name: &Option<&str>| catches && name.is_none_or(|name| !name.starts_with("io_uring"));
        let caught =
            calls.iter().filter(|(name, _)| is_caught(name)).map(|(_, number)| number).sum();
        if caught > 0 {
            let places = count(caught, "instruction");
            let what = format!(
                "enters the kernel by {places} of its own, which are caught and served: such a call costs a few \
                 microseconds more, or a few hundredths of a microsecond if its file is elsewhere"
            );
            self.find(
                Weight::Note,
                path,
                what,
                "let it use the C library for files if it makes many such calls",
            );
        }
        for (name, &number) in calls.iter().filter(|(name, _)| !is_caught(name)) {
            let places = count(number, "instruction");
            match name {
                Some(name) => {
                    let what = format!("calls {name} of the kernel by {places} of its own");
                    self.find(Weight::Missed, path, what, "let it use the C library for files");
                }
                None => {
                    let what = format!(
                        "enters the kernel by {places} of its own, for a call that is not known"
                    );
                    self.find(Weight::Missed, path, what, "try it with --run");
                }
            }
        }
    }

    /// Applies the result of a trial. If all calls were visible, it decides the findings that a
    /// trial can decide.
    fn learn(&mut self, trial: Trial) {
        let program = self.program.clone();
        if trial.blind.is_none() {
            let missed = self.findings.iter_mut().filter(|found| found.weight == Weight::Missed);
            missed
                .filter(|found| found.is_shown_by_run)
                .for_each(|found| found.weight = Weight::Note);
        }
        for calls in trial.calls.not_served() {
            let errno = calls.errno.as_ref().map(|errno| format!(" ({errno})"));
            let path = calls.path.as_ref().map(|path| format!(" of {path}"));
            let times = count(calls.calls, "time");
            let program = Some(format!("{} ", calls.program))
                .filter(|_| !calls.file.ends_with(&format!("/{}", calls.program)));
            let what = format!(
                "{}called {}{} {times}, not served{}",
                program.unwrap_or_default(),
                calls.function,
                path.unwrap_or_default(),
                errno.unwrap_or_default(),
            );
            let advice = calls.advice.unwrap_or("let it use the C library for files");
            self.find(Weight::Missed, Path::new(&calls.file), what, advice);
        }
        for (path, rights) in &trial.gaining {
            let what = format!(
                "was executed and {rights}: neither it nor the programs it starts are served"
            );
            self.find(Weight::Missed, path, what, "run a copy without that");
        }
        if let Some(why) = &trial.blind {
            let what = format!("calls past the C library were not looked for: {why}");
            self.find(Weight::Note, &program, what, "allow seccomp to see them");
        }
        if trial.calls.uncounted > 0 {
            let calls = count(trial.calls.uncounted, "call");
            let what = format!("made too many different calls to count: {calls} are missing");
            self.find(Weight::Missed, &program, what, "try out parts of it");
        }
        self.run =
            Some(RunReport { exit_code: trial.exit_code, calls: trial.calls, blind: trial.blind });
    }

    fn lines(&self) -> Vec<String> {
        let shown = |path: &PathBuf| escaped(path.as_os_str().as_bytes());
        let mut lines = vec![format!("{}: {}", shown(&self.program), self.kind)];
        for interpreter in &self.interpreters {
            lines.push(format!("  by {}", shown(interpreter)));
        }
        if !self.libraries.is_empty() {
            let number = self.libraries.len() as u64;
            lines.push(format!(
                "  with {}",
                if number == 1 { "1 library".to_owned() } else { format!("{number} libraries") }
            ));
        }
        if let Some(run) = &self.run {
            let ended = if self.has_failed() { "the trial failed" } else { "the trial ended" };
            let (code, calls) = (run.exit_code, run.calls.summary());
            lines.push(format!("  {ended} with exit code {code}; {calls}"));
        }
        for Finding { weight, what, file, advice, .. } in &self.findings {
            let weight = match weight {
                Weight::OutOfReach => "out of reach",
                Weight::Missed => "missed",
                Weight::Note => "note",
            };
            lines.push(format!("  {weight}: {file}: {what}; {advice}"));
        }
        lines.push(self.verdict().to_owned());
        lines
    }

    /// Whether there was a trial, in which the program failed.
    fn has_failed(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.exit_code != 0)
    }

    fn verdict(&self) -> &'static str {
        match (self.exit_code, self.run.is_some()) {
            (EXIT_FAILURE, _) => {
                "the calls until then were served; try it out with arguments with which it succeeds"
            }
            (EXIT_OUT_OF_REACH, _) => "out of reach: none of its calls is served",
            (EXIT_MISSED, true) => "not all of its calls were served",
            (EXIT_MISSED, false) => "some of its calls may not be served; try it with --run",
            (_, true) => "all of its calls that were seen were served",
            (_, false) => "nothing is missed as far as its files tell",
        }
    }
}

/// Why a function that a program imports may not be served.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Reason {
    weight: Weight,
    text: String,
    is_shown_by_run: bool,
}

impl Reason {
    /// Returns the reason for the function `name`; None if it is served. Refusals that depend on a
    /// path below the prefix do not count, because programs hardly ever pass such a path.
    fn against(name: &str) -> Option<Reason> {
        let mut refusals = decisions::refusals(name);
        let always = refusals.find(|refusal| refusal.is_unconditional() && !refusal.is_usual());
        let (weight, text, is_shown_by_run) = if let Some(refusal) = always {
            (Weight::Missed, format!("refused with {}", refusal.errno), true)
        } else if let Some(family) = decisions::family_of(WIDE, name) {
            (Weight::Missed, format!("{}; a run does not show that", family.why), false)
        } else {
            let family = decisions::family_of(PAST, name)?;
            (Weight::Note, format!("such functions {}", family.why), true)
        };
        Some(Reason { weight, text: text.replace('`', ""), is_shown_by_run })
    }
}

/// Returns the interpreter in the first line of a script, or the name that `env` looks for.
fn interpreter_of(bytes: &[u8]) -> Option<PathBuf> {
    let line = bytes[..bytes.len().min(SCRIPT_LINE_BYTES)].strip_prefix(b"#!")?;
    let line = line.split(|&byte| byte == b'\n').next()?;
    let mut words = line.split(|byte| matches!(byte, b' ' | b'\t')).filter(|word| !word.is_empty());
    let first = words.next()?;
    let is_name = |word: &&[u8]| !word.starts_with(b"-") && !word.contains(&b'=');
    let looked_for = words.find(is_name).filter(|_| first.ends_with(b"/env"));
    Some(PathBuf::from(OsStr::from_bytes(looked_for.unwrap_or(first))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interpreter_is_the_first_word_of_the_first_line() {
        let of = |text: &str| interpreter_of(text.as_bytes());
        assert_eq!(of("#!/bin/sh\necho"), Some(PathBuf::from("/bin/sh")));
        assert_eq!(of("#! /usr/bin/awk\t-f\n"), Some(PathBuf::from("/usr/bin/awk")));
        assert_eq!(of("#!/usr/bin/env python3\n"), Some(PathBuf::from("python3")));
        assert_eq!(of("#!/usr/bin/env -S A=1 python3 -u\n"), Some(PathBuf::from("python3")));
        assert_eq!(of("#!\n"), None);
        assert_eq!(of("echo"), None);
        assert_eq!(of(""), None);
    }
}
