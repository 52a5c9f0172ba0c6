//! The `cairn` command. Each subcommand has its own file. This file parses the command line and
//! reports errors.
//!
//! Invariant: an error is one line on standard error, `cairn: what, on which file, why; what to
//! do`, and an exit code. Standard output carries only what the user asked for. `--json` prints one
//! JSON document instead; the docs of each command's report types describe it.

// Both macros panic when the stream is full; the functions of `output` do not.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

mod balancer;
mod check;
mod claim;
mod commands;
mod create;
mod drain;
mod error;
mod mount;
mod output;
mod program;
mod report;
mod request;
mod resume;
mod run;
mod settings;
mod size;
mod store;

use crate::check::self_test;
use crate::commands::{
    advise, agent, completions, config, cp, discover, drill, exec, fsck, gc, log, ls, plan,
    restore, rm, slurm, stage, status, target, top, unmount, verify,
};
use crate::error::{EXIT_USAGE, Result};
use crate::report::calls;
use crate::run::probe;
use crate::settings::{Settings, origin, variables};
use crate::store::Roots;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use std::path::{Path, PathBuf};
use std::process;
use std::time::Duration;

const OVERVIEW: &str = "\
Start with:
  cairn run --job melt --persist /scratch/out -- ./program
The program writes its checkpoints below /cairn at memory speed. While it runs, Cairn copies them
to /scratch/out as plain, verified files. A later run with the same --job continues from there.
`cairn COMMAND --help` has examples.";

/// Display order that puts the options of all commands after a command's own options.
const BEHIND_THE_COMMANDS_OWN: usize = 900;

/// Checkpoint at memory speed: a store in memory for one job, drained to plain files.
#[derive(Parser, Debug)]
#[command(name = "cairn", version, after_help = OVERVIEW, infer_subcommands = true)]
struct CommandLine {
    /// Directory that holds the stores [default: the first with room of /dev/shm, $XDG_RUNTIME_DIR,
    /// /tmp]
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        env = "CAIRN_STORE_ROOT",
        display_order = BEHIND_THE_COMMANDS_OWN
    )]
    store_root: Option<PathBuf>,
    /// Settings file to read, whoever owns it, or `none` to read none [default: ./cairn.toml, if
    /// nobody else can write it]
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        display_order = BEHIND_THE_COMMANDS_OWN
    )]
    settings: Option<PathBuf>,
    /// Print one JSON document instead of text
    #[arg(long, global = true, display_order = BEHIND_THE_COMMANDS_OWN)]
    json: bool,
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    Run(Box<run::Arguments>),
    Stage(Box<stage::Arguments>),
    Exec(exec::Arguments),
    Check(check::Arguments),
    Status(status::Arguments),
    Top(top::Arguments),
    Calls(calls::Arguments),
    Log(log::Arguments),
    Report(report::Arguments),
    Ls(ls::Arguments),
    Cp(cp::Arguments),
    Drain(drain::Arguments),
    Restore(restore::Arguments),
    Mount(commands::mount::Arguments),
    Unmount(unmount::Arguments),
    Verify(verify::Arguments),
    Fsck(fsck::Arguments),
    Plan(plan::Arguments),
    Advise(advise::Arguments),
    Rm(rm::Arguments),
    Gc(gc::Arguments),
    Drill(drill::Arguments),
    Target(target::Arguments),
    Discover(discover::Arguments),
    Slurm(slurm::Arguments),
    #[command(hide = true)]
    Agent(agent::Arguments),
    #[command(hide = true)]
    MountKeeper(mount::keeper::Arguments),
    #[command(hide = true)]
    MountServer(mount::server::Arguments),
    #[command(hide = true)]
    Probe(probe::Arguments),
    Config(config::Arguments),
    Completions(completions::CompletionArguments),
    Man(completions::ManArguments),
}

impl Action {
    /// Whether the command's own options can also come from the environment, so that a misspelt
    /// variable deserves a warning. The inner runs of a drill do not warn, because the drill does.
    fn has_settings(&self) -> bool {
        match self {
            Action::Run(arguments) => !arguments.is_rehearsal(),
            Action::Restore(_) | Action::Drill(_) | Action::Stage(_) => true,
            _ => false,
        }
    }
}

/// State that every command needs.
struct Context {
    /// Where stores are kept.
    roots: Roots,
    /// Content of the settings file.
    settings: Settings,
    /// Whether to print JSON instead of text.
    json: bool,
}

