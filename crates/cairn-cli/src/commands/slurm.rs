//! `cairn slurm install`: installs what `examples/slurm-*` has for Slurm, or checks it.
//!
//! Must stay true: what an administrator has set (`settings`) is never replaced, and Slurm's own
//! configuration is not touched: the lines for it are printed.

use clap::{Args, Subcommand, ValueEnum};
use std::fs::{self, DirBuilder};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::{Error, LaunchError, Result};
use crate::output;

const EXAMPLES: &str = "\
Examples:
  cairn slurm install spank burst-buffer    put the files into /etc/slurm/cairn-spank and
                                            /etc/slurm/cairn-bb, and print what slurm.conf needs
  cairn slurm install --check               check the configuration of this machine
  cairn slurm install --check /opt/slurm/etc

docs/SLURM.md explains each of the three. Exit codes: 0 done, or everything is right; 1 something
is wrong.";

/// Name of the file that an administrator edits.
const SETTINGS: &str = "settings";
/// Where Slurm's configuration is, unless the user says it.
const SLURM_DIRECTORY: &str = "/etc/slurm";

/// Work with Slurm.
#[derive(Args, Debug)]
pub struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    Install(InstallArguments),
}

/// Install the plug-ins and scripts for Slurm, or check them.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
struct InstallArguments {
    /// Check what is configured, and change nothing; DIRECTORY may follow
    #[arg(long, value_name = "DIRECTORY", num_args = 0..=1, conflicts_with_all = ["what", "directory"])]
    check: Option<Option<PathBuf>>,
    /// Directory of slurm.conf; the files go to directories below it
    #[arg(long, value_name = "DIRECTORY", default_value = SLURM_DIRECTORY)]
    directory: PathBuf,
    /// What to install
    #[arg(value_name = "WHAT", required_unless_present = "check")]
    what: Vec<Part>,
}

/// A part of the support for Slurm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// The option --cairn of srun and sbatch
    Spank,
    /// Inputs before a job, results after it, on a storage node
    BurstBuffer,
    /// Namespaces of a storage node for the nodes of a job
    Gres,
}

/// Name, mode and content of a file.
type Shipped = (&'static str, u32, &'static str);

/// Defines the files of a part from `examples`.
macro_rules! shipped {
    ($directory:literal: $($name:literal $mode:literal),+ $(,)?) => {
        &[$(($name, $mode, include_str!(concat!("../../../../examples/", $directory, "/", $name)))),+]
    };
}

const SPANK: &[Shipped] = shipped!["slurm-spank":
    "Makefile" 0o644, "cairn_spank.c" 0o644, "cairn-task" 0o755, "epilog" 0o755,
    "plugstack.conf" 0o644, "settings" 0o644, "slurm.conf" 0o644];
const BURST_BUFFER: &[Shipped] = shipped!["slurm-burst-buffer":
    "burst_buffer.conf" 0o644, "burst_buffer.lua" 0o644, "common" 0o644, "epilog" 0o755,
    "job_submit.lua" 0o644, "settings" 0o644, "slurm.conf" 0o644, "stage" 0o755];
const GRES: &[Shipped] = shipped!["slurm-gres":
    "common" 0o644, "epilog" 0o755, "gres.conf" 0o644, "prolog" 0o755, "settings" 0o644,
    "slurm.conf" 0o644, "sweep" 0o755, "task-prolog" 0o755];
/// The script that checks a configuration.
const CHECK: &str = include_str!("../../../../examples/slurm-check");

impl Part {
    /// Name of its directory, and its files.
    fn files(self) -> (&'static str, &'static [Shipped]) {
        match self {
            Part::Spank => ("cairn-spank", SPANK),
            Part::BurstBuffer => ("cairn-bb", BURST_BUFFER),
            Part::Gres => ("cairn", GRES),
        }
    }
}

/// Runs the command. Returns the exit code.
pub fn run(arguments: &Arguments) -> Result<i32> {
    let Action::Install(InstallArguments { check, directory, what }) = &arguments.action;
    match check {
        Some(directory) => check_configuration(directory.as_deref()),
        None => what.iter().try_for_each(|part| install(*part, directory)).map(|()| 0),
    }
}

fn install(part: Part, slurm: &Path) -> Result<()> {
    let (name, files) = part.files();
    let directory = slurm.join(name);
    let made = DirBuilder::new().recursive(true).mode(0o755).create(&directory);
    made.map_err(Error::file("make", &directory))?;
    for (name, mode, content) in files {
        let path = directory.join(name);
        if *name == SETTINGS && path.exists() {
            output::line(&format!("kept {}", path.display()));
            continue;
        }
        // A file in use is replaced, not overwritten.
        let unfinished = directory.join(format!(".{name}.new"));
        let write = || {
            fs::write(&unfinished, content)?;
            fs::set_permissions(&unfinished, fs::Permissions::from_mode(*mode))?;
            fs::rename(&unfinished, &path)
        };
        write().map_err(Error::file("write", &path))?;
    }
    let shown = directory.display();
    output::line(&format!("installed {shown}; edit {shown}/{SETTINGS}, and add:"));
    for (name, _, content) in files.iter().filter(|(name, ..)| name.ends_with(".conf")) {
        output::line(&format!("--- {name}"));
        let lines = content.lines().filter(|line| !line.starts_with('#'));
        let usual = format!("{SLURM_DIRECTORY}/");
        let here = format!("{}/", slurm.display());
        lines.for_each(|line| output::line(&line.replace(&usual, &here)));
    }
    if part == Part::Spank {
        output::line(&format!("then build the plug-in: make -C {shown}"));
    }
    Ok(())
}

/// Runs the script that checks a configuration.
fn check_configuration(directory: Option<&Path>) -> Result<i32> {
    let failed = |source| Error::Launch(LaunchError::Execute { command: "sh".to_string(), source });
    let mut command = Command::new("sh");
    command.args(["-s", "--"]).args(directory).stdin(Stdio::piped());
    let mut child = command.spawn().map_err(failed)?;
    let mut script = child.stdin.take().expect("is a pipe");
    // A shell that ends early says why itself.
    let _ = script.write_all(CHECK.as_bytes());
    drop(script);
    let status = child.wait().map_err(failed)?;
    Ok(crate::run::exit_code(status))
}
