//! The agent's main program: one process per store that drains, reaps, prefaults and answers.
//!
//! Must stay true: the agent holds `agent.lock` as long as it lives, so there is one per store. It
//! can learn all its state again from the store and the manifest, so killing it loses nothing. It
//! ends when nobody needs it.
//!
//! Threads: drain, keeper (processes, new namespaces, end of the agent), activity, prefault,
//! snapshot, transit, promote where the job wants it, mapped cache, bring, space, archive,
//! timeline, metrics, and one per connection.

use cairn_core::Moment;
use cairn_device::store::notes::NOTES_FILE;
use cairn_platform::sys::monotonic_ms;
use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::agent::stager;

use crate::agent::control::Listener;
use crate::agent::daemon::{self, Readiness};
use crate::agent::forecaster::Forecaster;
use crate::agent::shared::{FileRequest, Shared, What};
use crate::agent::space::{self, Room};
use crate::agent::{
    activity, archive_keeper, mapped_cache, metrics, prefault, promote, recorder, snapshot, transit,
};
use crate::drain::{Drainer, Reason};
use crate::image::Image;
use crate::model::clock::processor_time;
use crate::model::drain_task::{DrainTask, Wanted};
use crate::model::error::Result;
use crate::model::job::{AGENT_LOCK, AGENT_LOG, Description, Job};
use crate::model::lock;
use crate::model::log::{self, Complaints, Level};
use crate::model::protocol::{Failed, Outcome, Phase};
use crate::store::reaper;
use crate::store::volume::Volume;
use crate::store::watch::Watch;
use cairn_job::file::path::FilePath;
use cairn_job::pass::schedule::{Action, Event, Schedule};

/// Interval at which the logs are polled, and the interval once nothing has changed for
/// `IDLE_AFTER`.
const WATCH_EVERY: Duration = Duration::from_millis(20);
const WATCH_IDLE: Duration = Duration::from_millis(40);
const IDLE_AFTER: Duration = Duration::from_secs(2);
/// Interval at which processes are checked, and the interval while there is nothing to drain.
const REAP_EVERY: Duration = Duration::from_millis(100);
const REAP_IDLE: Duration = Duration::from_millis(250);
/// Interval at which lock files of removed files are looked for.
const SWEEP_EVERY: Duration = Duration::from_secs(60);
/// Interval at which new namespaces are looked for.
const REFRESH_EVERY: Duration = Duration::from_millis(500);
/// An agent that nobody needs ends after this time.
const LINGER: Duration = Duration::from_secs(10);
/// Time that a new agent waits for one that is ending.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
const LOCK_EVERY: Duration = Duration::from_millis(10);
/// After a thread has panicked, time that the others have to end.
const END_PATIENCE: Duration = Duration::from_secs(5);
const END_LOOK_EVERY: Duration = Duration::from_millis(10);
/// Maximum number of files per pass that the log names as not drained.
const LEFT_LINES_MAX: usize = 20;

/// Becomes the agent of the store in `directory`. Returns in the agent when it ends; the calling
/// process exits once the agent is ready. An agent that already runs counts as success.
pub fn run(directory: &Path) -> Result<()> {
    let (readiness, log) = daemon::detach(&directory.join(AGENT_LOG))?;
    log::begin(log);
    daemon::allow_many_files();
    match prepare(directory) {
        Ok(Some((shared, listener, lock))) => serve(shared, listener, lock, readiness),
        Ok(None) => readiness.ready(),
        Err(error) => {
            log::say(Level::Error, format_args!("the agent cannot begin: {error}"));
            readiness.failed(&error.to_string());
        }
    }
    Ok(())
}

type Prepared = (Arc<Shared>, Listener, File);

