//! Inputs of a job, as options of `cairn run` and `cairn stage`, and the section `[stage]` of
//! `cairn.toml`.
//!
//! Must stay true: a source that does not exist is refused before anything is created.

use cairn_agent::model::policy::SlotPolicy;
use cairn_agent::store::inputs::Input;
use cairn_job::file::path::FilePath;
use clap::Args;
use serde::Deserialize;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::num::NonZeroU32;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::{Error, Result, SettingError, StageError};
use crate::output::duration;
use crate::settings::one_or_more::OneOrMore;
use crate::size;

/// How long inputs stay on the node, unless the user says it.
const LEASE_DEFAULT: Duration = Duration::from_secs(24 * 3600);
/// Largest number of slots.
const SLOTS_MAX: u32 = 4096;

/// Options about inputs.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Inputs")]
pub struct InputArguments {
    /// File or directory to copy into the store before the command starts, and the path that it
    /// gets there, as in /pfs/mesh.h5 or /pfs/run7/in:/cairn/in; without a path, its name below the
    /// prefix. May be repeated, or be a list with commas. An input that the job does not change is
    /// not drained. Files that the job has changed, removed or made stay as they are; a file that
    /// has changed at the source is copied again. With --stage=on-demand, data follow while the
    /// command runs, files that it opens first [default: none]
    #[arg(long, value_name = "SOURCE[:PATH]", env = "CAIRN_STAGE_IN")]
    pub stage_in: Vec<String>,
    #[command(flatten)]
    pub limits: LimitArguments,
}

/// Options about how inputs are staged in.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Inputs")]
pub struct LimitArguments {
    /// Longest time that staging in inputs may take before the command starts. Afterwards cairn
    /// ends with an error; what is staged stays for the next attempt [default: none]
    #[arg(long, value_name = "TIME", env = "CAIRN_STAGE_TIMEOUT")]
    pub stage_timeout: Option<String>,
    /// Directory that nodes and jobs of a site share, and how many of them may copy at the same
    /// time, as in /pfs/slots:4, in each direction. Staging in begins when one of these slots is
    /// free, and so does each round of the drain. A dead job loses its slot after 20 s. Nobody
    /// waits longer than 10 minutes, or while programs wait for space or the job's time ends
    /// [default: none; 1 at a time]
    #[arg(long, value_name = "DIR[:COUNT]", env = "CAIRN_STAGE_SLOTS")]
    pub slots: Option<String>,
    /// How long inputs that --reusable names stay on the node after the job, for the next job that
    /// names the same sources: it reads them from there if the sources have not changed. 0: not at
    /// all [default: 1d]
    #[arg(long, value_name = "TIME", env = "CAIRN_STAGE_REUSE_FOR")]
    pub reuse_for: Option<String>,
    /// Where they stay: a directory of this node that only you can read [default: beside the
    /// stores]
    #[arg(long, value_name = "DIR", env = "CAIRN_STAGE_REUSE_DIR")]
    pub reuse_dir: Option<PathBuf>,
    /// How much of them stays; the least recently used go first [default: a quarter of what is
    /// free there]
    #[arg(long, value_name = "SIZE", env = "CAIRN_STAGE_REUSE_SIZE")]
    pub reuse_size: Option<String>,
}

/// The section `[stage]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct InputSettings {
    /// `--stage-in`, one or a list.
    #[serde(rename = "in")]
    pub inputs: Option<OneOrMore>,
    /// `--stage-timeout`.
    pub timeout: Option<String>,
    /// `--slots`.
    pub slots: Option<String>,
    /// `--reuse-for`.
    pub reuse_for: Option<String>,
    /// `--reuse-dir`.
    pub reuse_dir: Option<PathBuf>,
    /// `--reuse-size`.
    pub reuse_size: Option<String>,
}

/// How inputs are kept for other jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReusePolicy {
    /// Where, absolute; None for beside the store.
    pub directory: Option<PathBuf>,
    /// How long after the last use.
    pub lease: Duration,
    /// Most bytes; None for a quarter of what is free.
    pub bytes_max: Option<u64>,
}

/// Inputs to stage in.
#[derive(Clone, Debug)]
pub struct InputRequest {
    /// What the user named.
    pub named: Vec<Input>,
    /// Longest time that staging may take.
    pub timeout: Option<Duration>,
    /// Slots in which to copy.
    pub slots: Option<SlotPolicy>,
    /// How inputs are kept for other jobs.
    pub reuse: ReusePolicy,
}

impl Default for InputRequest {
    fn default() -> InputRequest {
        let reuse = ReusePolicy { directory: None, lease: LEASE_DEFAULT, bytes_max: None };
        InputRequest { named: Vec::new(), timeout: None, slots: None, reuse }
    }
}

impl InputRequest {
    /// Merges command line and environment with the settings file. `mount` is the prefix with which
    /// paths of the store may begin. Errors: a source does not exist; a bad value.
    pub fn new(
        sources: Vec<String>,
        limits: LimitArguments,
        settings: InputSettings,
        mount: &str,
    ) -> Result<InputRequest> {
        let sources = match sources.is_empty() {
            true => settings.inputs.map(OneOrMore::into_vec).unwrap_or_default(),
            false => sources,
        };
        let sources = sources.iter().flat_map(|value| parts(value));
        let named = sources.map(|source| input(source, mount)).collect::<Result<_>>()?;
        let time = |option, text: Option<String>| {
            let read = |text: String| duration::argument(&text).map(Duration::from_secs_f64);
            text.map(read).transpose().map_err(|problem| refused(option, problem))
        };
        let bytes_max = limits.reuse_size.or(settings.reuse_size).map(|text| {
            let problem = || format!("{text} is not a size: write 20G or the like");
            size::parse(&text).ok_or_else(|| refused("--reuse-size", problem()))
        });
        let directory = limits.reuse_dir.or(settings.reuse_dir).map(|path| {
            path.canonicalize()
                .map_err(Error::file("look at", &path))
                .map_err(Error::of("--reuse-dir"))
        });
        let lease = time("--reuse-for", limits.reuse_for.or(settings.reuse_for))?;
        Ok(InputRequest {
            named,
            timeout: time("--stage-timeout", limits.stage_timeout.or(settings.timeout))?,
            slots: limits.slots.or(settings.slots).map(|text| slots(&text)).transpose()?,
            reuse: ReusePolicy {
                directory: directory.transpose()?,
                lease: lease.unwrap_or(LEASE_DEFAULT),
                bytes_max: bytes_max.transpose()?,
            },
        })
    }
}

