//! Makes room in a store: drops checkpoints that the job's policy retains no longer, lets drained
//! files give up their data, and answers writers that wait for space.
//!
//! Must stay true:
//! - Only checkpoints that [`surplus`] names are dropped, through `Drainer::give_up`, so their
//!   copies stay.
//! - Files give up their data, through `Drainer::release`, only while writers wait and no
//!   checkpoint can be dropped, or because a program said that it will not read them soon
//!   (`CAIRN_HINT_OFFLOAD`).
//! - A checkpoint that is owed to the archive is dropped only after it is there. Exception: the
//!   archive refuses it for good, and writers wait for room that nothing else can provide.
//! - A writer is told to give up only after a look that began after its wait did, found nothing to
//!   drop, and found nothing that still drains.
//!
//! Two parts: a thread that notices waiting writers at once, and the work of the drain after each
//! pass.

use crate::store::notes;
use cairn_core::Error::NotFound;
use cairn_core::{Moment, SpaceWaiters};
use cairn_platform::sys::monotonic_ms;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::agent::shared::Shared;
use crate::drain::Drainer;
use crate::drain::release::{Demand, Released, Why};
use crate::model::error::{Error, Result};
use crate::model::log;
use crate::model::protocol::{Outcome, Progress, SpaceStatus};
use crate::store::volume::{Volume, now};
use cairn_job::checkpoint::retention::{next_due_ns, surplus};
use cairn_job::checkpoint::sets::marks;
use cairn_job::checkpoint::sets::register::{Checkpoint, Level};
use cairn_job::checkpoint::space_policy::SpacePolicy;
use cairn_job::file::path::FilePath;

/// Intervals at which waiting writers are looked for: while there are some; while there are none;
/// where no writer ever waits.
const LOOK_EVERY: Duration = Duration::from_millis(20);
const LOOK_IDLE: Duration = Duration::from_millis(100);
const LOOK_UNWANTED: Duration = Duration::from_millis(500);
/// Minimum interval between passes while writers wait.
const PASS_EVERY: Duration = Duration::from_millis(50);
/// Part of the store, one in so many, that is made free at a time while writers wait.
const RELEASE_SHARE: u64 = 16;

/// Space policy of the store, its waiting writers, and totals of dropped files.
#[derive(Clone, Debug, Default)]
pub struct SpaceState {
    policy: SpacePolicy,
    waiting: SpaceWaiters,
    given_up_files: u64,
    given_up_bytes: u64,
    released_files: u64,
    released_bytes: u64,
}

impl SpaceState {
    /// Replaces the policy.
    pub fn set(&mut self, policy: &SpacePolicy) {
        self.policy = policy.clone();
    }

    /// Whether the policy ever drops anything.
    pub fn retains(&self) -> bool {
        self.policy.retains()
    }

    /// Returns the status; None if no writer waits and nothing left the store or will.
    pub fn status(&self, progress: &Progress) -> Option<SpaceStatus> {
        let is_told = self.waiting.count > 0 || self.policy.retains() || self.released_files > 0;
        is_told.then(|| SpaceStatus {
            waiting: self.waiting.count as u64,
            longest_ms: u64::from(self.waiting.longest_ms),
            draining_bytes: progress.bytes_total.saturating_sub(progress.bytes_done),
            given_up_files: self.given_up_files,
            given_up_bytes: self.given_up_bytes,
            released_files: self.released_files,
            released_bytes: self.released_bytes,
        })
    }
}

/// Serves waiting writers until the agent ends.
pub fn run(shared: &Shared) {
    let mut look_every = LOOK_EVERY;
    let mut progress = (shared.meter.copied_ever(), Instant::now());
    while !shared.is_stopping() {
        shared.sleep(look_every);
        let (patience_ms, drains) = {
            let state = shared.state();
            let drains = state.persist.is_some();
            (state.space.policy.patience_ms(drains), drains)
        };
        // Time in which something was drained does not count as waiting in vain.
        let copied = shared.meter.copied_ever();
        if progress.0 != copied {
            progress = (copied, Instant::now());
        }
        let idle_ms = progress.1.elapsed().as_millis() as u32;
        let worked_ms = shared.state().space.waiting.longest_ms.saturating_sub(idle_ms);
        let patience_ms = match patience_ms {
            0 => 0,
            patience_ms => patience_ms.saturating_add(worked_ms),
        };
        let volumes = shared.volumes().0;
        let waiting = hear(&volumes, patience_ms);
        look_every = match waiting.count {
            0 if patience_ms == 0 && !drains => LOOK_UNWANTED,
            0 => LOOK_IDLE,
            _ => LOOK_EVERY,
        };
        shared.meter.pace.turn.press(waiting.count > 0);
        shared.state().space.waiting = waiting;
    }
    // A writer that comes after this point must not wait, because no agent makes room.
    shared.volumes().0.iter().for_each(|volume| volume.fs().offer_space(0));
}

