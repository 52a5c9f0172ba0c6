//! Slots of a site: nodes and jobs that share a directory copy to or from the parallel file system
//! in turn, a few at a time, so that each is done early (echofs, table III).
//!
//! A slot is a file of the directory, `cairn-slot.in.N` or `cairn-slot.out.N`: most networks carry
//! both directions at full speed, so each has its own slots. Who has it writes a new text into it
//! every few seconds. A slot whose text does not change for a while belongs to nobody: a dead
//! holder never blocks. Only the waiter's own clock counts.
//!
//! Must stay true: slots order work and decide nothing else. If two processes have the same slot
//! for a moment, or the directory is gone, data are copied all the same.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::model::policy::SlotPolicy;
use crate::model::store_file;

/// How often a holder shows that it lives.
const RENEW_EVERY: Duration = Duration::from_secs(3);
/// A slot whose text is the same for this long is free.
const STALE_AFTER: Duration = Duration::from_secs(20);
/// Pauses between attempts: a directory that a thousand nodes share must bear them.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Longest text of a slot that is read, in bytes.
const TEXT_BYTES_MAX: usize = 4096;

/// Number of names that this process has made up.
static MADE: AtomicU64 = AtomicU64::new(0);

/// Where data go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the parallel file system to the node.
    In,
    /// From the node to the parallel file system.
    Out,
}

/// A wait for a slot.
pub struct SlotWait {
    policy: SlotPolicy,
    direction: Direction,
    /// For a person: who waits, and then has the slot.
    holder: String,
    /// For each slot, the text found last, and when it was first found.
    seen: Vec<Option<(Vec<u8>, Instant)>>,
    /// Pause before the next attempt.
    pause: Duration,
}

/// A slot that this process has, until it is dropped.
#[derive(Debug)]
pub struct Slot {
    path: PathBuf,
    /// None if the file of a dead holder could not be replaced.
    file: Option<File>,
    holder: String,
    renewed_at: Instant,
}

impl SlotWait {
    /// Begins to wait on behalf of `job`.
    pub fn new(policy: &SlotPolicy, direction: Direction, job: &str) -> SlotWait {
        let holder = format!("job {job} on {}", host());
        let seen = (0..policy.count.get()).map(|_| None).collect();
        SlotWait { policy: policy.clone(), direction, holder, seen, pause: PAUSE_MIN }
    }

