//! Warns about environment variables that look like settings but are none.
//!
//! Must stay true: there is no warning about the variable of a setting, nor about the variables
//! that Cairn's own programs pass to each other.

use cairn_posix::process::rank;
use clap::{Arg, Command};
use std::collections::BTreeSet;

use crate::output;

/// Prefix of all names.
const OURS: &str = "CAIRN_";
/// Variables that are not options: those that Cairn passes to the programs of a job, and those for
/// the maintainer of an installation.
const OTHERS: [&str; 8] = [
    "CAIRN_CALLS",
    "CAIRN_JOB",
    "CAIRN_MOUNT",
    "CAIRN_PRELOAD",
    "CAIRN_RAW_CALLS",
    "CAIRN_RUN_PROBE",
    "CAIRN_SCOPE",
    "CAIRN_STORE",
];
/// Maximum edit distance between a misspelt name and a known one, if no section matches.
const WRONG_MAX: usize = 2;

/// Prints a note for each variable that looks like a setting but is none. Only the first rank of a
/// node prints it.
pub fn warn(command: &Command) {
    if rank::seat().is_some_and(|seat| seat.local_rank != 0) {
        return;
    }
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    for note in unknown(names, &of(command)) {
        output::say!("cairn: {}", output::printable(&note));
    }
}

/// Returns the `CAIRN_` variables of the options of a command and its subcommands.
fn of(command: &Command) -> BTreeSet<String> {
    let own = command.get_arguments().filter_map(Arg::get_env);
    let own = own.filter_map(|name| name.to_str()).filter(|name| name.starts_with(OURS));
    let own = own.map(str::to_string);
    own.chain(command.get_subcommands().flat_map(of)).collect()
}

/// Returns a note for each of `names` that resembles one of `known` without being one.
fn unknown(names: impl IntoIterator<Item = String>, known: &BTreeSet<String>) -> Vec<String> {
    let mut unknown: Vec<String> = names
        .into_iter()
        .filter(|name| !known.contains(name) && !OTHERS.contains(&name.as_str()))
        .collect();
    unknown.sort();
    unknown.iter().filter_map(|name| note(name, known)).collect()
}

fn note(name: &str, known: &BTreeSet<String>) -> Option<String> {
    let section = section(name)?;
    let distances = known.iter().map(|other| (strsim::osa_distance(name, other), other));
    let (distance, nearest) = distances.min()?;
    let is_meant = known.iter().any(|other| self::section(other) == Some(section));
    (is_meant || distance <= WRONG_MAX)
        .then(|| format!("{name} is not a setting and is ignored; did you mean {nearest}?"))
}

/// Returns the section of a name: `RUN` for `CAIRN_RUN_TIER`, empty without a section.
fn section(name: &str) -> Option<&str> {
    Some(name.strip_prefix(OURS)?.split_once('_').map_or("", |(section, _)| section))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CommandLine;
    use clap::CommandFactory;
    use std::fs;
    use std::path::Path;

    fn told(names: &[&str]) -> Vec<String> {
        unknown(names.iter().map(ToString::to_string), &of(&CommandLine::command()))
    }

    #[test]
    fn names_that_are_nearly_right_are_told_the_right_one() {
        for (wrong, right) in [
            ("CAIRN_RUN_TEIR", "CAIRN_RUN_TIER"),
            ("CAIRN_DRAIN_RATES", "CAIRN_DRAIN_RATE"),
            ("CAIRN_DRIAN_RATE", "CAIRN_DRAIN_RATE"),
            ("CAIRN_STORE_ROUTE", "CAIRN_STORE_ROOT"),
            ("CAIRN_RUN_PERSIST_DIRECTORY", "CAIRN_RUN_PERSIST"),
            ("CAIRN_SPACE_", "CAIRN_SPACE_WAIT"),
        ] {
            let said = told(&[wrong]);
            let expected =
                format!("{wrong} is not a setting and is ignored; did you mean {right}?");
            assert_eq!(said, [expected]);
        }
        assert_eq!(told(&["CAIRN_RUN_X", "CAIRN_DRAIN_X"]).len(), 2);
    }

    #[test]
    fn settings_and_what_is_none_of_ours_are_no_mistakes() {
        let known = of(&CommandLine::command());
        assert!(known.contains("CAIRN_RUN_TIER") && known.contains("CAIRN_STORE_ROOT"));
        assert_eq!(unknown(known.clone(), &known), [""; 0]);
        assert_eq!(told(&OTHERS), [""; 0]);
        assert_eq!(
            told(&["PATH", "CAIRN", "CAIRN_", "CAIRN_SITE_MODULE", "CAIRNS_RUN_X"]),
            [""; 0]
        );
    }

    /// Every variable that Cairn's programs name is a setting or in the list of exceptions.
    #[test]
    fn variables_of_all_programs_are_known() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let known = of(&CommandLine::command());
        let mut found = BTreeSet::new();
        for name in ["cairn-agent", "cairn-cli", "cairn-device", "cairn-posix", "cairn-preload"] {
            collect(&crates.join(name).join("src"), &mut found);
        }
        assert!(OTHERS.iter().all(|name| found.contains(*name)), "{found:?}");
        assert!(known.is_subset(&found), "{found:?}");
        assert_eq!(unknown(found, &known), [""; 0]);
    }

    /// Collects variable names that are string literals in the sources below a directory.
    fn collect(directory: &Path, found: &mut BTreeSet<String>) {
        for entry in fs::read_dir(directory).expect("reads") {
            let path = entry.expect("reads").path();
            if path.is_dir() {
                collect(&path, found);
            } else if path.extension().is_some_and(|it| it == "rs")
                && !path.ends_with("variables.rs")
            {
                let text = fs::read_to_string(&path).expect("reads");
                let literals = text.split('"').filter(|literal| literal.starts_with(OURS));
                let is_name = |literal: &&str| {
                    literal.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_')
                };
                found.extend(literals.filter(is_name).map(str::to_string));
            }
        }
    }
}
