//! `cairn config`: prints the compiler and linker flags of a program that contains Cairn.
//!
//! Must stay true: the functions that `--static` diverts are exactly the hooks of the archive; a
//! test of cairn-preload compares the list with the library.

use crate::check::self_test::WRAPPED;
use crate::error::{Error, LaunchError, Result};
use crate::output::{self, quoted};
use clap::Args;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  cc $(cairn config --cflags) -o app app.c $(cairn config --libs)
      links libcairn.so; the program can call the functions of cairn.h, and needs no `cairn run`
  cc -static $(cairn config --cflags) -o app app.c $(cairn config --libs --static)
      links libcairn.a into a static program; under `cairn run`, its files below the prefix are
      served
  cmake -DCMAKE_EXE_LINKER_FLAGS=\"$(cairn config --ldflags --static)\" ...
      the same with a build system";

/// Print the flags to compile and link a program with.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
#[command(group = clap::ArgGroup::new("what").required(true).multiple(true))]
pub struct Arguments {
    /// For the compiler: where cairn.h is
    #[arg(long, group = "what")]
    cflags: bool,
    /// For the linker, before the libraries: where they are, and which functions are diverted
    #[arg(long, group = "what")]
    ldflags: bool,
    /// For the linker, last: the library, and the output of --ldflags if that is not given as well
    #[arg(long, group = "what")]
    libs: bool,
    /// Link the archive libcairn.a instead of libcairn.so
    #[arg(long = "static")]
    archive: bool,
}

/// Prints the flags on one line.
pub fn run(arguments: &Arguments) -> Result<()> {
    let program = std::env::current_exe().map_err(Error::file("find", Path::new("cairn")))?;
    let beside = program.parent().unwrap_or(Path::new("/"));
    let mut flags = Vec::new();
    if arguments.cflags {
        let directory = find(beside, "cairn.h", &["../include", "../../include"])?;
        flags.push(format!("-I{}", directory.display()));
    }
    let library = if arguments.archive { "libcairn.a" } else { "libcairn.so" };
    // Without these flags the archive would be linked but divert nothing.
    if arguments.ldflags || arguments.libs {
        let directory = find(beside, library, &["", "../lib", "../lib64"])?;
        flags.push(format!("-L{}", directory.display()));
        match arguments.archive {
            true => flags.extend(WRAPPED.lines().map(|name| format!("-Wl,--wrap={name}"))),
            false => flags.push(format!("-Wl,-rpath,{}", directory.display())),
        }
    }
    if arguments.libs {
        flags.push(if arguments.archive { "-l:libcairn.a" } else { "-lcairn" }.to_owned());
    }
    let quoted: Vec<String> = flags.iter().map(|flag| quoted(flag)).collect();
    output::line(&quoted.join(" "));
    Ok(())
}

/// Returns the directory of `file`: one of `places`, relative to the directory of the program.
fn find(beside: &Path, file: &'static str, places: &[&str]) -> Result<PathBuf> {
    let candidates: Vec<PathBuf> = places.iter().map(|place| beside.join(place)).collect();
    let found = candidates.iter().find(|directory| directory.join(file).exists());
    match found.and_then(|directory| directory.canonicalize().ok()) {
        Some(directory) => Ok(directory),
        None => {
            let looked_for: Vec<String> =
                candidates.iter().map(|place| place.join(file).display().to_string()).collect();
            Err(Error::Launch(LaunchError::NotInstalled {
                file,
                looked_for: looked_for.join(", "),
            }))
        }
    }
}
