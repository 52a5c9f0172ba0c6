//! Trying a program out: a run in a store in memory, of which nothing is kept, with its calls
//! counted and a net below it.
//!
//! Must stay true: nothing that the user has said for real runs is used or touched but the mount
//! prefix: no job, no tier in a file, no persist directory. The program itself and files elsewhere
//! are the real ones.

use crate::Context;
use crate::check::watch::{Catch, Made, Net};
use crate::create::claim::Claim;
use crate::create::request::{Request, StoreArguments};
use crate::error::Result;
use crate::report::calls::{self, CallReport, Calls, Ended};
use crate::run::launch;
use crate::run::{execute, exit_code};
use crate::settings::RunSettings;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What happened.
pub struct Trial {
    /// The program's exit code.
    pub exit_code: i32,
    /// What it and its children called, past the C library, too.
    pub calls: CallReport,
    /// Programs that were executed and would gain rights outside a trial, and which.
    pub gaining: BTreeMap<PathBuf, &'static str>,
    /// Why calls past the C library were not seen.
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

/// A new store for the command, in memory, which whoever takes it removes.
pub fn claim(context: &Context, mount: Option<String>, command: &[OsString]) -> Result<Claim> {
    let mount = mount.or_else(|| context.settings.run.mount.clone());
    let arguments = StoreArguments { mount, ..StoreArguments::default() };
    let request = Request::new(arguments, RunSettings::default())?;
    let request = Request { quiet: true, ..request };
    let words: Vec<String> =
        command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    Claim::create(&context.roots, &request, &words)
}

/// If `report_is_output`, what the program prints goes to standard error, beside the report and not
/// into it.
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
    // Also after a failure, so that its thread ends.
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

/// A call that went past the C library, or through a function of it that Cairn does not stand
/// before.
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