    /// Takes a slot if one is free. Errors: the directory cannot be used.
    pub fn try_take(&mut self) -> io::Result<Option<Slot>> {
        for number in 0..self.seen.len() {
            let direction = match self.direction {
                Direction::In => "in",
                Direction::Out => "out",
            };
            let name = format!("cairn-slot.{direction}.{number}");
            let path = self.policy.directory.join(name);
            let text = match store_file::read(&path, TEXT_BYTES_MAX) {
                Ok(text) => text,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    match self.make(&path)? {
                        Some(slot) => return Ok(Some(slot)),
                        // Another waiter was faster.
                        None => continue,
                    }
                }
                // Whatever it is, it does not change, so it counts as stale in a while.
                Err(_) => Vec::new(),
            };
            match &self.seen[number] {
                Some((known, since)) if *known == text => {
                    if since.elapsed() >= STALE_AFTER {
                        if let Some(slot) = self.take_over(&path, &text)? {
                            return Ok(Some(slot));
                        }
                        self.seen[number] = None;
                    }
                }
                _ => self.seen[number] = Some((text, Instant::now())),
            }
        }
        Ok(None)
    }

    /// Returns how long to leave the directory alone before the next attempt: longer each time, and
    /// not the same for all who wait.
    pub fn pause(&mut self) -> Duration {
        let mut random = [0_u8; 1];
        // Without the random number, some wait in step.
        let _ = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::NONBLOCK);
        let pause = self.pause;
        self.pause = (pause * 3 / 2).min(PAUSE_MAX);
        pause * (192 + u32::from(random[0]) / 2) / 256
    }

    /// Returns who has the slots, for a person, as of the last attempt.
    pub fn holders(&self) -> String {
        let texts = self.seen.iter().flatten();
        let shown = texts.filter_map(|(text, _)| {
            let text = String::from_utf8_lossy(text);
            text.lines().next().map(str::to_string).filter(|line| !line.is_empty())
        });
        let shown: Vec<String> = shown.collect();
        if shown.is_empty() { "somebody".to_string() } else { shown.join(", ") }
    }

    /// Makes the file of a slot; None if there is one. It appears with its text.
    fn make(&self, path: &Path) -> io::Result<Option<Slot>> {
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!(".cairn-slot.{}.{}.{number}", host(), process::id());
        let temporary = path.with_file_name(name);
        // A killed process of the same number may have left one.
        let _ = fs::remove_file(&temporary);
        let mut options = File::options();
        let mut file =
            options.read(true).write(true).create_new(true).mode(0o644).open(&temporary)?;
        // Whoever waits reads it, whatever the umask.
        let made = file
            .set_permissions(Permissions::from_mode(0o644))
            .and_then(|()| file.write_all(text(&self.holder, 0).as_bytes()))
            .and_then(|()| file.sync_data())
            .and_then(|()| fs::hard_link(&temporary, path));
        let _ = fs::remove_file(&temporary);
        match made {
            Ok(()) => {
                let (path, holder) = (path.to_path_buf(), self.holder.clone());
                Ok(Some(Slot { path, file: Some(file), holder, renewed_at: Instant::now() }))
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Takes the slot of a dead holder, whose text is `stale`. None: somebody else did.
    fn take_over(&self, path: &Path, stale: &[u8]) -> io::Result<Option<Slot>> {
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!(".cairn-slot.stale.{}.{}.{number}", host(), process::id());
        let aside = path.with_file_name(name);
        match fs::rename(path, &aside) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return self.make(path),
            // The file of another user, in a directory where only he can remove it: he is gone, so
            // his slot is free all the same.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let (path, holder) = (path.to_path_buf(), self.holder.clone());
                return Ok(Some(Slot { path, file: None, holder, renewed_at: Instant::now() }));
            }
            renamed => renamed?,
        }
        if store_file::read(&aside, TEXT_BYTES_MAX).is_ok_and(|text| text != stale) {
            // Another waiter was faster, and this is the file of its living slot.
            let _ = fs::hard_link(&aside, path);
            let _ = fs::remove_file(&aside);
            return Ok(None);
        }
        let _ = fs::remove_file(&aside);
        self.make(path)
    }
}

