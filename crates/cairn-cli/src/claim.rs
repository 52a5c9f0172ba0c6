//! A store that a command uses exclusively: its run lock, its agent, its description.
//!
//! Must stay true: one `cairn run` at a time uses a store (`run.lock`). A store is removed only
//! after its agent has ended, so that nobody drains files that are being removed. A run that holds
//! the lock marks it as a run's. Any other holder only looks at the store or removes it; a run
//! waits for such a holder, however long that takes on a busy machine.
//!
//! Does not make stores nor resume them; `create/obtain.rs` does.

use cairn_agent::agent::client::Client;
use cairn_agent::model::job::{AGENT_LOCK, Job, RUN_LOCK};
use cairn_agent::model::lock;
use cairn_agent::persist::ownership;
use cairn_device::Store;
use cairn_device::store::TierLocks;
use cairn_device::store::notes::{self, Kind, NOTES_FILE, Note};
use cairn_platform::sys;
use std::cell::OnceCell;
use std::fs::File;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use crate::error::{Error, Result, StoreError};
use crate::mount::place;
use crate::output::waiting::SAID_AFTER;
use crate::store::creation::is_abandoned_creation;
use crate::store::{OpenStore, removal};

/// How long to wait for the run lock of a run, which may be just about to end.
const LOCK_PATIENCE: Duration = Duration::from_millis(300);
/// Maximum time for an agent to end.
const AGENT_PATIENCE: Duration = Duration::from_secs(30);
/// Interval between two checks of a condition that is waited for.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// A store that this process uses exclusively.
pub struct Claim {
    /// The store.
    pub store: OpenStore,
    /// Whether this process created the store, and not from tiers of an earlier store: removing it
    /// loses nothing.
    pub is_new: bool,
    lock: File,
    /// Locks of its tiers, held once its agent has ended.
    locks: OnceCell<TierLocks>,
}

impl Claim {
    /// Returns the claim of whoever has the run lock of `store`.
    pub fn of(store: OpenStore, is_new: bool, lock: File) -> Claim {
        Claim { store, is_new, lock, locks: OnceCell::new() }
    }

    /// Notes something as programs do.
    pub fn note(&self, kind: Kind, number: u64, text: Vec<u8>) -> Result<()> {
        let directory = self.store.directory();
        let (time_ns, pid) = (sys::now().0, std::process::id());
        let note = Note { time_ns, pid, rank: None, kind, number, text };
        let noted = notes::append(Store::open(directory)?.directory().raw(), &note);
        let failed = |errno: sys::Errno| std::io::Error::from_raw_os_error(errno.0);
        noted.map_err(failed).map_err(Error::file("write to", &directory.join(NOTES_FILE)))
    }

    /// Whether a successful run of `command` ends the job: no run of another executable has failed
    /// and is still to be repeated.
    pub fn may_end_by(&self, command: &[String]) -> bool {
        let pending = self.store.job.pending.as_ref();
        pending.is_none_or(|pending| Job::executable(command).as_ref() == Some(pending))
    }

    /// Records that no earlier run is left to be repeated.
    pub fn note_end(&mut self) -> Result<()> {
        if self.store.job.pending.take().is_some() {
            self.store.job.save(self.store.directory())?;
        }
        Ok(())
    }

    /// Replaces the store's description if it changed.
    pub(crate) fn save(&mut self, job: Job) -> Result<()> {
        if job != self.store.job {
            job.save(self.store.directory())?;
            self.store.job = job;
        }
        Ok(())
    }

    /// Returns the run lock.
    pub fn lock(&self) -> &File {
        &self.lock
    }

    /// Ends the agent. Returns false if it does not end. The locks of the tiers pass to this claim
    /// until the store is removed.
    pub fn end_agent(&self) -> Result<bool> {
        if self.locks.get().is_none() {
            let _ = self.locks.set(Store::open(self.store.directory())?.lock_tiers());
        }
        let directory = self.store.directory();
        let has_ended = || Ok((!lock::is_locked(directory, AGENT_LOCK)?).then_some(()));
        Ok(self.stop_agent_until(has_ended)?.is_some())
    }