/// Returns the definition of the command line. The help of `cairn run` begins with the options that
/// most users need.
fn command_line() -> clap::Command {
    const FIRST: [&str; 10] = [
        "job",
        "persist",
        "stage",
        "fresh",
        "discard",
        "tier",
        "retain",
        "pfs_every",
        "until",
        "archive",
    ];
    let in_order = |argument: clap::Arg| {
        let place = FIRST.iter().position(|first| argument.get_id() == first);
        let is_own = argument.get_display_order() < BEHIND_THE_COMMANDS_OWN;
        match place {
            Some(place) => argument.help_heading(None::<&str>).display_order(place),
            None if is_own && argument.get_help_heading().is_none() => {
                argument.help_heading("More about the store and the run")
            }
            None => argument,
        }
    };
    // Options that several commands share have other defaults there.
    let help = |text: &'static str| move |argument: clap::Arg| argument.help(text).long_help(text);
    let map = "Directory of the store and the place below the persist directory where its files land, \
               as in out=results/run7; may be repeated [default: as the manifest says]";
    let job = "Name of the job; an existing store of the job gets the inputs that it lacks";
    CommandLine::command()
        // A site puts its defaults before what the user gives.
        .mut_subcommand("run", |run| run.mut_args(in_order).args_override_self(true))
        .mut_subcommand("restore", |restore| restore.mut_arg("map", help(map)))
        .mut_subcommand("stage", |stage| stage.mut_arg("job", help(job)))
}

fn main() {
    let command = command_line();
    let given = command.clone().try_get_matches();
    let given = given.unwrap_or_else(|error| refuse_command_line(&error));
    let line = CommandLine::from_arg_matches(&given);
    let line = line.unwrap_or_else(|error| refuse_command_line(&error));
    let code = match act(line) {
        Ok(code) => code,
        Err(error) => {
            let text = origin::told(&error, &command, &given);
            crate::output::say!("cairn: {}", output::printable(&text));
            error.exit_code()
        }
    };
    process::exit(code)
}

/// How long one stalled process may hold the lock of a store before a message says so.
const PATIENCE: Duration = Duration::from_secs(5);

fn act(line: CommandLine) -> Result<i32> {
    cairn_device::memory::lock::set_patience(PATIENCE);
    if let Action::Agent(arguments) = &line.action {
        // The agent starts by closing the descriptors it inherited, so nothing may be opened before
        // it.
        return agent::run(arguments).map(|()| 0);
    }
    match &line.action {
        // The same, and no settings concern them.
        Action::MountKeeper(arguments) => return mount::keeper::run(arguments).map(|()| 0),
        Action::MountServer(arguments) => return mount::server::run(arguments).map(|()| 0),
        _ => {}
    }
    if let Action::Probe(arguments) = &line.action {
        return Ok(probe(arguments));
    }
    let settings = Settings::load(Path::new("."), line.settings.as_deref())?;
    let roots = Roots::new(line.store_root.or_else(|| settings.store.root.clone()));
    let context = Context { roots, settings, json: line.json };
    if line.action.has_settings() && !line.json {
        variables::warn(&command_line());
    }
    let done = match line.action {
        Action::Run(arguments) => return run::run(&context, *arguments),
        Action::Check(arguments) => return check::run(&context, &arguments),
        Action::Stage(arguments) => stage::run(&context, *arguments),
        Action::Exec(arguments) => exec::run(&context, arguments),
        Action::Top(arguments) => top::run(&context, &arguments),
        Action::Calls(arguments) => calls::run(&context, arguments),
        Action::Log(arguments) => log::run(&context, &arguments),
        Action::Report(arguments) => report::run(&context, &arguments),
        Action::Status(arguments) => status::run(&context, arguments),
        Action::Ls(arguments) => ls::run(&context, arguments),
        Action::Cp(arguments) => cp::run(&context, arguments),
        Action::Drain(arguments) => drain::run(&context, arguments),
        Action::Restore(arguments) => restore::run(&context, arguments),
        Action::Mount(arguments) => commands::mount::run(&context, &arguments),
        Action::Unmount(arguments) => unmount::run(&context, &arguments),
        Action::MountKeeper(arguments) => mount::keeper::run(&arguments),
        Action::MountServer(arguments) => mount::server::run(&arguments),
        Action::Verify(arguments) => verify::run(&context, arguments),
        Action::Fsck(arguments) => return fsck::run(&context, &arguments),
        Action::Plan(arguments) => plan::run(&context, &arguments),
        Action::Advise(arguments) => advise::run(&context, &arguments),
        Action::Rm(arguments) => rm::run(&context, arguments),
        Action::Gc(arguments) => gc::run(&context, arguments),
        Action::Drill(arguments) => drill::run(&context, &arguments),
        Action::Target(arguments) => target::run(&context, &arguments),
        Action::Discover(arguments) => discover::run(&context, &arguments),
        Action::Slurm(arguments) => return slurm::run(&arguments),
        Action::Agent(arguments) => agent::run(&arguments),
        Action::Probe(arguments) => return Ok(probe(&arguments)),
        Action::Config(arguments) => config::run(&arguments),
        Action::Completions(arguments) => {
            completions::completions(command_line(), &arguments);
            Ok(())
        }
        Action::Man(arguments) => completions::man(command_line(), &arguments),
    };
    done.map(|()| 0)
}

