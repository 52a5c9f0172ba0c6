//! What the agent's threads share: the namespaces, the requests, and how things stand.
//!
//! Must stay true: no lock is held while bytes move or a namespace is opened or looked at, except
//! `source` and `reaping`, which keeps two visits of the same dead process apart, and `recorder`,
//! for which only its own thread and the drain wait.

use crate::agent::observable::Board;
use crate::agent::service::is_off_duty;
use crate::agent::space::SpaceState;
use crate::archive::Desk;
use crate::bring::{self, BringState};
use crate::drain::checkpoints::Told;
use crate::drain::forecast::Forecast;
use crate::drain::meter::{Meter, STALLED};
use crate::model::error::{Error, Result};
use crate::model::job::{Job, Scope};
use crate::model::path::FilePath;
use crate::model::protocol::{Outcome, Phase, Status};
use crate::store::reaper;
use crate::store::volume::{Volume, prefix_of};
use crate::timeline::recorder::Recorder;
use cairn_device::Store;
use cairn_device::lock_file;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// Something about files that the drain is to do, and somebody waits for.
pub struct Errand {
    /// The files, in order.
    pub paths: Vec<FilePath>,
    /// What.
    pub what: What,
    /// Where the answer goes.
    pub reply: mpsc::Sender<Result<()>>,
}

/// What is to be done about files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// They leave the store.
    Evict {
        /// Also those that are not drained.
        force: bool,
    },
    /// Their copies are none.
    Distrust,
}

/// What is to be done, and how it stands.
#[derive(Default)]
pub struct State {
    /// Number of drains that were asked for.
    pub requested: u64,
    /// The last request that a finished pass answered.
    pub finished: u64,
    /// What was said with those requests that no pass has begun to answer, and the number of the
    /// last one of each: those of one place are answered together, by one pass.
    pub asked: VecDeque<(u64, Told)>,
    /// Errands that wait.
    pub errands: Vec<Errand>,
    /// What the drain is doing.
    pub phase: Phase,
    /// Where it drains to.
    pub persist: Option<PathBuf>,
    /// The last pass that went through and was one to the persist directory's own places.
    pub last: Outcome,
    /// The same to a directory beside them.
    pub last_aside: Outcome,
    /// When the last image that became whole was begun.
    pub imaged: Option<Instant>,
    /// Why the one after that did not.
    pub image_trouble: Option<String>,
    /// See [`Outcome::unsteady`].
    pub image_unsteady: Vec<FilePath>,
    /// Why the last pass did not, if it did not.
    pub trouble: Option<String>,
    /// When it will be tried again.
    pub retry_at: Option<Instant>,
    /// A pass is due although no file has changed.
    pub looks_again: bool,
    /// Who waits for space, and what was given up.
    pub space: SpaceState,
    /// How far absent files were brought.
    pub bringing: BringState,
    /// Nothing is left to do until something changes.
    pub settled: bool,
    /// What is to be expected at the end of the job's time.
    pub forecast: Option<Forecast>,
}

impl State {
    /// What became of an image that was begun at `began`.
    pub fn note_image(&mut self, began: Instant, outcome: &Result<Outcome>) {
        self.image_trouble = match outcome {
            Ok(outcome) if outcome.complete => None,
            Ok(outcome) => Some(match outcome.failed.first() {
                Some(failed) => format!("{}: {}", failed.path, failed.reason),
                None => "some of its files could not be copied".to_string(),
            }),
            Err(error) => Some(error.to_string()),
        };
        if let (None, Ok(outcome)) = (&self.image_trouble, outcome) {
            self.imaged = Some(began);
            self.image_unsteady = outcome.unsteady.clone();
        }
    }

    /// Asks for a drain; its number.
    pub fn request(&mut self, told: Told) -> u64 {
        self.requested += 1;
        self.settled = false;
        match self.asked.back_mut() {
            Some((number, asked)) if asked.delivery.is_aside() == told.delivery.is_aside() => {
                *number = self.requested;
                asked.add(told);
            }
            _ => self.asked.push_back((self.requested, told)),
        }
        self.requested
    }
}

/// The namespaces of the store that are known.
#[derive(Default)]
struct Volumes {
    open: BTreeMap<String, Arc<Volume>>,
    unreadable: BTreeMap<String, String>,
}

