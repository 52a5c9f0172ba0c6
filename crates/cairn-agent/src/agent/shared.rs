//! State that the agent's threads share: the namespaces, the requests, and the results of the last
//! passes.
//!
//! Must stay true: no lock is held while bytes move, or while a namespace is opened or examined.
//! Exceptions: `source`, which is held while namespaces are opened; `reaping`, which serialises
//! visits of the same dead process; `recorder`, for which only its own thread and the drain wait.

use cairn_device::Store;
use cairn_device::store::lock_file;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use crate::agent::recorder::Recorder;
use crate::agent::space::SpaceState;
use crate::agent::stager;
use crate::archive::ArchiveMonitor;
use crate::bring::StageState;
use crate::drain::meter::{Meter, STALLED};
use crate::model::drain_task::DrainTask;
use crate::model::error::{Error, Result};
use crate::model::job::{Job, RUN_LOCK, Scope};
use crate::model::observable::Observable;
use crate::model::policy::AtEnd;
use crate::model::protocol::{Forecast, Outcome, Phase, Status};
use crate::store::reaper;
use crate::store::volume::{Volume, prefix_of};
use cairn_job::file::path::FilePath;

/// Request about files that the drain carries out while the requester waits.
pub struct FileRequest {
    /// Files, in the order in which they are processed.
    pub paths: Vec<FilePath>,
    /// Action on the files.
    pub what: What,
    /// Channel for the answer.
    pub reply: mpsc::Sender<Result<()>>,
}

/// Action on files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Drop them from the store.
    Evict {
        /// Also drop files that are not drained.
        force: bool,
    },
    /// Treat their copies as damaged, so that the drain makes them again.
    Distrust,
}

/// Requests to the drain and their results.
#[derive(Default)]
pub struct State {
    /// Number of drain requests so far.
    pub requested: u64,
    /// Number of the last request that a finished pass answered.
    pub finished: u64,
    /// Requests that no pass has begun to answer. They are merged, and one pass answers them; the
    /// number is that of the last request merged.
    pub asked: VecDeque<(u64, DrainTask)>,
    /// Pending requests about files.
    pub errands: Vec<FileRequest>,
    /// Current activity of the drain.
    pub phase: Phase,
    /// Directory to which the drain copies.
    pub persist: Option<PathBuf>,
    /// Outcome of the last successful pass.
    pub last: Outcome,
    /// When the cut that lies outside was taken.
    pub cut_at: Option<Instant>,
    /// Why the last pass failed, if it did.
    pub trouble: Option<String>,
    /// When the drain retries.
    pub retry_at: Option<Instant>,
    /// Whether a pass is due although no file has changed.
    pub looks_again: bool,
    /// Writers that wait for space, and files dropped.
    pub space: SpaceState,
    /// Progress of fetching absent files.
    pub bringing: StageState,
    /// Whether nothing is left to do until something changes.
    pub settled: bool,
    /// Forecast for the end of the job's time.
    pub forecast: Option<Forecast>,
}

impl State {
    /// Adds a drain request. Returns its number.
    pub fn request(&mut self, told: DrainTask) -> u64 {
        self.requested += 1;
        self.settled = false;
        match self.asked.back_mut() {
            Some((number, asked)) => {
                *number = self.requested;
                asked.add(told);
            }
            _ => self.asked.push_back((self.requested, told)),
        }
        self.requested
    }
}

/// Known namespaces of the store: open ones, and the errors of those that cannot be opened.
#[derive(Default)]
struct Volumes {
    open: BTreeMap<String, Arc<Volume>>,
    unreadable: BTreeMap<String, String>,
}

/// State shared by all threads of an agent.
pub struct Shared {
    directory: PathBuf,
    /// Store and scope from which namespaces are opened. Locked by the thread that opens them,
    /// which takes as long as a remote tier does not answer.
    source: Mutex<(Store, Scope)>,
    volumes: Mutex<Volumes>,
    board: Observable<State>,
    stopped: OwnedFd,
    reaping: Mutex<()>,
    recorder: Mutex<Recorder>,
    /// Progress of the drain; also carries the request to stop it.
    pub meter: Meter,
    /// Requests to the archive, and its status.
    pub(crate) archive: ArchiveMonitor,
    /// Ends every thread. Set once.
    pub stopping: AtomicBool,
    /// Whether a thread has panicked; its work may never end.
    failed: AtomicBool,
    /// Number of open connections.
    pub connections: AtomicUsize,
}