/// Takes the lock, opens the namespaces and binds the socket. Returns None if another agent has the
/// store.
fn prepare(directory: &Path) -> Result<Option<Prepared>> {
    let started = Instant::now();
    let lock = loop {
        match lock::try_lock(directory, AGENT_LOCK)? {
            Some(lock) => break lock,
            None if started.elapsed() > LOCK_PATIENCE => return Ok(None),
            // The other agent may be ending. If it answers requests, waiting for its end is
            // useless.
            None if crate::agent::client::is_answering(directory) => return Ok(None),
            None => thread::sleep(LOCK_EVERY),
        }
    };
    let job = Job::load(directory)?;
    let shared = Arc::new(Shared::new(directory, &job)?);
    shared.take_up(&job);
    let (name, version) = (&job.job, env!("CARGO_PKG_VERSION"));
    log::say(Level::Info, format_args!("an agent of job {name} begins, version {version}"));
    shared.refresh_volumes()?;
    for volume in shared.volumes().0 {
        // A killed agent may have left an image, for which programs would go on copying blocks.
        if let Err(error) = Image::end_left(&volume) {
            log::say(Level::Warn, format_args!("cannot end an image: {error}"));
        }
    }
    // The space that a killed agent held is freed before a program is told that there is none. The
    // keeper reports errors.
    let _ = shared.reap();
    let listener = Listener::bind(directory)?;
    Ok(Some((shared, listener, lock)))
}

fn serve(shared: Arc<Shared>, listener: Listener, lock: File, readiness: Readiness) {
    let spawn = |name: &str, body: fn(&Shared)| {
        let shared = Arc::clone(&shared);
        thread::Builder::new().name(name.to_string()).spawn(move || {
            let _end = shared.end_if_panicking();
            body(&shared);
        })
    };
    let drain = match spawn("drain", drain_loop) {
        Ok(drain) => drain,
        Err(error) => return readiness.failed(&format!("cannot start a thread: {error}")),
    };
    // Without it the store is only slower.
    let _ = spawn("prefault", prefault::run);
    // Without it programs write their snapshots themselves.
    let _ = spawn("snapshot", snapshot::run);
    // Without it the drain keeps its rate and does not pause.
    let _ = spawn("activity", activity::run);
    // Without it memory of mapped files is not freed.
    let _ = spawn("shown", mapped_cache::run);
    // Without it data that were read stay on their tier.
    let _ = spawn("promote", promote::run);
    // Without it the metrics file is not written.
    let metrics = spawn("metrics", metrics::run);
    // Without it the timeline has fewer entries.
    let timeline = spawn("timeline", recorder::run);
    // Without it a program that waits for an absent file learns that nobody fetches it. The thread
    // may hang in the persist directory, so its end is not awaited.
    let _ = spawn("bring", stager::run);
    // Without it writers do not wait for space.
    let _ = spawn("space", space::run);
    // The next agent resumes its work at any point, so its end is not awaited.
    let archive = spawn("archive", archive_keeper::run);
    // Without it programs wait for their device.
    let transit = spawn("transit", transit::run);
    let keeper = spawn("keeper", keeper_loop);
    if let Err(error) = archive.as_ref().and(keeper.as_ref()) {
        shared.stop();
        readiness.failed(&format!("cannot start a thread: {error}"));
    } else {
        readiness.ready();
    }
    listener.serve(&shared, &|| is_removed(&lock));
    let deadline = Instant::now() + END_PATIENCE;
    for thread in
        [Some(drain), keeper.ok(), transit.ok(), timeline.ok(), metrics.ok()].into_iter().flatten()
    {
        // The work of a thread that panicked may keep the others from ending.
        while shared.has_failed() && !thread.is_finished() && Instant::now() < deadline {
            thread::sleep(END_LOOK_EVERY);
        }
        if !shared.has_failed() || thread.is_finished() {
            // A thread that panicked has logged it; there is nothing to add.
            let _ = thread.join();
        }
    }
    let is_removed = is_removed(&lock);
    if !is_removed {
        listener.remove();
    }
    let why = if is_removed { ": its store was removed" } else { "" };
    log::say(Level::Info, format_args!("the agent ends{why}"));
}

/// Whether the store was removed while the agent ran: the lock file has no name any more.
fn is_removed(lock: &File) -> bool {
    lock.metadata().is_ok_and(|metadata| metadata.nlink() == 0)
}

