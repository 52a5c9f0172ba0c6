//! Tries a program out: a run in a temporary store in memory, with its calls counted and a net
//! below it that catches missed calls.
//!
//! Must stay true: of the settings for real runs, a trial uses the mount prefix only. It has no job
//! of the user's, no tier in a file, no persist directory. The program itself and files elsewhere
//! are the real ones.

use crate::Context;
use crate::check::watch::{Catch, Made, Net};
use crate::claim::Claim;
use crate::error::Result;
use crate::report::calls::{self, CallReport, Calls, Ended};
use crate::request::{Request, StoreArguments};
use crate::run::{execute, exit_code, launch};
use crate::settings::RunSettings;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Result of a trial.
pub struct Trial {
    /// Exit code of the program.
    pub exit_code: i32,
    /// Calls of the program and its children, including those past the C library.
    pub calls: CallReport,
    /// Programs that were executed and would gain privileges outside a trial, with the privilege.
    pub gaining: BTreeMap<PathBuf, &'static str>,
    /// Why calls past the C library were not observed.
    pub blind: Option<String>,
}

/// Runs the command to its end.
pub fn run(context: &Context, mount: Option<String>, command: &[OsString]) -> Result<Trial> {
    let library = launch::find_library()?;
    let claim = claim(context, mount, command)?;
    let result = try_out(&claim, &library, command, context.json);
    let removed = claim.remove();
    let trial = result?;
    removed.map(|()| trial)
}

/// Creates a store in memory for the command. The caller must remove it.
pub fn claim(context: &Context, mount: Option<String>, command: &[OsString]) -> Result<Claim> {
    let mount = mount.or_else(|| context.settings.run.mount.clone());
    let arguments = StoreArguments { mount, ..StoreArguments::default() };
    let request = Request::new(arguments, RunSettings::default())?;
    let request = Request { quiet: true, ..request };
    let words: Vec<String> =
        command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    Claim::create(&context.roots, &request, &words)
}

/// Runs the command in the store. If `report_is_output`, the program's standard output goes to
/// standard error, so that it does not mix with the report.
fn try_out(
    claim: &Claim,
    library: &Path,
    command: &[OsString],
    report_is_output: bool,
) -> Result<Trial> {
    let store = &claim.store;
    let mut net = None;
    let below = |command: &mut Command| {
        if report_is_output {
            command.stdout(io::stderr());
        }
        net = Some(Net::below(command, &store.job.mount, store.directory()));
    };
    let result = execute(claim, library, command, true, below);
    // Taken even after a failure, so that its thread ends.
    let caught = net.map(|net| net.and_then(Net::haul));
    let ran = result?;
    let mut calls = calls::load(store)?.unwrap_or_default();
    let mut gaining = BTreeMap::new();
    let blind = match caught {
        Some(Ok(caught)) => {
            caught.calls.into_iter().for_each(|(catch, made)| calls.add(missed(catch, made)));
            gaining = caught.gaining;
            None
        }
        Some(Err(error)) => Some(cairn_agent::model::error::why(&error)),
        None => None,
    };
    Ok(Trial { exit_code: exit_code(ran.status), calls, gaining, blind })
}

/// Converts a call that bypassed Cairn: past the C library, or through a C function that Cairn does
/// not replace.
fn missed(catch: Catch, made: Made) -> Calls {
    let text = |text: &str| crate::output::escaped(text.as_bytes());
    Calls {
        outcome: Ended::Missed,
        function: format!("{} of the kernel", catch.call),
        errno: None,
        calls: made.times,
        program: text(&catch.program),
        file: text(&catch.file),
        path: made.path.map(|path| text(&path.to_string_lossy())),
        case: None,
        advice: None,
    }
}
