//! Sources of options, in order of precedence: command line, environment (`CAIRN_SECTION_KEY`),
//! `cairn.toml` in the current directory.
//!
//! Invariant: an unknown key is an error and is never ignored. An environment variable means the
//! same as the key. clap reads the command line and the environment; this file adds `cairn.toml`. A
//! settings file that `--settings` did not name is read only if nobody but this user or root can
//! have created or changed it, because the file decides where data go.

pub(crate) mod archive;
pub(crate) mod checkpoint_options;
pub(crate) mod drain_options;
pub(crate) mod input_options;
pub(crate) mod log_level;
pub(crate) mod one_or_more;
pub(crate) mod origin;
pub(crate) mod resume_option;
pub(crate) mod space;
pub(crate) mod stage_option;
pub(crate) mod variables;
pub(crate) mod walltime;
use cairn_agent::model::log::Level;
use cairn_posix::process::rank;
use serde::Deserialize;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::output::toml_file::{parse, unreadable};

use crate::error::{Error, Result, SettingError};
use crate::output;
use crate::settings::archive::ArchiveSettings;
use crate::settings::checkpoint_options::{CheckpointSettings, FileSettings};
use crate::settings::drain_options::DrainSettings;
use crate::settings::input_options::InputSettings;
use crate::settings::one_or_more::OneOrMore;
use crate::settings::space::SpaceSettings;
use crate::settings::stage_option::StageSetting;

/// Name of the settings file.
pub const FILE_NAME: &str = "cairn.toml";
/// Value of `--settings` that disables the settings file.
const NONE: &str = "none";

/// Content of the settings file.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Options of `cairn run`.
    pub run: RunSettings,
    /// Which files form checkpoints, and how often they are drained.
    pub checkpoint: CheckpointSettings,
    /// Where complete checkpoints are archived.
    pub archive: ArchiveSettings,
    /// Purpose of files: persistent, reusable or temporary.
    pub files: FileSettings,
    /// How files are drained.
    pub drain: DrainSettings,
    /// Inputs, and how they are staged in.
    pub stage: InputSettings,
    /// Where stores are kept.
    pub store: StoreSettings,
    /// What stays in a store, and how long a write waits for space.
    pub space: SpaceSettings,
    /// Path of the settings file, if one was read.
    #[serde(skip)]
    pub path: Option<PathBuf>,
}

/// The section `[run]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RunSettings {
    /// `--job`.
    pub job: Option<String>,
    /// `--mount`.
    pub mount: Option<String>,
    /// `--tier`, one or a list.
    pub tier: Option<OneOrMore>,
    /// `--meta-tier`.
    pub meta_tier: Option<String>,
    /// `--persist`.
    pub persist: Option<PathBuf>,
    /// `--map`, one or a list.
    pub map: Option<OneOrMore>,
    /// `--scope`.
    pub scope: Option<String>,
    /// `--stage`.
    pub stage: Option<StageSetting>,
    /// `--shared`.
    pub shared: Option<bool>,
    /// `--newest-only`.
    pub newest_only: Option<bool>,
    /// `--resume`.
    pub resume: Option<String>,
    /// `--discard`.
    pub discard: Option<bool>,
    /// `--report-calls`.
    pub report_calls: Option<bool>,
    /// `--mount-fuse`.
    pub mount_fuse: Option<bool>,
    /// `--tmpdir`.
    pub tmpdir: Option<bool>,
    /// `--force`.
    pub force: Option<bool>,
    /// `--huge-pages`.
    pub huge_pages: Option<String>,
    /// `--block-size`.
    pub block_size: Option<String>,
    /// `--durability`.
    pub durability: Option<String>,
    /// `--numa`.
    pub numa: Option<String>,
    /// `--promote`.
    pub promote: Option<bool>,
    /// `--metrics-file`.
    pub metrics_file: Option<PathBuf>,
    /// `--log-level`.
    pub log_level: Option<Level>,
}

/// The section `[store]`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StoreSettings {
    /// `--store-root`.
    pub root: Option<PathBuf>,
}

