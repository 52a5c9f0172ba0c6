//! Last lines of `cairn run`: which files are safe, where they are, and which command to type next.

use cairn_agent::model::archive::ArchiveStatus;
use cairn_agent::model::job::{Job, TierSpec};
use cairn_agent::model::protocol::Failed;
use cairn_agent::model::ranks::Launch;
use cairn_agent::persist::displaced;
use cairn_job::checkpoint::sets::lag::Behind;
use cairn_job::outside::manifest::manifest_name;
use cairn_nvme::shared::RemotePath;
use serde::Serialize;
use serde_json::{Value, json};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crate::drain::drain_state::DrainProgress;
use crate::drain::{DrainReport, as_they_are, lag, last_whole, not_complete};
use crate::output::{count, escaped, quoted, ranks, still_use};
use crate::report::calls::CallReport;
use crate::run::real_prefix::Strayed;
use crate::run::{signals, unserved};
use crate::settings::archive;
use crate::size::human;
use crate::store::{Roots, tier};

/// Maximum number of files that a message names.
const NAMES_MAX: usize = 3;

/// How safe the files of a job are after its command has ended.
pub enum Safety {
    /// The user asked to discard them.
    Discarded,
    /// The store holds nothing to drain.
    Empty,
    /// They are only in the store: the job has no persist directory.
    StoreOnly(DrainReport),
    /// The drain ran; the report says what it left.
    Drained(DrainReport),
    /// The drain could not run.
    Failed {
        /// Reason of the failure.
        reason: String,
    },
    /// The wait for the drain was stopped.
    Interrupted {
        /// Progress of the drain.
        standing: DrainProgress,
        /// Whether the agent reported afterwards that everything is drained.
        is_delivered: bool,
    },
    /// The user asked not to wait for the drain.
    Postponed {
        /// Whether the drain continues in the background.
        goes_on: bool,
        /// Progress of the drain.
        standing: DrainProgress,
    },
}

impl Safety {
    /// Returns the state after a drain that ran.
    pub fn of(job: &Job, report: DrainReport) -> Safety {
        match (&job.persist, report.files) {
            // Zero files is not enough: links and directories must be drained too, and removed
            // files must be gone outside.
            (None, 0) if report.outcome.unclean.is_empty() => Safety::Empty,
            (_, 0) if report.outcome.unclean.is_empty() && report.outcome.complete => Safety::Empty,
            (None, _) => Safety::StoreOnly(report),
            (Some(_), _) => Safety::Drained(report),
        }
    }

    /// Returns the state after the wait for the drain was stopped.
    pub fn interrupted(standing: DrainProgress, is_delivered: bool) -> Safety {
        match standing.is_empty() && is_delivered {
            true => Safety::Empty,
            false => Safety::Interrupted { standing, is_delivered },
        }
    }

    /// Returns the state of a store whose drain nobody waits for.
    pub fn postponed(goes_on: bool, standing: DrainProgress) -> Safety {
        match standing.is_empty() {
            true => Safety::Empty,
            false => Safety::Postponed { goes_on, standing },
        }
    }

    /// Whether every file that must be drained is verified in the persist directory.
    pub fn is_complete(&self) -> bool {
        match self {
            Safety::Discarded | Safety::Empty => true,
            Safety::Drained(DrainReport { outcome, .. }) => {
                outcome.complete && outcome.open.is_empty()
            }
            // The drain was complete before anybody could report it.
            Safety::Interrupted { is_delivered, .. } => *is_delivered,
            Safety::StoreOnly(_) | Safety::Failed { .. } | Safety::Postponed { .. } => false,
        }
    }

    /// Whether there are files that a killed program did not close, or checkpoints that it may not
    /// have finished.
    pub fn is_unsettled(&self) -> bool {
        match self {
            Safety::Drained(DrainReport { outcome, .. }) => {
                !(outcome.unclean.is_empty() && outcome.unfinished.is_empty())
            }
            _ => false,
        }
    }

    /// Whether removing the store would lose nothing.
    pub fn needs_no_store(&self) -> bool {
        match self {
            // Nobody has checked what else the store holds.
            Safety::Interrupted { .. } => false,
            other => other.is_complete(),
        }
    }

    fn word(&self) -> &'static str {
        match self {
            Safety::Discarded => "discarded",
            Safety::Empty => "empty",
            Safety::StoreOnly(_) => "store-only",
            Safety::Drained(_) if self.is_complete() => "drained",
            Safety::Drained(_) => "incomplete",
            Safety::Failed { .. } => "failed",
            Safety::Interrupted { .. } => "interrupted",
            Safety::Postponed { goes_on: true, .. } => "background",
            Safety::Postponed { goes_on: false, .. } => "undrained",
        }
    }
}

