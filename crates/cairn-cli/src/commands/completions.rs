//! `cairn completions` and `cairn man`: output that a package installs beside the program.

use crate::error::{Error, Result};
use crate::output;
use clap::{Args, Command};
use clap_complete::Shell;
use std::fs;
use std::path::PathBuf;

/// Print completions for a shell.
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  cairn completions bash >/etc/bash_completion.d/cairn")]
pub struct CompletionArguments {
    /// The shell
    shell: Shell,
}

/// Print the manual page, or write the pages of all commands.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  cairn man | man -l -
  cairn man --directory /usr/local/share/man/man1")]
pub struct ManArguments {
    /// Write one page for each command into this directory
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
}

/// Prints completions.
pub fn completions(mut command: Command, arguments: &CompletionArguments) {
    let mut text = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, "cairn", &mut text);
    output::print(&text);
}

/// Prints or writes manual pages.
pub fn man(command: Command, arguments: &ManArguments) -> Result<()> {
    match &arguments.directory {
        Some(directory) => {
            fs::create_dir_all(directory).map_err(Error::file("make", directory))?;
            clap_mangen::generate_to(command, directory)
                .map_err(Error::file("write the manual to", directory))
        }
        None => {
            let mut text = Vec::new();
            clap_mangen::Man::new(command)
                .render(&mut text)
                .expect("writing to memory does not fail");
            output::print(&text);
            Ok(())
        }
    }
}