impl Settings {
    /// Reads the settings file `named`, else `cairn.toml` in `directory`. Returns the defaults if
    /// `named` is `none`, or if no file was named and `cairn.toml` does not exist. Errors: the file
    /// cannot be read, has an unknown key or a bad value, or somebody else may have written it.
    pub fn load(directory: &Path, named: Option<&Path>) -> Result<Settings> {
        let path = match named {
            Some(named) if named == Path::new(NONE) => return Ok(Settings::default()),
            Some(named) => named.to_path_buf(),
            None => directory.join(FILE_NAME),
        };
        // Another user may have put a pipe there that nobody writes to, so the open must not block.
        // A pipe that the user named is waited for.
        let flags = if named.is_none() { libc::O_NONBLOCK } else { 0 };
        let mut file = match File::options().read(true).custom_flags(flags).open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound && named.is_none() => {
                return Ok(Settings::default());
            }
            Err(error) => return Err(unreadable(&path, &error)),
        };
        if named.is_none() {
            let looked = file.metadata().and_then(|file| Ok((file, fs::metadata(directory)?)));
            let (found, directory) = looked.map_err(|error| unreadable(&path, &error))?;
            if let Some(why) = distrust(&found, &directory) {
                let ways =
                    format!("make it yours alone, or give --settings {NONE} or --settings FILE");
                let problem = format!("is not trusted, because {why}: {ways}");
                return Err(Error::Setting(SettingError::Configuration { path, problem }));
            }
        }
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(|error| unreadable(&path, &error))?;
        let settings: Settings = parse(&path, &text)?;
        Ok(Settings { path: Some(path), ..settings })
    }
}

impl Settings {
    /// Prints which settings file is in effect. Only the first rank of a node prints it.
    pub fn tell(&self) {
        let Some(path) = self.path.as_ref().and_then(|path| path.canonicalize().ok()) else {
            return;
        };
        if rank::seat().is_none_or(|seat| seat.local_rank == 0) {
            output::say!("cairn: settings of {}", output::escaped(path.as_os_str().as_bytes()));
        }
    }
}

/// Returns why a file in `directory` may hold another user's wishes; None if only this user and
/// root can have written it.
fn distrust(file: &Metadata, directory: &Metadata) -> Option<String> {
    const GROUP: u32 = 0o020;
    const OTHERS: u32 = 0o002;
    const STICKY: u32 = 0o1000;
    let user = rustix::process::geteuid().as_raw();
    let is_ours = |found: &Metadata| [user, 0].contains(&found.uid());
    // A group whose number equals the user's is private to that user on systems that give every
    // user a group.
    let is_shared = |found: &Metadata| {
        found.mode() & OTHERS != 0 || found.mode() & GROUP != 0 && found.gid() != user
    };
    if !is_ours(file) {
        return Some(format!("it belongs to user {}", file.uid()));
    }
    if is_shared(file) {
        return Some("others may write to it".to_string());
    }
    if !is_ours(directory) {
        return Some(format!("its directory belongs to user {}", directory.uid()));
    }
    let replaceable = is_shared(directory) && directory.mode() & STICKY == 0;
    replaceable.then(|| "others may write to its directory".to_string())
}

