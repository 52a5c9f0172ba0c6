//! Read-ahead: predicts which bytes a program reads next, so that a device fetches them while the
//! program works on earlier ones.
//!
//! A sequential reader is followed, farther ahead the longer it goes on. The notes belong to this
//! process and may be lost or mixed up: a wrong one costs a transfer, never a wrong byte.
//!
//! Does not read; devices that can do.

use core::sync::atomic::{AtomicU64, Ordering};

use cairn_core::{Caller, HandleId, Position, ReadPlan};

use crate::mount::Mount;

/// Number of descriptions followed at a time.
const STREAMS: usize = 16;
/// Shortest first read, in bytes, that counts as the start of sequential reading.
const LARGE_BYTES: u64 = 128 << 10;
/// Farthest distance ahead of the program that a device is asked to fetch, in bytes.
const AHEAD_BYTES: u64 = 4 << 20;

/// One description that is being read.
struct Stream {
    handle: AtomicU64,
    /// Offset at which the sequence began, and the offset of the next read in sequence.
    start: AtomicU64,
    next: AtomicU64,
    /// End of the range that devices were asked to fetch.
    asked: AtomicU64,
}

static FOLLOWED: [Stream; STREAMS] = [const { Stream::none() }; STREAMS];

impl Stream {
    const fn none() -> Stream {
        Stream {
            handle: AtomicU64::new(u64::MAX),
            start: AtomicU64::new(0),
            next: AtomicU64::new(0),
            asked: AtomicU64::new(0),
        }
    }
}

/// Records a read that is about to be made, and asks devices for the bytes that follow it.
pub fn follow(mount: &Mount, caller: &Caller, handle: HandleId, plan: &ReadPlan) {
    let last = plan.runs().last().and_then(|run| run.source);
    let Some((tier, _)) = last else { return };
    if !mount.tier(tier).is_ok_and(|device| device.reads_ahead()) {
        return;
    }
    let Some((from, length)) = note(handle, plan.offset, plan.length) else { return };
    let Ok(next) = mount.fs().plan_read(caller, handle, Position::At(from), length) else { return };
    for run in next.runs() {
        let Some((tier, offset)) = run.source else { continue };
        if let Ok(device) = mount.tier(tier) {
            device.want(offset, run.bytes as usize);
        }
    }
}

/// Records a read of `length` bytes at `offset`. Returns the offset and length to fetch, if any.
fn note(handle: HandleId, offset: u64, length: u64) -> Option<(u64, u64)> {
    let stream = &FOLLOWED[handle.0 as usize % STREAMS];
    let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
    let store = |word: &AtomicU64, value| word.store(value, Ordering::Relaxed);
    let end = offset.saturating_add(length);
    let goes_on = load(&stream.handle) == u64::from(handle.0) && load(&stream.next) == offset;
    if !goes_on {
        store(&stream.handle, u64::from(handle.0));
        store(&stream.start, offset);
        store(&stream.asked, end);
    }
    store(&stream.next, end);
    if !goes_on && length < LARGE_BYTES {
        return None;
    }
    let ahead = (end - load(&stream.start).min(end)).min(AHEAD_BYTES);
    let asked = load(&stream.asked).max(end);
    let left = (end + ahead).saturating_sub(asked);
    // Ask only for pieces large enough to be worth a transfer.
    if left < ahead.div_ceil(2) {
        return None;
    }
    store(&stream.asked, asked + left);
    Some((asked, left))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_reads_on_is_followed_ever_farther_ahead() {
        let handle = HandleId(3);
        assert_eq!(note(handle, 0, 100), None, "it may only look at the head");
        assert_eq!(note(handle, 100, 100), Some((200, 200)));
        assert_eq!(note(handle, 200, 100), Some((400, 200)));
        assert_eq!(note(handle, 300, 100), Some((600, 200)));
        assert_eq!(note(handle, 400, 1 << 20), Some((1_048_976, 1_048_976)));
        assert_eq!(note(handle, 1_048_976, 16 << 20), Some((17_826_192, AHEAD_BYTES)));
        assert_eq!(note(handle, 17_826_192, 1 << 20), None, "half of it is still ahead");
        assert_eq!(note(handle, 5, 100), None, "somewhere else");
    }

    #[test]
    fn large_first_read_is_taken_for_the_beginning_of_more() {
        assert_eq!(note(HandleId(4), 0, LARGE_BYTES), Some((LARGE_BYTES, LARGE_BYTES)));
        assert_eq!(note(HandleId(4 + STREAMS as u32), 0, 1), None, "another in its place");
        assert_eq!(note(HandleId(4), LARGE_BYTES, 1), None, "it is forgotten");
    }
}