/// The end of a run.
pub struct Ending<'a> {
    /// Directories that may hold stores.
    pub roots: &'a Roots,
    /// The job.
    pub job: Job,
    /// Directory of its store.
    pub store: PathBuf,
    /// The command and its arguments.
    pub command: Vec<String>,
    /// Exit code of the command.
    pub code: i32,
    /// Signal that killed the command, if one did.
    pub signal: Option<i32>,
    /// How safe its files are.
    pub safety: Safety,
    /// State of the archive of its checkpoints, if it has one.
    pub archive: Option<ArchiveStatus>,
    /// The last MPI program that was started in it, if any.
    pub launch: Option<Launch>,
    /// Programs that Cairn could not serve.
    pub unserved: Vec<String>,
    /// Programs that inherited files or a directory of the store and could not use them.
    pub unreached: Vec<String>,
    /// A library whose raw system calls could not be caught.
    pub uncaught: Option<String>,
    /// What programs left at the mount prefix in the real file system.
    pub strayed: Option<Strayed>,
    /// Families with checkpoints that were removed before the drain had copied them.
    pub behind: Vec<Behind>,
    /// Files whose data could not be brought in from the place they were drained to.
    pub not_brought: Vec<Failed>,
    /// Processes that the command left behind and that still use the store.
    pub remaining_processes: Vec<u32>,
    /// Where the store is still mounted, because programs use it there.
    pub used_mounts: Vec<PathBuf>,
    /// Executable of an earlier failed run that this run does not complete.
    pub pending: Option<String>,
    /// Whether the store was removed.
    pub removed: bool,
    /// Whether to print the commands that apply to a store that is kept.
    pub offers: bool,
    /// Counted calls, if the run counted them.
    pub calls: Option<CallReport>,
}