    /// Ends the agent. No other one can start while the returned file is open. Errors: the agent
    /// does not end.
    pub fn without_agent(&self) -> Result<File> {
        let directory = self.store.directory();
        let lock = self.stop_agent_until(|| Ok(lock::try_lock(directory, AGENT_LOCK)?))?;
        let late = || std::io::Error::from_raw_os_error(libc::ETIMEDOUT);
        lock.ok_or_else(|| Error::file("end the agent of", directory)(late()))
    }

    /// Tells agents to end until `wanted` returns something; None after the time limit.
    fn stop_agent_until<T>(&self, wanted: impl Fn() -> Result<Option<T>>) -> Result<Option<T>> {
        let started = Instant::now();
        loop {
            let found = wanted()?;
            if found.is_some() || started.elapsed() >= AGENT_PATIENCE {
                return Ok(found);
            }
            if let Some(mut agent) = Client::connect(self.store.directory()) {
                // An agent that closes the connection is ending already.
                let _ = agent.stop();
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    /// Ends the agent and removes the store with everything in it. Reports which tiers stay.
    pub fn remove(mut self) -> Result<()> {
        // Whoever still uses a mount of it sees an empty directory from now on.
        place::detach(self.store.directory())?;
        // An agent that does not end finds its store gone and gives up.
        self.end_agent()?;
        let job = &self.store.job;
        job.persist.iter().for_each(|persist| ownership::give_back(persist, job));
        let locks = self.locks.take().unwrap_or_default();
        let left = Store::open(self.store.directory())?.remove_locked(locks)?;
        removal::say_left(&self.store.job.job, &left);
        Ok(())
    }
}

/// Removes the directory of a store whose creation was cut off. Returns false if it is not one, or
/// if a process is creating a store in it.
pub fn remove_unbegun(directory: &Path, job: &str) -> Result<bool> {
    if !is_abandoned_creation(directory)? {
        return Ok(false);
    }
    let _lock = match take_lock(directory, job) {
        Err(Error::Store(StoreError::Running { .. })) => return Ok(false),
        lock => lock?,
    };
    let is_one = is_abandoned_creation(directory)?;
    if is_one {
        Store::open(directory)?.remove()?;
    }
    Ok(is_one)
}

/// Takes the run lock of a store for a run. Errors: another run has it.
pub fn lock(directory: &Path, job: &str) -> Result<File> {
    let lock = take_lock(directory, job)?;
    lock::mark_as_run(&lock).map_err(Error::file("lock", &directory.join(RUN_LOCK)))?;
    Ok(lock)
}

fn take_lock(directory: &Path, job: &str) -> Result<File> {
    let started = Instant::now();
    let mut is_said = false;
    loop {
        if let Some(lock) = lock::try_lock(directory, RUN_LOCK)? {
            return Ok(lock);
        }
        let waited = started.elapsed();
        if waited > LOCK_PATIENCE && lock::has_run(directory, RUN_LOCK)? {
            return Err(Error::Store(StoreError::Running { job: job.to_string() }));
        }
        if waited > SAID_AFTER && !is_said {
            is_said = true;
            crate::output::say!(
                "cairn: {job}: waiting for a command that looks at the store, or removes it"
            );
        }
        thread::sleep(LOOK_EVERY);
    }
}

/// Takes exclusive use of an existing store, to look at it or remove it.
pub fn claim_existing(store: OpenStore) -> Result<Claim> {
    let lock = take_lock(store.directory(), &store.job.job)?;
    Ok(Claim::of(store, false, lock))
}

/// Returns a random identifier, different for every store.
pub fn random_hex() -> String {
    random_bytes::<8>().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns bytes that are hardly ever the same twice.
pub fn random_bytes<const COUNT: usize>() -> [u8; COUNT] {
    let mut bytes = [0; COUNT];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    if filled.is_err() {
        // Names need not be secret, only unique.
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let mixed = now.as_nanos() ^ u128::from(std::process::id()) << 64;
        for (byte, mixed) in bytes.iter_mut().zip(mixed.to_le_bytes()) {
            *byte = mixed;
        }
    }
    bytes
}
