//! The archive thread: sends complete checkpoints to the object store, newest first, and retries
//! until they are there.
//!
//! Must stay true: all knowledge of the archive comes from the archive, so a killed agent is
//! replaced without loss. Trouble with the server is retried with a growing delay. Trouble with one
//! checkpoint does not delay the others.

use crate::agent::shared::Shared;
use crate::archive::begun::Notes;
use crate::archive::client::{Client, Pause};
use crate::archive::manifest::{MARK, Manifest};
use crate::archive::upload::Uploader;
use crate::archive::{Owed, fetch, select};
use crate::drain::failures::Backoff;
use crate::model::archive::{ArchivePolicy, ArchiveStatus, Phase};
use crate::model::error::{Error, Refusal, Result};
use crate::model::job::{JOB_FILE, Job};
use crate::model::log::{self, Level};
use crate::model::policy::Priority;
use crate::model::priority;
use crate::model::store_file::{Version, version};
use crate::store::read::Buffer;
use crate::store::register_file::{self, REGISTER_FILE};
use cairn_job::checkpoint::sets::register::{Checkpoint, Register};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// Interval between looks for work, and the interval while the job has no archive.
const LOOK_EVERY: Duration = Duration::from_millis(250);
const LOOK_UNWANTED: Duration = Duration::from_secs(1);

/// Archives until the agent ends.
pub fn run(shared: &Shared) {
    let mut keeper = Keeper::default();
    let pause = |time| {
        shared.sleep(time);
        !shared.is_stopping()
    };
    while !shared.is_stopping() {
        keeper.turn(shared, &pause);
    }
}

/// State between rounds.
#[derive(Default)]
struct Keeper<'a> {
    seen: Seen,
    policy: Option<ArchivePolicy>,
    client: Option<Client<'a>>,
    /// Manifests of the job in the archive; None before they were read.
    archived: Option<Vec<Manifest>>,
    /// Offset that is added to checkpoint ids in the archive: an agent that lost the register
    /// starts to count anew.
    raised: u64,
    /// Whether abandoned uploads were aborted.
    has_swept: bool,
    /// Whether the newest checkpoints are to be archived and it is not known yet which they are.
    wants_newest: bool,
    /// Checkpoints to be archived whatever the policy says.
    wanted: BTreeSet<u64>,
    /// Checkpoints that could not be archived.
    failed: BTreeMap<u64, Failure>,
    backoff: Option<Backoff>,
    complaint: Option<String>,
    buffer: Buffer,
}

/// Inputs of the last round; a round is due when they change.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Seen {
    job: Option<Version>,
    register: Option<Version>,
    /// Whether no run has the store and the register has all complete checkpoints. The newest of
    /// them is archived then: the agent that was told so at the end of the run may have died before
    /// it did it.
    is_over: bool,
}

/// Failure of archiving a checkpoint.
struct Failure {
    reason: String,
    /// Whether the next round tries again by itself; otherwise only a request does.
    passes: bool,
}

impl<'a> Keeper<'a> {
    /// Waits for a request or the poll interval, then does the work that is due.
    fn turn(&mut self, shared: &Shared, pause: &'a Pause<'a>) {
        let state = shared.archive.state();
        let idle = state.requested == state.finished;
        let look_every = if state.policy.is_some() { LOOK_EVERY } else { LOOK_UNWANTED };
        let mut state = if idle { shared.archive.wait(state, look_every) } else { state };
        let ticket = (state.requested > state.finished).then_some(state.requested);
        let newest = std::mem::take(&mut state.newest);
        drop(state);
        let directory = shared.directory();
        // The order matters: a run reports its end before it ends, and `settled` is set after the
        // register is written.
        let seen = Seen {
            is_over: !shared.is_running() && shared.state().settled,
            job: version(&directory.join(JOB_FILE)),
            register: version(&directory.join(REGISTER_FILE)),
        };
        let is_due = match &self.backoff {
            Some(backoff) => backoff.next() <= Instant::now(),
            None => seen != self.seen,
        };
        if ticket.is_none() && (!is_due || shared.is_off_duty()) {
            return;
        }
        if seen.job != self.seen.job {
            // Another store of the job may have archived something since the last run of this store
            // ended.
            self.archived = None;
        }
        self.seen = seen;
        if ticket.is_some() {
            self.failed.clear();
        }
        let result = self.round(shared, pause, newest);
        self.conclude(shared, result, ticket);
    }