/// Returns the keys of the settings file that mean the same as `variable`. If several are set, the
/// first takes precedence.
pub fn keys_of(variable: &str) -> Vec<String> {
    let keys: &[&str] = match variable {
        "CAIRN_CHECKPOINT_PFS_EVERY" => &["checkpoint.levels.pfs"],
        "CAIRN_ARCHIVE_EVERY" => &["archive.every", "checkpoint.levels.archive"],
        _ => {
            let name = variable.strip_prefix("CAIRN_").unwrap_or(variable);
            return vec![name.to_lowercase().replacen('_', ".", 1)];
        }
    };
    keys.iter().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CommandLine;
    use clap::CommandFactory;
    use std::collections::BTreeSet;

    fn load(text: &str) -> Result<Settings> {
        use std::sync::atomic::{AtomicU32, Ordering};
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let directory =
            std::env::temp_dir().join(format!("cairn-settings-{}-{count}", std::process::id()));
        fs::create_dir_all(&directory).expect("a scratch directory");
        fs::write(directory.join(FILE_NAME), text).expect("writes");
        let settings = Settings::load(&directory, None);
        fs::remove_dir_all(directory).expect("removes");
        settings
    }

    /// Returns the keys in a section of the settings file, with full paths, subsections included.
    fn keys_in(section: &str) -> Option<BTreeSet<String>> {
        let text = match section {
            "" => "nothing = 1".to_string(),
            section => format!("[{section}]\nnothing = 1"),
        };
        let refused = toml::from_str::<Settings>(&text).expect_err("no key has that name");
        let (_, names) = refused.message().split_once("unknown field `nothing`, expected ")?;
        let names = names.split('`').skip(1).step_by(2);
        let keys = names.flat_map(|name| match section {
            "" => keys_in(name).unwrap_or_default(),
            section => {
                let key = format!("{section}.{name}");
                keys_in(&key).unwrap_or_else(|| BTreeSet::from([key]))
            }
        });
        Some(keys.collect())
    }

    fn in_table(names: impl IntoIterator<Item = String>) -> String {
        let names: Vec<String> = names.into_iter().map(|name| format!("`{name}`")).collect();
        if names.is_empty() { "—".to_string() } else { names.join(", ") }
    }

    /// Returns the table line of an option, up to the column with its meaning.
    fn line_of(option: &clap::Arg, keys: &BTreeSet<String>) -> String {
        let help = option.get_long_help().or(option.get_help()).expect("it has").to_string();
        let default = help.split_once("[default: ").and_then(|(_, rest)| rest.split_once(']'));
        let names = option.get_value_names().map(|names| names[0].as_str());
        let is_switch = !option.get_action().takes_values() || names == Some("YES|NO");
        let default = default.map(|(default, _)| default);
        let default = default.unwrap_or(if is_switch { "no" } else { "—" });
        let variable = option.get_env().map(|name| name.to_str().expect("UTF-8").to_string());
        let wanted = variable.iter().flat_map(|variable| keys_of(variable));
        // One option may be a table in the settings file.
        let own = wanted.flat_map(|wanted| {
            let is_in = move |key: &&String| {
                key.strip_prefix(&wanted)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            };
            keys.iter().filter(is_in).cloned()
        });
        let long = option.get_long().expect("it has");
        let (variable, keys) = (in_table(variable.clone()), in_table(own));
        format!("| `--{long}` | {variable} | {keys} | {default} | ")
    }

    /// Fails if `docs/SETTINGS.md` lacks an entry, has an extra one, or contradicts the code.
    #[test]
    fn page_of_settings_has_each_option_variable_and_key() {
        let page = include_str!("../../../docs/SETTINGS.md");
        let (_, table) = page.split_once("|---|---|---|---|---|\n").expect("there is a table");
        let lines: Vec<&str> = table.lines().take_while(|line| !line.is_empty()).collect();
        let command = CommandLine::command();
        let run = command.find_subcommand("run").expect("it is there");
        let options = run.get_arguments().chain(command.get_arguments());
        let options = options.filter(|option| option.get_long().is_some() && !option.is_hide_set());
        let keys = keys_in("").expect("there are sections");
        let mut known: Vec<String> = options.map(|option| line_of(option, &keys)).collect();
        let with_options = known.concat();
        let alone = keys.iter().filter(|key| !with_options.contains(&format!("`{key}`")));
        known.extend(alone.map(|key| format!("| — | — | `{key}` | 1 | ")));
        for known in &known {
            let is_it =
                |line: &&&str| line.strip_prefix(known.as_str()).is_some_and(|rest| rest.len() > 9);
            assert_eq!(lines.iter().filter(is_it).count(), 1, "docs/SETTINGS.md: {known}");
        }
        assert_eq!(lines.len(), known.len(), "docs/SETTINGS.md has more");
        assert!(known.len() > 40, "{known:?}");
    }

    #[test]
    fn known_keys_are_read() {
        let settings = load(
            "[run]\ntier = \"ram:1G\"\nmeta_tier = \"ram\"\ndiscard = true\n[store]\nroot = \"/x\"\n",
        );
        let settings = settings.expect("loads");
        assert_eq!(settings.run.tier.expect("is there").into_vec(), ["ram:1G"]);
        assert_eq!(settings.run.meta_tier.as_deref(), Some("ram"));
        assert_eq!(settings.run.discard, Some(true));
        assert_eq!(settings.store.root, Some(PathBuf::from("/x")));
    }

    #[test]
    fn an_unknown_key_is_an_error_with_its_line() {
        let error = load("[run]\n\ntiers = \"ram:1G\"\n").expect_err("is refused").to_string();
        assert!(error.contains("line 3") && error.contains("tiers"), "{error}");
    }
}