/// Checks processes and new namespaces, and ends the agent when nobody needs it any more.
fn keeper_loop(shared: &Shared) {
    let mut refreshed = Instant::now();
    let mut needed = Instant::now();
    let mut complaints = Complaints::default();
    let mut description = Description::default();
    let mut lookout = Forecaster::default();
    let mut swept = Instant::now();
    while !shared.is_stopping() {
        let is_settled = shared.state().settled;
        shared.sleep(if is_settled { REAP_IDLE } else { REAP_EVERY });
        if refreshed.elapsed() >= REFRESH_EVERY {
            let job =
                complaints.note("follow the description", description.follow(shared.directory()));
            job.flatten().iter().for_each(|job| shared.take_up(job));
            complaints.note("look ahead", lookout.look(shared));
            complaints.note("look for namespaces", shared.refresh_volumes());
            refreshed = Instant::now();
        }
        if swept.elapsed() >= SWEEP_EVERY {
            complaints.note("remove locks of files that are gone", shared.sweep_locks());
            swept = Instant::now();
        }
        let living = complaints.note("look after processes", shared.reap()).unwrap_or(0);
        if living > 0 || is_needed(shared) {
            needed = Instant::now();
        }
        if needed.elapsed() >= LINGER {
            log::say(Level::Info, "nobody needs the agent any more");
            shared.stop();
            return;
        }
    }
}

fn is_needed(shared: &Shared) -> bool {
    let connected = shared.connections.load(std::sync::atomic::Ordering::Relaxed) > 0;
    connected || shared.is_running() || is_behind(shared)
}

/// Whether files are still to be copied or archived although nobody waits for it.
fn is_behind(shared: &Shared) -> bool {
    let is_behind = !shared.state().settled || shared.archive.is_busy();
    is_behind && !shared.is_off_duty()
}

/// State of the drain thread between passes.
struct DrainLoop<'a> {
    shared: &'a Shared,
    drainer: Drainer,
    watches: HashMap<String, Watch>,
    /// Length of the notes file, bytes.
    notes_bytes: u64,
    /// When a pass is due; times are those since `started`.
    schedule: Schedule,
    started: Instant,
    /// Whether a run was under way at the last check of it.
    was_running: bool,
    /// Whether a pass has run since memory was last given back.
    has_worked: bool,
    room: Room,
    complaints: Complaints,
    /// Files that the last pass left undrained, with the reasons.
    left: BTreeSet<(FilePath, String)>,
}

fn drain_loop(shared: &Shared) {
    let job = match Job::load(shared.directory()) {
        Ok(job) => job,
        Err(error) => {
            log::say(Level::Error, format_args!("cannot drain: {error}"));
            return shared.stop();
        }
    };
    let mut drain = DrainLoop {
        shared,
        drainer: Drainer::new(shared.directory(), job),
        watches: HashMap::new(),
        notes_bytes: 0,
        schedule: Schedule::default(),
        started: Instant::now(),
        was_running: false,
        has_worked: false,
        room: Room::default(),
        complaints: Complaints::default(),
        left: BTreeSet::new(),
    };
    while !shared.is_stopping() {
        drain.turn();
    }
    let folded = drain.drainer.fold_manifest();
    drain.complaints.note("write the manifest as one file", folded);
}