    /// Sends missing checkpoints until none is left.
    fn round(&mut self, shared: &Shared, pause: &'a Pause<'a>, newest: bool) -> Result<()> {
        let job = Job::load(shared.directory())?;
        if job.archive != self.policy {
            *self = Keeper { seen: self.seen, ..Keeper::default() };
            self.policy = job.archive.clone();
            shared.archive.go_by(&job.archive);
        }
        let Some(policy) = self.policy.clone() else { return Ok(()) };
        shared.archive.state().is_busy = true;
        self.note(shared, &policy, Phase::Uploading, 1);
        let known = register_file::load(shared.directory())?;
        self.wants_newest |= newest || self.seen.is_over;
        if self.client.is_none() {
            self.client = Some(Client::new(&policy, pause).map_err(of_agent)?);
        }
        if let (None, Some(client)) = (&self.archived, &self.client) {
            let archived = fetch::manifests(client, &job.job)?.0;
            let ours = archived.iter().filter(|there| there.store == job.store);
            let taken = ours.map(|there| there.id).max().unwrap_or(0);
            self.raised = if taken < known.next_id() { 0 } else { taken };
            self.archived = Some(archived);
        }
        if std::mem::take(&mut self.wants_newest) {
            let archived = self.archived.as_deref().unwrap_or_default();
            self.wanted.extend(select::newest(known.checkpoints(), &job.store, archived));
        }
        self.failed.retain(|_, failure| !failure.passes);
        let mut trouble = None;
        loop {
            // More checkpoints may have become complete meanwhile.
            let known = register_file::load(shared.directory())?;
            self.failed.retain(|id, _| known.checkpoints().iter().any(|one| one.id == *id));
            let missing = self.missing(&known, &job.store);
            let newest_seen = known.checkpoints().iter().map(|one| one.id).max().unwrap_or(0);
            let missing_ids = missing.iter().map(|one| one.id).collect();
            let refused = self.failed.iter().filter(|(_, failure)| !failure.passes);
            let refused = refused.map(|(id, _)| *id).collect();
            let owed = Owed { newest_seen, missing: missing_ids, refused };
            let before = shared.archive.state().owed.replace(owed.clone());
            if before != Some(owed) {
                shared.look_again();
            }
            let is_left = |one: &&Checkpoint| !self.failed.contains_key(&one.id);
            let left = missing.iter().filter(is_left).count() as u64;
            self.note(shared, &policy, Phase::Uploading, left);
            match missing.iter().find(is_left) {
                Some(next) => trouble = self.send(shared, &job, next)?.or(trouble),
                None => break,
            }
        }
        if trouble.is_none() {
            self.sweep(shared, &job);
        }
        trouble.map_or(Ok(()), Err)
    }

    /// Aborts unfinished uploads of dead agents, when nothing is left to send.
    fn sweep(&mut self, shared: &Shared, job: &Job) {
        let Some(client) = self.client.as_ref().filter(|_| !self.has_swept) else { return };
        let root = client.location().key(&job.job, "");
        // Not every server can list uploads, and not every user may. There the bucket's lifecycle
        // rules remove them.
        let _ = client.abort_unfinished(&root, |key| is_ours(client, &root, key));
        Notes::of(shared.directory()).clear();
        self.has_swept = true;
    }

    fn missing(&self, known: &Register, store: &str) -> Vec<Checkpoint> {
        let Some(policy) = &self.policy else { return Vec::new() };
        let archived = self.archived.as_deref().unwrap_or_default();
        let is_wanted = |id| self.wanted.contains(&id);
        let missing =
            select::missing(known.checkpoints(), store, archived, policy.every, &is_wanted);
        missing.into_iter().cloned().collect()
    }

    /// Sends one checkpoint. Returns the error if this machine is in trouble for now. Errors: those
    /// of the server; `Stopped`.
    fn send(&mut self, shared: &Shared, job: &Job, next: &Checkpoint) -> Result<Option<Error>> {
        let (Some(client), Some(archived)) = (&self.client, &mut self.archived) else {
            return Ok(None);
        };
        let (volumes, _) = shared.volumes();
        let note = |sent: u64, total: u64| {
            if let Some(status) = &mut shared.archive.state().status {
                status.sent_bytes += sent;
                status.sending_bytes = total;
            }
            !shared.is_stopping()
        };
        let progress = |sent| note(sent, next.bytes());
        let (buffer, meter) = (&mut self.buffer, &shared.meter);
        let (volumes, progress) = (&volumes, &progress);
        let begun = &Notes::of(shared.directory());
        let uploader = Uploader { client, job, volumes, archived, begun, buffer, meter, progress };
        let numbered = Checkpoint { id: next.id + self.raised, ..next.clone() };
        match send_apart(uploader, &numbered) {
            Ok(()) => Ok(None),
            Err(error) => match concern(&error) {
                Concern::Server => Err(error),
                about => {
                    let passes = about == Concern::Machine;
                    let reason = format!("{}: {error}", next.name);
                    self.failed.insert(next.id, Failure { reason, passes });
                    Ok(passes.then_some(error))
                }
            },
        }
    }

    /// Returns the reasons of failures that are not retried without a request.
    fn refused(&self) -> Vec<String> {
        let refused = self.failed.values().filter(|failure| !failure.passes);
        refused.map(|failure| failure.reason.clone()).collect()
    }