impl Ending<'_> {
    /// Returns the end of the run as lines for a person.
    pub fn lines(&self) -> Vec<String> {
        let job = &self.job.job;
        let mut lines = Vec::new();
        if self.code != 0 {
            let command = self.command.first().map(String::as_str).unwrap_or_default();
            lines.push(match self.signal {
                Some(signal) => {
                    format!("{job}: {command} was killed by signal {}", signals::shown(signal))
                }
                None => format!("{job}: {command} ended with exit code {}", self.code),
            });
        }
        let calls = self.calls.iter().flat_map(CallReport::lines);
        lines.extend(calls.map(|line| format!("{job}: {line}")));
        let unserved = unserved::line(&self.unserved);
        let unreached = unserved::line_of_unreached(&self.unreached);
        let uncaught = self.uncaught.as_deref().map(unserved::line_of_uncaught);
        let all = unserved.into_iter().chain(unreached).chain(uncaught);
        lines.extend(all.map(|line| format!("{job}: {line}")));
        lines.extend(self.strayed.iter().map(|strayed| format!("{job}: {}", strayed.line())));
        let told = |launch| ranks::deaths(launch).into_iter().chain(ranks::troubles(launch));
        let of_ranks = self.launch.iter().flat_map(told);
        lines.extend(of_ranks.map(|line| format!("{job}: {line}")));
        let more = self.not_brought.len().saturating_sub(NAMES_MAX);
        for Failed { path, reason, .. } in self.not_brought.iter().take(NAMES_MAX) {
            lines.push(format!("{job}: not brought in: {path}: {reason}"));
        }
        if more > 0 {
            lines.push(format!("{job}: not brought in: another {}", count(more as u64, "file")));
        }
        lines.extend(self.safety_lines().into_iter().map(|line| format!("{job}: {line}")));
        let before = self.job.persist.iter().flat_map(|persist| displaced::places(persist, job));
        lines.extend(before.map(|place| {
            let place = escaped(place.as_os_str().as_bytes());
            format!(
                "{job}: earlier files with the same names as the job's files are now in {place}"
            )
        }));
        let behind = self.behind.iter().map(|one| escaped(lag::line(one).as_bytes()));
        lines.extend(behind.map(|line| format!("{job}: {line}")));
        if let Some(pending) = &self.pending {
            lines.push(format!(
                "{job}: an earlier run of {pending} failed and has not been resumed to its end, so the store is kept"
            ));
        }
        if !self.remaining_processes.is_empty() {
            let users = still_use(&self.remaining_processes);
            lines.push(format!("{job}: {users} the store, so it is kept"));
        }
        lines.extend(self.used_mounts.iter().map(|place| {
            let place = escaped(place.as_os_str().as_bytes());
            format!(
                "{job}: programs use the store at {place}, where it is mounted, so it is kept; when they have ended: cairn unmount {place}"
            )
        }));
        let archived = self.archive.iter().flat_map(archive::lines);
        lines.extend(archived.map(|line| format!("{job}: {line}")));
        if self.removed {
            if let Some(last) = lines.last_mut() {
                last.push_str("; store removed");
            }
            return lines;
        }
        if !self.offers {
            return lines;
        }
        lines.push(format!("{job}: the store is kept in {}", self.store.display()));
        for (purpose, command) in self.next_commands() {
            lines.push(format!("{job}:   {purpose:<8} {command}"));
        }
        lines
    }

    /// Returns where undrained files are. If the metadata are in memory, they share its loss.
    fn place(&self) -> String {
        const MEMORY: &str = "the memory of this node";
        if self.job.media().is_none() {
            return MEMORY.to_string();
        }
        let shown = |tier: &TierSpec| {
            tier.path.as_ref().map_or(MEMORY.to_string(), |path| RemotePath::shown(path))
        };
        self.job.tiers.iter().map(shown).collect::<Vec<_>>().join(" and ")
    }

    fn safety_lines(&self) -> Vec<String> {
        let persist = self.job.persist.as_ref().map(|path| path.display().to_string());
        let persist = persist.unwrap_or_default();
        match &self.safety {
            Safety::Discarded => vec!["nothing was kept (--discard)".to_string()],
            Safety::Empty => vec!["no files".to_string()],
            Safety::StoreOnly(report) => {
                let files = count(report.files, "file");
                let bytes = human(report.bytes);
                let place = self.place();
                let mut lines = vec![format!(
                    "{files}, {bytes}, only in {place}: nothing was drained, there is no --persist"
                )];
                lines.extend(left_over(report));
                lines
            }
            Safety::Drained(report) => {
                let outcome = &report.outcome;
                let files = count(outcome.drained_files, "file");
                let bytes = human(outcome.drained_bytes);
                let manifest = manifest_name(&self.job.job);
                let mut lines = vec![format!(
                    "{files}, {bytes}, drained to {persist} and verified ({manifest})"
                )];
                lines.extend(left_over(report));
                lines
            }
            Safety::Failed { reason } => vec![format!("the drain to {persist} failed: {reason}")],
            Safety::Interrupted { standing, .. } | Safety::Postponed { standing, .. } => {
                let mut lines = standing.lines(&persist, &self.place());
                let is_over = matches!(&self.safety, Safety::Postponed { goes_on: false, .. });
                if standing.undrained_files == 0 && !self.safety.is_complete() {
                    lines.push(format!("links, directories or removals are not in {persist} yet"));
                }
                if !is_over && !self.safety.is_complete() {
                    let command = self.follow_command();
                    lines
                        .push(format!("the drain goes on in the background; follow it: {command}"));
                }
                lines
            }
        }
    }

    fn follow_command(&self) -> String {
        format!("cairn {}status --wait {}", self.roots.option(), self.job.job)
    }

    /// Returns commands for a store that is kept, each with its purpose.
    fn next_commands(&self) -> Vec<(&'static str, String)> {
        let job = &self.job.job;
        let root = self.roots.option();
        let command: Vec<String> = self.command.iter().map(|word| quoted(word)).collect();
        let command = command.join(" ");
        let is_archived = self.archive.as_ref().is_none_or(ArchiveStatus::is_complete);
        let has_place = self.job.persist.is_some() || !is_archived;
        let persist = if has_place { "" } else { " --persist DIR" };
        vec![
            ("resume", format!("cairn {root}run --job {job}{} -- {command}", self.tier_options())),
            ("drain", format!("cairn {root}drain {job}{persist}")),
            ("discard", format!("cairn {root}rm {job} --discard")),
        ]
    }

    /// Returns the options with which a run finds the store's files again after the node lost its
    /// memory.
    fn tier_options(&self) -> String {
        if self.job.media().is_none() {
            return String::new();
        }
        let option = |name: &'static str| {
            move |spec: &TierSpec| format!(" {name} {}", quoted(&tier::shown(spec)))
        };
        let meta = self.job.meta.iter().map(option("--meta-tier"));
        meta.chain(self.job.tiers.iter().map(option("--tier"))).collect()
    }

    /// Returns the end of the run as one line of JSON.
    pub fn json(&self) -> String {
        #[derive(Serialize)]
        struct Report<'a> {
            job: &'a str,
            exit_code: i32,
            safety: &'a str,
            persist: Option<&'a PathBuf>,
            store: Option<&'a PathBuf>,
            drain: Option<&'a DrainReport>,
            #[serde(skip_serializing_if = "Option::is_none")]
            standing: Option<&'a DrainProgress>,
            reason: Option<&'a str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            archive: Option<&'a ArchiveStatus>,
            #[serde(skip_serializing_if = "Option::is_none")]
            calls: Option<&'a CallReport>,
            launch: Option<&'a Launch>,
            #[serde(skip_serializing_if = "<[String]>::is_empty")]
            unserved: &'a [String],
            #[serde(skip_serializing_if = "<[String]>::is_empty")]
            unreached: &'a [String],
            #[serde(skip_serializing_if = "Option::is_none")]
            uncaught: Option<&'a str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            strayed_names: Option<u64>,
            #[serde(skip_serializing_if = "<[Behind]>::is_empty")]
            behind: &'a [Behind],
            #[serde(skip_serializing_if = "<[Failed]>::is_empty")]
            not_brought: &'a [Failed],
            #[serde(rename = "inhabitants", skip_serializing_if = "<[u32]>::is_empty")]
            remaining_processes: &'a [u32],
            #[serde(skip_serializing_if = "<[PathBuf]>::is_empty")]
            used_mounts: &'a [PathBuf],
            #[serde(skip_serializing_if = "Option::is_none")]
            pending: Option<&'a String>,
            commands: Value,
        }
        let commands = match self.removed {
            true => json!({}),
            false => self
                .next_commands()
                .into_iter()
                .map(|(purpose, command)| (purpose, json!(command)))
                .collect(),
        };
        let (drain, reason) = match &self.safety {
            Safety::StoreOnly(report) | Safety::Drained(report) => (Some(report), None),
            Safety::Failed { reason } => (None, Some(reason.as_str())),
            _ => (None, None),
        };
        let standing = match &self.safety {
            Safety::Interrupted { standing, .. } | Safety::Postponed { standing, .. } => {
                Some(standing)
            }
            _ => None,
        };
        let report = Report {
            job: &self.job.job,
            exit_code: self.code,
            safety: self.safety.word(),
            persist: self.job.persist.as_ref(),
            store: Some(&self.store).filter(|_| !self.removed),
            drain,
            standing,
            reason,
            archive: self.archive.as_ref(),
            calls: self.calls.as_ref(),
            launch: self.launch.as_ref(),
            unserved: &self.unserved,
            unreached: &self.unreached,
            uncaught: self.uncaught.as_deref(),
            strayed_names: self.strayed.as_ref().map(|strayed| strayed.names),
            behind: &self.behind,
            not_brought: &self.not_brought,
            remaining_processes: &self.remaining_processes,
            used_mounts: &self.used_mounts,
            pending: self.pending.as_ref(),
            commands,
        };
        serde_json::to_string(&report).expect("the report holds nothing JSON cannot say")
    }
}