/// Shared by all threads of an agent.
pub struct Shared {
    directory: PathBuf,
    /// Where namespaces come from; locked by who opens them, which may take as long as a remote
    /// tier does not answer.
    source: Mutex<(Store, Scope)>,
    volumes: Mutex<Volumes>,
    board: Board<State>,
    stopped: OwnedFd,
    reaping: Mutex<()>,
    recorder: Mutex<Recorder>,
    /// How far the drain has got; also carries the wish to stop it.
    pub meter: Meter,
    /// Where the archive is asked for, and says how it stands.
    pub(crate) archive: Desk,
    /// Set once; ends every thread.
    pub stopping: AtomicBool,
    /// A thread has panicked: what it was doing may never end.
    failed: AtomicBool,
    /// Open connections.
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

/// A poisoned lock belongs to a thread that panicked while only plain values were changed: they are
/// still whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// For the store in `directory`.
    pub fn new(directory: &Path, job: &Job) -> Result<Shared> {
        let state = State { persist: job.persist.clone(), ..State::default() };
        let stopped = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)
            .map_err(Error::file("watch over", directory))?;
        Ok(Shared {
            directory: directory.to_path_buf(),
            source: Mutex::new((Store::open(directory)?, job.scope)),
            volumes: Mutex::default(),
            board: Board::new(state),
            stopped,
            reaping: Mutex::new(()),
            recorder: Mutex::new(Recorder::new(directory, job)),
            meter: Meter::default(),
            archive: Desk::default(),
            stopping: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            connections: AtomicUsize::new(0),
        })
    }

    /// Goes by what `job` says of the drain's pace and of space from now on.
    pub fn take_up(&self, job: &Job) {
        crate::model::log::set_level(job.log);
        self.meter.pace.set(&job.drain);
        self.state().space.set(&job.space);
        self.archive.go_by(&job.archive);
    }

    /// The archive is owed other checkpoints: the drain looks what need not be kept any more, if
    /// anything is given up at all.
    pub fn look_again(&self) {
        let mut state = self.state();
        state.looks_again |= state.space.retains();
        drop(state);
        self.notify();
    }

    /// The store's directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The state, locked.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.board.state()
    }

    /// What records the timeline, locked.
    pub fn recorder(&self) -> MutexGuard<'_, Recorder> {
        lock(&self.recorder)
    }

    /// Tells every waiting thread that the state changed.
    pub fn notify(&self) {
        self.board.notify();
    }

    /// Waits for a change of the state, at most so long.
    pub fn wait<'a>(
        &self,
        state: MutexGuard<'a, State>,
        timeout: Duration,
    ) -> MutexGuard<'a, State> {
        self.board.wait(state, timeout)
    }

    /// Waits so long, or until the agent ends.
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

    /// A descriptor that becomes readable when the agent ends.
    pub fn stopped(&self) -> &OwnedFd {
        &self.stopped
    }

    /// Ends all threads.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        self.meter.stop();
        // Whoever waits for it only looks less often if this fails.
        let _ = rustix::io::write(&self.stopped, &1_u64.to_ne_bytes());
        // Taken and released, so that a thread that is about to wait has seen the flag or hears the
        // call.
        drop(self.state());
        self.notify();
        drop(self.archive.state());
        self.archive.notify();
    }

    /// For a thread of the agent: if it panics, the agent ends, and the next one that is needed
    /// begins anew.
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

    /// Opens namespaces that came to be since the last time. Those that cannot be opened are tried
    /// every time.
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

    /// Asks for a drain, before which whatever gives way ends; its number.
    pub fn request(&self, told: Told) -> u64 {
        let mut state = self.state();
        self.meter.note_asked(true);
        state.request(told)
    }

    /// The namespaces, and whether these are all.
    pub fn volumes(&self) -> (Vec<Arc<Volume>>, bool) {
        let volumes = lock(&self.volumes);
        (volumes.open.values().cloned().collect(), volumes.unreadable.is_empty())
    }

    /// Reaps the dead of every namespace; the number of other processes that live.
    pub fn reap(&self) -> Result<usize> {
        let _alone = lock(&self.reaping);
        let mut living = 0;
        for volume in self.volumes().0 {
            let found = reaper::visit(&volume)?.living;
            // Else it would be made again and again.
            if found == 0 && self.state().settled {
                let failed = volume.error("look after the metadata of", &FilePath::root());
                volume.fs().sum_metadata(Some(volume.slot())).map_err(failed)?;
            }
            living += found;
        }
        Ok(living)
    }

    /// Removes what is left of locks on files that are gone.
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

    /// How things stand, for whoever asks.
    pub fn status(&self) -> Status {
        let unreadable = lock(&self.volumes).unreadable.values().cloned().collect();
        let volumes = self.volumes().0;
        let silent = volumes.iter().flat_map(|volume| volume.silent_tiers(STALLED)).collect();
        let is_off_duty = is_off_duty(self);
        bring::forget_failures(self);
        let state = self.state();
        let now = Instant::now();
        let progress = self.meter.progress();
        let retry_in = state.retry_at.map(|at| at.saturating_duration_since(now).as_millis());
        Status {
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_string(),
            persist: state.persist.clone(),
            image_trouble: state.image_trouble.clone(),
            image_unsteady: state.image_unsteady.clone(),
            image_age_ms: state.imaged.map(|begun| begun.elapsed().as_millis() as u64),
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
    use crate::drain::checkpoints::Delivery;
    use crate::test_store::TestStore;

    /// Mechanism: what was said with requests was added up until a pass began. Consequence: one for
    /// an image, and the end of a run, were answered by one pass, to the image: the run's files
    /// were in their places as far as anybody was told, and were not. Fix: each place has passes of
    /// its own.
    #[test]
    fn image_and_end_of_a_run_are_answered_by_passes_of_their_own() {
        let mut state = State::default();
        let image = Told { delivery: Delivery::Image, ..Told::default() };
        let end = Told { succeeded: Some(true), ..Told::default() };
        let as_is = Told { delivery: Delivery::AsIs, ..Told::default() };
        let numbers = [image, end, as_is, image, image].map(|told| state.request(told));
        assert_eq!(numbers, [1, 2, 3, 4, 5]);
        let both = Told { succeeded: Some(true), ..as_is };
        assert_eq!(state.asked, [(1, image), (3, both), (5, image)]);
    }

    /// Mechanism: the agent went on without a thread that had panicked, and whoever waited for what
    /// that did waited for ever.
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

    /// Mechanism: the lock of the known namespaces was held while another was opened. Consequence:
    /// a remote tier that did not answer kept all who looked at the others waiting.
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