/// Prints help and version to standard output. Reports any other error in one line and exits with
/// code 2.
fn refuse_command_line(error: &clap::Error) -> ! {
    if !error.use_stderr() {
        error.exit();
    }
    let text = error.to_string();
    let first = text.split("\n\n").next().unwrap_or_default();
    let words: Vec<&str> = first.split_whitespace().collect();
    let message = words.join(" ");
    let message = match error.kind() {
        ErrorKind::MissingSubcommand => "a command is missing; start with: cairn run -- PROGRAM",
        _ => message.strip_prefix("error: ").unwrap_or(&message),
    };
    let command = command_in(&text);
    let subcommand = command.strip_prefix("cairn ").unwrap_or_default();
    let origin = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(shown)) => {
            origin::of_unread(shown, &command_line(), subcommand, words_given())
        }
        _ => None,
    };
    let origin = origin.map(|origin| format!("{origin}: ")).unwrap_or_default();
    let advice = advice(error, &command);
    crate::output::say!(
        "cairn: {origin}{message}; {}see: {command} --help",
        output::printable(&advice)
    );
    process::exit(EXIT_USAGE)
}

/// Returns a guess at what the user meant, with the separator that follows it; empty if there is no
/// guess.
fn advice(error: &clap::Error, command: &str) -> String {
    let said = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        // The last one is the most similar.
        Some(ContextValue::Strings(texts)) => texts.last().cloned(),
        _ => None,
    };
    let similar = [ContextKind::SuggestedSubcommand, ContextKind::SuggestedArg].map(said);
    if let Some(similar) = similar.into_iter().flatten().next() {
        return format!("did you mean {similar}? ");
    }
    let program = said(ContextKind::InvalidArg).filter(|word| !word.starts_with('-'));
    let takes_program = ["cairn run", "cairn exec", "cairn drill"].contains(&command);
    match program.filter(|_| takes_program && error.kind() == ErrorKind::UnknownArgument) {
        Some(program) => {
            let words = words_given().skip_while(|word| *word != program);
            let words: Vec<String> = words.map(|word| output::quoted(&word)).collect();
            format!("the program must follow --, write: {command} -- {}; ", words.join(" "))
        }
        None => String::new(),
    }
}

/// Returns the words of the command line after `cairn`.
fn words_given() -> impl Iterator<Item = String> {
    std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned())
}

/// Returns the command that an error is about: the one in its usage line, else the one on the
/// command line.
fn command_in(text: &str) -> String {
    if let Some(usage) = text.lines().find_map(|line| line.trim().strip_prefix("Usage: ")) {
        let is_name = |word: &&str| word.chars().all(|letter| letter.is_ascii_lowercase());
        return usage.split_whitespace().take_while(is_name).collect::<Vec<_>>().join(" ");
    }
    let line = command_line();
    let mut words = words_given();
    match words.find_map(|word| Some(line.find_subcommand(&word)?.get_name().to_string())) {
        Some(name) => format!("cairn {name}"),
        None => "cairn".to_string(),
    }
}

/// Runs in the probe process.
fn probe(arguments: &probe::Arguments) -> i32 {
    match arguments.report {
        true => self_test::report(&arguments.mount),
        false => probe::run(arguments),
    }
}