    /// Updates the status.
    fn note(&self, shared: &Shared, policy: &ArchivePolicy, phase: Phase, pending: u64) {
        let store = Job::load(shared.directory()).map(|job| job.store).unwrap_or_default();
        let ours = || self.archived.iter().flatten().filter(|there| there.store == store);
        shared.archive.state().status = Some(ArchiveStatus {
            url: policy.url.clone(),
            phase,
            checkpoints: ours().count() as u64,
            bytes: ours().map(Manifest::bytes).sum(),
            pending,
            failed: self.refused(),
            ..ArchiveStatus::default()
        });
    }

    fn conclude(&mut self, shared: &Shared, result: Result<()>, ticket: Option<u64>) {
        if matches!(result, Err(Error::Stopped)) {
            return;
        }
        let trouble = result.err().map(|error| error.to_string());
        match (&trouble, &mut self.backoff) {
            (None, backoff) => *backoff = None,
            (Some(_), Some(backoff)) => backoff.grow(),
            (Some(_), backoff) => *backoff = Some(Backoff::new()),
        }
        if trouble.is_some() {
            // Whoever repairs the server may have changed the credentials and the objects there.
            (self.client, self.archived) = (None, None);
            self.has_swept = false;
        }
        let mut state = shared.archive.state();
        match (&mut state.status, &self.policy) {
            (Some(status), Some(_)) => {
                status.phase = if trouble.is_some() { Phase::Retrying } else { Phase::Idle };
                status.reason.clone_from(&trouble);
                status.failed = self.refused();
            }
            (status, _) => *status = None,
        }
        state.retry_at = self.backoff.map(|backoff| backoff.next());
        state.is_busy = self.backoff.is_some();
        state.finished = state.finished.max(ticket.unwrap_or(0));
        drop(state);
        shared.archive.notify();
        if let Some(text) = trouble.as_ref().filter(|text| self.complaint.as_ref() != Some(text)) {
            log::say(Level::Warn, format_args!("cannot archive: {text}"));
        }
        self.complaint = trouble;
    }
}

/// Whether an object below `root` belongs to the job of this archive, and not to a job whose
/// archive lies further below.
fn is_ours(client: &Client<'_>, root: &str, key: &str) -> Result<bool> {
    let ends = key.match_indices('/').map(|(end, _)| end).filter(|end| *end >= root.len());
    for end in ends {
        if client.look(&format!("{}/{MARK}", &key[..end]))?.is_some() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Sends a checkpoint in a thread of its own: a thread whose priority was lowered to idle cannot
/// raise it again.
fn send_apart(mut uploader: Uploader<'_>, next: &Checkpoint) -> Result<()> {
    let is_idle = uploader.meter.pace.policy().priority == Priority::Idle;
    let send = || {
        if is_idle {
            priority::lower_this_thread();
        }
        uploader.send(next)
    };
    thread::scope(|scope| {
        let spawned = thread::Builder::new().name("send".to_string()).spawn_scoped(scope, send);
        let sender = spawned.map_err(Error::file("start a thread in", Path::new("the agent")))?;
        sender.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Origin of a failure.
#[derive(Debug, PartialEq, Eq)]
enum Concern {
    /// The server, or this agent, which is ending.
    Server,
    /// The checkpoint, as long as its files stay unchanged.
    Checkpoint,
    /// This machine, temporarily.
    Machine,
}

fn concern(error: &Error) -> Concern {
    match error {
        Error::Object { refusal: Refusal::OfObject, .. }
        | Error::Changed { .. }
        | Error::Damaged { .. } => Concern::Checkpoint,
        Error::Object { .. } | Error::Stopped => Concern::Server,
        _ => Concern::Machine,
    }
}

/// Adds this process to an error about missing credentials.
fn of_agent(error: Error) -> Error {
    match error {
        Error::NoCredentials { profile } => {
            Error::AgentWithoutCredentials { pid: std::process::id(), profile }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_job::file::path::FilePath;

    /// Mechanism: every failure of a checkpoint, except those reported by the server, was blamed on
    /// the checkpoint. Consequence: when a thread could not be started, or a tier not be read for a
    /// moment, the checkpoint was not retried, and `--retain` dropped it. Fix: trouble of the
    /// machine is retried.
    #[test]
    fn trouble_of_this_machine_passes_and_that_of_a_checkpoint_does_not() {
        let path = FilePath::parse(b"state.1").expect("a path");
        let object = |refusal| {
            let (object, problem) = ("s3://b/x".to_string(), "it is so".to_string());
            Error::Object { action: "write", object, problem, refusal }
        };
        let no_thread = std::io::Error::from_raw_os_error(libc::EAGAIN);
        let unreadable = cairn_core::Error::NotFound;
        for (error, expected) in [
            (Error::file("start a thread in", Path::new("the agent"))(no_thread), Concern::Machine),
            (Error::store("read", &path)(unreadable), Concern::Machine),
            (Error::Changed { path }, Concern::Checkpoint),
            (object(Refusal::OfObject), Concern::Checkpoint),
            (object(Refusal::OfServer), Concern::Server),
            (object(Refusal::Passing), Concern::Server),
            (Error::Stopped, Concern::Server),
        ] {
            assert_eq!(concern(&error), expected, "{error}");
        }
    }
}
