//! The slots of a site (`--slots`), as staging in uses them: one for all files of a job.
//!
//! Must stay true: staging never fails for lack of a slot. Every wait is told, and ends.

use cairn_agent::model::policy::SlotPolicy;
use cairn_agent::persist::slots::{Direction, Slot, SlotWait};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::lock;
use crate::claim::Claim;
use crate::error::Result;
use crate::output::waiting::SAID_AFTER;

/// Longest wait for a slot of the site, and the interval at which its time limit is looked at.
const SLOT_PATIENCE: Duration = Duration::from_secs(600);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Slots of a site, one of which the staging uses.
pub struct Site {
    name: String,
    job: String,
    quiet: bool,
    /// Locked by the thread that waits for a slot.
    wait: Mutex<SlotWait>,
    slot: Mutex<Option<Slot>>,
    has_entered: AtomicBool,
}

impl Site {
    /// The slots of `policy`, for the staging of a job.
    pub fn new(policy: &SlotPolicy, claim: &Claim, quiet: bool) -> Site {
        let SlotPolicy { directory, count } = policy;
        let job = claim.store.job.job.clone();
        Site {
            name: format!("one of {count} slots in {}", directory.display()),
            quiet,
            wait: Mutex::new(SlotWait::new(policy, Direction::In, &job)),
            job,
            slot: Mutex::default(),
            has_entered: AtomicBool::new(false),
        }
    }

    fn say(&self, line: &str) {
        if !self.quiet {
            crate::output::say!("cairn: {}: {line}", self.job);
        }
    }

    /// Waits until a slot is free; only the first call does. `check` ends the wait with its error.
    pub fn enter(&self, check: &dyn Fn() -> Result<()>) -> Result<()> {
        let mut wait = lock(&self.wait);
        if self.has_entered.load(Ordering::Relaxed) {
            return Ok(());
        }
        let begun = Instant::now();
        let mut has_said = false;
        loop {
            match wait.try_take() {
                Ok(Some(slot)) => {
                    *lock(&self.slot) = Some(slot);
                    break;
                }
                Ok(None) if begun.elapsed() >= SLOT_PATIENCE => {
                    self.say(&format!("stages in without {}: the wait is too long", self.name));
                    break;
                }
                Ok(None) => {}
                Err(error) => {
                    self.say(&format!("stages in without {}: {error}", self.name));
                    break;
                }
            }
            if !has_said && begun.elapsed() >= SAID_AFTER {
                has_said = true;
                self.say(&format!("waits for {}, used by {}", self.name, wait.holders()));
            }
            let next = Instant::now() + wait.pause();
            while Instant::now() < next {
                check()?;
                thread::sleep(LOOK_EVERY);
            }
        }
        self.has_entered.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Shows that this process lives. If the slot was taken from it, it goes on without one.
    pub fn renew(&self) {
        let mut slot = lock(&self.slot);
        if slot.as_mut().is_some_and(|slot| !slot.renew()) {
            *slot = None;
        }
    }
}