impl DrainLoop<'_> {
    /// Waits for a request or the poll interval, then does the work that is due.
    fn turn(&mut self) {
        let state = self.shared.state();
        let idle = state.requested == state.finished && state.errands.is_empty();
        let is_quiet = self.schedule.quiet_for(self.started.elapsed()) > IDLE_AFTER;
        let watch_every = if is_quiet { WATCH_IDLE } else { WATCH_EVERY };
        let mut state = if idle { self.shared.wait(state, watch_every) } else { state };
        let errands = std::mem::take(&mut state.errands);
        // Read before the request: a `cairn run` that ends first reports how, then releases its
        // lock.
        self.drainer.run_was_seen = self.shared.is_running();
        let asked = state.asked.pop_front();
        self.shared.meter.note_asked(!state.asked.is_empty());
        let (ticket, told) =
            asked.map_or_else(Default::default, |(number, told)| (Some(number), told));
        drop(state);
        for FileRequest { paths, what, reply } in errands {
            let (volumes, _) = self.shared.volumes();
            let meter = &self.shared.meter;
            let done = match what {
                What::Evict { force } => self.drainer.evict(&volumes, &paths, force, meter),
                What::Distrust => self.drainer.distrust(&volumes, &paths, meter),
            };
            // The requester may be gone.
            let _ = reply.send(done);
        }
        let is_due = self.is_due();
        if ticket.is_some() || is_due {
            self.pass(ticket, told);
            self.has_worked = true;
        } else if is_quiet && std::mem::take(&mut self.has_worked) {
            give_back_memory();
        }
    }

    /// Looks for what has changed, and returns whether a pass is due.
    fn is_due(&mut self) -> bool {
        let mut events = Vec::new();
        if self.has_changed() {
            events.push(Event::Changed);
        }
        let is_wanted = self.room.is_wanted(self.shared);
        events.extend(is_wanted.then_some(Event::Wanted));
        let due_at = self.drainer.next_look().into_iter().chain(self.room.due()).min();
        let since_start = |at: Instant| at.saturating_duration_since(self.started);
        events.push(Event::DueAt(due_at.map(since_start)));
        let mut actions = self.schedule.step(self.started.elapsed(), &events);
        if actions.contains(&Action::AskForWriters) {
            let has_open = self.drainer.persist().is_some() && self.any_writer();
            actions = self.schedule.step(self.started.elapsed(), &[Event::Writers(has_open)]);
        }
        if self.schedule.is_behind() {
            self.shared.state().settled = false;
        }
        actions.contains(&Action::Pass) && (is_wanted || !self.shared.is_off_duty())
    }

    /// Whether something in the store, or what programs said of it, has changed.
    fn has_changed(&mut self) -> bool {
        let mut is_changed = false;
        for volume in self.shared.volumes().0 {
            let watch = self
                .watches
                .entry(volume.name().to_string())
                .or_insert_with(|| Watch::new(&volume));
            let changed = watch.has_changed(&volume);
            is_changed |= self.complaints.note("watch a namespace", changed).unwrap_or(true);
        }
        let notes = self.shared.directory().join(NOTES_FILE);
        let notes_bytes = notes.metadata().map_or(0, |metadata| metadata.len());
        is_changed |= notes_bytes != self.notes_bytes;
        self.notes_bytes = notes_bytes;
        is_changed |= std::mem::take(&mut self.shared.state().looks_again);
        if self.drainer.next_look().is_some() {
            // Once no process can write more files, unfinished checkpoints can be decided.
            let is_running = self.shared.is_running() || self.goes_on();
            is_changed |= (self.was_running || self.drainer.run_went_on) && !is_running;
            self.was_running = is_running;
        }
        is_changed
    }

    /// Whether a process has a file open for writing.
    fn any_writer(&self) -> bool {
        let has_writer = |volume: &Arc<Volume>| {
            let held = volume.fs().holdings();
            // Passes report a store that cannot be read.
            held.is_ok_and(|held| held.iter().any(|one| one.write))
        };
        self.shared.volumes().0.iter().any(has_writer)
    }

    /// Whether a program of the job still runs, whatever became of `cairn run`.
    fn goes_on(&self) -> bool {
        // Passes report a store that cannot be read.
        reaper::any_program(&self.shared.volumes().0).unwrap_or(false)
    }

    fn pass(&mut self, ticket: Option<u64>, told: DrainTask) {
        let (started, began) = (Instant::now(), Moment(monotonic_ms()));
        let worked = processor_time();
        self.schedule.step(self.started.elapsed(), &[Event::Began]);
        self.shared.state().phase = Phase::Draining;
        let reason = if ticket.is_some() { Reason::Asked(told) } else { Reason::Routine };
        if ticket.is_some() {
            // Dead writers must be known before it is decided which files are clean.
            self.complaints.note("look for namespaces", self.shared.refresh_volumes());
            self.complaints.note("look after processes", self.shared.reap());
        }
        let (volumes, all) = self.shared.volumes();
        // A process that waits for the end of a run must not wait for an older cut. What was copied
        // serves the next one.
        self.shared.meter.yield_if_awaited(ticket.is_none());
        let mut result = self.drainer.pass(&volumes, all, reason, &self.shared.meter);
        self.shared.meter.pace.turn.end();
        self.shared.meter.yield_if_awaited(false);
        if told.wanted >= Wanted::Newest {
            // The register has the checkpoints by this point, whether or not the drain succeeded.
            self.shared.archive.ask(true);
        }
        if let Ok(outcome) = &mut result {
            let made = self.room.make(self.shared, &mut self.drainer, &volumes, began, outcome);
            self.complaints.note("give up what need not be kept", made);
        }
        if let Ok(outcome) = &result {
            tell_left(&mut self.left, outcome);
            let is_kept = |id, name: &str| self.drainer.has_checkpoint(id, name);
            self.shared.recorder().note_sets(&volumes, self.drainer.known(), &is_kept);
        }
        let bare = result.as_ref().map_or(0, |outcome| outcome.without_attributes);
        let trouble = "the file system of the persist directory does not support them".to_string();
        let action = "keep extended attributes of some files";
        self.complaints.note_text(action, (bare > 0).then_some(trouble));
        if ticket.is_some() && result.is_ok() {
            let concluded = self.shared.recorder().conclude(self.shared, self.drainer.persist());
            self.complaints.note("bring the timeline to the persist directory", concluded);
        }
        let mut state = self.shared.state();
        state.persist = self.drainer.persist().map(Path::to_path_buf);
        state.cut_at = self.drainer.cut_at();
        let now = self.started.elapsed();
        let work = processor_time().saturating_sub(worked);
        match result {
            Ok(outcome) => {
                let changed = outcome.changed > 0;
                let has_open = !outcome.open.is_empty() && self.drainer.persist().is_some();
                self.schedule.step(now, &[Event::Turned { changed, has_open, work }]);
                state.trouble = None;
                state.last = outcome;
            }
            Err(error) if error.repeats_pass() => {
                self.schedule.step(now, &[Event::GivenUp]);
                if let Some(number) = ticket {
                    // Before those that came later.
                    state.asked.push_front((number, told));
                }
                return;
            }
            Err(error) => {
                self.schedule.step(now, &[Event::Failed { work }]);
                state.trouble = Some(error.to_string());
            }
        }
        let retry_at = self.schedule.retry_at().map(|at| self.started + at);
        let retry_at = retry_at.or(self.drainer.next_retry());
        state.retry_at = retry_at;
        state.phase = if retry_at.is_some() { Phase::Retrying } else { Phase::Idle };
        state.finished = state.finished.max(ticket.unwrap_or(0));
        let is_asked = state.finished < state.requested;
        state.settled = retry_at.is_none() && !self.schedule.is_behind() && !is_asked;
        let trouble = state.trouble.clone();
        drop(state);
        self.shared.notify();
        self.complaints.note_text("drain", trouble);
        let took = started.elapsed().as_millis();
        log::say(Level::Debug, format_args!("looked at all files, and copied, in {took} ms"));
    }
}

/// Returns free memory of the allocator to the system. After a pass over many files this is most of
/// what the pass took.
fn give_back_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: `malloc_trim` touches only free memory of the allocator and takes the allocator's own
    // locks.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Logs the files that this pass left undrained, or drained although they are not whole, and the
/// previous one did not, with the reasons.
fn tell_left(left: &mut BTreeSet<(FilePath, String)>, outcome: &Outcome) {
    let is_left = |one: &Failed| format!("is not drained: {}", one.reason);
    let failed = outcome.failed.iter().map(|one| (one.path.clone(), is_left(one)));
    let unclean = outcome.unclean.iter().map(|path| {
        (path.clone(), "is drained as it is: its writer died or a write failed".to_string())
    });
    let now: BTreeSet<_> = failed.chain(unclean).collect();
    let mut fresh = now.difference(left);
    for (path, reason) in fresh.by_ref().take(LEFT_LINES_MAX) {
        log::say(Level::Warn, format_args!("/{path} {reason}"));
    }
    match fresh.count() {
        0 => {}
        more => log::say(Level::Warn, format_args!("{more} more not drained; see cairn status")),
    }
    *left = now;
}
