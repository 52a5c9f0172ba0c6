//! Descriptors of ours that are sent over sockets.
//!
//! The sender sends a token in place of each, see `cairn_device::Namespace::launch`. The receiver
//! replaces it by a placeholder before the application knows its number.
//!
//! Invariant: the description always has a reference: the sender's, then one of its own while it is
//! on the way, then the receiver's.

use core::sync::atomic::{AtomicI32, Ordering};

use cairn_core::HandleId;
use cairn_platform::descriptor::Descriptor;
use cairn_platform::sys;

use crate::descriptors::placeholder;
use crate::error::{Errno, Result};
use crate::mount::{self, Mount};
use crate::task::table;

/// Most tokens of this process that a forked child can close. Of further ones it has copies until
/// it ends or executes.
const HELD_MAX: usize = 256;

/// Number + 1 of each token that is being sent; 0 if the place is free.
static HELD: [AtomicI32; HELD_MAX] = [const { AtomicI32::new(0) }; HELD_MAX];

/// Token sent in place of a descriptor of ours. Dropped after the send, successful or not.
pub struct Token {
    descriptor: Descriptor,
    held: Option<&'static AtomicI32>,
}

impl Token {
    /// Returns a token for the handle of `descriptor`. Errors: `EBADF` if the descriptor is not
    /// ours, `EMFILE`, `ENFILE`.
    pub fn of(descriptor: i32) -> Result<Token> {
        let handle = table::lookup(descriptor).ok_or(Errno(libc::EBADF))?;
        let descriptor = mount::current()?.launch(handle)?;
        let note = descriptor.raw() + 1;
        let free = |place: &&AtomicI32| {
            place.compare_exchange(0, note, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        Ok(Token { held: HELD.iter().find(free), descriptor })
    }

    /// Descriptor number to send.
    pub fn number(&self) -> i32 {
        self.descriptor.raw()
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        if let Some(place) = self.held {
            place.store(0, Ordering::Relaxed);
        }
    }
}

/// Closes, in a child just forked, the tokens that other threads of its parent are sending.
pub(crate) fn forked() {
    for place in &HELD {
        if let Some(number) = place.swap(0, Ordering::Relaxed).checked_sub(1).filter(|&at| at >= 0)
        {
            let _ = sys::close(number);
        }
    }
}

/// Enters a token that was received, and replaces it by a placeholder. Errors: `EBADF` if it is of
/// another namespace.
pub(crate) fn take(mount: &Mount, descriptor: i32, token: u64) -> Result<HandleId> {
    let found = mount.fs().handle_by_token(token)?;
    let handle = found.ok_or(Errno(libc::EBADF))?;
    table::refer(handle, || Ok(mount.fs().retain(mount.slot(), handle).map(drop)?))?;
    let replaced = placeholder::replace(mount, handle, descriptor);
    table::put(descriptor, handle)?;
    if replaced.is_ok() {
        // If this fails, the agent does the work later.
        let _ = mount.land(handle);
    }
    // If the replacement failed, the token stays; our hooks treat it like a placeholder.
    Ok(handle)
}
