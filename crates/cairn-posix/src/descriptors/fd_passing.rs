//! Descriptors of ours that travel over sockets.
//!
//! The sender puts a token in the place of each, see `cairn_device::Namespace::launch`; what is
//! received becomes a placeholder again before the application knows its number.
//! Invariant: a description has a reference all the way: its sender's, its own on the way, its
//! receiver's.

use core::sync::atomic::{AtomicI32, Ordering};

use cairn_core::HandleId;
use cairn_device::descriptor::Descriptor;
use cairn_device::sys;

use crate::descriptors::{descriptor, placeholder, table};
use crate::error::{Errno, Result};
use crate::mount::{self, Mount};

/// Tokens of this process that a forked child is to let go of; of further ones it has copies until
/// it ends or executes.
const HELD_MAX: usize = 256;

/// Number + 1 of each token that is being sent; 0 is free.
static HELD: [AtomicI32; HELD_MAX] = [const { AtomicI32::new(0) }; HELD_MAX];

/// What is sent for a descriptor of ours. Dropped when it is sent, or was not.
pub struct Token {
    descriptor: Descriptor,
    held: Option<&'static AtomicI32>,
}

impl Token {
    /// A token for what `descriptor` refers to. Errors: `EBADF` if it is not ours, `EMFILE`,
    /// `ENFILE`.
    pub fn of(descriptor: i32) -> Result<Token> {
        let handle = table::lookup(descriptor).ok_or(Errno(libc::EBADF))?;
        let descriptor = mount::current()?.launch(handle)?;
        let note = descriptor.raw() + 1;
        let free = |place: &&AtomicI32| {
            place.compare_exchange(0, note, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        Ok(Token { held: HELD.iter().find(free), descriptor })
    }

    /// The number to send.
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

/// In a child just forked: what other threads of its parent are sending is not the child's.
pub(crate) fn forked() {
    for place in &HELD {
        if let Some(number) = place.swap(0, Ordering::Relaxed).checked_sub(1).filter(|&at| at >= 0)
        {
            let _ = sys::close(number);
        }
    }
}

/// The kernel gave `descriptor` to something that was received from another process; if it is ours,
/// it is entered.
pub fn received(descriptor: i32) {
    descriptor::claimed(descriptor);
    placeholder::classify(descriptor);
}

/// Whether these are the attributes of a token of our store.
pub(crate) fn is_token(mode: u32, device: u64) -> bool {
    mode & libc::S_IFMT == libc::S_IFIFO && placeholder::store_device() == Some(device)
}

/// Enters a token that was received, and puts a placeholder in its place. Errors: `EBADF` if it is
/// of another namespace.
pub(crate) fn take(mount: &Mount, descriptor: i32, token: u64) -> Result<HandleId> {
    let found = mount.fs().handle_by_token(token)?;
    let handle = found.ok_or(Errno(libc::EBADF))?;
    table::refer(handle, || Ok(mount.fs().retain(mount.slot(), handle)?))?;
    let replaced = placeholder::replace(mount, handle, descriptor);
    table::put(descriptor, handle)?;
    if replaced.is_ok() {
        // If this fails, the agent does it.
        let _ = mount.land(handle);
    }
    // Else the token stays, of which our hooks make a file as well.
    Ok(handle)
}
