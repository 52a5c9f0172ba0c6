//! `cairn mount-server`: serves a mount. Not for people: the keeper of the mount starts it, with
//! the connection to the kernel as its standard input, and the memory for answers as its standard
//! output.

use cairn_agent::agent::daemon;
use cairn_core::SlotId;
use cairn_fuse::{Service, Start};
use clap::Args;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::{panic, process};

use crate::error::{Error, Result};

/// Serve a mount (started by `cairn mount`).
#[derive(Args, Debug)]
pub struct Arguments {
    /// Directory of the store
    #[arg(long, value_name = "DIR")]
    store: PathBuf,
    /// Prefix below which programs see its files
    #[arg(long, value_name = "DIR")]
    prefix: PathBuf,
    /// Process slot that keeps open files
    #[arg(long, value_name = "NUMBER")]
    keeper: u32,
    /// Whether others than the user have access
    #[arg(long)]
    allow_other: bool,
    /// Whether an earlier server of the mount died
    #[arg(long)]
    again: bool,
}

/// Serves until the store is unmounted.
pub fn run(arguments: &Arguments) -> Result<()> {
    let Arguments { store, prefix, keeper, allow_other, again } = arguments;
    let service = Service {
        store: store.clone(),
        prefix: prefix.clone(),
        keeper: SlotId(*keeper),
        for_all: *allow_other,
    };
    let failed = || Error::file("serve", store);
    let connection = std::io::stdin().as_fd().try_clone_to_owned().map_err(failed())?;
    let answers = std::io::stdout().as_fd().try_clone_to_owned().map_err(failed())?;
    // Nothing may be printed over the answers.
    rustix::stdio::dup2_stdout(std::io::stderr()).map_err(|errno| failed()(errno.into()))?;
    daemon::allow_many_files();
    // The limit of the shell that mounted is not that of the programs.
    let mut limit = rustix::process::getrlimit(rustix::process::Resource::Fsize);
    limit.current = limit.maximum;
    let _ = rustix::process::setrlimit(rustix::process::Resource::Fsize, limit);
    // A bug has shown. What this server knows is not trusted any more; the next one begins anew.
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |panicked| {
        report(panicked);
        process::abort();
    }));
    let start = if *again { Start::Again } else { Start::New };
    cairn_fuse::serve(connection, answers, start, &service).map_err(failed())
}