struct EndIfPanicking(Arc<Shared>);

impl Drop for EndIfPanicking {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.failed.store(true, Ordering::Relaxed);
            self.0.stop();
        }
    }
}

/// Locks a mutex, poisoned or not. A thread that panics with one of these locks held has changed
/// plain values only, and they are still consistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Returns the shared state of an agent for the store in `directory`.
    pub fn new(directory: &Path, job: &Job) -> Result<Shared> {
        let state = State { persist: job.persist.clone(), ..State::default() };
        let stopped = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)
            .map_err(Error::file("watch over", directory))?;
        Ok(Shared {
            directory: directory.to_path_buf(),
            source: Mutex::new((Store::open(directory)?, job.scope)),
            volumes: Mutex::default(),
            board: Observable::new(state),
            stopped,
            reaping: Mutex::new(()),
            recorder: Mutex::new(Recorder::new(directory, job)),
            meter: Meter::default(),
            archive: ArchiveMonitor::default(),
            stopping: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            connections: AtomicUsize::new(0),
        })
    }

    /// Applies the job's settings for logging, drain pace, space and archive.
    pub fn take_up(&self, job: &Job) {
        crate::model::log::set_level(job.log);
        self.meter.pace.set(&job.drain);
        self.meter.pace.turn.set(job.drain.slots.as_ref(), &job.job);
        self.state().space.set(&job.space);
        self.archive.go_by(&job.archive);
    }

    /// Makes the drain look again for checkpoints to drop, because the archive is owed different
    /// ones. Has no effect if the space policy drops nothing.
    pub fn look_again(&self) {
        let mut state = self.state();
        state.looks_again |= state.space.retains();
        drop(state);
        self.notify();
    }

    /// Returns the store's directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Locks and returns the state.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.board.state()
    }

    /// Whether a `cairn run` has the store.
    pub fn is_running(&self) -> bool {
        crate::model::lock::is_locked(self.directory(), RUN_LOCK).unwrap_or(true)
    }

    /// Whether the drain works only on request: the program has ended, and the job is configured to
    /// drain nothing at its end.
    pub fn is_off_duty(&self) -> bool {
        self.meter.pace.policy().at_end == AtEnd::Nothing && !self.is_running()
    }

    /// Locks and returns the recorder of the timeline.
    pub fn recorder(&self) -> MutexGuard<'_, Recorder> {
        lock(&self.recorder)
    }

    /// Tells all waiting threads that the state changed.
    pub fn notify(&self) {
        self.board.notify();
    }

    /// Waits for a change of the state for at most `timeout`.
    pub fn wait<'a>(
        &self,
        state: MutexGuard<'a, State>,
        timeout: Duration,
    ) -> MutexGuard<'a, State> {
        self.board.wait(state, timeout)
    }

    /// Sleeps for `time`, or until the agent ends.
    pub fn sleep(&self, time: Duration) {
        let until = Instant::now() + time;
        let mut state = self.state();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || self.is_stopping() {
                return;
            }
            state = self.wait(state, left);
        }
    }

    /// Returns a descriptor that becomes readable when the agent ends.
    pub fn stopped(&self) -> &OwnedFd {
        &self.stopped
    }

    /// Ends all threads.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        self.meter.stop();
        // If this fails, the threads that poll the descriptor only notice the end later.
        let _ = rustix::io::write(&self.stopped, &1_u64.to_ne_bytes());
        // Locked and released: a thread that is about to wait has either seen the flag or gets the
        // notification.
        drop(self.state());
        self.notify();
        drop(self.archive.state());
        self.archive.notify();
    }

    /// Returns a guard for a thread of the agent. If the thread panics, the agent ends; the next
    /// command that needs an agent starts another one.
    pub fn end_if_panicking(self: &Arc<Shared>) -> impl Drop + use<> {
        EndIfPanicking(Arc::clone(self))
    }

    /// Whether a thread has panicked.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Whether the agent is ending.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Opens namespaces that were created since the last call. A namespace that cannot be opened is
    /// tried again at each call.
    pub fn refresh_volumes(&self) -> Result<()> {
        let source = lock(&self.source);
        let (store, scope) = &*source;
        for name in store.namespaces()? {
            if lock(&self.volumes).open.contains_key(&name) {
                continue;
            }
            let opened = Volume::open(store, &name, prefix_of(&name, *scope));
            let mut volumes = lock(&self.volumes);
            match opened {
                Ok(volume) => {
                    volumes.unreadable.remove(&name);
                    volumes.open.insert(name, Arc::new(volume));
                }
                Err(error) => {
                    volumes.unreadable.insert(name, error.to_string());
                }
            }
        }
        Ok(())
    }

    /// Adds a drain request and ends a pass that gives way to requests. Returns the request's
    /// number.
    pub fn request(&self, told: DrainTask) -> u64 {
        let mut state = self.state();
        self.meter.note_asked(true);
        state.request(told)
    }

    /// Returns the open namespaces, and whether these are all.
    pub fn volumes(&self) -> (Vec<Arc<Volume>>, bool) {
        let volumes = lock(&self.volumes);
        (volumes.open.values().cloned().collect(), volumes.unreadable.is_empty())
    }

    /// Reaps the dead processes of all namespaces. Returns the number of other live processes.
    pub fn reap(&self) -> Result<usize> {
        let _alone = lock(&self.reaping);
        let mut living = 0;
        for volume in self.volumes().0 {
            let found = reaper::visit(&volume)?.living;
            // Only while the drain is settled; otherwise the checksum would be made again and
            // again.
            if found == 0 && self.state().settled {
                let failed = volume.error("look after the metadata of", &FilePath::root());
                volume.fs().sum_metadata(Some(volume.slot())).map_err(failed)?;
            }
            living += found;
        }
        Ok(living)
    }

    /// Removes lock files of files that no longer exist.
    pub fn sweep_locks(&self) -> Result<()> {
        for volume in self.volumes().0 {
            let exists = |inode, born| match volume.fs().attributes(inode) {
                Ok(found) => found.born == born,
                Err(error) => error != cairn_core::Error::NotFound,
            };
            let swept = lock_file::sweep(&self.directory, volume.name(), exists);
            swept.map_err(Error::file("look for locks in", &self.directory))?;
        }
        Ok(())
    }

    /// Returns the agent's status.
    pub fn status(&self) -> Status {
        let unreadable = lock(&self.volumes).unreadable.values().cloned().collect();
        let volumes = self.volumes().0;
        let silent = volumes.iter().flat_map(|volume| volume.silent_tiers(STALLED)).collect();
        let is_off_duty = self.is_off_duty();
        stager::forget_failures(self);
        let state = self.state();
        let now = Instant::now();
        let progress = self.meter.progress();
        let retry_in = state.retry_at.map(|at| at.saturating_duration_since(now).as_millis());
        Status {
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_string(),
            persist: state.persist.clone(),
            cut_age_ms: state.cut_at.map(|taken| taken.elapsed().as_millis() as u64),
            phase: state.phase,
            reason: state.trouble.clone(),
            retry_in_ms: retry_in.map(|milliseconds| milliseconds as u64),
            settled: state.settled || is_off_duty,
            stalled: self.meter.stalled(),
            silent,
            pace: self.meter.pace.report(),
            forecast: state.forecast.clone(),
            space: state.space.status(&progress),
            bringing: state.bringing.status(),
            archive: self.archive.status(),
            progress,
            last: state.last.clone(),
            unreadable,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_store::TestStore;

    /// Mechanism: the agent went on without a thread that had panicked. A thread that waited for
    /// its work waited for ever.
    #[test]
    fn agent_ends_when_one_of_its_threads_panics() {
        let store = TestStore::new();
        let shared = Arc::new(Shared::new(&store.path, &store.job).expect("opens"));
        let spawn = |body: fn()| {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || {
                let _end = shared.end_if_panicking();
                body();
            })
        };
        assert!(spawn(|| {}).join().is_ok());
        assert!(!shared.is_stopping() && !shared.has_failed());
        assert!(spawn(|| panic!("as the test wants it")).join().is_err());
        assert!(shared.is_stopping() && shared.has_failed());
    }

    /// Mechanism: the lock of the known namespaces was held while another one was opened.
    /// Consequence: a remote tier that did not answer blocked the threads that used the others.
    #[test]
    fn known_namespaces_are_there_while_others_are_opened() {
        let store = TestStore::new();
        let shared = Shared::new(&store.path, &store.job).expect("opens");
        shared.refresh_volumes().expect("opens");
        let opening = lock(&shared.source);
        let (known, is_all) = shared.volumes();
        assert_eq!((known.len(), is_all), (1, true));
        drop(opening);
    }
}