fn refused(option: &'static str, problem: String) -> Error {
    Error::Setting(SettingError::Option { option, problem })
}

/// Parses `--slots`.
fn slots(value: &str) -> Result<SlotPolicy> {
    let (directory, count) = match value.rsplit_once(':') {
        Some((directory, count)) => (directory, count.parse().ok()),
        None => (value, Some(NonZeroU32::MIN)),
    };
    let problem = || format!("{value}: write DIR:COUNT, with a count from 1 to {SLOTS_MAX}");
    let count = count.filter(|count| count.get() <= SLOTS_MAX);
    let count = count.ok_or_else(|| refused("--slots", problem()))?;
    let path = Path::new(directory);
    let found = path.canonicalize().map_err(Error::file("look at", path));
    let directory = found.map_err(Error::of("--slots"))?;
    if !directory.is_dir() {
        return Err(refused("--slots", format!("{} is not a directory", directory.display())));
    }
    Ok(SlotPolicy { directory, count })
}

/// Splits a list with commas. A comma in the name of a source that exists is none of the list.
fn parts(value: &str) -> Vec<&str> {
    let source = value.rsplit_once(':').map_or(value, |(source, _)| source);
    let is_one = [value, source].iter().any(|path| Path::new(path).exists());
    if is_one { vec![value] } else { value.split(',').collect() }
}

/// Parses one value of `--stage-in`.
fn input(value: &str, mount: &str) -> Result<Input> {
    let refuse = |problem: String| refused("--stage-in", format!("{value}: {problem}"));
    // The name of a source may contain a colon: then the path must follow.
    let (source, path) = match value.rsplit_once(':') {
        Some((source, path)) => (source, Some(path)),
        None => (value, None),
    };
    let source = Path::new(source);
    let found = source.canonicalize().map_err(|error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => Error::Stage(StageError::missing(source)),
        _ => Error::file("look at", source)(error),
    })?;
    if found.starts_with(mount) {
        return Err(refuse(format!("it lies below the mount prefix {mount}")));
    }
    let path = match path {
        Some(path) => path_in_store(path, mount).map_err(refuse)?,
        None => {
            let name = source.file_name().or(found.file_name()).unwrap_or(OsStr::new(""));
            FilePath::root().join(name.as_bytes())
        }
    };
    Ok(Input { source: found, path })
}

/// Parses a path in the store, as programs see it or relative to the prefix `mount`. Errors: what
/// is wrong with it.
pub fn path_in_store(text: &str, mount: &str) -> Result<FilePath, String> {
    let inner = match Path::new(text).strip_prefix(mount) {
        Ok(inner) => inner,
        Err(_) if !text.starts_with('/') => Path::new(text),
        Err(_) => {
            let inner = text.trim_start_matches('/');
            return Err(format!(
                "{text} does not lie below {mount}; relative to the prefix, write {inner}"
            ));
        }
    };
    let path = FilePath::parse(inner.as_os_str().as_bytes());
    path.ok_or_else(|| format!("{text} is not a path in the store"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_name_a_source_and_a_path_in_the_store() {
        let scratch = std::env::temp_dir().join(format!("cairn-input-{}", std::process::id()));
        std::fs::create_dir_all(scratch.join("mesh")).expect("a scratch directory");
        std::fs::write(scratch.join("a:b"), "x").expect("writes");
        std::fs::write(scratch.join("c,d"), "x").expect("writes");
        let scratch = scratch.canonicalize().expect("is there");
        let at = |value: &str| input(&format!("{}/{value}", scratch.display()), "/cairn");
        for (value, source, path) in [
            ("mesh", "mesh", "mesh"),
            ("mesh:in/m", "mesh", "in/m"),
            ("mesh/:/cairn/in", "mesh", "in"),
            ("mesh:/cairn", "mesh", ""),
            ("a:b:ab", "a:b", "ab"),
        ] {
            let found = at(value).expect(value);
            assert_eq!(found.source, scratch.join(source), "{value}");
            assert_eq!(found.path.to_string(), path, "{value}");
        }
        let list = |value: &str| parts(&value.replace('@', &scratch.display().to_string())).len();
        assert_eq!(["@/mesh,@/a:b:x", "@/c,d", "@/c,d:x"].map(list), [2, 1, 1]);
        for (value, part) in [
            ("mesh:/elsewhere/in", "relative to the prefix, write elsewhere/in"),
            ("mesh:../x", "not a path"),
            ("a:b", "does not exist"),
            ("none/deep/x", "nor does the directory above it"),
        ] {
            let error = at(value).expect_err(value);
            assert!(error.to_string().contains(part), "{error}");
            assert_eq!(error.exit_code(), 2, "{error}");
        }
        std::fs::remove_dir_all(scratch).expect("removes");
    }
}