/// Returns a line for each kind of file that is not safe, with some names.
fn left_over(report: &DrainReport) -> Vec<String> {
    let outcome = &report.outcome;
    let named = |paths: &[cairn_job::file::path::FilePath]| -> String {
        let names: Vec<String> = paths.iter().take(NAMES_MAX).map(ToString::to_string).collect();
        let more = if paths.len() > NAMES_MAX { ", ..." } else { "" };
        format!("{}{more}", names.join(", "))
    };
    let mut lines = Vec::new();
    if report.persist.is_none() && !outcome.unclean.is_empty() {
        let files = count(outcome.unclean.len() as u64, "file");
        let names = named(&outcome.unclean);
        lines.push(format!("{files} unclean: the writer died or a write failed: {names}"));
    }
    lines.extend(report.persist.as_ref().and_then(|_| as_they_are(outcome)));
    lines.extend(last_whole(report));
    if !outcome.open.is_empty() {
        let files = count(outcome.open.len() as u64, "file");
        lines.push(format!("{files} still open, may change: {}", named(&outcome.open)));
    }
    let unfinished = outcome.unfinished.iter().take(NAMES_MAX);
    lines.extend(unfinished.map(not_complete));
    if outcome.unfinished.len() > NAMES_MAX {
        let more = (outcome.unfinished.len() - NAMES_MAX) as u64;
        lines.push(format!("not complete: {}", count(more, "more checkpoint")));
    }
    if outcome.kept_files > 0 {
        let files = count(outcome.kept_files, "file");
        lines.push(format!("{files} not drained, as requested"));
    }
    if outcome.without_attributes > 0 {
        let files = count(outcome.without_attributes, "file");
        lines.push(format!(
            "{files} drained without all extended attributes: the file system there does not support them"
        ));
    }
    if outcome.without_modes {
        let line = "drained without all permission bits: the file system there refuses chmod";
        lines.push(line.to_string());
    }
    for failed in outcome.failed.iter().take(NAMES_MAX) {
        lines.push(format!("not drained: {}: {}", failed.path, failed.reason));
    }
    if outcome.failed.len() > NAMES_MAX {
        let more = outcome.failed.len() - NAMES_MAX;
        lines.push(format!("not drained: {}", count(more as u64, "more file")));
    }
    lines
}