/// Announces how long a wait for space is worthwhile, and tells current waiters that space is being
/// made.
fn hear(volumes: &[Arc<Volume>], patience_ms: u32) -> SpaceWaiters {
    let now = Moment(monotonic_ms());
    let mut all = SpaceWaiters::default();
    for volume in volumes {
        volume.fs().offer_space(patience_ms);
        let here = volume.fs().space_waiters(now);
        if here.count > 0 {
            volume.fs().space_is_made(now);
        }
        all.count += here.count;
        all.longest_ms = all.longest_ms.max(here.longest_ms);
    }
    all
}

/// The drain's part in making room.
#[derive(Default)]
pub struct Room {
    looked: Option<Instant>,
    /// When the retention policy next drops something although nothing has changed.
    due: Option<Instant>,
    /// Times of the hints by which files gave up their data. What is read again after that stays.
    offloaded: HashMap<FilePath, i64>,
}

impl Room {
    /// When a pass is due although nothing has changed.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Whether writers wait for a pass.
    pub fn is_wanted(&self, shared: &Shared) -> bool {
        let is_early = self.looked.is_some_and(|looked| looked.elapsed() < PASS_EVERY);
        !is_early && shared.state().space.waiting.count > 0
    }

    /// Makes room after a pass that began at `began` and produced `outcome`. Tells waiting writers
    /// to give up if nothing can leave the store and nothing still drains.
    pub fn make(
        &mut self,
        shared: &Shared,
        drainer: &mut Drainer,
        volumes: &[Arc<Volume>],
        began: Moment,
        outcome: &mut Outcome,
    ) -> Result<()> {
        self.looked = Some(Instant::now());
        self.due = None;
        if drainer.persist().is_none() {
            return Ok(());
        }
        self.offload(shared, drainer, volumes, outcome)?;
        let policy = shared.state().space.policy.clone();
        let (given_up, is_moving) = match policy.retains() {
            true => self.surplus(shared, drainer, &policy, are_waiting(volumes))?,
            false => (Vec::new(), false),
        };
        if !given_up.is_empty() {
            let mut each = given_up.iter();
            return each.try_for_each(|known| give_up(shared, drainer, volumes, known, outcome));
        }
        if are_waiting(volumes) {
            let is_short = shared.state().bringing.short.load(Ordering::Relaxed) > 0;
            let why = if is_short { Why::Read } else { Why::Written };
            let enough = release_bytes(volumes)?;
            let released = release(shared, drainer, volumes, why, enough)?;
            note_without_copy(outcome, &released);
            if !released.paths.is_empty() {
                return Ok(());
            }
        }
        let is_coming = is_moving || outcome.changed > 0;
        if !is_coming {
            volumes.iter().for_each(|volume| volume.fs().report_no_space(began));
        }
        Ok(())
    }

    /// Returns the checkpoints to be dropped, and whether more may follow without a change.
    fn surplus(
        &mut self,
        shared: &Shared,
        drainer: &mut Drainer,
        policy: &SpacePolicy,
        are_waiting: bool,
    ) -> Result<(Vec<Checkpoint>, bool)> {
        let complete = drainer.complete()?;
        let now_ns = now().0;
        self.due = next_due_ns(&complete, policy, now_ns).and_then(|due_ns| {
            let wait = Duration::from_nanos(due_ns.abs_diff(now_ns));
            Instant::now().checked_add(wait)
        });
        let surplus = surplus(&complete, policy, now_ns).into_iter().cloned();
        let (refused, mut given_up): (Vec<_>, Vec<_>) =
            surplus.partition(|known| shared.archive.refuses(known.id));
        let there_are = given_up.len();
        given_up.retain(|known| !shared.archive.may_owe(known.id));
        let is_moving =
            given_up.len() < there_are || complete.iter().any(|known| known.level < known.wanted);
        let has_refused = !refused.is_empty();
        if given_up.is_empty() && !is_moving && are_waiting {
            given_up.extend(refused.into_iter().next());
        }
        Ok((given_up, is_moving || has_refused))
    }