impl Slot {
    /// Shows that this process lives, now and then. Must be called often while the slot is used.
    /// Returns false if the slot was taken from it, because it did not do so for a while.
    pub fn renew(&mut self) -> bool {
        let Some(file) = self.file.as_ref().filter(|_| self.renewed_at.elapsed() >= RENEW_EVERY)
        else {
            return true;
        };
        self.renewed_at = Instant::now();
        let is_there = is_same(file, &self.path);
        if is_there {
            let number = MADE.fetch_add(1, Ordering::Relaxed) + 1;
            // If this fails, others take the slot in a while, which does no harm.
            let _ = file.write_all_at(text(&self.holder, number).as_bytes(), 0);
            let _ = file.sync_data();
        }
        is_there
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if self.file.as_ref().is_some_and(|file| is_same(file, &self.path)) {
            // If this fails, others take it in a while.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Name of this node.
fn host() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    name.replace('/', "_")
}

/// Whether `path` leads to `file`.
fn is_same(file: &File, path: &Path) -> bool {
    let key = |found: fs::Metadata| (found.dev(), found.ino());
    let ours = file.metadata().map(key).ok();
    ours.is_some() && ours == fs::symlink_metadata(path).map(key).ok()
}

/// Text of a slot. All have the same length for one holder.
fn text(holder: &str, number: u64) -> String {
    format!("{holder}\n{} {number:020}\n", process::id())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroU32;

    fn scratch(name: &str, count: u32) -> SlotPolicy {
        let name = format!("cairn-slots-{name}-{}", process::id());
        let directory = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).expect("a scratch directory");
        SlotPolicy { directory, count: NonZeroU32::new(count).expect("some") }
    }

    /// Lets the time pass after which a slot is stale.
    fn age(wait: &mut SlotWait) {
        for (_, since) in wait.seen.iter_mut().flatten() {
            *since -= STALE_AFTER;
        }
    }

    #[test]
    fn there_are_as_many_slots_as_the_policy_says_and_one_that_is_given_up_is_free() {
        let policy = scratch("many", 2);
        let mut wait = SlotWait::new(&policy, Direction::In, "a");
        let first = wait.try_take().expect("the directory is there").expect("is free");
        let second = wait.try_take().expect("the directory is there").expect("is free");
        assert!(wait.try_take().expect("the directory is there").is_none());
        assert!(wait.holders().contains("job a on "), "{}", wait.holders());
        let out = SlotWait::new(&policy, Direction::Out, "a").try_take();
        assert!(out.expect("works").is_some(), "each direction has its own");
        drop(first);
        let third = wait.try_take().expect("the directory is there").expect("is free");
        drop((second, third));
        assert_eq!(fs::read_dir(&policy.directory).expect("lists").count(), 0);
        fs::remove_dir_all(policy.directory).expect("removes");
    }

    #[test]
    fn slot_of_a_dead_holder_is_free_after_a_while_and_that_of_a_living_one_is_not() {
        let policy = scratch("dead", 1);
        let mut wait = SlotWait::new(&policy, Direction::In, "b");
        let mut held =
            SlotWait::new(&policy, Direction::In, "a").try_take().expect("works").expect("is free");
        assert!(wait.try_take().expect("works").is_none());
        held.renewed_at -= RENEW_EVERY;
        assert!(held.renew(), "it is still there");
        age(&mut wait);
        assert!(wait.try_take().expect("works").is_none(), "its text has changed");
        // The holder is stopped, or dead.
        age(&mut wait);
        let taken = wait.try_take().expect("works").expect("is free");
        held.renewed_at -= RENEW_EVERY;
        assert!(!held.renew(), "it was taken");
        drop(held);
        assert!(policy.directory.join("cairn-slot.in.0").exists(), "it belongs to the other one");
        drop(taken);
        assert_eq!(fs::read_dir(&policy.directory).expect("lists").count(), 0);
        fs::remove_dir_all(policy.directory).expect("removes");
    }

    #[test]
    fn living_slot_that_is_taken_by_mistake_is_given_back() {
        let policy = scratch("mistake", 1);
        let mut held =
            SlotWait::new(&policy, Direction::In, "a").try_take().expect("works").expect("is free");
        let wait = SlotWait::new(&policy, Direction::In, "b");
        let path = policy.directory.join("cairn-slot.in.0");
        assert!(wait.take_over(&path, b"an earlier text").expect("works").is_none());
        held.renewed_at -= RENEW_EVERY;
        assert!(held.renew(), "it is there again");
        drop(held);
        fs::remove_dir_all(policy.directory).expect("removes");
    }

    #[test]
    fn directory_that_is_gone_is_an_error_and_what_is_no_slot_is_replaced_in_a_while() {
        let policy = scratch("gone", 1);
        std::os::unix::fs::symlink("nowhere", policy.directory.join("cairn-slot.in.0"))
            .expect("something else");
        let mut wait = SlotWait::new(&policy, Direction::In, "a");
        assert!(wait.try_take().expect("works").is_none());
        age(&mut wait);
        assert!(wait.try_take().expect("works").is_some());
        fs::remove_dir_all(&policy.directory).expect("removes");
        assert!(wait.try_take().is_err());
    }
}
