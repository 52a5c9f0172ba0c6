//! The drain's turn: with slots of a site, it copies only while it has one.
//!
//! Must stay true: slots delay copies and never prevent them. A drain that has waited for long, or
//! whose slot directory cannot be used, copies without a slot for a while; so does one on which a
//! program waits for space. Does not know what is copied.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::model::log;
use crate::model::policy::SlotPolicy;
use crate::persist::slots::{Direction, Slot, SlotWait};

/// Longest time for which a slot is kept while others may wait, and how long it is then left to
/// them.
const KEEP_MAX: Duration = Duration::from_secs(30);
const LEAVE: Duration = Duration::from_millis(600);
/// Longest wait for a slot, and for how long the drain then copies without one.
const PATIENCE: Duration = Duration::from_secs(600);
const WITHOUT: Duration = Duration::from_secs(60);

/// The turn of one drain.
#[derive(Default)]
pub struct Turn {
    state: Mutex<State>,
    /// Whether a program waits for space.
    pressed: AtomicBool,
}

#[derive(Default)]
struct State {
    policy: Option<SlotPolicy>,
    wait: Option<SlotWait>,
    slot: Option<Slot>,
    /// When the slot was got.
    got_at: Duration,
    /// No attempt before this time.
    next_try: Duration,
    /// Since when nothing was copied for lack of a slot.
    waiting_since: Option<Duration>,
    /// Until when no slot is needed.
    free_until: Duration,
}

impl Turn {
    fn state(&self) -> MutexGuard<'_, State> {
        // Plain values: a panic leaves them valid.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies the policy of `job` from now on.
    pub fn set(&self, policy: Option<&SlotPolicy>, job: &str) {
        let mut state = self.state();
        if state.policy.as_ref() != policy {
            let wait = policy.map(|policy| SlotWait::new(policy, Direction::Out, job));
            *state = State { policy: policy.cloned(), wait, ..State::default() };
        }
    }

    /// Sets whether a program waits for space that the drain makes.
    pub fn press(&self, pressed: bool) {
        self.pressed.store(pressed, Ordering::Relaxed);
    }

    /// Whether the caller may copy a part at `now`. Must be asked before each part.
    pub fn has(&self, now: Duration) -> bool {
        let mut state = self.state();
        if state.wait.is_none() {
            return true;
        }
        if state.slot.as_mut().is_some_and(|slot| !slot.renew()) {
            state.slot = None;
        }
        if state.slot.is_some() {
            if now.saturating_sub(state.got_at) < KEEP_MAX {
                return true;
            }
            state.slot = None;
            state.next_try = now + LEAVE;
        }
        self.pressed.load(Ordering::Relaxed) || now < state.free_until || state.try_take(now)
    }

    /// Gives the slot up: nothing is left to copy.
    pub fn end(&self) {
        let mut state = self.state();
        (state.slot, state.waiting_since) = (None, None);
    }

    /// Returns what the drain waits for, for a person; None if it does not wait.
    pub fn waits_for(&self) -> Option<String> {
        // The drain has the lock while it asks the directory, which may not answer.
        let Ok(state) = self.state.try_lock() else {
            return Some("an answer of the slot directory".to_string());
        };
        let (policy, wait) = state.policy.as_ref().zip(state.wait.as_ref())?;
        state.waiting_since?;
        let directory = policy.directory.display();
        let count = policy.count;
        Some(format!("one of {count} slots in {directory}, used by {}", wait.holders()))
    }
}

impl State {
    fn try_take(&mut self, now: Duration) -> bool {
        let Some(wait) = self.wait.as_mut().filter(|_| now >= self.next_try) else { return false };
        self.next_try = now + wait.pause();
        let since = *self.waiting_since.get_or_insert(now);
        match wait.try_take() {
            Ok(Some(slot)) => {
                (self.slot, self.got_at, self.waiting_since) = (Some(slot), now, None);
                return true;
            }
            Ok(None) if now.saturating_sub(since) < PATIENCE => return false,
            Ok(None) => {
                let (minutes, holders) = (PATIENCE.as_secs() / 60, wait.holders());
                log::say(
                    log::Level::Warn,
                    format_args!("copies without a slot after {minutes} min; used by {holders}"),
                );
            }
            Err(error) => {
                log::say(
                    log::Level::Warn,
                    format_args!("copies without a slot: cannot use the slot directory: {error}"),
                );
            }
        }
        (self.free_until, self.waiting_since) = (now + WITHOUT, None);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::num::NonZeroU32;

    fn at(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    #[test]
    fn two_drains_take_turns_and_neither_waits_for_ever() {
        let name = format!("cairn-turn-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir_all(&directory).expect("a scratch directory");
        let policy = SlotPolicy { directory: directory.clone(), count: NonZeroU32::MIN };
        let (one, other) = (Turn::default(), Turn::default());
        assert!(one.has(at(1.0)), "without a policy nobody waits");
        one.set(Some(&policy), "one");
        other.set(Some(&policy), "other");
        assert!(one.has(at(2.0)) && !other.has(at(2.0)));
        assert!(other.waits_for().expect("waits").contains("job one on "));
        other.press(true);
        assert!(other.has(at(2.01)), "a program waits for space");
        other.press(false);
        assert!(!other.has(at(3.0)));
        assert!(!one.has(at(32.5)), "it leaves the slot to others for a moment");
        assert!(other.has(at(35.0)) && !one.has(at(36.0)));
        other.end();
        assert!(one.has(at(39.0)), "the other one is done");
        assert!(!other.has(at(40.0)) && !other.has(at(600.0)));
        assert!(other.has(at(641.0)), "it has waited for long");
        assert!(one.waits_for().is_none() && other.waits_for().is_none());
        one.end();
        fs::remove_dir_all(&directory).expect("removes");
        let last = Turn::default();
        last.set(Some(&policy), "last");
        assert!(last.has(at(1.0)), "the directory is gone");
    }
}