    /// Lets files give up their data of which programs said that they will not read them soon. A
    /// hint holds for what a file was then, not for what is written or read later.
    fn offload(
        &mut self,
        shared: &Shared,
        drainer: &mut Drainer,
        volumes: &[Arc<Volume>],
        outcome: &mut Outcome,
    ) -> Result<()> {
        let notes = notes::read(shared.directory())?;
        if !notes.iter().any(marks::is_offload) {
            return Ok(());
        }
        let mount = drainer.mount().to_string();
        let hinted_ns = |path: &FilePath| {
            let seen = [mount.as_bytes(), b"/", path.as_bytes()].concat();
            let (need, time_ns) = marks::need(&notes, &seen)?;
            (need == "offload").then_some(time_ns)
        };
        let may_go = |path: &FilePath, changed_ns| {
            let is_new = |&time_ns: &i64| self.offloaded.get(path) != Some(&time_ns);
            hinted_ns(path).filter(is_new).is_some_and(|time_ns| time_ns >= changed_ns)
        };
        let released = release(shared, drainer, volumes, Why::Hinted(&may_go), u64::MAX)?;
        note_without_copy(outcome, &released);
        let handled = |path| hinted_ns(&path).map(|time_ns| (path, time_ns));
        self.offloaded.extend(released.paths.into_iter().filter_map(handled));
        Ok(())
    }
}

/// Whether writers wait, also one that began a moment ago.
fn are_waiting(volumes: &[Arc<Volume>]) -> bool {
    let now = Moment(monotonic_ms());
    volumes.iter().any(|volume| volume.fs().space_waiters(now).count > 0)
}

/// Returns how many bytes are made free at a time. Errors: the space cannot be measured.
fn release_bytes(volumes: &[Arc<Volume>]) -> Result<u64> {
    let mut all = 0;
    for volume in volumes {
        let usage = volume.fs().usage().map_err(volume.error("measure", &FilePath::root()))?;
        let blocks: u64 = usage.total_blocks.iter().sum();
        all += blocks * volume.hugeblock_bytes();
    }
    Ok(all / RELEASE_SHARE)
}

/// Corrects the outcome of a pass that took files for drained whose copies are gone.
fn note_without_copy(outcome: &mut Outcome, released: &Released) {
    outcome.complete &= released.without_copy == 0;
    outcome.changed += released.without_copy;
}

/// Lets drained files give up their data, and counts that.
fn release(
    shared: &Shared,
    drainer: &mut Drainer,
    volumes: &[Arc<Volume>],
    why: Why<'_>,
    enough: u64,
) -> Result<Released> {
    // The archive reads them in the store.
    let owes =
        |known: &&Checkpoint| shared.archive.may_owe(known.id) || shared.archive.refuses(known.id);
    let complete = drainer.complete()?;
    let owed = complete.iter().filter(owes).flat_map(|known| &known.files);
    let kept = owed.map(|member| member.path.clone()).collect();
    let returned = shared.state().bringing.returned.clone();
    let used = |namespace: &str, inode| returned.get(&(namespace.to_string(), inode)).copied();
    let demand = Demand { why, enough, kept: &kept, used: &used };
    let released = drainer.release(volumes, demand, &shared.meter)?;
    let (files, bytes) = (released.paths.len() as u64, released.bytes);
    if files > 0 {
        log::say(log::Level::Debug, format_args!("{files} drained files gave up {bytes} bytes"));
        let mut state = shared.state();
        state.space.released_files += files;
        state.space.released_bytes += bytes;
    }
    Ok(released)
}

/// Drops a checkpoint from the store and corrects `outcome`.
fn give_up(
    shared: &Shared,
    drainer: &mut Drainer,
    volumes: &[Arc<Volume>],
    known: &Checkpoint,
    outcome: &mut Outcome,
) -> Result<()> {
    match drainer.give_up(volumes, known, &shared.meter) {
        // A program writes to it or has removed it, so it is not a complete checkpoint any more.
        Err(Error::Changed { .. } | Error::Store { source: NotFound, .. }) => return Ok(()),
        // Its copy is gone. The next pass makes another one.
        Err(Error::NotDrained { .. }) => {
            outcome.complete = false;
            outcome.changed += 1;
            return Ok(());
        }
        given_up => given_up?,
    }
    // The files do not count as files of the store any more.
    let (files, bytes) = (known.files.len() as u64, known.bytes());
    if known.level == Level::Pfs {
        outcome.drained_files = outcome.drained_files.saturating_sub(files);
        outcome.drained_bytes = outcome.drained_bytes.saturating_sub(bytes);
    } else {
        outcome.kept_files = outcome.kept_files.saturating_sub(files);
    }
    let name = &known.name;
    log::say(log::Level::Info, format_args!("checkpoint {name} leaves the store: {bytes} bytes"));
    if shared.archive.refuses(known.id) {
        let text =
            format_args!("checkpoint {name}, which could not be archived, made room for writers");
        log::say(log::Level::Warn, text);
        shared.archive.abandon(name.to_string());
    }
    let mut state = shared.state();
    state.space.given_up_files += files;
    state.space.given_up_bytes += bytes;
    Ok(())
}
